"""Fair federated learning as one compiled JAX program."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedjax_fair import (
        aggregators,
        data,
        faults,
        metrics,
        models,
        parallel,
        report,
        results,
        selectors,
        solvers,
        submodular,
        uploads,
    )
    from fedjax_fair.app.sweep import sweep
    from fedjax_fair.simulate import make_round, run
    from fedjax_fair.training import (
        Callback,
        Fitted,
        SimulationError,
        fit,
        fit_batch,
        make_centralized,
        train,
    )

__all__ = [
    "Callback",
    "Fitted",
    "SimulationError",
    "aggregators",
    "data",
    "faults",
    "fit",
    "fit_batch",
    "make_centralized",
    "make_round",
    "metrics",
    "models",
    "parallel",
    "report",
    "results",
    "run",
    "selectors",
    "solvers",
    "submodular",
    "sweep",
    "train",
    "uploads",
]

_MODULE_OF = {
    "Callback": "training",
    "Fitted": "training",
    "SimulationError": "training",
    "fit": "training",
    "fit_batch": "training",
    "make_centralized": "training",
    "make_round": "simulate",
    "run": "simulate",
    "train": "training",
    "sweep": "app.sweep",
}


def __getattr__(name: str) -> object:
    """Imports a public name when it is first used, so that each part can be imported alone."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _MODULE_OF:
        return import_module(f"{__name__}.{name}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
