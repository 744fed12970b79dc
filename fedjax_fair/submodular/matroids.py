"""Matroids: which sets a maximizer may choose.

Everything here is traceable: it can be jitted, mapped and scanned. Only an ``Oracle`` matroid whose
oracle is not written in JAX needs a ``jax.pure_callback`` of its own.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from fedjax_fair import checks
from fedjax_fair.tree import Tree

__all__ = [
    "Graphic",
    "Laminar",
    "Matroid",
    "Oracle",
    "Partition",
    "Uniform",
    "allocation",
    "heaviest_base",
]


class Matroid(Tree):
    """The independent subsets of ``{0, ..., size - 1}``; sets are masks over all items.

    A subclass declares its arrays as fields, which are children of a pytree: matroids of the same
    class, shapes and rank share compiled functions.
    """

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Number of items."""
        raise NotImplementedError

    @property
    @abc.abstractmethod
    def rank(self) -> int:
        """Number of items of a base, a largest independent set; at least 1."""
        raise NotImplementedError

    @property
    def order(self) -> Int[np.ndarray, " size"] | None:
        """The items in an order for which every constraint is on neighbors, if there is one."""
        return None

    @property
    def item_blocks(self) -> Int[Array, " size"] | Int[np.ndarray, " size"] | None:
        """The block of each item, where all constraints are on the number of items of a block."""
        return None

    @property
    def num_blocks(self) -> int:
        """Number of blocks, 0 where there are no such blocks."""
        return 0

    @abc.abstractmethod
    def independent(self, mask: Bool[Array, " size"]) -> Bool[Array, ""]:
        """Returns whether a set is independent."""
        raise NotImplementedError

    @abc.abstractmethod
    def feasible_items(self, mask: Bool[Array, " size"]) -> Bool[Array, " size"]:
        """Returns the items outside of an independent set that can join it."""
        raise NotImplementedError

    @abc.abstractmethod
    def max_weight_base(self, weights: Float[Array, " size"]) -> Bool[Array, " size"]:
        """Returns the heaviest base.

        Weights may be negative or zero; of equal ones the smallest index is taken first.
        """
        raise NotImplementedError

    def exchangeable(
        self, base: Bool[Array, " size"], other: Bool[Array, " size"], item: Int[Array, ""]
    ) -> Bool[Array, " size"]:
        """Returns the items that can be exchanged for one, of which there is always at least one.

        Args:
            base: A base.
            other: Another base.
            item: An item of ``base`` only.

        Returns:
            The items of ``other`` only for which both sets stay bases.
        """
        items = jnp.arange(self.size, dtype=jnp.int32)
        into_base = self.feasible_items(base.at[item].set(False))
        into_other = jax.vmap(lambda out: self.feasible_items(other.at[out].set(False))[item])(
            items
        )
        return other & ~base & into_base & into_other


@jax.jit
def heaviest_base(matroid: Matroid, weights: Float[Array, " size"]) -> Bool[Array, " size"]:
    """Returns ``matroid.max_weight_base(weights)``, compiled once for equal shapes."""
    return matroid.max_weight_base(weights)


class Uniform(Matroid):
    """All sets of at most ``k`` items.

    Args:
        k: Items of a base.
        num_items: Number of items.

    Raises:
        ValueError: If ``k`` is not in ``[1, num_items]``.

    Examples:
        >>> Uniform(2, 4).max_weight_base(jnp.array([1.0, 3.0, 3.0, 3.0])).tolist()
        [False, True, True, False]
    """

    k: int
    num_items: int

    def __post_init__(self) -> None:
        checks.positive_int("num_items", self.num_items)
        checks.positive_int("k", self.k, at_most=self.num_items)

    @property
    def size(self) -> int:
        return self.num_items

    @property
    def rank(self) -> int:
        return self.k

    @property
    def order(self) -> Int[np.ndarray, " size"]:
        return np.arange(self.size)

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

    def exchangeable(
        self, base: Bool[Array, " size"], other: Bool[Array, " size"], item: Int[Array, ""]
    ) -> Bool[Array, " size"]:
        return other & ~base


class Partition(Matroid):
    """Sets with at most a given number of items of each block.

    Args:
        blocks: The block of each item, ``[n]``, in ``[0, len(capacities))``.
        capacities: Items allowed of each block, ``[blocks]``; at least 0 and at most as many as the
            block has.

    Raises:
        ValueError: If a block does not exist, a capacity is out of range, or all of them are 0.

    Examples:
        >>> matroid = Partition([0, 0, 1, 1], [1, 2])
        >>> matroid.max_weight_base(jnp.array([1.0, 3.0, 0.0, 0.0])).tolist()
        [False, True, True, True]
    """

    # Of NumPy, so that a matroid made while a function is traced is known there.
    blocks: Int[Array, " size"] | Int[np.ndarray, " size"]
    capacities: Int[Array, " blocks"] | Int[np.ndarray, " blocks"]
    _starts: Int[Array, " blocks"] | Int[np.ndarray, " blocks"] = field(init=False, repr=False)
    _rank: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        blocks, room = _integers("blocks", self.blocks), _integers("capacities", self.capacities)
        if not 0 <= blocks.min() <= blocks.max() < room.size:
            raise ValueError(f"blocks: expected numbers in [0, {room.size}), got {_span(blocks)}.")
        members = np.bincount(blocks, minlength=room.size)
        for block in np.flatnonzero((room < 0) | (room > members)):
            raise ValueError(
                f"capacities[{block}]={room[block]}: expected a number in [0, {members[block]}], "
                f"as many as block {block} has items."
            )
        self._convert(
            blocks=blocks,
            capacities=room,
            _starts=(np.cumsum(members) - members).astype(np.int32),
            _rank=_positive_rank(int(room.sum())),
        )

    @property
    def size(self) -> int:
        return self.blocks.shape[-1]

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def order(self) -> Int[np.ndarray, " size"]:
        return np.argsort(np.asarray(self.blocks), kind="stable")

    @property
    def item_blocks(self) -> Int[Array, " size"] | Int[np.ndarray, " size"]:
        return self.blocks

    @property
    def num_blocks(self) -> int:
        return self.capacities.shape[-1]

    def _taken(self, mask: Bool[Array, " size"]) -> Int[Array, " blocks"]:
        return jax.ops.segment_sum(
            mask.astype(jnp.int32), jnp.asarray(self.blocks), self.num_blocks
        )

    def independent(self, mask: Bool[Array, " size"]) -> Bool[Array, ""]:
        return (self._taken(mask) <= self.capacities).all()

    def feasible_items(self, mask: Bool[Array, " size"]) -> Bool[Array, " size"]:
        return ~mask & (self._taken(mask) < self.capacities)[self.blocks]

    def max_weight_base(self, weights: Float[Array, " size"]) -> Bool[Array, " size"]:
        places = jnp.arange(self.size, dtype=jnp.int32)
        in_order = (jnp.asarray(self.blocks), -weights, places)
        block, _, items = jax.lax.sort(in_order, num_keys=3)
        starts, allowed = jnp.asarray(self._starts), jnp.asarray(self.capacities)
        return jnp.zeros(self.size, bool).at[items].set(places - starts[block] < allowed[block])

    def exchangeable(
        self, base: Bool[Array, " size"], other: Bool[Array, " size"], item: Int[Array, ""]
    ) -> Bool[Array, " size"]:
        blocks = jnp.asarray(self.blocks)
        return other & ~base & (blocks == blocks[item])


def allocation(num_items: int, num_agents: int) -> Partition:
    """Returns the constraint of welfare problems: every item is assigned to at most one agent.

    The ground set is all pairs of an item and an agent, numbered ``item * num_agents + agent``.

    Raises:
        ValueError: If a number is not positive.

    Examples:
        >>> allocation(2, 3).max_weight_base(jnp.arange(6.0)).tolist()
        [False, False, True, False, False, True]
    """
    checks.positive_int("num_items", num_items)
    checks.positive_int("num_agents", num_agents)
    return Partition(np.repeat(np.arange(num_items), num_agents), np.ones(num_items, int))


class Laminar(Matroid):
    """At most a given number of items of each set of a family of nested or disjoint sets.

    Args:
        sets: One mask a set, ``[sets, n]``.
        capacities: Items allowed of each set, ``[sets]``, >= 0. Items in no set are always allowed.

    Raises:
        ValueError: If two sets cross, shapes do not fit, or nothing is allowed.

    Examples:
        >>> matroid = Laminar([[1, 1, 0, 0], [1, 1, 1, 1]], [1, 2])
        >>> matroid.max_weight_base(jnp.array([4.0, 3.0, 2.0, 1.0])).tolist()
        [True, False, True, False]
    """

    sets: Bool[Array, "sets size"] | Bool[np.ndarray, "sets size"]
    capacities: Int[Array, " sets"] | Int[np.ndarray, " sets"]
    _rank: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        family = np.asarray(self.sets)
        room = _integers("capacities", self.capacities)
        if family.ndim != 2 or 0 in family.shape or family.shape[0] != room.size:
            raise ValueError(f"sets: expected shape [{room.size}, n], got {family.shape}.")
        if not np.isin(family, (0, 1)).all():
            raise ValueError(f"sets: expected masks of 0 and 1, got {_span(family)}.")
        family = family.astype(bool)
        if room.min() < 0:
            raise ValueError(f"capacities={room.tolist()}: expected numbers >= 0.")
        for i, j in np.argwhere(_crossing(family)):
            raise ValueError(f"sets {i} and {j}: expected nested or disjoint sets, but they cross.")
        self._convert(sets=family, capacities=room, _rank=_laminar_rank(family, room))

    @property
    def size(self) -> int:
        return self.sets.shape[-1]

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def order(self) -> Int[np.ndarray, " size"]:
        # Sorted by the largest sets first, so that each of them is contiguous.
        family = np.asarray(self.sets)
        return np.lexsort(~family[np.argsort(family.sum(axis=1), kind="stable")])

    def _counts(self, mask: Bool[Array, " size"]) -> Int[Array, " sets"]:
        return (jnp.asarray(self.sets) & mask[None]).sum(axis=1)

    def independent(self, mask: Bool[Array, " size"]) -> Bool[Array, ""]:
        return (self._counts(mask) <= self.capacities).all()

    def feasible_items(self, mask: Bool[Array, " size"]) -> Bool[Array, " size"]:
        full = self._counts(mask) >= self.capacities
        return ~mask & ~(full[:, None] & self.sets).any(axis=0)

    def max_weight_base(self, weights: Float[Array, " size"]) -> Bool[Array, " size"]:
        inside, allowed = jnp.asarray(self.sets), jnp.asarray(self.capacities)

        def take(counts, item):
            accepted = ~((counts >= allowed) & inside[:, item]).any()
            return counts + (inside[:, item] & accepted).astype(counts.dtype), accepted

        return _take_by_weight(jnp.zeros_like(allowed), take, weights)


class Graphic(Matroid):
    """Sets of edges without a cycle; a base is a spanning forest.

    Args:
        edges: The two ends of each edge, ``[n, 2]``, as numbers from 0; loops and parallel edges
            are allowed.

    Raises:
        ValueError: If the shape does not fit, an end is negative or there are only loops.

    Examples:
        >>> matroid = Graphic([[0, 1], [1, 2], [2, 0]])
        >>> matroid.max_weight_base(jnp.array([1.0, 2.0, 3.0])).tolist()
        [False, True, True]
    """

    edges: Int[Array, "size 2"] | Int[np.ndarray, "size 2"]
    _num_vertices: int = field(init=False, repr=False)
    _rank: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        ends = np.asarray(self.edges)
        if ends.ndim != 2 or ends.shape[1:] != (2,) or not np.issubdtype(ends.dtype, np.integer):
            raise ValueError(
                f"edges: expected integers of shape [n, 2], got {ends.dtype}{ends.shape}."
            )
        if ends.size and ends.min() < 0:
            raise ValueError(f"edges: expected ends >= 0, got {ends.min()}.")
        _positive_rank(int((ends[:, 0] != ends[:, 1]).sum()))
        ends, num_vertices = ends.astype(np.int32), int(ends.max()) + 1
        self._convert(
            edges=ends, _num_vertices=num_vertices, _rank=_forest_size(ends, num_vertices)
        )

    @property
    def size(self) -> int:
        return self.edges.shape[-2]

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def _ends(self) -> tuple[Int[Array, " size"], Int[Array, " size"]]:
        first, second = jnp.asarray(self.edges).T
        return first, second

    @property
    def _apart(self) -> Int[Array, " vertices"]:
        """The component of each vertex, without an edge."""
        return jnp.arange(self._num_vertices, dtype=jnp.int32)

    def _join(
        self, component: Int[Array, " vertices"], item: Int[Array, ""]
    ) -> tuple[Int[Array, " vertices"], Bool[Array, ""]]:
        first, second = self._ends
        one, other = component[first[item]], component[second[item]]
        return jnp.where(component == other, one, component), one != other

    def _components(
        self, mask: Bool[Array, " size"]
    ) -> tuple[Int[Array, " vertices"], Bool[Array, " size"]]:
        """The component of every vertex, and whether each edge closes no cycle."""

        def step(component, item):
            joined, free = self._join(component, item)
            return jnp.where(mask[item], joined, component), free | ~mask[item]

        return jax.lax.scan(step, self._apart, jnp.arange(self.size, dtype=jnp.int32))

    def independent(self, mask: Bool[Array, " size"]) -> Bool[Array, ""]:
        return self._components(mask)[1].all()

    def feasible_items(self, mask: Bool[Array, " size"]) -> Bool[Array, " size"]:
        component, _ = self._components(mask)
        first, second = self._ends
        return ~mask & (component[first] != component[second])

    def max_weight_base(self, weights: Float[Array, " size"]) -> Bool[Array, " size"]:
        return _take_by_weight(self._apart, self._join, weights)


class Oracle(Matroid):
    """A matroid known only by which sets are independent.

    Args:
        oracle: From a mask of ``[size]`` to a boolean, in JAX; whether it obeys the axioms is not
            checked. One that runs on the host goes through ``jax.pure_callback`` with
            ``vmap_method="sequential"``. A base takes ``size`` calls. As a
            ``jax.tree_util.Partial`` its arguments are arrays of the matroid; of any other function
            every new object is compiled anew.
        num_items: Number of items.

    Raises:
        ValueError: If the empty set is not independent, or no other set is.

    Examples:
        >>> matroid = Oracle(lambda mask: jnp.sum(mask) <= 1, num_items=3)
        >>> matroid.max_weight_base(jnp.array([1.0, 3.0, 2.0])).tolist()
        [False, True, False]
    """

    oracle: Callable[[Bool[Array, " size"]], Bool[Array, ""]]
    num_items: int
    _rank: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        checks.function("oracle", self.oracle, "of a mask")
        checks.positive_int("num_items", self.num_items)
        self._convert(_rank=0)
        with jax.ensure_compile_time_eval():
            valid, base = _empty_set_and_a_base(self)
            if not bool(valid):
                raise ValueError("oracle: expected the empty set to be independent.")
            self._convert(_rank=_positive_rank(int(np.sum(base))))

    @property
    def size(self) -> int:
        return self.num_items

    @property
    def rank(self) -> int:
        return self._rank

    def independent(self, mask: Bool[Array, " size"]) -> Bool[Array, ""]:
        return self.oracle(mask)

    def _take(
        self, mask: Bool[Array, " size"], item: Int[Array, ""]
    ) -> tuple[Bool[Array, " size"], Bool[Array, ""]]:
        grown = mask.at[item].set(True)
        allowed = self.oracle(grown)
        return jnp.where(allowed, grown, mask), allowed

    def feasible_items(self, mask: Bool[Array, " size"]) -> Bool[Array, " size"]:
        items = jnp.arange(self.size, dtype=jnp.int32)
        return ~mask & jax.vmap(lambda item: self._take(mask, item)[1])(items)

    def max_weight_base(self, weights: Float[Array, " size"]) -> Bool[Array, " size"]:
        return _take_by_weight(jnp.zeros(self.size, bool), self._take, weights)


@jax.jit
def _empty_set_and_a_base(matroid: Oracle) -> tuple[Bool[Array, ""], Bool[Array, " size"]]:
    """Whether the empty set is independent, and a base."""
    valid = jnp.asarray(matroid.oracle(jnp.zeros(matroid.size, bool)))
    return valid, matroid.max_weight_base(jnp.zeros(matroid.size))


def _take_by_weight(
    start: Array,
    take: Callable[[Array, Int[Array, ""]], tuple[Array, Bool[Array, ""]]],
    weights: Float[Array, " size"],
) -> Bool[Array, " size"]:
    """Greedy: items by falling weight, each taken if the set stays independent."""
    heaviest_first = jnp.argsort(-weights, stable=True).astype(jnp.int32)
    _, taken = jax.lax.scan(take, start, heaviest_first)
    return jnp.zeros(weights.shape[0], bool).at[heaviest_first].set(taken)


def _positive_rank(rank: int) -> int:
    if rank < 1:
        raise ValueError(f"rank={rank}: expected a matroid in which some item is independent.")
    return rank


def _laminar_rank(family: Bool[np.ndarray, "sets n"], room: Int[np.ndarray, " sets"]) -> int:
    # Each set, inner ones first, is left with as much as it allows, all of it at one of its items.
    counts = np.ones(family.shape[1], np.int64)
    for i in np.argsort(family.sum(axis=1), kind="stable"):
        allowed = min(int(counts[family[i]].sum()), int(room[i]))
        counts[family[i]] = 0
        counts[np.argmax(family[i])] += allowed if family[i].any() else 0
    return _positive_rank(int(counts.sum()))


def _forest_size(ends: Int[np.ndarray, "n 2"], num_vertices: int) -> int:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    edges = coo_array((np.ones(len(ends), bool), ends.T), shape=(num_vertices, num_vertices))
    return num_vertices - connected_components(edges, directed=False, return_labels=False)


def _crossing(family: Bool[np.ndarray, "sets n"]) -> Bool[np.ndarray, "sets sets"]:
    counts = family.astype(np.int64)
    common, sizes = counts @ counts.T, counts.sum(axis=1)
    return (common > 0) & (common < np.minimum(sizes[:, None], sizes[None]))


def _integers(name: str, values: ArrayLike | Sequence[int] | Iterable[int]) -> Any:
    array = np.asarray(values)
    if array.ndim != 1 or not array.size or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{name}: expected a vector of integers, got {array.dtype}{array.shape}.")
    return array.astype(np.int32)


def _span(values: np.ndarray) -> str:
    return f"numbers from {values.min()} to {values.max()}"
