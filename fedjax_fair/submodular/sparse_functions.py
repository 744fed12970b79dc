"""Functions of sparse similarities, whose time and memory depend on the entries alone."""

from __future__ import annotations

import abc
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from fedjax_fair.submodular.cached_gains import renewed
from fedjax_fair.submodular.set_function import SetFunction
from fedjax_fair.submodular.sparse import SparseSimilarity
from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import Integer, Number

__all__ = ["ENTRIES", "SparseFacilityLocation", "SparseSaturatedCoverage", "entry_places"]

# Points whose lists are read together.
_POINTS = 16

ENTRIES = 64
"""Entries of a list that are read together."""


class _Memo(NamedTuple):
    """State of the points, gains as in ``cached_gains.Memo``, and entries read since their sums.

    The state of a point decides the gains of its entries.
    """

    state: Float[Array, " points"]
    gains: Float[Array, " items"]
    computed: Float[Array, " items"]
    work: Int[Array, ""]


class _OfLists(SetFunction):
    """A sum over entries of ``_offered``, where an item changes only the states of its points.

    Adding an item reads the points of its list, and their lists to change the gains of other items.
    """

    similarity: SparseSimilarity

    @property
    def size(self) -> int:
        return self.similarity.shape[1]

    @abc.abstractmethod
    def _initial(self) -> Float[Array, " points"]:
        """Returns the state of each point at the empty set."""

    @abc.abstractmethod
    def _offered(self, values: Array, states: Array) -> Array:
        """Returns the gain of each entry."""

    @abc.abstractmethod
    def _after(self, states: Array, values: Array) -> Array:
        """Returns the states after adding entries."""

    def init(self) -> PyTree:
        state = self._initial()
        gains = self._all_gains(state)
        return _Memo(state, gains, gains, jnp.zeros((), jnp.int32))

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return memo.gains

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        return memo.gains[item]

    def _gain(self, state: Float[Array, " points"], item: Integer) -> Float[Array, ""]:
        lists = self.similarity
        start, end = self._ends(item)

        def part(i, total):
            places, valid = entry_places(start, end, i, ENTRIES)
            offers = self._offered(lists.item_values[places], state[lists.points[places]])
            return total + jnp.sum(offers, where=valid)

        return jax.lax.fori_loop(0, -(-(end - start) // ENTRIES), part, jnp.zeros(()))

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        lists = self.similarity
        start, end = self._ends(item)

        def block(i, memo):
            places, valid = entry_places(start, end, i, _POINTS)
            points = lists.points[places]
            old = memo.state[points]
            new = jnp.where(valid, self._after(old, lists.item_values[places]), old)
            firsts = lists.starts[points]
            lengths = jnp.where(new != old, lists.starts[points + 1] - firsts, 0)

            def part(j, gains):
                others, inside = jax.vmap(entry_places, (0, 0, None, None))(
                    firsts, firsts + lengths, j, ENTRIES
                )
                values = lists.values[others]
                change = self._offered(values, new[:, None]) - self._offered(values, old[:, None])
                return gains.at[lists.items[others]].add(jnp.where(inside, change, 0.0))

            longest = jnp.max(lengths)
            gains = jax.lax.fori_loop(0, -(-longest // ENTRIES), part, memo.gains)
            # Invalid places repeat a point, whose state they must not set.
            targets = jnp.where(valid, points, lists.shape[0])
            state = memo.state.at[targets].set(new, mode="drop")
            work = memo.work + jnp.sum(lengths, dtype=jnp.int32)
            return memo._replace(state=state, gains=gains, work=work)

        state, gains, _, work = jax.lax.fori_loop(0, -(-(end - start) // _POINTS), block, memo)
        # Regular recomputing limits rounding errors, and at most doubles the work.
        recompute = work >= lists.items.shape[0]
        gains, computed = renewed(
            gains,
            memo.computed,
            recompute,
            lambda other: self._gain(state, other),
            lambda: self._all_gains(state),
        )
        return _Memo(state, gains, computed, jnp.where(recompute, 0, work))

    def _all_gains(self, state: Float[Array, " points"]) -> Float[Array, " size"]:
        lists = self.similarity
        offers = self._offered(lists.values, state[lists.rows])
        return jax.ops.segment_sum(offers, lists.items, self.size)

    def _ends(self, item: Integer) -> tuple[Int[Array, ""], Int[Array, ""]]:
        return self.similarity.item_starts[item], self.similarity.item_starts[item + 1]

    def _values_in(self, mask: Bool[Array, " size"]) -> Float[Array, " entries"]:
        return jnp.where(mask[self.similarity.items], self.similarity.values, 0.0)


class SparseFacilityLocation(_OfLists):
    """``FacilityLocation`` of the entries of a sparse matrix."""

    def _initial(self) -> Float[Array, " points"]:
        return jnp.zeros(self.similarity.shape[0])

    def _offered(self, values: Array, states: Array) -> Array:
        return jnp.maximum(values - states, 0.0)

    def _after(self, states: Array, values: Array) -> Array:
        return jnp.maximum(states, values)

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        lists, inside = self.similarity, self._values_in(mask)
        best = jax.ops.segment_max(inside, lists.rows, lists.shape[0], indices_are_sorted=True)
        return jnp.sum(jnp.maximum(best, 0.0))  # The maximum of no entries is minus infinity.


class SparseSaturatedCoverage(_OfLists):
    """``SaturatedCoverage`` of the entries of a sparse matrix."""

    saturation: Number

    def __post_init__(self) -> None:
        checks.non_negative("saturation", self.saturation)

    def _initial(self) -> Float[Array, " points"]:
        return self.saturation * self.similarity.sums(self.similarity.values)

    def _offered(self, values: Array, states: Array) -> Array:
        return jnp.minimum(values, states)

    def _after(self, states: Array, values: Array) -> Array:
        return jnp.maximum(states - values, 0.0)

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        totals = self.similarity.sums(self._values_in(mask))
        return jnp.sum(jnp.minimum(totals, self._initial()))


def entry_places(start: Array, end: Array, part: Array, width: int) -> tuple[Array, Array]:
    """Returns the places of the next entries of a list, and which are valid.

    Invalid places repeat the last one.
    """
    places = start + part * width + jnp.arange(width, dtype=jnp.int32)
    return jnp.maximum(jnp.minimum(places, end - 1), 0), places < end
