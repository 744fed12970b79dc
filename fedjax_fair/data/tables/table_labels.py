"""Labels of tables: classes and targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fedjax_fair.data.conversion import check_test_labels, first_index, require
from fedjax_fair.data.tables.table_encoding import (
    MAX_CATEGORIES,
    as_codes,
    check_exact,
    warn_of_numbers,
)
from fedjax_fair.data.tables.table_files import Frame

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Labels", "Target", "encode_labels"]

Target = Literal["classification", "regression", "multi_label"]

_MAX_NUMBERS = 20
"""Different numbers that are classes without asking, as digits are; ages are not."""


class Labels(NamedTuple):
    """Labels of one or several tables.

    Attributes:
        values: Labels of each table, int32 classes or float32 targets.
        num_classes: Number of classes, or of targets.
        classes: Name of each class; None for targets.
    """

    values: tuple[np.ndarray, ...]
    num_classes: int
    classes: tuple[str, ...] | None


def encode_labels(
    frames: Sequence[Frame], names: Sequence[str], target: Target | None = None
) -> Labels:
    """Encodes the labels of tables.

    Args:
        frames: The tables, with the same columns.
        names: Columns of the label.
        target: As in `from_table`.

    Raises:
        ValueError: If values are missing or have a wrong type, or may be classes or numbers.
    """
    for frame in frames:
        for name in names:
            is_missing = frame[name].isna().to_numpy()
            require(
                not is_missing.any(),
                f"label {name!r}: {is_missing.sum():,} values are missing, first in row "
                f"{first_index(is_missing)}; leave these rows out.",
            )
    if target in ("regression", "multi_label"):
        return Labels(tuple(_targets(frame, names, target) for frame in frames), len(names), None)
    require(
        len(names) == 1,
        f"label={list(names)}: expected one column for classes; target='multi_label' or "
        "'regression' takes several.",
    )
    columns = [frame[names[0]] for frame in frames]
    if target is None:
        _check_few_numbers(columns)
    return _encode_classes(columns)


def _as_values(column: pd.Series) -> pd.Series:
    """Returns the values of categories, and integers or booleans in columns of objects."""
    categories = getattr(column.dtype, "categories", None)
    if categories is not None and categories.dtype.kind in "biuf":
        column = column.astype(categories.dtype)
    return column.infer_objects()


def _check_few_numbers(columns: Sequence[pd.Series]) -> None:
    """Checks that a label cannot be meant as a number to predict, such as an age or a price."""
    import pandas as pd

    for column in columns:
        check_exact(column)
    series = pd.concat(list(columns), ignore_index=True)
    if not pd.api.types.is_numeric_dtype(series) or pd.api.types.is_bool_dtype(series):
        return
    _check_finite(series)
    number, is_whole = series.nunique(), bool((series == series.round()).all())
    require(
        number <= _MAX_NUMBERS and is_whole,
        f"label {series.name!r} has {number:,} different numbers, {series.min():g} to "
        f"{series.max():g}: expected target='regression' (--data.target regression) to predict "
        "the number, or 'classification' (--data.target classification) for a class of each.",
    )


def _targets(frame: Frame, names: Sequence[str], target: Target) -> np.ndarray:
    columns = []
    for name in names:
        check_exact(frame[name])
        try:
            values = frame[name].to_numpy(np.float64)
        except (TypeError, ValueError):
            raise ValueError(
                f"label {name!r} of {frame[name].dtype}: expected numbers for {target=}; "
                "target='classification' takes others."
            ) from None
        _check_finite(frame[name])
        require(
            target == "regression" or np.isin(values, (0, 1)).all(),
            f"label {name!r} spans [{values.min()}, {values.max()}]: expected 0 and 1 for "
            f"{target=}; target='regression' takes other numbers.",
        )
        columns.append(values)
    return np.stack(columns, axis=1).astype(np.float32)


def _check_finite(series: pd.Series) -> None:
    """Checks that numbers of a label are finite as float32."""
    with np.errstate(over="ignore"):
        is_finite = np.isfinite(series.to_numpy(np.float64).astype(np.float32))
    if not is_finite.all():
        first = series.iloc[int(np.argmin(is_finite))]
        raise ValueError(
            f"label {series.name!r} has values such as {first}, which are infinite as float32; "
            "expected none, so leave these rows out, or divide the label."
        )


def _encode_classes(columns: Sequence[pd.Series]) -> Labels:
    import pandas as pd

    name = columns[0].name
    dtype: Any = columns[0].dtype
    is_ordered = isinstance(dtype, pd.CategoricalDtype) and bool(dtype.ordered)
    if is_ordered:
        # Test rows of a file are strings.
        columns = [column.astype(str) for column in columns]
    else:
        columns = [_as_values(column) for column in columns]
    for column in columns:
        check_exact(column)
    series = pd.concat(list(columns), ignore_index=True)
    if pd.api.types.is_float_dtype(series):
        is_whole = ((series == series.round()) & (series.abs() < 2**63)).all()
        series = series.astype(np.int64 if is_whole else np.float64)
    if is_ordered:
        values = [str(value) for value in dtype.categories]
        codes = pd.Index(values).get_indexer(series)
        require(
            (codes >= 0).all(),
            f"label {name!r} has the value {series.iloc[int(np.argmin(codes))]!r} in test rows: "
            f"expected one of the ordered categories {', '.join(values[:10])}; leave these rows "
            "out, or add the category to the table.",
        )
    elif pd.api.types.is_integer_dtype(series) or series.dtype == np.float64:
        kind = np.float64 if series.dtype == np.float64 else np.int64
        codes, values = pd.factorize(series.to_numpy(kind), sort=True)
    elif all(column.dtype.kind in "biuf" for column in columns):  # Some are booleans.
        codes, values = as_codes(series)
    else:
        # Texts of each table, because 1 in a table is "1" in a file.
        pairs = [as_codes(column) for column in columns]
        texts = [np.array(values, object)[codes] for codes, values in pairs]
        codes, values = as_codes(pd.Series(np.concatenate(texts), name=name))
        warn_of_numbers(f"label {name!r}", codes, values)
    require(
        len(values) > 1,
        f"label {name!r} has one class, {', '.join(map(str, values))}: expected two or more; is it "
        "the right column?",
    )
    require(
        is_ordered or len(values) <= MAX_CATEGORIES,
        f"label {name!r} has {len(values):,} different values: expected at most "
        f"{MAX_CATEGORIES:,} classes; target='regression' predicts numbers.",
    )
    ends = np.cumsum([len(column) for column in columns])[:-1]
    parts = tuple(np.split(codes.astype(np.int32), ends))
    texts = tuple(map(str, values))
    advice = f"make {name!r} an ordered pandas.Categorical of all classes"
    for part in () if is_ordered else parts[1:]:
        check_test_labels(f"test: label {name!r}", parts[0], part, advice, texts)
    return Labels(parts, len(values), texts)
