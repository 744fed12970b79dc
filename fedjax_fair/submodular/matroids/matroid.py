"""Interface of matroids, and greedy selection of a base."""

from __future__ import annotations

import abc
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedjax_fair.utils.tree import Tree

__all__ = ["MAX_ITEMS", "Matroid", "check_rank", "heaviest_base", "take_by_weight"]


MAX_ITEMS = 2**31 - 1
"""Items have numbers of 32 bits."""


class Matroid(Tree):
    """The independent subsets of ``{0, ..., size - 1}``; sets are masks over all items.

    Arrays are fields, and so is ``_rank``: matroids of the same class, shapes and rank share
    compiled functions. All methods can be jitted, mapped and scanned.
    """

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Number of items."""

    @property
    def rank(self) -> int:
        """Number of items of a base, a largest independent set; at least 1."""
        return self._rank  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def item_blocks(self) -> Int[Array, " size"] | Int[np.ndarray, " size"] | None:
        """Block of each item, if all constraints limit the number of items of a block."""
        return None

    @property
    def num_blocks(self) -> int:
        """Number of blocks; 0 without blocks."""
        return 0

    @property
    def order(self) -> Int[np.ndarray, " size"] | None:
        """Items in an order in which every constraint is on consecutive items, if one exists."""
        blocks = self.item_blocks
        return None if blocks is None else np.argsort(np.asarray(blocks), kind="stable")

    @abc.abstractmethod
    def independent(self, mask: Bool[Array, " size"]) -> Bool[Array, ""]:
        """Returns whether a set is independent."""

    @abc.abstractmethod
    def feasible_items(self, mask: Bool[Array, " size"]) -> Bool[Array, " size"]:
        """Returns the items outside of an independent set that can join it."""

    @abc.abstractmethod
    def max_weight_base(self, weights: Float[Array, " size"]) -> Bool[Array, " size"]:
        """Returns the base with the largest total weight, also of weights <= 0.

        Of equal weights the smallest index is taken first.
        """

    def exchangeable(
        self, base: Bool[Array, " size"], other: Bool[Array, " size"], item: Int[Array, ""]
    ) -> Bool[Array, " size"]:
        """Returns the items of ``other`` for which ``item`` of ``base`` can be exchanged.

        Both sets are bases and stay bases; the items are in one of them only. There is at least
        one.
        """
        if self.item_blocks is not None:
            blocks = jnp.asarray(self.item_blocks)
            return other & ~base & (blocks == blocks[item])
        items = jnp.arange(self.size, dtype=jnp.int32)
        into_base = self.feasible_items(base.at[item].set(False))

        def takes_item(out):
            return self.feasible_items(other.at[out].set(False))[item]

        into_other = jax.vmap(takes_item)(items)
        return other & ~base & into_base & into_other


@jax.jit
def heaviest_base(matroid: Matroid, weights: Float[Array, " size"]) -> Bool[Array, " size"]:
    """Returns ``matroid.max_weight_base(weights)``, compiled once for equal shapes."""
    return matroid.max_weight_base(weights)


def take_by_weight(
    start: Array,
    take: Callable[[Array, Int[Array, ""]], tuple[Array, Bool[Array, ""]]],
    weights: Float[Array, " size"],
) -> Bool[Array, " size"]:
    """Takes items by decreasing weight, each if the set stays independent.

    ``take(state, item) -> (state, taken)`` decides, from the state ``start`` of the empty set on.
    """
    heaviest_first = jnp.argsort(-weights, stable=True).astype(jnp.int32)
    _, taken = jax.lax.scan(take, start, heaviest_first)
    return jnp.zeros(weights.shape[0], bool).at[heaviest_first].set(taken)


def check_rank(rank: int) -> int:
    """Returns the rank, which has to be positive."""
    if rank < 1:
        raise ValueError(
            f"rank={rank}: expected a matroid in which some item is independent; raise a capacity."
        )
    return rank
