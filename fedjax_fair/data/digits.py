"""The digits of scikit-learn, which need no files."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from fedjax_fair.data.source import Examples, Splits

__all__ = ["read_digits"]


def read_digits(_location: None = None) -> Splits:
    """Reads 1,797 gray images of 8 x 8 pixels, every fifth of each class for testing."""
    pixels, labels = _pixels_and_labels()
    images = np.rint(pixels.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    testing = np.zeros(len(labels), bool)
    for label in range(10):
        testing[np.flatnonzero(labels == label)[4::5]] = True
    train, test = (Examples(images[part], labels[part]) for part in (~testing, testing))
    return Splits(train, test, 10)


def _pixels_and_labels() -> tuple[np.ndarray, np.ndarray]:
    # Importing scikit-learn takes longer than reading its one file that is needed.
    spec = importlib.util.find_spec("sklearn")
    if spec is not None and spec.origin is not None:
        file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            table = np.loadtxt(file, np.int64, delimiter=",")
            return table[:, :-1], table[:, -1]
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return np.asarray(pixels), np.asarray(labels)
