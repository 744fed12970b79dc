"""Columns of arrays, such as images or embeddings, as one array."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Shaped

from fedjax_fair.data.conversion import one_line, require
from fedjax_fair.data.tables.hugging_face import as_pixels

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["stack_arrays"]


def stack_arrays(column: pd.Series) -> Shaped[np.ndarray, "rows *shape"]:
    """Stacks the arrays of a column.

    Args:
        column: Arrays or lists of numbers, nested or not, of equal shapes; or images as hubs store
            them, ``{"bytes": ..., "path": ...}``.

    Raises:
        ValueError: If a value is missing or no array of numbers, or shapes differ.

    Examples:
        >>> import pandas as pd
        >>> stack_arrays(pd.Series([[1, 2], [3, 4], [5, 6]], name="pixels")).shape
        (3, 2)
    """
    name, arrays = column.name, []
    for row, value in enumerate(column):
        array = _as_numbers(_decode(name, row, value) if isinstance(value, dict) else value)
        require(
            array is not None and array.ndim and array.dtype.kind in "biuf",
            f"features: column {name!r} has a value of {type(value).__name__} in row {row}; "
            "expected arrays of numbers of equal lengths; without features=, columns are encoded.",
        )
        assert array is not None
        require(
            not arrays or array.shape == arrays[0].shape,
            f"features: column {name!r} has arrays of shape {arrays and arrays[0].shape} and "
            f"{array.shape}, the latter first in row {row}; expected one shape, so crop, pad "
            "or convert them.",
        )
        arrays.append(array)
    return np.stack(arrays)


def _decode(name: Any, row: int, image: dict[str, Any]) -> np.ndarray | None:
    """Decodes an image of a file of Hugging Face; None for other mappings."""
    content = image.get("bytes")
    require(
        content is not None or not isinstance(image.get("path"), str),
        f"features: column {name!r} has the path {image.get('path')!r} in row {row} instead of an "
        "image; expected its bytes; `datasets` embeds them in Dataset.to_parquet.",
    )
    if not isinstance(content, bytes):
        return None
    from PIL import Image

    try:
        return as_pixels(Image.open(io.BytesIO(content)))
    except Exception as error:  # Readers of images raise errors of many types.
        raise ValueError(
            f"features: column {name!r}: cannot read the image in row {row} ({one_line(error)}); "
            "remove this row."
        ) from error


def _as_numbers(value: Any) -> np.ndarray | None:
    """Converts nested lists, which are arrays of arrays in pandas; None if lengths differ."""
    try:
        if isinstance(value, np.ndarray) and value.dtype == object:
            return np.array([_as_numbers(part) for part in value])
        return np.asarray(value)
    except ValueError:
        return None
