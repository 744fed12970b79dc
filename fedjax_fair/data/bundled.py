"""Data sets that come with an installed library and need no files."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

__all__ = ["BUNDLED", "Examples", "Splits"]


class Examples(NamedTuple):
    """Examples before they have owners; ``columns`` are further values of each."""

    features: np.ndarray
    labels: np.ndarray
    columns: dict[str, np.ndarray]


class Splits(NamedTuple):
    """A data set before it is split over clients.

    Attributes:
        train: Training examples.
        test: Test examples, or None where each client holds out a part of its own.
        num_classes: Number of classes.
    """

    train: Examples
    test: Examples | None
    num_classes: int


def digits() -> Splits:
    """scikit-learn's 1,797 gray images of 8x8 pixels, every fifth of each class for testing."""
    pixels, labels = _pixels_and_labels()
    images = np.rint(pixels.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    testing = np.zeros(len(labels), bool)
    for label in range(10):
        testing[np.flatnonzero(labels == label)[4::5]] = True
    return Splits(
        Examples(images[~testing], labels[~testing], {}),
        Examples(images[testing], labels[testing], {}),
        10,
    )


def _pixels_and_labels() -> tuple[np.ndarray, np.ndarray]:
    # Importing scikit-learn takes longer than reading the one file of it that is needed.
    found = importlib.util.find_spec("sklearn")
    if found is not None and found.origin is not None:
        file = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            rows = np.loadtxt(file, np.int64, delimiter=",")
            return rows[:, :-1], rows[:, -1]
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return np.asarray(pixels), np.asarray(labels)


BUNDLED: dict[str, Callable[[], Splits]] = {
    "digits": digits,
}
"""Every bundled data set by name."""
