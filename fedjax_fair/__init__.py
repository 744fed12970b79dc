"""Fair federated learning as one compiled JAX program."""

from importlib import import_module
from typing import TYPE_CHECKING

from fedjax_fair.utils.version import __version__ as __version__

if TYPE_CHECKING:
    from fedjax_fair import (
        aggregators,
        analysis,
        communication,
        data,
        faults,
        metrics,
        models,
        parallel,
        report,
        results,
        schedules,
        selectors,
        server_optimizers,
        solvers,
        submodular,
        timing,
    )
    from fedjax_fair.app.build import load_model
    from fedjax_fair.app.sweep import sweep
    from fedjax_fair.roles import (
        Aggregation,
        Aggregator,
        Cohort,
        Faults,
        LocalResult,
        Model,
        Selector,
        Solver,
        Variables,
    )
    from fedjax_fair.rounds.round import Round, run
    from fedjax_fair.training import Callback, Centralized, DivergenceError, FitResult, fit
    from fedjax_fair.training.executable_cache import enable_compilation_cache
    from fedjax_fair.utils.tree import Integer, Number

__all__ = [
    "Aggregation",
    "Aggregator",
    "Callback",
    "Centralized",
    "Cohort",
    "DivergenceError",
    "Faults",
    "FitResult",
    "Integer",
    "LocalResult",
    "Model",
    "Number",
    "Round",
    "Selector",
    "Solver",
    "Variables",
    "aggregators",
    "analysis",
    "communication",
    "data",
    "enable_compilation_cache",
    "faults",
    "fit",
    "load_model",
    "metrics",
    "models",
    "parallel",
    "report",
    "results",
    "run",
    "schedules",
    "selectors",
    "server_optimizers",
    "solvers",
    "submodular",
    "sweep",
    "timing",
]

_NAMES_OF = {
    "app.build": "load_model",
    "app.sweep": "sweep",
    "roles": "Aggregation Aggregator Cohort Faults LocalResult Model Selector Solver Variables",
    "rounds.round": "Round run",
    "training": "Callback Centralized DivergenceError FitResult fit",
    "training.executable_cache": "enable_compilation_cache",
    "utils.tree": "Integer Number",
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Imports a public name at its first use, so that each part can be imported alone."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _MODULE_OF:
        return import_module(f"{__name__}.{name}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
