"""Encoding of the columns of a table as features, fitted on some rows and applied to others."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Int, Shaped

from fedjax_fair.data.conversion import first_index, is_storable, require
from fedjax_fair.data.tables.array_columns import stack_arrays
from fedjax_fair.data.tables.table_files import Frame, as_frame
from fedjax_fair.utils import checks
from fedjax_fair.utils.warning import warn

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
    "check_exact",
    "fit_encoding",
    "warn_of_numbers",
]

MAX_CATEGORIES = 1000
"""Maximum number of categories of a column. Columns with more usually identify rows."""
MISSING = "missing"
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


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

    def encode(self, series: pd.Series, unseen: str) -> np.ndarray:
        """Encodes a column as ``[rows, features]``; see `TableEncoding.encode`."""
        values = _numbers(series)
        is_missing = np.isnan(values)
        require(
            unseen == "ignore" or self.has_missing or not is_missing.any(),
            f"column {self.name!r}: {is_missing.sum()} values are missing, first in row "
            f"{first_index(is_missing)}; the rows of the encoding have none, so leave these rows "
            "out, or use unseen='ignore', which encodes them by the mean.",
        )
        standardized = (values - self.mean) / self.scale
        if not is_missing.any() and not self.has_missing:
            return standardized[:, None]
        standardized = np.where(is_missing, 0.0, standardized)
        return np.stack([standardized, is_missing], axis=1)[:, : len(self.feature_names)]


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

    def encode(self, series: pd.Series, unseen: str) -> np.ndarray:
        """Encodes a column as ``[rows, features]``; see `TableEncoding.encode`."""
        import pandas as pd

        rows, texts = as_codes(series)
        texts = np.array([*texts, MISSING], object)[rows]  # The last one has the index -1.
        codes = pd.Index(self.values).get_indexer(texts)
        if unseen == "error" and (codes < 0).any():
            raise ValueError(
                f"column {self.name!r} has the categories {sorted({*texts[codes < 0]})[:5]}, which "
                f"the rows of the encoding lack; expected {', '.join(self.values[:10])}"
                f"{', ...' if len(self.values) > 10 else ''}; unseen='ignore' encodes others by "
                "zeros."
            )
        if self.one_hot:
            return codes[:, None] == np.arange(len(self.values))
        return np.where(codes < 0, len(self.values), codes)[:, None]


# Values rather than scikit-learn's ColumnTransformer: datasets are compared and hashed by their
# encoding, which estimators are not by value, and features are written to one array of float32.
@dataclasses.dataclass(frozen=True)
class TableEncoding:
    """Fitted encoding of a table, which `from_table` keeps in ``FederatedData.encoding``.

    Attributes:
        columns: Encoding of each column that is a feature.
        label: Columns of the label.
        classes: Name of each class; None if labels are targets.
        arrays: Column of arrays, which are the only features and unchanged; None if columns are
            encoded.

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
    arrays: str | None = None

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Name of each feature."""
        return tuple(name for column in self.columns for name in column.feature_names)

    def encode(
        self, table: Any, unseen: Literal["error", "ignore"] = "error"
    ) -> Shaped[np.ndarray, "rows *features"]:
        """Encodes the rows of a table.

        Args:
            table: A table or file, as for `from_table`, with the encoded columns; others are
                ignored.
            unseen: What to do with categories that are not in the fitted rows, and with missing
                values of a column that has none in them: ``"error"``, or ``"ignore"``, which
                encodes them by zeros (as an index, by the number of categories; in a numeric
                column, by the mean).

        Returns:
            The features, ``[rows, features]``, float32; or the arrays of a column, ``[rows, ...]``.

        Raises:
            ValueError: If a column is missing or has another type, or a category is unseen.
        """
        checks.one_of("unseen", unseen, ("error", "ignore"))
        frame = as_frame("table", table)
        if self.arrays is not None:
            check_columns("table", [self.arrays], frame)
            arrays = stack_arrays(frame[self.arrays])
            if arrays.dtype == np.uint8:  # As `from_arrays` converts features.
                return arrays[..., None] if arrays.ndim == 3 else arrays
            return arrays.astype(np.float32 if arrays.dtype.kind in "bf" else np.int32)
        names = [column.name for column in self.columns]
        check_columns("table", names, frame)
        features = np.zeros((len(frame), len(self.feature_names)), np.float32)
        start = 0
        for column, (_, series) in zip(self.columns, frame[names].items(), strict=True):
            end = start + len(column.feature_names)
            features[:, start:end] = column.encode(series, unseen)
            start = end
        return features

    def encode_label(self, table: Any) -> Int[np.ndarray, " rows"]:
        """Encodes the class of each row of a table.

        Raises:
            ValueError: If there is no such column, or no such class.
        """
        assert self.classes is not None
        frame = as_frame("table", table)
        check_columns("label", self.label, frame)
        codes, texts = as_codes(frame[self.label[0]])
        places = {name: place for place, name in enumerate(self.classes)}
        unknown = [text for text in texts if text not in places]
        require(
            not unknown and (codes >= 0).all(),
            f"label {self.label[0]!r} has {unknown[:5] or 'missing values'}: expected "
            f"{', '.join(self.classes[:10])}; leave these rows out.",
        )
        return np.array([places[text] for text in texts], np.int32)[codes]

    def to_dict(self) -> dict[str, Any]:
        """Returns lists and dictionaries of numbers and strings, which JSON keeps.

        Examples:
            >>> encoding = TableEncoding((Standardized("age", 30.0, 10.0, False),))
            >>> TableEncoding.from_dict(encoding.to_dict()) == encoding
            True
        """
        columns = [column._asdict() for column in self.columns]
        content = {"columns": columns, "label": self.label, "classes": self.classes}
        return content if self.arrays is None else content | {"arrays": self.arrays}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> TableEncoding:
        """Makes an encoding of the result of `to_dict`, in which tuples may be lists."""
        columns = [
            Category(**column | {"values": tuple(column["values"])})
            if "values" in column
            else Standardized(**column)
            for column in content["columns"]
        ]
        classes = content["classes"]
        classes = classes and tuple(classes)
        return cls(tuple(columns), tuple(content["label"]), classes, content.get("arrays"))

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
    columns, has_values = [], frame.notna().any().to_numpy()
    for (name, series), has_value in zip(frame.items(), has_values, strict=True):
        require(has_value, f"column {name!r} has no values; exclude it.")
        is_number = name not in categorical and _is_numeric(series)
        columns.append(
            _fit_number(series)
            if is_number
            else _fit_category(series, one_hot, is_listed=name in categorical)
        )
    encoding = TableEncoding(tuple(columns))
    repeated = [name for name, count in Counter(encoding.feature_names).items() if count > 1]
    require(
        not repeated,
        f"table: two columns become the feature {repeated[:1]}; expected different names, so "
        "exclude or rename one of the columns.",
    )
    return encoding


def _is_numeric(series: pd.Series) -> bool:
    import pandas as pd

    return bool(pd.api.types.is_numeric_dtype(series) or pd.api.types.is_bool_dtype(series))


def _fit_number(series: pd.Series) -> Standardized:
    values = _numbers(series)
    present = values[~np.isnan(values)]
    with np.errstate(over="ignore"):
        mean, scale = float(present.mean()), float(present.std())
    require(
        np.isfinite(scale),
        f"column {series.name!r} spans [{present.min():g}, {present.max():g}]: expected numbers "
        "whose squares are below 1e308; divide them, or take their logarithm.",
    )
    if scale <= 1e-12 * abs(mean):  # The column is constant up to rounding errors.
        scale = 1.0
    return Standardized(str(series.name), mean, scale, len(present) < len(values))


def _numbers(series: pd.Series) -> np.ndarray:
    require(
        _is_numeric(series),
        f"column {series.name!r} of {series.dtype}: expected numbers, as in the fitted rows; "
        "convert it, such as by pandas.to_numeric.",
    )
    check_exact(series)
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "biuf":
        values = series.to_numpy(np.float64)  # Ten times as fast as with `na_value`.
    else:
        values = series.to_numpy(np.float64, na_value=np.nan)
    infinite = np.isinf(values).sum()
    require(
        not infinite,
        f"column {series.name!r}: {infinite} values are infinite; expected none, so replace "
        "them, or leave these rows out.",
    )
    return values


def check_exact(series: pd.Series) -> None:
    """Checks that numbers fit floats: neither complex ones nor integers of more than 63 bits."""
    require(
        series.dtype.kind != "c",
        f"column {series.name!r} of {series.dtype}: expected real numbers; make columns of their "
        "real and imaginary parts.",
    )
    if series.dtype.kind == "u" and (largest := series.max()) >= 2**63:
        raise ValueError(_too_large(series, largest))


def _too_large(series: pd.Series, value: Any) -> str:
    return (
        f"column {series.name!r} has the integer {value}: expected integers below 2**63; exclude "
        "it if it identifies rows, name it in categorical, or convert it to floats."
    )


def _check_no_large_integers(series: pd.Series, texts: Sequence[str]) -> None:
    """Checks that a column is not one of integers, which pandas reads as texts if they are large.

    Columns with other values have categories.
    """
    if all(re.fullmatch(r"[+-]?[0-9]{1,4000}", text) for text in texts):
        largest = max(texts, key=lambda text: abs(int(text)), default="0")
        require(abs(int(largest)) < 2**63, _too_large(series, largest))


def _fit_category(series: pd.Series, one_hot: bool, *, is_listed: bool = False) -> Category:
    codes, values = as_codes(series)
    if not is_listed:
        _check_no_large_integers(series, values)
        warn_of_numbers(f"column {series.name!r}", codes, values)
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

    try:
        codes, distinct = pd.factorize(series)
    except (TypeError, NotImplementedError):  # Lists and mappings, of pandas and of Arrow.
        others = (each for each in enumerate(series) if not isinstance(each[1], Hashable))
        row, value = next(others, (0, series.iloc[0]))
        raise ValueError(
            f"column {series.name!r} has a value of {type(value).__name__} in row {row}: expected "
            "strings, integers or booleans as categories; exclude it, or name it as features= if "
            "it has images or arrays."
        ) from None
    texts = []
    for value in pd.Index(distinct).tolist():
        # Integers with missing values are floats in pandas.
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, str | bool | int | np.bool_ | np.integer):
            raise ValueError(
                f"column {series.name!r} has the value {value!r} of {type(value).__name__}: "
                "expected strings, integers or booleans as categories; exclude it, or convert it."
            )
        texts.append(str(value))
    _check_texts(str(series.name), texts)
    ascending, values = pd.factorize(np.array(texts, object), sort=True)
    return np.append(ascending, -1)[codes], tuple(values)


def _check_texts(name: str, texts: Sequence[str]) -> None:
    """Checks the texts of different values: equal ones, and ones that files cannot hold."""
    repeated = [text for text, count in Counter(texts).items() if count > 1]
    require(
        not repeated,
        f"column {name!r} has different values with the same text {repeated[:1]}, such as 1 and "
        "'1'; expected one type; convert it by astype(str).",
    )
    invalid = [text for text in texts if not is_storable(text)]
    require(
        not invalid,
        f"column {name!r} has the value {invalid[:1]}: expected text without null characters and "
        "surrogates; replace them.",
    )
    stripped = Counter(text.strip() for text in texts)
    alike = [text for text in texts if stripped[text.strip()] > 1]
    if alike:
        warn(
            f"column {name!r} has the values {sorted(alike)[:4]}, which differ only in spaces "
            "around them and count as different; Series.str.strip() makes them equal."
        )


def warn_of_numbers(name: str, codes: np.ndarray, texts: Sequence[str]) -> None:
    """Warns of a column of categories that has numbers in most rows.

    One text, such as ``?`` for a missing number, makes texts of all.
    """
    is_other = np.array([not _NUMBER.fullmatch(text.strip()) for text in texts] + [True])
    others = is_other[codes] & (codes >= 0)
    num_numbers = int((~is_other[codes]).sum())
    if 0 < others.sum() < num_numbers:
        first = texts[codes[others.argmax()]]
        warn(
            f"{name} has numbers in {num_numbers:,} of {len(codes):,} rows and is "
            f"categorical because of others, such as {first!r} in row {others.argmax()}; leave "
            "them empty if they are missing numbers, or name the column in categorical."
        )


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
