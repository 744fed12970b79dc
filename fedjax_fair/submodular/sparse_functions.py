"""Functions of sparse similarities, which look at the entries that there are and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedjax_fair.submodular.arrays import is_traced
from fedjax_fair.submodular.base import SetFunction
from fedjax_fair.submodular.sparse import SparseSimilarity

__all__ = ["check_symmetric", "cut_of_lists", "location_of_lists", "saturated_of_lists"]

# Points whose lists are gone through together, and so much of each list at a time.
_POINTS = 16
_ENTRIES = 64


def location_of_lists(
    similarity: SparseSimilarity, weights: Float[Array, " points"] | None
) -> SetFunction:
    """``facility_location`` of what is listed."""
    if weights is not None:
        similarity = similarity._replace(
            values=similarity.values * weights[similarity.rows],
            item_values=similarity.item_values * weights[similarity.points],
        )

    def value(mask):
        inside = jnp.where(mask[similarity.items], similarity.values, 0.0)
        best = jax.ops.segment_max(
            inside, similarity.rows, similarity.shape[0], indices_are_sorted=True
        )
        return jnp.sum(jnp.maximum(best, 0.0))  # Of no entries the maximum is minus infinity.

    return _of_lists(
        similarity,
        nothing=jnp.zeros(similarity.shape[0]),
        offered=lambda values, best: jnp.maximum(values - best, 0.0),
        after=jnp.maximum,
        value=value,
    )


def saturated_of_lists(
    similarity: SparseSimilarity, saturation: float | Float[Array, ""]
) -> SetFunction:
    """``saturated_coverage`` of what is listed."""
    cap = saturation * similarity.sums(similarity.values)

    def value(mask):
        inside = jnp.where(mask[similarity.items], similarity.values, 0.0)
        return jnp.sum(jnp.minimum(similarity.sums(inside), cap))

    return _of_lists(
        similarity,
        nothing=cap,
        offered=jnp.minimum,
        after=lambda room, values: jnp.maximum(room - values, 0.0),
        value=value,
    )


def cut_of_lists(similarity: SparseSimilarity, tradeoff: float | Float[Array, ""]) -> SetFunction:
    """``graph_cut`` of what is listed, which is symmetric.

    Raises:
        ValueError: If it is not.
    """
    size = similarity.shape[0]
    check_symmetric("similarity", similarity)
    items, values = similarity.items, similarity.values
    own = jnp.where(items == similarity.rows, values, 0.0)
    alone = tradeoff * similarity.sums(values) - similarity.sums(own)

    def value(mask):
        chosen = mask.astype(values.dtype)
        inside = similarity.sums(values * chosen[items])
        return tradeoff * jnp.sum(inside) - jnp.sum(inside * chosen)

    def add(inside, item):
        start, end = similarity.starts[item], similarity.starts[item + 1]

        def part(i, inside):
            places, listed = _places(start, end, i, _ENTRIES)
            return inside.at[items[places]].add(jnp.where(listed, values[places], 0.0))

        return jax.lax.fori_loop(0, -(-(end - start) // _ENTRIES), part, inside)

    return SetFunction(
        size=size,
        value=value,
        init=lambda: jnp.zeros(size),
        gains=lambda inside: alone - 2 * inside,
        gain=lambda inside, item: alone[item] - 2 * inside[item],
        add=add,
    )


class _Memo(NamedTuple):
    """What every point still takes, the gain of every item, and the entries looked at.

    Attributes:
        state: Of every point, what decides how much an item offers it.
        gains: Of every item.
        work: Entries by which gains were changed since they were computed anew.
    """

    state: Float[Array, " points"]
    gains: Float[Array, " items"]
    work: Int[Array, ""]


def _of_lists(
    similarity: SparseSimilarity,
    nothing: Float[Array, " points"],
    offered: Callable[..., Array],
    after: Callable[..., Array],
    value: Callable[[Bool[Array, " items"]], Float[Array, ""]],
) -> SetFunction:
    """A sum over entries of ``offered(value, state)``, where only states of listed points change.

    Adding an item goes through the points of its list, and through theirs to change the gains of
    other items.

    Args:
        similarity: The lists.
        nothing: The state of each point beside the empty set.
        offered: ``offered(values, states)``, how much entries raise the function.
        after: ``after(states, values)``, the states after these entries.
        value: The function itself, of a mask over items.
    """
    num_points, size = similarity.shape
    entries = similarity.items.shape[0]

    def all_gains(state):
        offers = offered(similarity.values, state[similarity.rows])
        return jax.ops.segment_sum(offers, similarity.items, size)

    def ends(item):
        return similarity.item_starts[item], similarity.item_starts[item + 1]

    def gain(memo, item):
        start, end = ends(item)

        def part(i, total):
            places, listed = _places(start, end, i, _ENTRIES)
            offers = offered(similarity.item_values[places], memo.state[similarity.points[places]])
            return total + jnp.sum(offers, where=listed)

        return jax.lax.fori_loop(0, -(-(end - start) // _ENTRIES), part, jnp.zeros(()))

    def add(memo, item):
        start, end = ends(item)

        def block(i, memo):
            places, listed = _places(start, end, i, _POINTS)
            points = similarity.points[places]
            old = memo.state[points]
            new = jnp.where(listed, after(old, similarity.item_values[places]), old)
            firsts = similarity.starts[points]
            lengths = jnp.where(new != old, similarity.starts[points + 1] - firsts, 0)

            def part(j, gains):
                others, inside = jax.vmap(_places, (0, 0, None, None))(
                    firsts, firsts + lengths, j, _ENTRIES
                )
                values = similarity.values[others]
                change = offered(values, new[:, None]) - offered(values, old[:, None])
                return gains.at[similarity.items[others]].add(jnp.where(inside, change, 0.0))

            longest = jnp.max(lengths)
            gains = jax.lax.fori_loop(0, -(-longest // _ENTRIES), part, memo.gains)
            # What is not listed repeats some point, whose state it must not set.
            state = memo.state.at[jnp.where(listed, points, num_points)].set(new, mode="drop")
            return _Memo(state, gains, memo.work + jnp.sum(lengths, dtype=jnp.int32))

        memo = jax.lax.fori_loop(0, -(-(end - start) // _POINTS), block, memo)

        def anew():
            return _Memo(memo.state, all_gains(memo.state), jnp.zeros((), jnp.int32))

        # From time to time, so that rounding errors do not add up, and at most twice the work.
        return jax.lax.cond(memo.work >= entries, anew, lambda: memo)

    return SetFunction(
        size=size,
        value=value,
        init=lambda: _Memo(nothing, all_gains(nothing), jnp.zeros((), jnp.int32)),
        gains=lambda memo: memo.gains,
        gain=gain,
        add=add,
    )


def _places(start: Array, end: Array, part: Array, width: int) -> tuple[Array, Array]:
    """The next entries of lists, and which of them there are; the others repeat the last one."""
    places = start + part * width + jnp.arange(width, dtype=jnp.int32)
    return jnp.maximum(jnp.minimum(places, end - 1), 0), places < end


def check_symmetric(name: str, similarity: SparseSimilarity) -> None:
    """Requires lists, if they are known, of a symmetric matrix.

    Raises:
        ValueError: If it is not square, or does not equal its transpose up to rounding.
    """
    if similarity.shape[0] != similarity.shape[1]:
        raise ValueError(f"{name}: expected a square matrix, got shape {similarity.shape}.")
    if is_traced(similarity):
        return
    from scipy.sparse import csc_array

    lists = jax.tree.map(np.asarray, similarity)
    by_item = csc_array((lists.item_values, lists.points, lists.item_starts), similarity.shape)
    by_point = by_item.tocsr()  # Whose lists are sorted.
    alike = np.array_equal(by_point.indptr, by_item.indptr)
    alike = alike and np.array_equal(by_point.indices, by_item.indices)
    if not (alike and np.abs(by_point.data - by_item.data).max() <= 1e-5 * by_item.data.max()):
        raise ValueError(f"{name}: expected a symmetric matrix.")
