"""A federation as flat arrays plus ownership: who owns which example, without padding."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Int, Shaped

from fedjax_fair import checks
from fedjax_fair.data.partition import Partition, explicit, join_indices, owned

__all__ = ["ClientExamples", "FederatedData", "federate", "from_arrays", "from_npz", "validate"]


class ClientExamples(NamedTuple):
    """Examples of every client, flat.

    Client ``i`` owns examples ``order[offsets[i] : offsets[i] + sizes[i]]``. Clients follow each
    other in ``order`` without gaps: ``offsets`` is the exclusive cumulative sum of ``sizes``.

    Attributes:
        features: Inputs of all examples, ``[total, ...]``; images stay ``uint8``.
        labels: Class of each example, ``[total]``, integers.
        order: Indices into the examples, grouped by owner, ``[owned]``.
        offsets: Where each client's run in ``order`` starts, ``[clients]``.
        sizes: Number of examples of each client, ``[clients]``.
    """

    features: Shaped[Array, "total ..."]
    labels: Int[Array, " total"]
    order: Int[Array, " owned"]
    offsets: Int[Array, " clients"]
    sizes: Int[Array, " clients"]

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return self.sizes.shape[-1]


class FederatedData(NamedTuple):
    """A federation: training and test examples of the same clients.

    A pytree whose ``num_classes`` and ``name`` are static, so that a federation can be an argument
    of a compiled function.

    Attributes:
        train: Training examples; every client owns at least one.
        test: Test examples of the same clients.
        groups: Planted group of each client, ``[clients]``, or None where none is planted.
        num_classes: Number of classes.
        name: What the data is called in results.
    """

    train: ClientExamples
    test: ClientExamples
    groups: Int[Array, " clients"] | None
    num_classes: int
    name: str

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return self.train.num_clients


def _flatten(data: FederatedData):
    names = ("train", "test", "groups")
    children = tuple((jax.tree_util.GetAttrKey(name), getattr(data, name)) for name in names)
    return children, (data.num_classes, data.name)


def _unflatten(static: tuple[int, str], children: Any) -> FederatedData:
    return FederatedData(*children, *static)


# Registered by hand, because JAX would treat the two static fields of a NamedTuple as arrays.
jax.tree_util.register_pytree_with_keys(FederatedData, _flatten, _unflatten)


def validate(data: FederatedData) -> None:
    """Checks a federation on the host, once, before anything is compiled.

    Args:
        data: The federation. Clients without test examples are allowed.

    Raises:
        ValueError: If shapes or dtypes do not fit together, features are not finite, a label or an
            index is out of range, ``offsets`` are not the exclusive cumulative sum of ``sizes``, or
            a client has no training examples. The message carries the numbers.

    Examples:
        >>> data = from_arrays(np.zeros((4, 2)), [0, 1, 0, 1], [[0, 1], [2, 3]])
        >>> validate(data)
        >>> validate(FederatedData(data.train, data.test, None, 1, "one class"))
        Traceback (most recent call last):
        ...
        ValueError: train.labels span [0, 1]: expected [0, 0] (num_classes=1).
    """
    checks.positive_int("num_classes", data.num_classes)
    for name, examples in (("train", data.train), ("test", data.test)):
        _validate_examples(name, examples, data.num_classes)
    train, test = data.train, data.test
    _require(
        train.sizes.shape == test.sizes.shape,
        f"test.sizes of shape {test.sizes.shape}: expected train's {train.sizes.shape}.",
    )
    _require(
        (train.features.shape[1:], train.features.dtype)
        == (test.features.shape[1:], test.features.dtype),
        f"test.features of shape {test.features.shape} and {test.features.dtype}: expected examples "
        f"like train's {train.features.shape} and {train.features.dtype}.",
    )
    empty = np.flatnonzero(np.asarray(train.sizes) == 0)
    _require(
        not empty.size,
        f"{empty.size} clients without training examples, first {empty[:5].tolist()}: expected none.",
    )
    if data.groups is not None:
        groups = _integers("groups", data.groups)
        _require(
            groups.shape == train.sizes.shape and groups.min() >= 0,
            f"groups of shape {groups.shape}: expected {train.sizes.shape}, none negative.",
        )


def _validate_examples(name: str, examples: ClientExamples, num_classes: int) -> None:
    features = np.asarray(examples.features)
    labels = _integers(f"{name}.labels", examples.labels)
    order = _integers(f"{name}.order", examples.order)
    offsets = _integers(f"{name}.offsets", examples.offsets)
    sizes = _integers(f"{name}.sizes", examples.sizes)
    _require(
        features.shape[:1] == labels.shape,
        f"{name}.features of shape {features.shape}: expected one for each of {labels.shape} labels.",
    )
    _require(
        np.issubdtype(features.dtype, np.number),
        f"{name}.features of {features.dtype}: expected uint8, integers or floats.",
    )
    if np.issubdtype(features.dtype, np.floating):
        bad = features.size - np.isfinite(features).sum()
        _require(not bad, f"{name}.features: {bad} values are not finite; expected none.")
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


def _integers(name: str, values: Any) -> np.ndarray:
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


def federate(
    train: tuple[Any, Any, Partition],
    test: tuple[Any, Any, Partition] | None,
    *,
    num_classes: int,
    name: str,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> FederatedData:
    """Puts examples and their partitions together and validates the result.

    Arrays stay NumPy's: images ``uint8`` as ``[total, height, width, channels]`` (grey ones get
    their channel axis), other integers int32, floats float32.

    Args:
        train: Features, labels and partition of the training examples.
        test: The same of the test examples. None holds out a random ``floor(test_fraction * size)``
            of each client's training examples, so that every client keeps at least one.
        num_classes: Number of classes.
        name: What the data is called in results.
        test_fraction: Part of every client's examples held out, in ``[0, 1)``.
        seed: Seed of the choice of held-out examples.

    Returns:
        The federation. ``groups`` are those of the training partition.

    Raises:
        ValueError: If anything does not fit together.
    """
    features, labels, partition = train
    if test is None:
        checks.unit_interval("test_fraction", test_fraction)
        train_part, test_part = _hold_out(partition, test_fraction, seed)
        # Two copies of disjoint parts, not two views of everything: that would cost twice the
        # memory once both are on a device.
        train = _compact(features, labels, train_part)
        test = _compact(features, labels, test_part)
    data = FederatedData(
        _client_examples(*train), _client_examples(*test), partition.groups, num_classes, name
    )
    validate(data)
    return data


def _hold_out(partition: Partition, fraction: float, seed: int) -> tuple[Partition, Partition]:
    rng = np.random.default_rng((seed, 2))  # Apart from the streams that deal examples.
    clients = np.repeat(np.arange(len(partition.sizes)), partition.sizes)
    shuffled = partition.order[np.lexsort((rng.random(len(clients)), clients))]
    taken = np.floor(partition.sizes * fraction).astype(np.int64)
    offsets = np.cumsum(partition.sizes) - partition.sizes
    held = np.arange(len(clients)) - offsets[clients] < taken[clients]
    total = len(partition.order) + len(partition.dropped)
    return (
        owned(shuffled[~held], partition.sizes - taken, total, partition.groups),
        owned(shuffled[held], taken, total, partition.groups),
    )


def _compact(features: Any, labels: Any, partition: Partition):
    """Copies the owned examples, in the order of their owners."""
    order = np.arange(len(partition.order))
    return (
        np.asarray(features)[partition.order],
        np.asarray(labels)[partition.order],
        owned(order, partition.sizes, len(order)),
    )


def _client_examples(features: Any, labels: Any, partition: Partition) -> Any:
    offsets = np.cumsum(partition.sizes) - partition.sizes
    return ClientExamples(
        _as_features(features),  # pyright: ignore[reportArgumentType]
        _integers("labels", labels).astype(np.int32, copy=False),  # pyright: ignore
        partition.order,  # pyright: ignore
        offsets.astype(np.int32),  # pyright: ignore
        partition.sizes,  # pyright: ignore
    )


def _as_features(features: Any) -> np.ndarray:
    array = np.asarray(features)
    if array.dtype == np.uint8:
        return array[..., None] if array.ndim == 3 else array
    if np.issubdtype(array.dtype, np.floating):
        return array.astype(np.float32, copy=False)
    if np.issubdtype(array.dtype, np.integer):
        return array.astype(np.int32, copy=False)
    raise ValueError(f"features of {array.dtype}: expected uint8, integers or floats.")


def from_arrays(
    features: Any,
    labels: Any,
    client_indices: Sequence[Any],
    *,
    test_features: Any = None,
    test_labels: Any = None,
    test_client_indices: Sequence[Any] | None = None,
    groups: Any = None,
    num_classes: int | None = None,
    name: str = "custom",
    test_fraction: float = 0.2,
    seed: int = 0,
) -> FederatedData:
    """Makes a federation of arrays in memory.

    Args:
        features: Inputs, ``[total, ...]``: images ``uint8`` ``[total, height, width, channels]`` or
            grey without channels, otherwise floats or integers.
        labels: Classes, ``[total]``, integers from 0.
        client_indices: Indices of each client's examples, none empty, no index twice.
        test_features: Test inputs; the three test arguments are given together or not at all.
        test_labels: Test classes.
        test_client_indices: Indices of each client's test examples; they may be empty.
        groups: Planted group of each client, ``[clients]``.
        num_classes: Number of classes; by default one more than the largest label.
        name: What the data is called in results.
        test_fraction: Without test arguments, the part of each client's examples that is held out
            for testing, rounded down; at least one is kept for training. In ``[0, 1)``.
        seed: Seed of the choice of held-out examples.

    Returns:
        A validated federation of NumPy arrays.

    Raises:
        ValueError: If the arrays do not fit together (see ``validate``).

    Examples:
        >>> data = from_arrays(np.eye(10), np.arange(10) % 2, [range(5), range(5, 10)])
        >>> data.train.sizes.tolist(), data.test.sizes.tolist(), data.num_classes
        ([4, 4], [1, 1], 2)
    """
    labels = _integers("labels", labels)
    partition = explicit(client_indices).split(labels, seed)
    if groups is not None:
        partition = Partition(
            partition.order, partition.sizes, np.asarray(groups), partition.dropped
        )
    test = None
    given = [test_features is not None, test_labels is not None, test_client_indices is not None]
    if test_client_indices is not None and all(given):
        test_labels = _integers("test_labels", test_labels)
        order, sizes = join_indices(test_client_indices, len(test_labels))
        test = (test_features, test_labels, owned(order, sizes, len(test_labels)))
    elif any(given):
        raise ValueError(
            "test_features, test_labels, test_client_indices: expected all three or none, got "
            f"{given}."
        )
    if num_classes is None:
        num_classes = 1 + int(
            max(labels.max(), test_labels.max() if test and test_labels.size else 0)
        )
    return federate(
        (features, labels, partition),
        test,
        num_classes=num_classes,
        name=name,
        test_fraction=test_fraction,
        seed=seed,
    )


def from_npz(
    path: str | os.PathLike[str], *, test_fraction: float = 0.2, seed: int = 0
) -> FederatedData:
    """Reads a federation from an ``.npz`` file, without pickles.

    Args:
        path: A file with the arrays ``features [total, ...]``, ``labels [total]`` and ``client
            [total]``, the owner of each example: an integer or a string. Optional are
            ``test_features``, ``test_labels`` and ``test_client`` (together; every owner must have
            training examples), ``groups [clients]`` and ``num_classes``. Clients are the distinct
            owners, ascending.
        test_fraction: As in ``from_arrays``, where the file has no test examples.
        seed: As in ``from_arrays``.

    Returns:
        A validated federation named after the file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, holds pickles, lacks an array or they do not fit together.

    Examples:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "wards.npz")
        >>> np.savez(path, features=np.eye(4), labels=[0, 1, 0, 1], client=["a", "b", "a", "b"])
        >>> from_npz(path).train.order.tolist()
        [0, 1, 2, 3]
    """
    arrays = _read_npz(path)
    if missing := {"features", "labels", "client"} - set(arrays):
        raise ValueError(f"{path} lacks {sorted(missing)}: expected features, labels and client.")
    owners = np.unique(arrays["client"])
    test_client = arrays.get("test_client")
    if test_client is not None and (strangers := np.setdiff1d(test_client, owners)).size:
        raise ValueError(
            f"test_client: {strangers.size} owners without training examples, first "
            f"{strangers[:5].tolist()}; expected none."
        )
    return from_arrays(
        arrays["features"],
        arrays["labels"],
        _indices_by_owner(arrays["client"], owners),
        test_features=arrays.get("test_features"),
        test_labels=arrays.get("test_labels"),
        test_client_indices=None if test_client is None else _indices_by_owner(test_client, owners),
        groups=arrays.get("groups"),
        num_classes=int(arrays["num_classes"]) if "num_classes" in arrays else None,
        name=os.path.splitext(os.path.basename(path))[0],
        test_fraction=test_fraction,
        seed=seed,
    )


def _read_npz(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (zipfile.BadZipFile, EOFError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: expected an .npz file of plain arrays ({error}).") from error


def _indices_by_owner(client: np.ndarray, owners: np.ndarray) -> list[np.ndarray]:
    position = np.searchsorted(owners, client)
    ends = np.cumsum(np.bincount(position, minlength=len(owners)))
    return np.split(np.argsort(position, kind="stable"), ends[:-1])
