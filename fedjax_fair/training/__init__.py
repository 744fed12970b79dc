"""Training: the host's loop over compiled chunks of rounds, and its results."""

from fedjax_fair.training.centralized import Centralized
from fedjax_fair.training.fit import (
    Callback,
    DivergenceError,
    Evaluation,
    MemoryLimitError,
    fit,
    fit_batch,
    train,
    train_batch,
)
from fedjax_fair.training.fit_result import FitResult

__all__ = [
    "Callback", "Centralized", "DivergenceError", "Evaluation", "FitResult", "MemoryLimitError",
    "fit", "fit_batch", "train", "train_batch",
]  # fmt: skip
