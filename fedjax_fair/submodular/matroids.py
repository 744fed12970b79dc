"""Matroids: which sets a maximizer may choose.

Everything here is traceable: it can be jitted, mapped and scanned. Only a ``from_oracle`` matroid
whose oracle is not written in JAX needs a ``jax.pure_callback`` of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from fedjax_fair import checks

__all__ = ["Matroid", "allocation", "from_oracle", "graphic", "laminar", "partition", "uniform"]


class Matroid(NamedTuple):
    """The independent subsets of ``{0, ..., size - 1}``; sets are masks over all items.

    Attributes:
        name: The function that made it.
        size: Number of items.
        rank: Items of a base, a largest independent set; at least 1.
        independent: ``independent(mask) -> bool``.
        addable: ``addable(mask) -> [size]``, the items outside an independent set that can join it.
        max_weight_base: ``max_weight_base(weights) -> mask`` of the heaviest base; weights may be
            negative or zero, of equal ones the smallest index is taken first.
        exchangeable: ``exchangeable(base, other, item) -> [size]``, for an ``item`` of ``base``
            only: the items of ``other`` only that can be exchanged for it such that both stay
            bases. There is always one.
        order: The items in an order for which every constraint is on neighbors, ``[size]``, or
            None where there is no such order.
        blocks: The block of each item, ``[size]``, where all constraints are on the number of items
            of a block, or None.
    """

    name: str
    size: int
    rank: int
    independent: Callable[[Bool[Array, " size"]], Bool[Array, ""]]
    addable: Callable[[Bool[Array, " size"]], Bool[Array, " size"]]
    max_weight_base: Callable[[Float[Array, " size"]], Bool[Array, " size"]]
    exchangeable: Callable[..., Bool[Array, " size"]]
    order: Int[np.ndarray, " size"] | None
    blocks: Int[np.ndarray, " size"] | None


def uniform(k: int, size: int) -> Matroid:
    """All sets of at most ``k`` of ``size`` items.

    Raises:
        ValueError: If ``k`` is not in ``[1, size]``.

    Examples:
        >>> uniform(2, 4).max_weight_base(jnp.array([1.0, 3.0, 3.0, 3.0])).tolist()
        [False, True, True, False]
    """
    checks.positive_int("size", size)
    checks.positive_int("k", k, at_most=size)

    def max_weight_base(weights):
        _, heaviest = jax.lax.top_k(weights, k)
        return jnp.zeros(size, bool).at[heaviest].set(True)

    return Matroid(
        name="uniform",
        size=size,
        rank=k,
        independent=lambda mask: jnp.sum(mask) <= k,
        addable=lambda mask: ~mask & (jnp.sum(mask) < k),
        max_weight_base=max_weight_base,
        exchangeable=lambda base, other, item: other & ~base,
        order=np.arange(size),
        blocks=np.zeros(size, np.int32),
    )


def partition(blocks: ArrayLike, capacities: ArrayLike) -> Matroid:
    """Sets with at most a given number of items of each block.

    Args:
        blocks: The block of each item, ``[n]``, in ``[0, len(capacities))``.
        capacities: Items allowed of each block, ``[blocks]``; at least 0 and at most as many as the
            block has.

    Raises:
        ValueError: If a block does not exist, a capacity is out of range, or all of them are 0.

    Examples:
        >>> matroid = partition([0, 0, 1, 1], [1, 2])
        >>> matroid.max_weight_base(jnp.array([1.0, 3.0, 0.0, 0.0])).tolist()
        [False, True, True, True]
    """
    owner, room = _integers("blocks", blocks), _integers("capacities", capacities)
    if owner.size and not 0 <= owner.min() <= owner.max() < room.size:
        raise ValueError(f"blocks: expected numbers in [0, {room.size}), got {_span(owner)}.")
    members = np.bincount(owner, minlength=room.size)
    for block in np.flatnonzero((room < 0) | (room > members)):
        raise ValueError(
            f"capacities[{block}]={room[block]}: expected a number in [0, {members[block]}], "
            f"as many as block {block} has items."
        )
    rank = _rank(int(room.sum()))
    size, order = owner.size, np.argsort(owner, kind="stable")
    starts, allowed, of = jnp.asarray(np.cumsum(members) - members), jnp.asarray(room), owner

    def taken(mask):
        return jax.ops.segment_sum(mask.astype(jnp.int32), of, room.size)

    def max_weight_base(weights):
        items = jnp.arange(size, dtype=jnp.int32)
        in_order = (jnp.asarray(of), -weights, items)
        block, _, items = jax.lax.sort(in_order, num_keys=3)
        return (
            jnp.zeros(size, bool)
            .at[items]
            .set(jnp.arange(size, dtype=jnp.int32) - starts[block] < allowed[block])
        )

    return Matroid(
        name="partition",
        size=size,
        rank=rank,
        independent=lambda mask: (taken(mask) <= allowed).all(),
        addable=lambda mask: ~mask & (taken(mask) < allowed)[of],
        max_weight_base=max_weight_base,
        exchangeable=lambda base, other, item: other & ~base & (of == jnp.asarray(of)[item]),
        order=order,
        blocks=owner,
    )


def allocation(num_items: int, num_agents: int) -> Matroid:
    """Every item is assigned to at most one agent: the constraint of welfare problems.

    The ground set is all pairs of an item and an agent, numbered ``item * num_agents + agent``.

    Raises:
        ValueError: If a number is not positive.

    Examples:
        >>> allocation(2, 3).max_weight_base(jnp.arange(6.0)).tolist()
        [False, False, True, False, False, True]
    """
    checks.positive_int("num_items", num_items)
    checks.positive_int("num_agents", num_agents)
    return partition(np.repeat(np.arange(num_items), num_agents), np.ones(num_items, int))


def laminar(sets: ArrayLike, capacities: ArrayLike) -> Matroid:
    """At most a given number of items of each set of a family of nested or disjoint sets.

    Args:
        sets: One mask a set, ``[sets, n]``.
        capacities: Items allowed of each set, ``[sets]``, >= 0. Items in no set are always allowed.

    Raises:
        ValueError: If two sets cross, shapes do not fit, or nothing is allowed.

    Examples:
        >>> matroid = laminar([[1, 1, 0, 0], [1, 1, 1, 1]], [1, 2])
        >>> matroid.max_weight_base(jnp.array([4.0, 3.0, 2.0, 1.0])).tolist()
        [True, False, True, False]
    """
    family = np.asarray(sets)
    room = _integers("capacities", capacities)
    if family.ndim != 2 or 0 in family.shape or family.shape[0] != room.size:
        raise ValueError(f"sets: expected shape [{room.size}, n], got {family.shape}.")
    if not np.isin(family, (0, 1)).all():
        raise ValueError(f"sets: expected masks of 0 and 1, got {_span(family)}.")
    family = family.astype(bool)
    if room.min() < 0:
        raise ValueError(f"capacities={room.tolist()}: expected numbers >= 0.")
    for i, j in np.argwhere(_crossing(family)):
        raise ValueError(f"sets {i} and {j}: expected nested or disjoint sets, but they cross.")
    size = family.shape[1]
    # Sorted by the largest sets first, so that each of them is contiguous.
    order = np.lexsort(~family[np.argsort(family.sum(axis=1), kind="stable")])
    inside, allowed = jnp.asarray(family), jnp.asarray(room)

    def full(mask):
        return (inside & mask[None]).sum(axis=1) >= allowed

    def take(counts, item):
        accepted = ~((counts >= allowed) & inside[:, item]).any()
        return counts + (inside[:, item] & accepted).astype(counts.dtype), accepted

    matroid = Matroid(
        name="laminar",
        size=size,
        rank=1,
        independent=lambda mask: ((inside & mask[None]).sum(axis=1) <= allowed).all(),
        addable=lambda mask: ~mask & ~(full(mask)[:, None] & inside).any(axis=0),
        max_weight_base=_descending(jnp.zeros(room.size, allowed.dtype), take),
        exchangeable=lambda base, other, item: base,
        order=order,
        blocks=None,
    )
    return _completed(matroid)


def graphic(edges: ArrayLike) -> Matroid:
    """Sets of edges without a cycle; a base is a spanning forest.

    Args:
        edges: The two ends of each edge, ``[n, 2]``, as numbers from 0; loops and parallel edges
            are allowed.

    Raises:
        ValueError: If the shape does not fit, an end is negative or there are only loops.

    Examples:
        >>> matroid = graphic([[0, 1], [1, 2], [2, 0]])
        >>> matroid.max_weight_base(jnp.array([1.0, 2.0, 3.0])).tolist()
        [False, True, True]
    """
    ends = np.asarray(edges)
    if ends.ndim != 2 or ends.shape[1:] != (2,) or not np.issubdtype(ends.dtype, np.integer):
        raise ValueError(f"edges: expected integers of shape [n, 2], got {ends.dtype}{ends.shape}.")
    if ends.size and ends.min() < 0:
        raise ValueError(f"edges: expected ends >= 0, got {ends.min()}.")
    _rank(int((ends[:, 0] != ends[:, 1]).sum()))
    size = ends.shape[0]
    first, second = jnp.asarray(ends, jnp.int32).T
    apart = jnp.arange(ends.max() + 1, dtype=jnp.int32)

    def join(component, item):
        one, other = component[first[item]], component[second[item]]
        return jnp.where(component == other, one, component), one != other

    def among(mask):
        """The component of every vertex, and whether the edges close no cycle."""

        def step(component, item):
            joined, free = join(component, item)
            return jnp.where(mask[item], joined, component), free | ~mask[item]

        return jax.lax.scan(step, apart, jnp.arange(size, dtype=jnp.int32))

    def addable(mask):
        component, _ = among(mask)
        return ~mask & (component[first] != component[second])

    matroid = Matroid(
        name="graphic",
        size=size,
        rank=1,
        independent=lambda mask: among(mask)[1].all(),
        addable=addable,
        max_weight_base=_descending(apart, join),
        exchangeable=lambda base, other, item: base,
        order=None,
        blocks=None,
    )
    return _completed(matroid)


def from_oracle(
    independent: Callable[[Bool[Array, " size"]], Bool[Array, ""]], size: int
) -> Matroid:
    """A matroid known only by which sets are independent.

    Args:
        independent: From a mask of ``[size]`` to a boolean, in JAX; whether it obeys the axioms is
            not checked. One that runs on the host goes through ``jax.pure_callback`` with
            ``vmap_method="sequential"``. A base takes ``size`` calls.
        size: Number of items.

    Raises:
        ValueError: If the empty set is not independent, or no other set is.

    Examples:
        >>> matroid = from_oracle(lambda mask: jnp.sum(mask) <= 1, size=3)
        >>> matroid.max_weight_base(jnp.array([1.0, 3.0, 2.0])).tolist()
        [False, True, False]
    """
    checks.positive_int("size", size)
    empty = jnp.zeros(size, bool)
    if not bool(independent(empty)):
        raise ValueError("independent: expected the empty set to be independent.")
    items = jnp.arange(size, dtype=jnp.int32)

    def take(mask, item):
        grown = mask.at[item].set(True)
        allowed = independent(grown)
        return jnp.where(allowed, grown, mask), allowed

    matroid = Matroid(
        name="from_oracle",
        size=size,
        rank=1,
        independent=independent,
        addable=lambda mask: ~mask & jax.vmap(lambda item: take(mask, item)[1])(items),
        max_weight_base=_descending(empty, take),
        exchangeable=lambda base, other, item: base,
        order=None,
        blocks=None,
    )
    return _completed(matroid)


def _descending(
    start: Array, take: Callable[[Array, Int[Array, ""]], tuple[Array, Bool[Array, ""]]]
) -> Callable[[Float[Array, " size"]], Bool[Array, " size"]]:
    """Greedy: items by falling weight, each taken if the set stays independent."""

    def max_weight_base(weights):
        heaviest_first = jnp.argsort(-weights, stable=True).astype(jnp.int32)
        _, taken = jax.lax.scan(take, start, heaviest_first)
        return jnp.zeros(weights.shape[0], bool).at[heaviest_first].set(taken)

    return max_weight_base


def _completed(matroid: Matroid) -> Matroid:
    """The matroid with the rank of its bases, and exchanges found by trying all of them."""
    base = jax.jit(matroid.max_weight_base)(np.zeros(matroid.size, np.float32))
    rank = int(np.sum(base))
    items = jnp.arange(matroid.size, dtype=jnp.int32)

    def exchangeable(base, other, item):
        into_base = matroid.addable(base.at[item].set(False))
        into_other = jax.vmap(lambda out: matroid.addable(other.at[out].set(False))[item])(items)
        return other & ~base & into_base & into_other

    return matroid._replace(rank=_rank(rank), exchangeable=exchangeable)


def _rank(rank: int) -> int:
    if rank < 1:
        raise ValueError(f"rank={rank}: expected a matroid in which some item is independent.")
    return rank


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
