"""A federation in ten lines: who owns how much of what, how unequally, and what no client owns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from fedjax_fair.text import escape_control_chars

if TYPE_CHECKING:
    from fedjax_fair.data.federated import ClientExamples, FederatedData

__all__ = ["class_counts", "describe_federation", "label_distance", "size_gini"]


def describe_federation(data: FederatedData) -> str:
    """Describes a federation of concrete arrays, which ``print(data)`` shows.

    Args:
        data: The federation; of partitions that differ between runs the first is described.

    Returns:
        Ten lines. A row that begins with two numbers and a median is over clients.

    Examples:
        >>> from fedjax_fair.data import classes_per_client, load
        >>> print(describe_federation(load("digits", classes_per_client(20, 3))))
        digits
        clients            20
        training examples  1,422; 70 to 72 a client, median 71
        test examples      355; 16 to 18 a client, median 18
        features           8 x 8 x 1, uint8
        classes            10; 3 to 3 a client, median 3
        label skew         0.70 (mean distance to the mix of all: 0 none, 1 greatest)
        size skew          0.01 (Gini index of training examples: 0 none, 1 greatest)
        unassigned         20 of 1,442 training examples, 0 of 355 test examples
        partitions         one for all runs
    """
    own, runs = data.partition(0), data.num_partitions
    train, test = (np.asarray(part.sizes) for part in (own.train, own.test))
    counts, labels = class_counts(own.train, own.num_classes), own.train.labels
    shape = " x ".join(map(str, own.train.features.shape[1:])) or "one number"
    classes, skew = (
        f"{own.num_classes:,}; {_spread((counts > 0).sum(axis=1))}",
        label_distance(counts),
    )
    if np.issubdtype(labels.dtype, np.floating):
        classes, skew = f"none: targets of shape {labels.shape[1:]}, {labels.dtype}", np.nan
    validating = 0 if own.validation is None else int(np.sum(own.validation.sizes))
    held_out = f"; {validating:,} more to choose by" if validating else ""
    greatest = "0 none, 1 greatest"
    rows = {
        "clients": f"{len(train):,}{_groups(own.groups)}",
        "training examples": f"{train.sum():,}; {_spread(train)}{held_out}",
        "test examples": f"{test.sum():,}; {_spread(test)}",
        "features": f"{shape}, {own.train.features.dtype}",
        "classes": classes,
        "label skew": f"{skew:.2f} (mean distance to the mix of all: {greatest})",
        "size skew": f"{size_gini(train):.2f} (Gini index of training examples: {greatest})",
        "unassigned": f"{_unassigned(own.train, own.num_unassigned, validating)} training examples, "
        f"{_unassigned(own.test, 0)} test examples",
        "partitions": "one for all runs" if runs is None else f"{runs}, one a run; above the first",
    }
    return "\n".join(
        [escape_control_chars(own.name), *(f"{name:<17}  {text}" for name, text in rows.items())]
    )


def label_distance(counts: Int[np.ndarray, "clients classes"]) -> float:
    """How far the clients' mixes of classes are from that of all examples.

    The mean over clients of the total variation distance, half the sum of absolute differences: the
    part of a client's examples that would have to be of other classes.

    Args:
        counts: Examples of every client and class; clients without any are left out.

    Returns:
        A number in ``[0, 1)``.

    Examples:
        >>> label_distance(np.array([[5, 0], [0, 5]])), label_distance(np.array([[2, 4], [1, 2]]))
        (0.5, 0.0)
    """
    some = counts[counts.sum(axis=1) > 0]
    mixes, mix = some / some.sum(axis=1, keepdims=True), some.sum(axis=0) / some.sum()
    return float(np.mean(np.abs(mixes - mix).sum(axis=1)) / 2)


def size_gini(sizes: Int[np.ndarray, " clients"]) -> float:
    """Gini index of the number of examples: half the mean difference of two clients over the mean.

    Args:
        sizes: Of every client, one of them above 0.

    Returns:
        A number in ``[0, 1)``.

    Examples:
        >>> size_gini(np.array([5, 5])), size_gini(np.array([0, 0, 0, 9]))
        (0.0, 0.75)
    """
    ranks = 2 * np.arange(1, len(sizes) + 1) - len(sizes) - 1
    return float(np.sum(ranks * np.sort(sizes)) / (len(sizes) * np.sum(sizes)))


def class_counts(
    examples: ClientExamples, num_classes: int
) -> Int[np.ndarray, "*runs clients classes"]:
    """Examples of each client and class; targets, which have no class, are all of one."""
    labels, orders, sizes = map(np.asarray, (examples.labels, examples.order, examples.sizes))
    if np.issubdtype(labels.dtype, np.floating):
        return sizes[..., None]

    def count(order, sizes):
        owners = np.repeat(np.arange(sizes.size), sizes)
        cells = owners * num_classes + labels[order[: owners.size]]
        return np.bincount(cells, minlength=sizes.size * num_classes).reshape(-1, num_classes)

    if sizes.ndim == 1:
        return count(orders, sizes)
    return np.stack([count(*run) for run in zip(orders, sizes, strict=True)])


def _spread(values: np.ndarray) -> str:
    return f"{values.min():,} to {values.max():,} a client, median {np.median(values):,.0f}"


def _groups(groups: Any) -> str:
    if groups is None:
        return ""
    sizes = np.bincount(np.asarray(groups)).tolist()
    return f" in {len(sizes)} planted groups of {', '.join(f'{size:,}' for size in sizes)}"


def _unassigned(examples: ClientExamples, num_unassigned: int, validating: int = 0) -> str:
    total = len(examples.labels) + num_unassigned
    return f"{total - validating - int(np.sum(examples.sizes)):,} of {total:,}"
