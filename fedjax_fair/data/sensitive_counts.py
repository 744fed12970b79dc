"""Counts of examples by client, value of a sensitive feature and class, and their empty cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.sensitive import SensitiveFeature
from fedjax_fair.numerics.labels import are_sequences
from fedjax_fair.utils.terminal import align_rows, escape_control_chars

__all__ = [
    "EmptyCells",
    "client_counts",
    "empty_client_cells",
    "example_columns",
    "format_client_counts",
    "group_counts",
    "summarize_sensitive",
]

_MAX_VALUES, _MAX_CLASSES, _MAX_CELLS = 6, 6, 3
_MAX_CLIENTS, _MAX_COLUMNS = 100, 20


class EmptyCells(NamedTuple):
    """Pairs of client and value without examples.

    Attributes:
        num_empty: Number of them.
        num_cells: Number of all pairs of client and value.
        first: Client and code of the first ones, ascending.
    """

    num_empty: int
    num_cells: int
    first: tuple[tuple[int, int], ...]


def group_counts(
    examples: ClientExamples, feature: int, num_values: int, num_classes: int
) -> Int[np.ndarray, "values classes"]:
    """Counts the examples of all clients by value of a sensitive feature and by class.

    Sequences of labels and targets count as one class.

    Args:
        examples: Examples of one partition with sensitive features.
        feature: Index of the feature.
        num_values: Number of its values.
        num_classes: Number of classes.

    Examples:
        >>> from fedjax_fair.data import from_arrays
        >>> column = {"sex": ["F", "M", "M", "M"]}
        >>> data = from_arrays(
        ...     np.eye(4), [0, 1, 1, 0], [range(4)], sensitive_features=column, test_fraction=0.0
        ... )
        >>> group_counts(data.train, 0, 2, 2).tolist()
        [[1, 0], [1, 2]]
    """
    _, codes, labels = example_columns(examples, feature)
    if labels is None:
        return np.bincount(codes, minlength=num_values)[:, None]
    cells = codes.astype(np.int64) * num_classes + labels
    return np.bincount(cells, minlength=num_values * num_classes).reshape(num_values, -1)


def empty_client_cells(examples: ClientExamples, feature: int, num_values: int) -> EmptyCells:
    """Finds the pairs of client and value without examples, without a table of all pairs.

    Args:
        examples: Examples of one partition with sensitive features.
        feature: Index of the feature.
        num_values: Number of its values.
    """
    owners, codes, _ = example_columns(examples, feature)
    occupied = np.unique(owners * num_values + codes)
    num_cells = examples.num_clients * num_values
    # The first empty cells are among as many cells as are occupied, and a few more.
    candidates = np.arange(min(num_cells, len(occupied) + _MAX_CELLS))
    first = np.setdiff1d(candidates, occupied, assume_unique=True)[:_MAX_CELLS]
    pairs = tuple((int(cell) // num_values, int(cell) % num_values) for cell in first)
    return EmptyCells(num_cells - len(occupied), num_cells, pairs)


def example_columns(
    examples: ClientExamples, feature: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Returns client, code and class of each assigned example; None for labels without classes."""
    sizes = np.asarray(examples.sizes)
    order = np.asarray(examples.order)[: sizes.sum()]
    assert examples.sensitive_features is not None
    codes = np.asarray(examples.sensitive_features)[order, feature]
    labels = np.asarray(examples.labels)
    has_class = not examples.has_targets and not are_sequences(labels)
    return np.repeat(np.arange(sizes.size), sizes), codes, labels[order] if has_class else None


def client_counts(
    examples: ClientExamples, names: Sequence[SensitiveFeature], classes: Sequence[Any]
) -> dict[str, Int[np.ndarray, " clients"]]:
    """Counts the examples of each client by class, and by value of each sensitive feature.

    Args:
        examples: Examples of one partition with sensitive features.
        names: The features.
        classes: Names or numbers of all classes.

    Returns:
        Counts ``[clients]`` by column, such as ``class 0`` and ``sex=F``.
    """
    counts = {
        f"class {label}": column
        for label, column in zip(classes, examples.class_counts(len(classes)).T, strict=False)
        if not examples.has_targets
    }
    for feature, (name, values) in enumerate(names):
        owners, codes, _ = example_columns(examples, feature)
        for code, value in enumerate(values):
            minlength = examples.num_clients
            counts[f"{name}={value}"] = np.bincount(owners[codes == code], minlength=minlength)
    return counts


def format_client_counts(
    examples: ClientExamples,
    names: Sequence[SensitiveFeature],
    classes: Sequence[Any],
    clients: Sequence[str] | None,
) -> str:
    """Formats `client_counts` as a table with a row for each of the first clients."""
    counts = client_counts(examples, names, classes)
    shown = min(examples.num_clients, _MAX_CLIENTS)
    titles = ["client", *counts][: _MAX_COLUMNS + 1]
    rows = [titles]
    for client in range(shown):
        name = str(client) if clients is None else clients[client]
        cells = [f"{column[client]:,}" for column in counts.values()]
        rows.append([name, *cells][: _MAX_COLUMNS + 1])
    lines = align_rows(rows)
    for left, kind in (
        (examples.num_clients - shown, "clients"),
        (len(counts) - _MAX_COLUMNS, "columns"),
    ):
        if left > 0:
            lines.append(f"... ({left:,} more {kind})")
    return "\n".join(escape_control_chars(line) for line in lines)


def summarize_sensitive(
    train: ClientExamples,
    test: ClientExamples,
    names: Sequence[SensitiveFeature],
    classes: Sequence[Any],
    clients: Sequence[str] | None,
) -> dict[str, str]:
    """Describes counts by value and class, and empty cells; a line for each feature."""
    lines: dict[str, str] = {}
    empty = []
    for feature, (name, values) in enumerate(names):
        counts = group_counts(train, feature, len(values), len(classes))
        lines[escape_control_chars(name)] = _count_line(values, counts, classes)
        empty += _empty_classes(name, values, counts, classes)[:_MAX_CELLS]
        for title, part in (("training", train), ("test", test)):
            cells = empty_client_cells(part, feature, len(values))
            if cells.num_empty:
                first = ", ".join(
                    f"{client if clients is None else clients[client]} x {values[code]}"
                    for client, code in cells.first
                )
                more = ", ..." if cells.num_empty > len(cells.first) else ""
                empty.append(
                    f"{cells.num_empty:,} of {cells.num_cells:,} pairs of client and {name} have "
                    f"no {title} examples: {first}{more}"
                )
    return lines | {"empty cells": escape_control_chars("; ".join(empty) or "none")}


def _empty_classes(
    name: str, values: tuple[str, ...], counts: np.ndarray, classes: Sequence[Any]
) -> list[str]:
    return [
        f"no training examples with {name} {value}"
        f"{f' of class {classes[label]}' if row.any() else ''}"
        for value, row in zip(values, counts, strict=True)
        for label in (np.flatnonzero(row == 0).tolist() if row.any() else [0])
    ]


def _count_line(values: tuple[str, ...], counts: np.ndarray, classes: Sequence[Any]) -> str:
    by_class = 1 < counts.shape[1] <= _MAX_CLASSES
    rows = [
        f"{value} {' + '.join(f'{count:,}' for count in (row if by_class else [row.sum()]))}"
        for value, row in zip(values[:_MAX_VALUES], counts, strict=False)
    ]
    if len(values) > _MAX_VALUES:
        rows.append(f"... ({len(values):,} values)")
    of = f" of class {' + '.join(map(str, classes))}" if by_class else ""
    return escape_control_chars(f"{', '.join(rows)} training examples{of}")
