"""Federated datasets: training, test and validation examples of the same clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Int

from fedjax_fair import checks
from fedjax_fair.data.client_examples import (
    ClientExamples,
    as_integers,
    check_examples,
    check_range,
    require,
)
from fedjax_fair.numerics.inequality import gini
from fedjax_fair.text import escape_control_chars

__all__ = [
    "FederatedData",
    "PartitionArrays",
    "label_distance",
    "map_arrays",
    "partition_arrays",
    "stack",
    "validate",
    "with_partition_arrays",
]


# `register_dataclass` would give the same pytree, but run-time checks of its annotations break
# `vmap` and `eval_shape`.
class FederatedData(NamedTuple):
    """A federated dataset: a pytree whose fields that are no arrays are static.

    ``print`` summarizes it in ten lines. If every run has a separate partition (`stack`), the
    arrays of the partition and ``groups`` have a leading axis ``runs``.

    Attributes:
        train: Training examples; every client has at least one.
        test: Test examples of the same clients.
        groups: Ground-truth group of each client, ``[clients]``, or None.
        num_classes: Number of classes; of outputs if labels are targets.
        name: Name in results.
        label_skew_only: Whether clients differ only in their number of examples of each class,
            which `results.class_based` requires.
        num_unassigned: Number of examples of no client that are not in the arrays.
        validation: Examples to choose settings by (`hold_out`), or None. Clients may have none.
    """

    train: ClientExamples
    test: ClientExamples
    groups: Int[Array, " clients"] | None
    num_classes: int
    name: str
    label_skew_only: bool = False
    num_unassigned: int = 0
    validation: ClientExamples | None = None

    def __str__(self) -> str:
        leaves = jax.tree.leaves(self)
        concrete = all(
            isinstance(leaf, np.ndarray | jax.Array) and not isinstance(leaf, Tracer)
            for leaf in leaves
        )
        if not concrete or self.train.devices is not None:
            return repr(self)
        name = escape_control_chars(self.name)
        try:
            validate(self)
        except ValueError as error:
            return f"{name}, an invalid federated dataset: {error}"
        lines = (f"{title:<17}  {text}" for title, text in _summary(self).items())
        return "\n".join([name, *lines])

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return self.train.num_clients

    @property
    def num_partitions(self) -> int | None:
        """Number of partitions, or None if all runs share one."""
        return self.train.order.shape[0] if self.train.order.ndim == 2 else None

    def partition(self, run: int) -> FederatedData:
        """Returns the federated dataset of one run."""
        if self.num_partitions is None:
            return self
        arrays = jax.tree.map(lambda leaf: leaf[run], partition_arrays(self))
        return with_partition_arrays(self, arrays)

    def map_parts(self, function: Callable[[ClientExamples], ClientExamples]) -> FederatedData:
        """Applies a function to training, test and, if there are any, validation examples."""
        return self._replace(
            train=function(self.train),
            test=function(self.test),
            validation=self.validation and function(self.validation),
        )


def _flatten(data: FederatedData):
    names = ("train", "test", "groups", "validation")
    children = tuple((jax.tree_util.GetAttrKey(name), getattr(data, name)) for name in names)
    return children, (data.num_classes, data.name, data.label_skew_only, data.num_unassigned)


def _unflatten(static: tuple[int, str, bool, int], children: Any) -> FederatedData:
    train, test, groups, validation = children
    return FederatedData(train, test, groups, *static, validation)


# JAX would otherwise treat the static fields of a NamedTuple as arrays.
jax.tree_util.register_pytree_with_keys(FederatedData, _flatten, _unflatten)


class PartitionArrays(NamedTuple):
    """The arrays of a partition: ``order``, ``offsets`` and ``sizes`` by part, and groups."""

    train: tuple[Any, Any, Any]
    test: tuple[Any, Any, Any]
    groups: Any
    validation: tuple[Any, Any, Any] | None = None


def partition_arrays(data: FederatedData) -> PartitionArrays:
    """Returns the arrays of the partition of a federated dataset."""

    def arrays(part: Any) -> Any:
        return part and (part.order, part.offsets, part.sizes)

    return PartitionArrays(
        arrays(data.train), arrays(data.test), data.groups, arrays(data.validation)
    )


def with_partition_arrays(data: FederatedData, arrays: PartitionArrays) -> FederatedData:
    """Replaces the partition of a federated dataset."""

    def replace(part: Any, arrays: Any) -> Any:
        return part._replace(**dict(zip(("order", "offsets", "sizes"), arrays, strict=True)))

    return data._replace(
        train=replace(data.train, arrays.train),
        test=replace(data.test, arrays.test),
        groups=arrays.groups,
        validation=arrays.validation and replace(data.validation, arrays.validation),
    )


def map_arrays(
    data: FederatedData, function: Callable[[FederatedData], FederatedData]
) -> FederatedData:
    """Applies a function to a federated dataset, once to arrays that its parts share."""
    train, validation = data.train, data.validation
    if validation is None:
        return function(data)
    shared = [
        name for name in ("features", "labels") if getattr(train, name) is getattr(validation, name)
    ]
    mapped = function(data._replace(validation=validation._replace(**dict.fromkeys(shared))))
    assert mapped.validation is not None
    arrays = {name: getattr(mapped.train, name) for name in shared}
    return mapped._replace(validation=mapped.validation._replace(**arrays))


def stack(datasets: Sequence[FederatedData]) -> FederatedData:
    """Stacks partitions of the same examples, one for each run of ``fit``.

    Args:
        datasets: At least one, with equal examples and numbers of clients.

    Returns:
        A federated dataset whose partition has a leading axis ``runs``; shorter rows of ``order``
        are padded.

    Raises:
        ValueError: If examples or numbers of clients differ.

    Examples:
        >>> from fedjax_fair.data import iid, load
        >>> both = stack([load("digits", iid(20), seed=seed) for seed in (0, 1)])
        >>> both.num_partitions, both.train.sizes.shape, both.partition(1).train.sizes.shape
        (2, (2, 20), (20,))
    """
    require(datasets, "datasets=[]: expected one or more.")
    first = datasets[0]
    for run, data in enumerate(datasets):
        require(
            data.num_clients == first.num_clients,
            f"datasets[{run}] has {data.num_clients} clients: expected {first.num_clients}, as the "
            "first.",
        )
        for name in ("train", "test", "validation"):
            part, expected = getattr(data, name), getattr(first, name)
            require(
                (part is None) == (expected is None),
                f"datasets[{run}].{name}: expected it in all datasets or in none.",
            )
            require(
                part is None
                or (
                    _equal(part.features, expected.features)
                    and _equal(part.labels, expected.labels)
                ),
                f"datasets[{run}].{name}: expected the examples of the first dataset.",
            )
    return with_partition_arrays(first, jax.tree.map(_stack_rows, *map(partition_arrays, datasets)))


def _equal(one: Any, other: Any) -> bool:
    return one is other or np.array_equal(one, other)


def _stack_rows(*rows: Any) -> np.ndarray:
    longest = max(len(row) for row in rows)
    return np.stack([np.pad(np.asarray(row), (0, longest - len(row))) for row in rows])


def validate(data: FederatedData) -> None:
    """Checks a federated dataset on the host, before compilation.

    Raises:
        ValueError: If shapes or dtypes do not match, features are not finite, a label or an index
            is out of range, ``offsets`` are not the exclusive cumulative sum of ``sizes``, or a
            client has no training examples.

    Examples:
        >>> from fedjax_fair.data.arrays import from_arrays
        >>> data = from_arrays(np.zeros((4, 2)), [0, 1, 0, 1], [[0, 1], [2, 3]])
        >>> validate(data)
        >>> validate(FederatedData(data.train, data.test, None, 1, "one class"))
        Traceback (most recent call last):
        ...
        ValueError: train.labels span [0, 1]: expected [0, 0] (num_classes=1).
    """
    checks.instance("data", data, FederatedData, "data.load('digits')")
    checks.positive_int("num_classes", data.num_classes)
    if data.num_partitions is not None:
        for run in range(data.num_partitions):
            validate(data.partition(run).map_parts(_without_padding))
        return
    train = data.train
    check_examples("train", train, data.num_classes)
    for name, part in (("test", data.test), ("validation", data.validation)):
        if part is None:
            continue
        check_examples(name, part, data.num_classes)
        require(
            train.sizes.shape == part.sizes.shape,
            f"{name}.sizes of shape {part.sizes.shape}: expected train's {train.sizes.shape}.",
        )
        # Labels may differ in width.
        same_type = {
            "features": part.features.dtype == train.features.dtype,
            "labels": part.has_targets == train.has_targets,
        }
        for field, is_same_type in same_type.items():
            values, expected = getattr(part, field), getattr(train, field)
            require(
                values.shape[1:] == expected.shape[1:] and is_same_type,
                f"{name}.{field} {values.shape} of {values.dtype}: expected {field} like train's "
                f"{expected.shape} of {expected.dtype}.",
            )
    empty = np.flatnonzero(np.asarray(train.sizes) == 0)
    require(
        not empty.size,
        f"{empty.size} clients without training examples, first {empty[:5].tolist()}: "
        "expected none.",
    )
    if data.groups is not None:
        groups = as_integers("groups", data.groups)
        require(
            groups.shape == train.sizes.shape,
            f"groups of shape {groups.shape}: expected {train.sizes.shape}.",
        )
        check_range("groups", groups, groups.size, f"{groups.size} clients")


def _without_padding(part: ClientExamples) -> ClientExamples:
    return part._replace(order=part.order[: int(np.sum(part.sizes))])


def _summary(data: FederatedData) -> dict[str, str]:
    """Summarizes a federated dataset of concrete arrays, the first of several partitions."""
    num_partitions, data = data.num_partitions, data.partition(0)
    train, test = (np.asarray(part.sizes) for part in (data.train, data.test))
    counts, labels = data.train.class_counts(data.num_classes), data.train.labels
    classes = f"{data.num_classes:,}; {_range((counts > 0).sum(axis=1))}"
    skew = label_distance(counts)
    if data.train.has_targets:
        classes, skew = f"none: targets of shape {labels.shape[1:]}, {labels.dtype}", np.nan
    shape = " x ".join(map(str, data.train.features.shape[1:])) or "scalar"
    groups = ""
    if data.groups is not None:
        sizes = np.bincount(np.asarray(data.groups))
        groups = f" in {len(sizes)} groups of {', '.join(f'{size:,}' for size in sizes)}"
    num_validation = 0 if data.validation is None else int(np.sum(data.validation.sizes))
    total_train, total_test = len(labels) + data.num_unassigned, len(data.test.labels)
    return {
        "clients": f"{len(train):,}{groups}",
        "training examples": f"{train.sum():,}; {_range(train)}"
        + (f"; {num_validation:,} more for validation" if num_validation else ""),
        "test examples": f"{test.sum():,}; {_range(test)}",
        "features": f"{shape}, {data.train.features.dtype}",
        "classes": classes,
        "label skew": f"{skew:.2f} (mean total variation distance to all clients, 0 to 1)",
        "size skew": f"{float(gini(jnp.asarray(train, jnp.float32))):.2f} (Gini index, 0 to 1)",
        "unassigned": f"{total_train - num_validation - train.sum():,} of {total_train:,} training "
        f"examples, {total_test - test.sum():,} of {total_test:,} test examples",
        "partitions": "one for all runs"
        if num_partitions is None
        else f"{num_partitions}, one per run; above the first",
    }


def _range(values: np.ndarray) -> str:
    return f"{values.min():,} to {values.max():,} per client, median {np.median(values):,.0f}"


def label_distance(counts: Int[np.ndarray, "clients classes"]) -> float:
    """Mean total variation distance between the class distributions of a client and of all clients.

    Args:
        counts: Number of examples of every client and class; clients without any are ignored.

    Examples:
        >>> label_distance(np.array([[5, 0], [0, 5]])), label_distance(np.array([[2, 4], [1, 2]]))
        (0.5, 0.0)
    """
    counts = counts[counts.sum(axis=1) > 0]
    per_client, overall = (
        counts / counts.sum(axis=1, keepdims=True),
        counts.sum(axis=0) / counts.sum(),
    )
    return float(np.mean(np.abs(per_client - overall).sum(axis=1)) / 2)
