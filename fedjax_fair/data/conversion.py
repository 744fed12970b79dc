"""Conversion of a user's values to arrays, and checks of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedjax_fair.numerics.labels import MASKED_LABEL
from fedjax_fair.utils.terminal import one_line

__all__ = [
    "DamagedError",
    "as_array",
    "as_builtin",
    "as_integers",
    "check_names",
    "check_range",
    "check_test_labels",
    "find_missing",
    "first_index",
    "is_storable",
    "names_of",
    "one_line",
    "require",
]


class DamagedError(ValueError):
    """Error for damaged files; the message names the file."""

    def __str__(self) -> str:
        return f"{super().__str__()} Download or prepare the data set again."


def as_array(name: str, values: Any) -> np.ndarray:
    """Converts values to an array, except masked arrays, whose mask would be lost.

    Raises:
        ValueError: If values are or contain a masked array, or have different lengths.
    """
    try:
        if not _has_mask(values):
            array = np.asarray(values)
            if array.dtype == object and not array.ndim:
                raise TypeError(
                    f"not one value of type {type(values).__name__}, such as a sparse matrix or an "
                    "iterator, whose values toarray() or list() give"
                )
            return array
    except (RecursionError, TypeError, ValueError) as error:
        raise ValueError(
            f"{name}: expected an array ({error}); give all rows one length."
        ) from None
    raise ValueError(
        f"{name}: expected no masked array. Leave masked entries out, or replace them with "
        "`filled(value)`."
    )


def as_builtin(array: np.ndarray) -> np.ndarray:
    """Converts types that NumPy has not itself, such as bfloat16 and int4, to types of 32 bits."""
    if array.dtype.isbuiltin != 2:
        return array
    return array.astype(np.float32 if jnp.issubdtype(array.dtype, jnp.floating) else np.int32)


def _has_mask(values: Any) -> bool:
    if isinstance(values, list | tuple):
        return any(map(_has_mask, values))
    return isinstance(values, np.ma.MaskedArray)


def as_integers(name: str, values: Any) -> np.ndarray:
    """Converts values to a 1-D array of integers."""
    array = as_array(name, values)
    require(
        np.issubdtype(array.dtype, np.integer) and array.ndim == 1,
        f"{name} of {array.dtype} and shape {array.shape}: expected 1-D integers; convert it by "
        "astype(int) or ravel().",
    )
    return array


def check_range(name: str, values: np.ndarray, end: int, reason: str = "") -> None:
    """Checks that values are in ``[0, end)``."""
    if values.size and not 0 <= values.min() <= values.max() < end:
        raise ValueError(
            f"{name} span [{values.min()}, {values.max()}]: expected [0, {end - 1}]{reason}."
        )


def check_test_labels(
    argument: str, labels: np.ndarray, test_labels: np.ndarray, advice: str, names: Any = None
) -> None:
    """Checks that training examples have all classes of test examples; targets are not checked."""
    if labels.dtype.kind == "f":
        return
    is_unknown = ~np.isin(test_labels, labels) & (test_labels != MASKED_LABEL)
    classes = np.unique(test_labels[is_unknown]).tolist()
    shown = [label if names is None else names[label] for label in classes[:5]]
    require(
        not classes,
        f"{argument}: {is_unknown.sum():,} test labels are of {len(classes):,} classes that no "
        f"training example has, first {shown}; expected none, so leave these examples out, or "
        f"{advice}.",
    )


def find_missing(values: np.ndarray) -> np.ndarray:
    """Returns which values are None, NaN or of another kind of missing ones, as ``pandas.NA``."""
    if values.dtype != object:
        return np.isnan(values)
    import pandas as pd

    return pd.isna(values)


def first_index(mask: np.ndarray) -> int | None:
    """Returns the index of the first true element, or None."""
    return int(mask.argmax()) if mask.any() else None


def require(valid: Any, message: str) -> None:
    """Raises a ValueError unless a condition holds."""
    if not valid:
        raise ValueError(message)


def names_of(values: Iterable[Any]) -> tuple[str, ...] | None:
    """Returns values that are all strings, also as UTF-8 bytes; None if none is.

    Raises:
        ValueError: If only some are, or bytes are not UTF-8.
    """
    values = list(values)
    is_string = [isinstance(value, str | bytes) for value in values]
    if not any(is_string):
        return None
    require(
        all(is_string),
        f"names of clients {values[:5]}: expected strings only, or none; convert all by str.",
    )
    try:
        return tuple(value.decode() if isinstance(value, bytes) else str(value) for value in values)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"names of clients: expected UTF-8, got {error.object!r}; decode them first."
        ) from None


def is_storable(text: str) -> bool:
    """Returns whether files of results can hold a text: no null characters and surrogates."""
    return "\0" not in text and text == text.encode(errors="replace").decode()


def check_names(argument: str, names: Any, num_clients: int) -> None:
    """Checks that there is a different and non-empty string for each client."""
    require(
        isinstance(names, tuple)
        and len(names) == num_clients
        and all(isinstance(name, str) for name in names),
        f"{argument}: expected a tuple of {num_clients} strings, one for each client, or None.",
    )
    invalid = [name for name in names if not name.strip() or not is_storable(name)]
    require(
        not invalid,
        f"{argument}: a client is named {invalid[:1]}; expected non-empty text "
        "without null characters; rename it.",
    )
    repeated = [name for name, count in Counter(names).items() if count > 1]
    require(
        not repeated,
        f"{argument}: several clients are named {repeated[:1]}; expected unique names; "
        "rename the others, or join their examples.",
    )
