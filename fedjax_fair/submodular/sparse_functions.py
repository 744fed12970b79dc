"""Functions of sparse similarities, which look at the entries that there are and no others."""

from __future__ import annotations

import abc
from dataclasses import field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from fedjax_fair import checks
from fedjax_fair.submodular.arrays import is_traced
from fedjax_fair.submodular.base import SetFunction
from fedjax_fair.submodular.sparse import SparseSimilarity
from fedjax_fair.tree import Integer, Number

__all__ = ["SparseFacilityLocation", "SparseGraphCut", "SparseSaturatedCoverage", "check_symmetric"]

# Points whose lists are gone through together, and so much of each list at a time.
_POINTS = 16
_ENTRIES = 64


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


class _OfLists(SetFunction):
    """A sum over entries of ``_offered``, where only states of listed points change.

    Adding an item goes through the points of its list, and through theirs to change the gains of
    other items.

    Args:
        similarity: The lists.
    """

    similarity: SparseSimilarity

    @property
    def size(self) -> int:
        return self.similarity.shape[1]

    @abc.abstractmethod
    def _nothing(self) -> Float[Array, " points"]:
        """Returns the state of each point beside the empty set."""
        raise NotImplementedError

    @abc.abstractmethod
    def _offered(self, values: Array, states: Array) -> Array:
        """Returns how much entries raise the function."""
        raise NotImplementedError

    @abc.abstractmethod
    def _after(self, states: Array, values: Array) -> Array:
        """Returns the states after these entries."""
        raise NotImplementedError

    def init(self) -> PyTree:
        nothing = self._nothing()
        return _Memo(nothing, self._all_gains(nothing), jnp.zeros((), jnp.int32))

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return memo.gains

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        lists = self.similarity
        start, end = self._ends(item)

        def part(i, total):
            places, listed = _places(start, end, i, _ENTRIES)
            offers = self._offered(lists.item_values[places], memo.state[lists.points[places]])
            return total + jnp.sum(offers, where=listed)

        return jax.lax.fori_loop(0, -(-(end - start) // _ENTRIES), part, jnp.zeros(()))

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        lists = self.similarity
        start, end = self._ends(item)

        def block(i, memo):
            places, listed = _places(start, end, i, _POINTS)
            points = lists.points[places]
            old = memo.state[points]
            new = jnp.where(listed, self._after(old, lists.item_values[places]), old)
            firsts = lists.starts[points]
            lengths = jnp.where(new != old, lists.starts[points + 1] - firsts, 0)

            def part(j, gains):
                others, inside = jax.vmap(_places, (0, 0, None, None))(
                    firsts, firsts + lengths, j, _ENTRIES
                )
                values = lists.values[others]
                change = self._offered(values, new[:, None]) - self._offered(values, old[:, None])
                return gains.at[lists.items[others]].add(jnp.where(inside, change, 0.0))

            longest = jnp.max(lengths)
            gains = jax.lax.fori_loop(0, -(-longest // _ENTRIES), part, memo.gains)
            # What is not listed repeats some point, whose state it must not set.
            there = jnp.where(listed, points, lists.shape[0])
            state = memo.state.at[there].set(new, mode="drop")
            return _Memo(state, gains, memo.work + jnp.sum(lengths, dtype=jnp.int32))

        memo = jax.lax.fori_loop(0, -(-(end - start) // _POINTS), block, memo)

        def anew():
            return _Memo(memo.state, self._all_gains(memo.state), jnp.zeros((), jnp.int32))

        # From time to time, so that rounding errors do not add up, and at most twice the work.
        return jax.lax.cond(memo.work >= lists.items.shape[0], anew, lambda: memo)

    def _all_gains(self, state: Float[Array, " points"]) -> Float[Array, " size"]:
        lists = self.similarity
        offers = self._offered(lists.values, state[lists.rows])
        return jax.ops.segment_sum(offers, lists.items, self.size)

    def _ends(self, item: Integer) -> tuple[Int[Array, ""], Int[Array, ""]]:
        return self.similarity.item_starts[item], self.similarity.item_starts[item + 1]


class SparseFacilityLocation(_OfLists):
    """``FacilityLocation`` of what is listed.

    Args:
        similarity: The lists.
    """

    def _nothing(self) -> Float[Array, " points"]:
        return jnp.zeros(self.similarity.shape[0])

    def _offered(self, values: Array, states: Array) -> Array:
        return jnp.maximum(values - states, 0.0)

    def _after(self, states: Array, values: Array) -> Array:
        return jnp.maximum(states, values)

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        lists = self.similarity
        inside = jnp.where(mask[lists.items], lists.values, 0.0)
        best = jax.ops.segment_max(inside, lists.rows, lists.shape[0], indices_are_sorted=True)
        return jnp.sum(jnp.maximum(best, 0.0))  # Of no entries the maximum is minus infinity.


class SparseSaturatedCoverage(_OfLists):
    """``SaturatedCoverage`` of what is listed.

    Args:
        similarity: The lists.
        saturation: As for ``SaturatedCoverage``.

    Raises:
        ValueError: If the saturation is negative.
    """

    saturation: Number

    def __post_init__(self) -> None:
        checks.non_negative("saturation", self.saturation)

    def _nothing(self) -> Float[Array, " points"]:
        return self.saturation * self.similarity.sums(self.similarity.values)

    def _offered(self, values: Array, states: Array) -> Array:
        return jnp.minimum(values, states)

    def _after(self, states: Array, values: Array) -> Array:
        return jnp.maximum(states - values, 0.0)

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        lists = self.similarity
        inside = jnp.where(mask[lists.items], lists.values, 0.0)
        return jnp.sum(jnp.minimum(lists.sums(inside), self._nothing()))


class SparseGraphCut(SetFunction):
    """``GraphCut`` of what is listed, which is symmetric.

    Args:
        similarity: The lists.
        tradeoff: As for ``GraphCut``.

    Raises:
        ValueError: If the lists are not symmetric, or the tradeoff is negative.
    """

    similarity: SparseSimilarity
    tradeoff: Number = 1.0
    # The gain of each item beside the empty set, read at every step.
    _alone: Float[Array, " n"] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        checks.non_negative("tradeoff", self.tradeoff)
        check_symmetric("similarity", self.similarity)
        lists = self.similarity
        own = jnp.where(lists.items == lists.rows, lists.values, 0.0)
        self._convert(_alone=self.tradeoff * lists.sums(lists.values) - lists.sums(own))

    @property
    def size(self) -> int:
        return self.similarity.shape[0]

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        lists = self.similarity
        chosen = mask.astype(lists.values.dtype)
        inside = lists.sums(lists.values * chosen[lists.items])
        return self.tradeoff * jnp.sum(inside) - jnp.sum(inside * chosen)

    def init(self) -> PyTree:
        return jnp.zeros(self.size)

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return self._alone - 2 * memo

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        return self._alone[item] - 2 * memo[item]

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        lists = self.similarity
        start, end = lists.starts[item], lists.starts[item + 1]

        def part(i, inside):
            places, listed = _places(start, end, i, _ENTRIES)
            return inside.at[lists.items[places]].add(jnp.where(listed, lists.values[places], 0.0))

        return jax.lax.fori_loop(0, -(-(end - start) // _ENTRIES), part, memo)


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
