"""A federation as flat arrays plus ownership: who owns which example, without padding."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Int, Shaped

__all__ = ["ClientExamples", "FederatedData"]


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
