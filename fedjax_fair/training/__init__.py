"""Training: the host's loop over compiled chunks of rounds, and what it keeps."""

from fedjax_fair.training.centralized import Centralized
from fedjax_fair.training.fit import (
    Callback,
    Evaluation,
    MemoryLimitError,
    DivergenceError,
    fit,
    fit_batch,
    train,
)
from fedjax_fair.training.fit_result import FitResult

__all__ = [
    "Callback",
    "Centralized",
    "Evaluation",
    "FitResult",
    "MemoryLimitError",
    "DivergenceError",
    "fit",
    "fit_batch",
    "train",
]
