"""Training: the host's loop over compiled chunks of rounds, and its results."""

from fedjax_fair.training.centralized import Centralized
from fedjax_fair.training.fit import fit
from fedjax_fair.training.fit_result import FitResult
from fedjax_fair.training.loop import Callback, DivergenceError, Evaluation, MemoryLimitError

__all__ = [
    "Callback", "Centralized", "DivergenceError", "Evaluation", "FitResult", "MemoryLimitError",
    "fit",
]  # fmt: skip
