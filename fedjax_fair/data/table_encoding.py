"""Encoding of the columns of a table as features, fitted on some rows and applied to others."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float32, Int

from fedjax_fair.data.conversion import first_index, require
from fedjax_fair.data.table_files import Frame, as_frame
from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "MAX_CATEGORIES",
    "MISSING",
    "Category",
    "Standardized",
    "TableEncoding",
    "as_codes",
    "check_columns",
    "fit_encoding",
]

MAX_CATEGORIES = 1000
"""Maximum number of categories of a column. Columns with more usually identify rows."""
MISSING = "missing"


class Standardized(NamedTuple):
    """A numeric column, encoded as ``(x - mean) / scale``.

    Attributes:
        name: Name of the column.
        mean: Mean of the fitted rows, which replaces missing values.
        scale: Standard deviation of the fitted rows; 1 for a constant column.
        has_missing: Whether fitted rows have missing values. Another feature is then 1 where a
            value is missing, else 0.
    """

    name: str
    mean: float
    scale: float
    has_missing: bool

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Name of each feature."""
        return (self.name, f"{self.name}={MISSING}") if self.has_missing else (self.name,)


class Category(NamedTuple):
    """A column of categories, encoded as an indicator of each, or as its index.

    Attributes:
        name: Name of the column.
        values: Categories of the fitted rows, ascending; ``"missing"`` follows if values are
            missing there.
        one_hot: Whether each category is a feature. Otherwise the index is the only feature.
    """

    name: str
    values: tuple[str, ...]
    one_hot: bool

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Name of each feature."""
        if not self.one_hot:
            return (self.name,)
        return tuple(f"{self.name}={value}" for value in self.values)


@dataclasses.dataclass(frozen=True)
class TableEncoding:
    """Fitted encoding of a table, which `from_table` keeps in ``FederatedData.encoding``.

    Attributes:
        columns: Encoding of each column that is a feature.
        label: Columns of the label.
        classes: Name of each class; None if labels are targets.

    Examples:
        >>> import pandas as pd
        >>> rows = pd.DataFrame({"age": [20, 40], "job": ["cook", "clerk"]})
        >>> encoding = fit_encoding(rows)
        >>> encoding.feature_names
        ('age', 'job=clerk', 'job=cook')
        >>> encoding.encode(pd.DataFrame({"job": ["cook"], "age": [30]})).tolist()
        [[0.0, 0.0, 1.0]]
    """

    columns: tuple[Standardized | Category, ...]
    label: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Name of each feature."""
        return tuple(name for column in self.columns for name in column.feature_names)

    def encode(
        self, table: Any, unseen: Literal["error", "ignore"] = "error"
    ) -> Float32[np.ndarray, "rows features"]:
        """Encodes the rows of a table.

        Args:
            table: A table or file, as for `from_table`, with the encoded columns; others are
                ignored.
            unseen: What to do with categories that are not in the fitted rows, and with missing
                values of a column that has none in them: ``"error"``, or ``"ignore"``, which
                encodes them by zeros (as an index, by the number of categories; in a numeric
                column, by the mean).

        Returns:
            The features, ``[rows, features]``.

        Raises:
            ValueError: If a column is missing or has another type, or a category is unseen.
        """
        checks.one_of("unseen", unseen, ("error", "ignore"))
        frame = as_frame("table", table)
        names = [column.name for column in self.columns]
        check_columns("table", names, frame)
        features = np.zeros((len(frame), len(self.feature_names)), np.float32)
        start = 0
        for column in self.columns:
            end = start + len(column.feature_names)
            _encode(column, frame[column.name], unseen, features[:, start:end])
            start = end
        return features

    def without(self, name: str) -> TableEncoding:
        """Returns the encoding without a column."""
        rest = tuple(column for column in self.columns if column.name != name)
        return dataclasses.replace(self, columns=rest)


def fit_encoding(
    frame: Frame,
    categorical: Sequence[str] = (),
    *,
    one_hot: bool = True,
) -> TableEncoding:
    """Fits the encoding of all columns of a table.

    Args:
        frame: The rows. Numeric and boolean columns are standardized; others are categorical.
        categorical: Numeric columns whose values are categories.
        one_hot: As in `Category`.

    Raises:
        ValueError: If a column has another type, no values, an infinite one, or too many
            categories.
    """
    columns = []
    for name in frame.columns:
        series = frame[name]
        require(series.notna().any(), f"column {name!r} has no values; exclude it.")
        is_number = name not in categorical and _is_numeric(series)
        columns.append(_fit_number(series) if is_number else _fit_category(series, one_hot))
    return TableEncoding(tuple(columns))


def _is_numeric(series: pd.Series) -> bool:
    import pandas as pd

    return bool(pd.api.types.is_numeric_dtype(series) or pd.api.types.is_bool_dtype(series))


def _fit_number(series: pd.Series) -> Standardized:
    values = _numbers(series)
    present = values[~np.isnan(values)]
    mean, scale = float(present.mean()), float(present.std())
    if scale <= 1e-12 * abs(mean):  # The column is constant up to rounding errors.
        scale = 1.0
    return Standardized(str(series.name), mean, scale, len(present) < len(values))


def _numbers(series: pd.Series) -> np.ndarray:
    require(
        _is_numeric(series),
        f"column {series.name!r} of {series.dtype}: expected numbers, as in the fitted rows.",
    )
    values = series.to_numpy(np.float64, na_value=np.nan)
    infinite = np.isinf(values).sum()
    require(not infinite, f"column {series.name!r}: {infinite} values are infinite; expected none.")
    return values


def _fit_category(series: pd.Series, one_hot: bool) -> Category:
    codes, values = as_codes(series)
    require(
        len(values) <= MAX_CATEGORIES,
        f"column {series.name!r} has {len(values):,} categories: expected at most "
        f"{MAX_CATEGORIES:,}; exclude it if it identifies rows, or convert it to numbers.",
    )
    if (codes < 0).any() and MISSING not in values:
        values = (*values, MISSING)
    return Category(str(series.name), values, one_hot)


def as_codes(series: pd.Series) -> tuple[Int[np.ndarray, " rows"], tuple[str, ...]]:
    """Converts a column to indices of its different values, which are strings in ascending order.

    Args:
        series: Strings, categories, integers or booleans.

    Returns:
        The index of each value, -1 where it is missing; and the values.

    Raises:
        ValueError: If a value has another type.
    """
    import pandas as pd

    codes, distinct = pd.factorize(series)
    texts = []
    for value in pd.Index(distinct).tolist():
        if isinstance(value, str | bool | int | np.bool_ | np.integer):
            texts.append(str(value))
        # Integers with missing values are floats in pandas.
        elif isinstance(value, float) and value.is_integer():
            texts.append(str(int(value)))
        else:
            raise ValueError(
                f"column {series.name!r} has the value {value!r} of {type(value).__name__}: "
                "expected strings, integers or booleans as categories; exclude it, or convert it."
            )
    values = sorted(set(texts))
    index = {text: code for code, text in enumerate(values)}
    # The last element is for missing values.
    ascending = np.array([*(index[text] for text in texts), -1], np.int64)
    return ascending[codes], tuple(values)


def _encode(
    column: Standardized | Category, series: pd.Series, unseen: str, features: np.ndarray
) -> None:
    """Writes the features of a column to zeros, ``[rows, features of the column]``."""
    if isinstance(column, Standardized):
        values = _numbers(series)
        is_missing = np.isnan(values)
        require(
            unseen == "ignore" or column.has_missing or not is_missing.any(),
            f"column {column.name!r}: {is_missing.sum()} values are missing, first in row "
            f"{first_index(is_missing)}; the rows of the encoding have none.",
        )
        features[:, 0] = np.where(is_missing, 0.0, (values - column.mean) / column.scale)
        if column.has_missing:
            features[:, 1] = is_missing
        return
    index = {value: code for code, value in enumerate(column.values)}
    found, texts = as_codes(series)
    # The last element is for missing values.
    codes = np.array([index.get(text, len(index)) for text in (*texts, MISSING)], np.int64)[found]
    if unseen == "error" and (codes == len(index)).any():
        unknown = sorted({(*texts, MISSING)[each] for each in found[codes == len(index)]})
        raise ValueError(
            f"column {column.name!r} has the categories {unknown[:5]}, which the rows of the "
            f"encoding lack; expected {', '.join(column.values[:10])}"
            f"{', ...' if len(column.values) > 10 else ''}; unseen='ignore' encodes others by "
            "zeros."
        )
    if column.one_hot:
        rows = np.flatnonzero(codes < len(index))
        features[rows, codes[rows]] = 1
    else:
        features[:, 0] = codes


def check_columns(argument: str, names: Sequence[str], frame: Frame) -> None:
    """Checks that a table has some columns, and suggests others."""
    import difflib

    for name in names:
        if name not in frame.columns:
            close = difflib.get_close_matches(name, map(str, frame.columns), n=1, cutoff=0.5)
            hint = f"did you mean {close[0]!r}? " if close else ""
            listed = ", ".join(map(str, frame.columns[:20]))
            raise ValueError(
                f"{argument}: no column {name!r}; {hint}Columns: {listed}"
                f"{', ...' if len(frame.columns) > 20 else ''}."
            )
