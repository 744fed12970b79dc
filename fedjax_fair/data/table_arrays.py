"""Columns of tables whose values are arrays, such as images and embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Shaped

from fedjax_fair.data.conversion import require

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["stack_arrays"]


def stack_arrays(column: pd.Series) -> Shaped[np.ndarray, "rows *shape"]:
    """Stacks the arrays of a column.

    Args:
        column: Arrays or lists of numbers, nested or not, of equal shapes.

    Raises:
        ValueError: If a value is missing or no array of numbers, or shapes differ.

    Examples:
        >>> import pandas as pd
        >>> stack_arrays(pd.Series([[1, 2], [3, 4], [5, 6]], name="pixels")).shape
        (3, 2)
    """
    name, arrays = column.name, []
    for row, value in enumerate(column):
        array = _as_numbers(value)
        require(
            array is not None and array.ndim and array.dtype.kind in "biuf",
            f"features: column {name!r} has a value of {type(value).__name__} in row {row}; "
            "expected arrays of numbers of equal lengths.",
        )
        assert array is not None
        require(
            not arrays or array.shape == arrays[0].shape,
            f"features: column {name!r} has arrays of shape {arrays and arrays[0].shape} and "
            f"{array.shape}, the latter first in row {row}; expected one shape.",
        )
        arrays.append(array)
    return np.stack(arrays)


def _as_numbers(value: Any) -> np.ndarray | None:
    """Converts nested lists, which are arrays of arrays in pandas; None if lengths differ."""
    try:
        if isinstance(value, np.ndarray) and value.dtype == object:
            return np.array([_as_numbers(part) for part in value])
        return np.asarray(value)
    except ValueError:
        return None
