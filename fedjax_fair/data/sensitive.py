"""Sensitive features of examples, such as sex or race, and the sensitive groups that they form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.conversion import (
    as_array,
    check_range,
    find_missing,
    first_index,
    is_storable,
    require,
)

__all__ = [
    "MAX_SENSITIVE_VALUES",
    "EncodedSensitive",
    "SensitiveFeature",
    "SensitiveGroups",
    "check_codes",
    "check_sensitive_names",
    "encode_sensitive",
    "find_groups",
    "find_two_groups",
]

MAX_SENSITIVE_VALUES = 1000
"""Limit of the number of values of a feature: results have a count for every client and value."""


class SensitiveFeature(NamedTuple):
    """A sensitive feature and its values.

    Attributes:
        name: Name, such as ``"sex"``.
        values: Name of each value, in the order of the codes.
    """

    name: str
    values: tuple[str, ...]


class EncodedSensitive(NamedTuple):
    """Sensitive features of examples.

    Attributes:
        names: The features.
        train: Codes of the training examples, ``[total, features]``.
        test: Codes of the test examples, or None.
    """

    names: tuple[SensitiveFeature, ...]
    train: Int[np.ndarray, "total features"]
    test: Int[np.ndarray, "total features"] | None


def encode_sensitive(
    columns: Mapping[str, Any],
    labels: np.ndarray,
    test_columns: Mapping[str, Any] | None = None,
    test_labels: np.ndarray | None = None,
) -> EncodedSensitive:
    """Encodes columns of strings, integers or booleans; codes follow the ascending values.

    Args:
        columns: Value of each training example, ``[total]``, by feature.
        labels: Labels of the training examples.
        test_columns: Likewise for test examples, with the same features, or None.
        test_labels: Likewise.

    Raises:
        ValueError: If a column has another length or type, missing values or too many different
            ones, or the classes are a renaming of its values.

    Examples:
        >>> encoded = encode_sensitive({"sex": ["M", "F", "M"]}, np.array([0, 0, 1]))
        >>> encoded.names[0].values, encoded.train.tolist()
        (('F', 'M'), [[1], [0], [1]])
    """
    _check_mapping("sensitive_features", columns)
    if test_labels is None:
        require(
            test_columns is None,
            "test_sensitive_features: expected None without test_features and test_labels.",
        )
        test_labels = labels[:0]
    else:
        _check_mapping("test_sensitive_features", test_columns)
        assert test_columns is not None
        require(
            columns.keys() == test_columns.keys(),
            f"test_sensitive_features has {sorted(test_columns)}: expected the features of "
            f"sensitive_features, {sorted(columns)}.",
        )
    names, codes, total = [], [], len(labels)
    for name, column in columns.items():
        values = _as_column(f"sensitive_features[{name!r}]", column, total)
        if test_columns is not None:
            test_name = f"test_sensitive_features[{name!r}]"
            test_values = _as_column(test_name, test_columns[name], len(test_labels))
            require(
                (values.dtype.kind == "U") == (test_values.dtype.kind == "U"),
                f"{test_name} of {test_values.dtype}: expected the type of the training examples, "
                f"{values.dtype}.",
            )
            values = np.concatenate([values, test_values])
        distinct, code = np.unique(values, return_inverse=True)
        require(
            len(distinct) <= MAX_SENSITIVE_VALUES,
            f"sensitive_features[{name!r}] has {len(distinct):,} different values: expected at "
            f"most {MAX_SENSITIVE_VALUES:,}; combine values, such as ages to age groups.",
        )
        _check_is_not_label(name, code, np.concatenate([labels, test_labels]))
        names.append(SensitiveFeature(name, tuple(map(str, distinct.tolist()))))
        codes.append(code.astype(np.int32))
    stacked = np.stack(codes, axis=1)
    check_sensitive_names(tuple(names))
    test = None if test_columns is None else stacked[total:]
    return EncodedSensitive(tuple(names), stacked[:total], test)


def _check_mapping(argument: str, columns: Any) -> None:
    require(
        isinstance(columns, Mapping) and columns and all(isinstance(name, str) for name in columns),
        f"{argument} of type {type(columns).__name__}: expected a mapping from the name of each "
        'feature to the values of all examples, such as {"sex": column}.',
    )


def _as_column(name: str, column: Any, total: int) -> np.ndarray:
    """Converts a column to an array of strings, integers or booleans without missing values."""
    values = as_array(name, column)
    if values.dtype.kind == "U" and isinstance(column, list | tuple):
        values = np.array(column, object)  # Otherwise NaN among strings is the string "nan".
    require(
        values.shape == (total,),
        f"{name} of shape {values.shape}: expected one value for each of {total} examples.",
    )
    if values.dtype.kind in "fO":
        is_missing = find_missing(values)
        require(
            not is_missing.any(),
            f"{name}: {is_missing.sum()} values are missing, first at {first_index(is_missing)}; "
            "leave these examples out, or replace the values, such as with 'unknown'.",
        )
    if values.dtype == object:
        kinds = {type(value) for value in values.tolist()}
        if all(issubclass(kind, str) for kind in kinds):
            values = values.astype(str)
        elif kinds <= {bool, np.bool_}:
            values = values.astype(bool)
        elif all(issubclass(kind, int | np.integer) for kind in kinds - {bool}):
            values = values.astype(np.int64)
    if values.dtype.kind == "S":
        values = np.array([value.decode() for value in values.tolist()], str)
    if values.dtype.kind == "T":
        values = values.astype(str)
    require(
        values.dtype.kind in "Ubiu",
        f"{name} of {values.dtype}: expected strings, integers or booleans; divide numbers into "
        "ranges first.",
    )
    return values


def _check_is_not_label(name: str, codes: np.ndarray, labels: np.ndarray) -> None:
    """Checks that classes are no renaming of the values, which leaves nothing to compare."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        return
    pairs = np.unique(np.stack([codes, labels], axis=1), axis=0)
    num_values, num_classes = (len(np.unique(column)) for column in pairs.T)
    require(
        not len(pairs) == num_values == num_classes > 1,
        f"sensitive_features[{name!r}] equals the labels: every one of its {num_values} values has "
        "one class, and every class one value. Expected a feature other than the label.",
    )


def check_sensitive_names(names: Any) -> None:
    """Checks the names of features and values: non-empty text, none twice.

    Raises:
        ValueError: If a name is invalid or repeated.
    """
    require(
        isinstance(names, tuple)
        and names
        and all(
            isinstance(one, tuple) and len(one) == 2 and isinstance(one[1], tuple) for one in names
        ),
        f"sensitive_names={names!r}: expected a data.SensitiveFeature(name, values) for each "
        "feature, in a tuple.",
    )
    _check_texts("sensitive_names", [name for name, _ in names])
    for name, values in names:
        require(values, f"sensitive_names[{name!r}]: expected one or more values.")
        _check_texts(f"sensitive_names[{name!r}]", values)


def _check_texts(argument: str, texts: Any) -> None:
    for text in texts:
        require(
            isinstance(text, str) and text.strip() and is_storable(text),
            f"{argument}: the name {text!r} is missing, empty or not text; expected non-empty "
            "text, such as 'unknown'.",
        )
    require(len(set(texts)) == len(texts), f"{argument}={tuple(texts)}: expected unique names.")


def check_codes(
    name: str, codes: Any, total: int, names: tuple[SensitiveFeature, ...] | None
) -> None:
    """Checks shape, type and range of the codes of the examples of one part; see `validate`."""
    if names is None:
        require(codes is None, f"{name}: expected None, because data.sensitive_names is None.")
        return
    require(
        codes is not None,
        f"{name}=None: expected codes of {', '.join(name for name, _ in names)}, because "
        "data.sensitive_names is given.",
    )
    codes = as_array(name, codes)
    require(
        np.issubdtype(codes.dtype, np.integer) and codes.shape == (total, len(names)),
        f"{name} of {codes.dtype} and shape {codes.shape}: expected integers of shape "
        f"{(total, len(names))}, one for each example and feature.",
    )
    for column, (feature, values) in enumerate(names):
        check_range(
            f"{name} of {feature!r}", codes[:, column], len(values), f" ({len(values)} values)"
        )


class SensitiveGroups(NamedTuple):
    """Groups by one sensitive feature or by all.

    Attributes:
        number: Number of groups.
        strides: The group of an example is the sum of its codes times these, ``[features]``.
    """

    number: int
    strides: Int[np.ndarray, " features"]

    def of(self, examples: ClientExamples, indices: Int[Array, " chunk"]) -> Int[Array, " chunk"]:
        """Returns the groups of some examples."""
        assert examples.sensitive_features is not None
        codes = examples.sensitive_features[indices]
        return jnp.sum(codes * self.strides[None].astype(np.int32), axis=1, dtype=jnp.int32)


def find_groups(
    role: str, names: Sequence[SensitiveFeature] | None, feature: str | None = None
) -> SensitiveGroups:
    """Returns the sensitive groups by a sensitive feature, or by the combinations of all.

    Args:
        role: Name of the role, for messages.
        names: The sensitive features of the data.
        feature: Name of one of them, or None for all.

    Raises:
        ValueError: If there are no sensitive features, or none of this name.

    Examples:
        >>> names = [SensitiveFeature("sex", ("F", "M")), SensitiveFeature("age", ("a", "b", "c"))]
        >>> find_groups("FedFB", names)
        SensitiveGroups(number=6, strides=array([3, 1], dtype=int32))
        >>> find_groups("FedFB", names, "sex")
        SensitiveGroups(number=2, strides=array([1, 0], dtype=int32))
    """
    if not names:
        raise ValueError(
            f"{role}: the data has no sensitive features; expected data from "
            "data.from_arrays(..., sensitive_features={'sex': column}) or data.from_table."
        )
    known = [each.name for each in names]
    if feature is not None and feature not in known:
        raise ValueError(f"{role}.sensitive_feature={feature!r}: expected one of {known}, or None.")
    strides, number = np.zeros(len(names), np.int32), 1
    for position in reversed(range(len(names))):
        if feature in (None, known[position]):
            strides[position] = number
            number *= len(names[position].values)
    return SensitiveGroups(number, strides)


def find_two_groups(
    role: str,
    names: Sequence[SensitiveFeature] | None,
    feature: str | None = None,
    otherwise: str = "",
) -> SensitiveGroups:
    """As `find_groups`, for a role that compares two groups.

    Args:
        role: Name of the role, for messages.
        names: The sensitive features of the data.
        feature: Name of one of them, or None for all.
        otherwise: What else helps against another number of groups, for messages.

    Raises:
        ValueError: As `find_groups`, or if there are not two groups.
    """
    groups = find_groups(role, names, feature)
    if groups.number != 2:
        raise ValueError(
            f"{role} compares two sensitive groups, and the data has {groups.number}: set "
            f"sensitive_feature to the name of a feature with two values{otherwise}."
        )
    return groups
