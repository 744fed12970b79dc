"""Diversity functions: graph cut and log-determinant."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, PyTree
from numpy.typing import ArrayLike

from fedjax_fair import checks
from fedjax_fair.numerics.products import product
from fedjax_fair.submodular.arrays import as_symmetric
from fedjax_fair.submodular.base import SetFunction
from fedjax_fair.submodular.sparse import SparseSimilarity, as_sparse, is_sparse
from fedjax_fair.submodular.sparse_functions import SparseGraphCut
from fedjax_fair.tree import Integer, Number

__all__ = ["GraphCut", "LogDet", "as_kernel", "graph_cut"]


class GraphCut(SetFunction):
    r"""``tradeoff * sum_{i, j in S} s_ij - sum_{i in S, j in S} s_ij``, ``i`` over all items.

    Submodular. At ``tradeoff=1`` it is the weight of the edges that leave the set; from 2 on it is
    monotone.

    Args:
        similarity: ``[n, n]``, symmetric, >= 0.
        tradeoff: Weight of the similarity to all items against that within the set, >= 0; may be
            traced.

    Raises:
        ValueError: If the matrix is not square, symmetric and non-negative.

    Examples:
        >>> function = GraphCut([[0.0, 3.0], [3.0, 0.0]])
        >>> float(function.value(jnp.array([True, False])))
        3.0
    """

    similarity: Float[Array, "n n"]
    tradeoff: Number = 1.0
    # The gain of each item beside the empty set, read at every step.
    _alone: Float[Array, " n"] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        checks.non_negative("tradeoff", self.tradeoff)
        matrix = as_symmetric("similarity", self.similarity)
        alone = self.tradeoff * jnp.sum(matrix, axis=1) - jnp.diagonal(matrix)
        self._convert(similarity=matrix, _alone=alone)

    @property
    def size(self) -> int:
        return self.similarity.shape[-1]

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        chosen = mask.astype(self.similarity.dtype)
        similar = product(self.similarity, chosen)
        return self.tradeoff * jnp.sum(similar) - product(chosen, similar)

    def init(self) -> PyTree:
        return jnp.zeros(self.size)

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return self._alone - 2 * memo

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        return self._alone[item] - 2 * memo[item]

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        return memo + self.similarity[item]


def graph_cut(
    similarity: ArrayLike | SparseSimilarity | Any, tradeoff: float | Float[Array, ""] = 1.0
) -> GraphCut | SparseGraphCut:
    """Returns ``GraphCut`` of a matrix that may be sparse, as for ``facility_location``."""
    if is_sparse(similarity):
        return SparseGraphCut(as_sparse(similarity), tradeoff)
    dense: Any = similarity
    return GraphCut(dense, tradeoff)


class LogDet(SetFunction):
    """``log det(I + K_S)``, the volume of a set: monotone submodular.

    The gain of an item is the logarithm of its conditional variance given the set, computed from a
    Cholesky factor that grows by a row with every item. The memo is as large as the kernel.

    Args:
        kernel: ``[n, n]``, symmetric and positive semi-definite.

    Raises:
        ValueError: If the matrix is not square, symmetric and (up to rounding) positive
            semi-definite, or a number is not finite.

    References:
        Chen, Zhang, Zhou, *Fast Greedy MAP Inference for Determinantal Point Process*, NeurIPS 2018

    Examples:
        >>> function = LogDet(jnp.diag(jnp.array([1.0, 3.0])))
        >>> [round(float(gain), 4) for gain in function.gains(function.init())]
        [0.6931, 1.3863]
    """

    kernel: Float[Array, "n n"]

    def __post_init__(self) -> None:
        self._convert(kernel=as_kernel("kernel", self.kernel))

    @property
    def size(self) -> int:
        return self.kernel.shape[-1]

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        identity = jnp.eye(self.size, dtype=self.kernel.dtype)
        inside = jnp.where(jnp.outer(mask, mask), self.kernel + identity, identity)
        return jnp.linalg.slogdet(inside)[1]

    def init(self) -> tuple[Int[Array, ""], Float[Array, "n n"], Float[Array, " n"]]:
        variance = jnp.diagonal(self.kernel) + 1
        return jnp.zeros((), jnp.int32), jnp.zeros_like(self.kernel), variance

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return jnp.log(memo[2])

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        return jnp.log(memo[2][item])

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        count, factor, variance = memo
        row = self.kernel[item].at[item].add(1)
        row = (row - product(factor[:, item], factor)) / jnp.sqrt(variance[item])
        # At least 1 in exact arithmetic, because of the identity.
        left = jnp.maximum(variance - row**2, 1.0)
        return count + 1, factor.at[count].set(row), left


def as_kernel(name: str, values: ArrayLike) -> Float[Array, "n n"]:
    """A symmetric matrix that is positive semi-definite up to rounding.

    Raises:
        ValueError: If it is not, unless it is traced.
    """
    matrix = as_symmetric(name, values, negative=True)
    if not isinstance(matrix, Tracer):
        _assert_positive(name, np.asarray(matrix, np.float64))
    return matrix


def _assert_positive(name: str, kernel: Float[np.ndarray, "n n"]) -> None:
    # A kernel in single precision has small negative eigenvalues. None of them exceeds its trace.
    slack = 1e-6 * abs(np.trace(kernel)) + np.finfo(np.float32).tiny
    try:
        np.linalg.cholesky(kernel + slack * np.eye(len(kernel)))
    except np.linalg.LinAlgError:
        lowest = np.linalg.eigvalsh(kernel)[0]
        raise ValueError(
            f"{name}: expected a positive semi-definite matrix, but an eigenvalue is {lowest:.4g}."
        ) from None
