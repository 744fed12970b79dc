"""Fair federated learning as one compiled JAX program."""

from fedjax_fair import aggregators, data, metrics, models, report, results, selectors, solvers
from fedjax_fair.centralised import make_centralised
from fedjax_fair.simulate import make_round, run
from fedjax_fair.sweep import sweep
from fedjax_fair.training import Callback, SimulationError, fit

__all__ = [
    "Callback",
    "SimulationError",
    "aggregators",
    "data",
    "fit",
    "make_centralised",
    "make_round",
    "metrics",
    "models",
    "report",
    "results",
    "run",
    "selectors",
    "solvers",
    "sweep",
]
