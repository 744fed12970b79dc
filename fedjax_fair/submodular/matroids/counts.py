"""Matroids that limit the number of items: of all items, of blocks, or of nested sets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from fedjax_fair.submodular.checked_arrays import as_host
from fedjax_fair.submodular.matroids.matroid import MAX_ITEMS, Matroid, check_rank, take_by_weight
from fedjax_fair.utils import checks

__all__ = ["Laminar", "Partition", "Uniform", "allocation"]


class Uniform(Matroid):
    """All sets of at most ``k`` items.

    Args:
        k: Items of a base.
        num_items: Number of items.

    Examples:
        >>> from fedjax_fair.submodular.matroids import heaviest_base
        >>> heaviest_base(Uniform(2, 4), jnp.array([1.0, 3.0, 3.0, 3.0])).tolist()
        [False, True, True, False]
    """

    k: int
    num_items: int
    _rank: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        checks.positive_int("num_items", self.num_items, at_most=MAX_ITEMS)
        checks.positive_int("k", self.k, at_most=self.num_items)
        self._convert(_rank=self.k)

    @property
    def size(self) -> int:
        return self.num_items

    @property
    def item_blocks(self) -> Int[np.ndarray, " size"]:
        return np.zeros(self.size, np.int32)

    @property
    def num_blocks(self) -> int:
        return 1

    def independent(self, mask: Bool[Array, " size"]) -> Bool[Array, ""]:
        return jnp.sum(mask) <= self.k

    def feasible_items(self, mask: Bool[Array, " size"]) -> Bool[Array, " size"]:
        return ~mask & (jnp.sum(mask) < self.k)

    def max_weight_base(self, weights: Float[Array, " size"]) -> Bool[Array, " size"]:
        _, heaviest = jax.lax.top_k(weights, self.k)
        return jnp.zeros(self.size, bool).at[heaviest].set(True)


class Partition(Matroid):
    """Sets with a limited number of items of each block.

    Args:
        blocks: Block of each item, ``[n]``, in ``[0, len(capacities))``.
        capacities: Maximum number of items of each block, ``[blocks]``; from 0 to the size of the
            block.

    Raises:
        ValueError: If a block does not exist, a capacity is out of range, or all of them are 0.

    Examples:
        >>> Partition([0, 0, 1, 1], [1, 2]).rank
        3
    """

    # NumPy arrays, so that a matroid made inside a traced function has known values.
    blocks: Int[Array, " size"] | Int[np.ndarray, " size"]
    capacities: Int[Array, " blocks"] | Int[np.ndarray, " blocks"]
    _starts: Int[Array, " blocks"] | Int[np.ndarray, " blocks"] = field(init=False, repr=False)
    _rank: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        blocks = _integers("blocks", self.blocks)
        capacities = _integers("capacities", self.capacities)
        count = capacities.size
        if not 0 <= blocks.min() <= blocks.max() < count:
            raise ValueError(
                f"blocks: expected integers in [0, {count}), got {_range(blocks)}; give each block "
                "a capacity."
            )
        sizes = np.bincount(blocks, minlength=count)
        for block in np.flatnonzero((capacities < 0) | (capacities > sizes)):
            raise ValueError(
                f"capacities[{block}]={capacities[block]}: expected an integer in [0, "
                f"{sizes[block]}], the size of block {block}; lower the capacity."
            )
        starts = (np.cumsum(sizes) - sizes).astype(np.int32)
        rank = check_rank(int(capacities.sum()))
        self._convert(blocks=blocks, capacities=capacities, _starts=starts, _rank=rank)

    @property
    def size(self) -> int:
        return self.blocks.shape[-1]

    @property
    def item_blocks(self) -> Int[Array, " size"] | Int[np.ndarray, " size"]:
        return self.blocks

    @property
    def num_blocks(self) -> int:
        return self.capacities.shape[-1]

    def _counts(self, mask: Bool[Array, " size"]) -> Int[Array, " blocks"]:
        ones, blocks = mask.astype(jnp.int32), jnp.asarray(self.blocks)
        return jax.ops.segment_sum(ones, blocks, self.num_blocks)

    def independent(self, mask: Bool[Array, " size"]) -> Bool[Array, ""]:
        return (self._counts(mask) <= self.capacities).all()

    def feasible_items(self, mask: Bool[Array, " size"]) -> Bool[Array, " size"]:
        return ~mask & (self._counts(mask) < self.capacities)[self.blocks]

    def max_weight_base(self, weights: Float[Array, " size"]) -> Bool[Array, " size"]:
        places = jnp.arange(self.size, dtype=jnp.int32)
        by_block_and_weight = (jnp.asarray(self.blocks), -weights, places)
        block, _, items = jax.lax.sort(by_block_and_weight, num_keys=3)
        starts, capacities = jnp.asarray(self._starts), jnp.asarray(self.capacities)
        taken = places - starts[block] < capacities[block]
        return jnp.zeros(self.size, bool).at[items].set(taken)


def allocation(num_items: int, num_agents: int) -> Partition:
    """Returns the constraint of welfare problems: every item is assigned to at most one agent.

    The ground set is all pairs of an item and an agent, numbered ``item * num_agents + agent``.

    Examples:
        >>> allocation(2, 3).blocks.tolist()
        [0, 0, 0, 1, 1, 1]
    """
    checks.positive_int("num_items", num_items, at_most=MAX_ITEMS)
    checks.positive_int("num_agents", num_agents, at_most=MAX_ITEMS // num_items)
    return Partition(np.repeat(np.arange(num_items), num_agents), np.ones(num_items, int))


class Laminar(Matroid):
    """Sets with a limited number of items of each set of a family of nested or disjoint sets.

    Args:
        sets: Mask of each set, ``[sets, n]``.
        capacities: Maximum number of items of each set, ``[sets]``, >= 0. Items in no set are not
            limited.

    Raises:
        ValueError: If two sets cross, shapes differ, or no item is allowed.

    Examples:
        >>> Laminar([[1, 1, 0, 0], [1, 1, 1, 1]], [1, 2]).rank
        2
    """

    sets: Bool[Array, "sets size"] | Bool[np.ndarray, "sets size"]
    capacities: Int[Array, " sets"] | Int[np.ndarray, " sets"]
    _rank: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        sets = as_host("sets", self.sets)
        capacities = _integers("capacities", self.capacities)
        if sets.ndim != 2 or 0 in sets.shape or sets.shape[0] != capacities.size:
            raise ValueError(
                f"sets: expected shape [{capacities.size}, n], got {sets.shape}; pass one row per "
                "capacity."
            )
        if not np.isin(sets, (0, 1)).all():
            raise ValueError(
                f"sets: expected masks of 0 and 1, got {_range(sets)}; convert indices to masks."
            )
        sets = sets.astype(bool)
        if capacities.min() < 0:
            raise ValueError(
                f"capacities={capacities.tolist()}: expected integers >= 0; use 0 to exclude all "
                "items of a set."
            )
        for i, j in np.argwhere(_crossing(sets)):
            raise ValueError(
                f"sets {i} and {j}: expected nested or disjoint sets, but they cross; move or "
                "remove the common items."
            )
        rank = check_rank(_laminar_rank(sets, capacities))
        self._convert(sets=sets, capacities=capacities, _rank=rank)

    @property
    def size(self) -> int:
        return self.sets.shape[-1]

    @property
    def order(self) -> Int[np.ndarray, " size"]:
        # Sorting by the largest sets first makes each of them contiguous.
        sets = np.asarray(self.sets)
        return np.lexsort(~sets[np.argsort(sets.sum(axis=1), kind="stable")])

    def _counts(self, mask: Bool[Array, " size"]) -> Int[Array, " sets"]:
        return (jnp.asarray(self.sets) & mask[None]).sum(axis=1)

    def independent(self, mask: Bool[Array, " size"]) -> Bool[Array, ""]:
        return (self._counts(mask) <= self.capacities).all()

    def feasible_items(self, mask: Bool[Array, " size"]) -> Bool[Array, " size"]:
        full = self._counts(mask) >= self.capacities
        return ~mask & ~(full[:, None] & self.sets).any(axis=0)

    def max_weight_base(self, weights: Float[Array, " size"]) -> Bool[Array, " size"]:
        sets, capacities = jnp.asarray(self.sets), jnp.asarray(self.capacities)

        def take(counts, item):
            accepted = ~((counts >= capacities) & sets[:, item]).any()
            return counts + (sets[:, item] & accepted).astype(counts.dtype), accepted

        return take_by_weight(jnp.zeros_like(capacities), take, weights)


def _laminar_rank(sets: Bool[np.ndarray, "sets n"], capacities: Int[np.ndarray, " sets"]) -> int:
    # Inner sets first, the count that each set allows is moved to one of its items.
    counts = np.ones(sets.shape[1], np.int64)
    for i in np.argsort(sets.sum(axis=1), kind="stable"):
        allowed = min(int(counts[sets[i]].sum()), int(capacities[i]))
        counts[sets[i]] = 0
        counts[np.argmax(sets[i])] += allowed if sets[i].any() else 0
    return int(counts.sum())


def _crossing(sets: Bool[np.ndarray, "sets n"]) -> Bool[np.ndarray, "sets sets"]:
    counts = sets.astype(np.int64)
    common, sizes = counts @ counts.T, counts.sum(axis=1)
    return (common > 0) & (common < np.minimum(sizes[:, None], sizes[None]))


def _integers(name: str, values: ArrayLike | Sequence[int] | Iterable[int]) -> Any:
    array = as_host(name, values)
    if array.ndim != 1 or not array.size or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(
            f"{name}: expected a vector of integers, got {array.dtype}{array.shape}; convert it by "
            "numpy.asarray(..., int)."
        )
    if not -MAX_ITEMS <= int(array.min()) <= int(array.max()) <= MAX_ITEMS:
        raise ValueError(
            f"{name}: expected integers of 32 bits, got {_range(array)}; use smaller ones."
        )
    return array.astype(np.int32)


def _range(values: np.ndarray) -> str:
    return f"values from {values.min()} to {values.max()}"
