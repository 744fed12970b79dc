"""Graph cut of a dense or sparse similarity matrix."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from fedjax_fair.numerics.products import product
from fedjax_fair.submodular.checked_arrays import as_symmetric
from fedjax_fair.submodular.set_function import SetFunction
from fedjax_fair.submodular.sparse import SparseSimilarity, as_sparse, check_symmetric, is_sparse
from fedjax_fair.submodular.sparse_functions import ENTRIES, entry_places
from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import Integer, Number

__all__ = ["GraphCut", "SparseGraphCut", "graph_cut"]


class _Cut(SetFunction):
    similarity: Float[Array, "n n"] | SparseSimilarity
    tradeoff: Number = 1.0
    # The gain of each item at the empty set, read at every step.
    _alone: Float[Array, " n"] = field(init=False, repr=False)

    @property
    def size(self) -> int:
        return self.similarity.shape[-1]

    # The memo is the similarity of each item to the set.
    def init(self) -> PyTree:
        return jnp.zeros(self.size)

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return self._alone - 2 * memo


class GraphCut(_Cut):
    r"""``tradeoff * sum_{i, j in S} s_ij - sum_{i in S, j in S} s_ij``, ``i`` over all items.

    Submodular. At ``tradeoff=1`` it is the weight of the edges that leave the set; from 2 on it is
    monotone.

    Args:
        similarity: ``[n, n]``, symmetric, >= 0.
        tradeoff: Weight of the similarity to all items relative to that within the set, >= 0.

    Examples:
        >>> function = GraphCut([[0.0, 3.0], [3.0, 0.0]])
        >>> float(function.value(jnp.array([True, False])))
        3.0
    """

    similarity: Float[Array, "n n"]

    def __post_init__(self) -> None:
        checks.non_negative("tradeoff", self.tradeoff)
        matrix = as_symmetric("similarity", self.similarity)
        alone = self.tradeoff * jnp.sum(matrix, axis=1) - jnp.diagonal(matrix)
        self._convert(similarity=matrix, _alone=alone)

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        chosen = mask.astype(self.similarity.dtype)
        similar = product(self.similarity, chosen)
        return self.tradeoff * jnp.sum(similar) - product(chosen, similar)

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        return memo + self.similarity[item]


class SparseGraphCut(_Cut):
    """``GraphCut`` of the entries of a sparse matrix."""

    similarity: SparseSimilarity

    def __post_init__(self) -> None:
        checks.non_negative("tradeoff", self.tradeoff)
        check_symmetric("similarity", self.similarity)
        lists = self.similarity
        diagonal = jnp.where(lists.items == lists.rows, lists.values, 0.0)
        self._convert(_alone=self.tradeoff * lists.sums(lists.values) - lists.sums(diagonal))

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        lists = self.similarity
        chosen = mask.astype(lists.values.dtype)
        inside = lists.sums(lists.values * chosen[lists.items])
        return self.tradeoff * jnp.sum(inside) - jnp.sum(inside * chosen)

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        lists = self.similarity
        start, end = lists.starts[item], lists.starts[item + 1]

        def part(i, inside):
            places, valid = entry_places(start, end, i, ENTRIES)
            return inside.at[lists.items[places]].add(jnp.where(valid, lists.values[places], 0.0))

        return jax.lax.fori_loop(0, -(-(end - start) // ENTRIES), part, memo)


def graph_cut(
    similarity: Any, tradeoff: float | Float[Array, ""] = 1.0
) -> GraphCut | SparseGraphCut:
    """Returns ``GraphCut`` of a dense or sparse matrix, as for ``facility_location``."""
    if is_sparse(similarity):
        return SparseGraphCut(as_sparse(similarity), tradeoff)
    return GraphCut(similarity, tradeoff)
