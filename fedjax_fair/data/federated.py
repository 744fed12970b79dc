"""A federation as flat arrays plus ownership: who owns which example, without padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Int, Shaped

from fedjax_fair import checks
from fedjax_fair.data.summary import describe_federation
from fedjax_fair.text import escape_control_chars

__all__ = [
    "ClientExamples",
    "FederatedData",
    "PartitionArrays",
    "Replicated",
    "map_arrays",
    "partition_arrays",
    "stack",
    "validate",
    "with_partition_arrays",
]


class Replicated(NamedTuple):
    """Marks examples of which each of several devices has all, and computes a part."""


class ClientExamples(NamedTuple):
    """Examples of every client, flat.

    Client ``i`` owns examples ``order[offsets[i] : offsets[i] + sizes[i]]``. Clients follow each
    other in ``order`` without gaps: ``offsets`` is the exclusive cumulative sum of ``sizes``.

    Attributes:
        features: Inputs of all examples, ``[total, ...]``; images stay ``uint8``.
        labels: Class of each example, ``[total]``, integers; or floating-point targets of any
            shape ``[total, ...]``, for a model whose loss compares outputs with them.
        order: Indices into the examples, grouped by client, ``[assigned]``.
        offsets: Where each client's run in ``order`` starts, ``[clients]``.
        sizes: Number of examples of each client, ``[clients]``.
        devices: Which of several devices holds each client's examples, ``[clients]``
            (`fedjax_fair.parallel.mesh`); a device then has the arrays above for its own
            clients, and ``offsets`` and ``sizes`` of all. ``Replicated()`` where every device has
            all examples, None where there is one device.
    """

    features: Shaped[Array, "total ..."]
    labels: Shaped[Array, "total ..."]
    order: Int[Array, " assigned"]
    offsets: Int[Array, " clients"]
    sizes: Int[Array, " clients"]
    devices: Int[Array, " clients"] | Replicated | None = None

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return self.sizes.shape[-1]

    @property
    def has_all_clients(self) -> bool:
        """Whether this device has the examples of all clients."""
        return self.devices is None or isinstance(self.devices, Replicated)


class FederatedData(NamedTuple):
    """A federation: training and test examples of the same clients.

    A pytree whose ``num_classes``, ``name``, ``label_skew_only`` and ``num_unassigned`` are static, so that a
    federation can be an argument of a compiled function. ``print`` describes it in ten lines.

    Where every run has a partition of its own (`stack`), who owns what has a leading axis ``runs``:
    ``order``, ``offsets``, ``sizes`` and ``groups``. The examples themselves are shared.

    Attributes:
        train: Training examples; every client owns at least one.
        test: Test examples of the same clients.
        groups: Planted group of each client, ``[clients]``, or None where none is planted.
        num_classes: Number of classes; of outputs where labels are targets.
        name: What the data is called in results.
        label_skew_only: Whether clients differ in their numbers of examples of each class alone, which
            `results.class_based` needs to know.
        num_unassigned: Examples that belong to no client and are not kept in ``train`` or ``test``.
        validation: Examples of the same clients to choose settings by, kept from training and test
            (`hold_out`), or None. Clients may have none.
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
        concrete = all(isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves)
        traced = any(isinstance(leaf, Tracer) for leaf in leaves)
        if not concrete or traced or self.train.devices is not None:
            return repr(self)
        try:
            validate(self)
        except ValueError as error:
            return f"{escape_control_chars(self.name)}, which is no federation: {error}"
        return describe_federation(self)

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return self.train.num_clients

    @property
    def num_partitions(self) -> int | None:
        """Number of partitions, or None for a single one that all runs share."""
        return self.train.order.shape[0] if self.train.order.ndim == 2 else None

    def partition(self, run: int) -> FederatedData:
        """The federation of one run."""
        if self.num_partitions is None:
            return self
        return with_partition_arrays(
            self, jax.tree.map(lambda leaf: leaf[run], partition_arrays(self))
        )


def _flatten(data: FederatedData):
    names = ("train", "test", "groups", "validation")
    children = tuple((jax.tree_util.GetAttrKey(name), getattr(data, name)) for name in names)
    return children, (data.num_classes, data.name, data.label_skew_only, data.num_unassigned)


def _unflatten(static: tuple[int, str, bool, int], children: Any) -> FederatedData:
    train, test, groups, validation = children
    return FederatedData(train, test, groups, *static, validation)


# Registered by hand, because JAX would treat the static fields of a NamedTuple as arrays.
jax.tree_util.register_pytree_with_keys(FederatedData, _flatten, _unflatten)


class PartitionArrays(NamedTuple):
    """Who owns which example: all that differs between partitions of the same examples.

    Attributes:
        train: ``order``, ``offsets`` and ``sizes`` of the training examples.
        test: The same of the test examples.
        groups: Planted groups, or None.
        validation: The same of the validation examples, or None.
    """

    train: tuple[Any, Any, Any]
    test: tuple[Any, Any, Any]
    groups: Any
    validation: tuple[Any, Any, Any] | None = None


def partition_arrays(data: FederatedData) -> PartitionArrays:
    """Takes the partition arrays out of a federation."""
    train, test, validation = (
        None if part is None else (part.order, part.offsets, part.sizes)
        for part in (data.train, data.test, data.validation)
    )
    assert train is not None
    assert test is not None
    return PartitionArrays(train, test, data.groups, validation)


def with_partition_arrays(data: FederatedData, arrays: PartitionArrays) -> FederatedData:
    """Gives the examples of a federation other owners."""

    def given(examples, own):
        return examples._replace(**dict(zip(("order", "offsets", "sizes"), own, strict=True)))

    return data._replace(
        train=given(data.train, arrays.train),
        test=given(data.test, arrays.test),
        groups=arrays.groups,
        validation=arrays.validation and given(data.validation, arrays.validation),
    )


def map_arrays(
    data: FederatedData, move: Callable[[FederatedData], FederatedData]
) -> FederatedData:
    """Moves a federation, and only once what training and validation examples share."""
    train, own = data.train, data.validation
    if own is None:
        return move(data)
    names = [name for name in ("features", "labels") if getattr(train, name) is getattr(own, name)]
    there = move(data._replace(validation=own._replace(**dict.fromkeys(names))))
    assert there.validation is not None
    kept = {name: getattr(there.train, name) for name in names}
    return there._replace(validation=there.validation._replace(**kept))


def stack(federations: Sequence[FederatedData]) -> FederatedData:
    """Puts partitions of the same examples side by side, one for each run of ``fit``.

    Args:
        federations: At least one, with equal examples and as many clients; they may own more or
            fewer of the examples.

    Returns:
        A federation whose partition has a leading axis ``runs``. Rows of ``order`` that are shorter
        than others are filled up; what is filled in belongs to no client.

    Raises:
        ValueError: If examples or numbers of clients differ.

    Examples:
        >>> from fedjax_fair.data import iid, load
        >>> both = stack([load("digits", iid(20), seed=seed) for seed in (0, 1)])
        >>> both.num_partitions, both.train.sizes.shape, both.partition(1).train.sizes.shape
        (2, (2, 20), (20,))
    """
    if not federations:
        raise ValueError("federations=[]: expected one or more.")
    first = federations[0]
    for run, other in enumerate(federations):
        clients = other.num_clients
        _require(
            clients == first.num_clients,
            f"federations[{run}] has {clients} clients: expected {first.num_clients} as the first.",
        )
        _require(
            (other.validation is None) == (first.validation is None),
            f"federations[{run}].validation: expected it in all federations or in none.",
        )
        for name in ("train", "test", "validation"):
            own, shared = getattr(other, name), getattr(first, name)
            if own is None:
                continue
            _require(
                _same(own.features, shared.features) and _same(own.labels, shared.labels),
                f"federations[{run}].{name}: expected the examples of the first federation.",
            )
    return with_partition_arrays(
        first, jax.tree.map(_stack_rows, *map(partition_arrays, federations))
    )


def _same(one: Any, other: Any) -> bool:
    return one is other or np.array_equal(one, other)


def _stack_rows(*rows: Any) -> np.ndarray:
    longest = max(len(row) for row in rows)
    return np.stack([np.pad(np.asarray(row), (0, longest - len(row))) for row in rows])


def validate(data: FederatedData) -> None:
    """Checks a federation on the host, once, before anything is compiled.

    Args:
        data: The federation. Clients without test examples are allowed.

    Raises:
        ValueError: If shapes or dtypes do not fit together, features are not finite, a label or an
            index is out of range, ``offsets`` are not the exclusive cumulative sum of ``sizes``, or
            a client has no training examples. The message carries the numbers.

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
    for run in range(data.num_partitions or 0):
        validate(_trimmed(data.partition(run)))
    if data.num_partitions is not None:
        return
    train = data.train
    _validate_examples("train", train, data.num_classes)
    for name, own in (("test", data.test), ("validation", data.validation)):
        if own is None:
            continue
        _validate_examples(name, own, data.num_classes)
        _require(
            train.sizes.shape == own.sizes.shape,
            f"{name}.sizes of shape {own.sizes.shape}: expected train's {train.sizes.shape}.",
        )
        _require(
            (train.features.shape[1:], train.features.dtype)
            == (own.features.shape[1:], own.features.dtype),
            f"{name}.features {own.features.shape} of {own.features.dtype}: expected examples like "
            f"train's {train.features.shape} of {train.features.dtype}.",
        )
        labels, wanted = np.asarray(own.labels), np.asarray(train.labels)
        targets = [np.issubdtype(each.dtype, np.floating) for each in (labels, wanted)]
        _require(
            labels.shape[1:] == wanted.shape[1:] and targets[0] == targets[1],
            f"{name}.labels {labels.shape} of {labels.dtype}: expected labels like train's "
            f"{wanted.shape} of {wanted.dtype}.",
        )
    empty = np.flatnonzero(np.asarray(train.sizes) == 0)
    _require(
        not empty.size,
        f"{empty.size} clients without training examples, first {empty[:5].tolist()}: "
        "expected none.",
    )
    if data.groups is not None:
        groups = as_integers("groups", data.groups)
        _require(
            groups.shape == train.sizes.shape,
            f"groups of shape {groups.shape}: expected {train.sizes.shape}.",
        )
        lowest, highest = groups.min(), groups.max()
        _require(
            0 <= lowest <= highest < groups.size,
            f"groups span [{lowest}, {highest}]: expected numbers in [0, {groups.size - 1}].",
        )


def _trimmed(data: FederatedData) -> FederatedData:
    """Without the places of ``order`` without an owner, which a stack may have."""
    parts = {
        name: part._replace(order=part.order[: int(np.sum(part.sizes))])
        for name in ("train", "test", "validation")
        if (part := getattr(data, name)) is not None
    }
    return data._replace(**parts)


def _validate_examples(name: str, examples: ClientExamples, num_classes: int) -> None:
    features = np.asarray(examples.features)
    labels = np.asarray(examples.labels)
    targets = np.issubdtype(labels.dtype, np.floating)
    if not targets:
        labels = as_integers(f"{name}.labels", labels)
    order = as_integers(f"{name}.order", examples.order)
    offsets = as_integers(f"{name}.offsets", examples.offsets)
    sizes = as_integers(f"{name}.sizes", examples.sizes)
    _require(
        features.shape[:1] == labels.shape[:1],
        f"{name}.features of shape {features.shape}: expected one for each of "
        f"{labels.shape} labels.",
    )
    _require(
        np.issubdtype(features.dtype, np.integer) or np.issubdtype(features.dtype, np.floating),
        f"{name}.features of {features.dtype}: expected uint8, integers or floats; encode anything "
        "else as numbers first.",
    )
    for field, values in {"features": features, "labels": labels}.items():
        if np.issubdtype(values.dtype, np.floating):
            bad = values.size - np.isfinite(values).sum()
            _require(not bad, f"{name}.{field}: {bad} values are not finite; expected none.")
    if not targets:
        _in_range(f"{name}.labels", labels, num_classes, f"{num_classes=}")
    _in_range(f"{name}.order", order, len(labels), f"{len(labels)} examples")
    _require(
        sizes.size and sizes.min() >= 0, f"{name}.sizes={sizes}: expected clients, none negative."
    )
    _require(
        np.array_equal(offsets, np.cumsum(sizes) - sizes) and sizes.sum() == len(order),
        f"{name}.offsets of shape {offsets.shape}: expected the exclusive cumulative sum of sizes, "
        f"which add up to {sizes.sum()}, for the {len(order)} entries of order.",
    )


def _require(valid: Any, message: str) -> None:
    if not valid:
        raise ValueError(message)


def as_integers(name: str, values: Any) -> np.ndarray:
    """Requires a list of integers of any width."""
    array = np.asarray(values)
    _require(
        np.issubdtype(array.dtype, np.integer) and array.ndim == 1,
        f"{name} of {array.dtype} and shape {array.shape}: expected 1-D integers.",
    )
    return array


def _in_range(name: str, values: np.ndarray, end: int, reason: str) -> None:
    if values.size and not 0 <= values.min() <= values.max() < end:
        raise ValueError(
            f"{name} span [{values.min()}, {values.max()}]: expected [0, {end - 1}] ({reason})."
        )
