"""A federation as flat arrays plus ownership: who owns which example, without padding."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Int, Shaped

from fedjax_fair import checks

__all__ = ["ClientExamples", "FederatedData", "validate"]


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
    train, test, groups = children
    return FederatedData(train, test, groups, *static)


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
        >>> from fedjax_fair.data.arrays import from_arrays
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
        f"test.features {test.features.shape} of {test.features.dtype}: expected examples like "
        f"train's {train.features.shape} of {train.features.dtype}.",
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
            groups.shape == train.sizes.shape and groups.min() >= 0,
            f"groups of shape {groups.shape}: expected {train.sizes.shape}, none negative.",
        )


def _validate_examples(name: str, examples: ClientExamples, num_classes: int) -> None:
    features = np.asarray(examples.features)
    labels = as_integers(f"{name}.labels", examples.labels)
    order = as_integers(f"{name}.order", examples.order)
    offsets = as_integers(f"{name}.offsets", examples.offsets)
    sizes = as_integers(f"{name}.sizes", examples.sizes)
    _require(
        features.shape[:1] == labels.shape,
        f"{name}.features of shape {features.shape}: expected one for each of "
        f"{labels.shape} labels.",
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
