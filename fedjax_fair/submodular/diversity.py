"""Diversity functions: graph cut and log-determinant."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike

from fedjax_fair import checks
from fedjax_fair.numerics.products import product
from fedjax_fair.submodular.arrays import as_symmetric
from fedjax_fair.submodular.base import SetFunction
from fedjax_fair.submodular.sparse import SparseSimilarity, as_sparse, is_sparse
from fedjax_fair.submodular.sparse_functions import cut_of_lists

__all__ = ["as_kernel", "graph_cut", "log_det"]


def graph_cut(
    similarity: ArrayLike | SparseSimilarity | Any, tradeoff: float | Float[Array, ""] = 1.0
) -> SetFunction:
    r"""``tradeoff * sum_{i, j in S} s_ij - sum_{i in S, j in S} s_ij``, ``i`` over all items.

    Submodular. At ``tradeoff=1`` it is the weight of the edges that leave the set; from 2 on it is
    monotone.

    Args:
        similarity: ``[n, n]``, symmetric, >= 0; may be sparse, as for ``facility_location``.
        tradeoff: Weight of the similarity to all items against that within the set, >= 0; may be
            traced.

    Raises:
        ValueError: If the matrix is not square, symmetric and non-negative.

    Examples:
        >>> function = graph_cut(jnp.array([[0.0, 3.0], [3.0, 0.0]]))
        >>> float(function.value(jnp.array([True, False])))
        3.0
    """
    checks.non_negative("tradeoff", tradeoff)
    if is_sparse(similarity):
        return cut_of_lists(as_sparse(similarity), tradeoff)
    matrix = as_symmetric("similarity", similarity)
    alone = tradeoff * jnp.sum(matrix, axis=1) - jnp.diagonal(matrix)

    def value(mask):
        chosen = mask.astype(matrix.dtype)
        similar = product(matrix, chosen)
        return tradeoff * jnp.sum(similar) - product(chosen, similar)

    return SetFunction(
        size=matrix.shape[0],
        value=value,
        init=lambda: jnp.zeros(matrix.shape[0]),
        gains=lambda inside: alone - 2 * inside,
        gain=lambda inside, item: alone[item] - 2 * inside[item],
        add=lambda inside, item: inside + matrix[item],
    )


def log_det(kernel: ArrayLike) -> SetFunction:
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
        >>> function = log_det(jnp.diag(jnp.array([1.0, 3.0])))
        >>> [round(float(gain), 4) for gain in function.gains(function.init())]
        [0.6931, 1.3863]
    """
    matrix = as_kernel("kernel", kernel)
    size = matrix.shape[0]
    matrix = matrix + jnp.eye(size, dtype=matrix.dtype)

    def value(mask):
        outside = jnp.eye(size, dtype=matrix.dtype)
        return jnp.linalg.slogdet(jnp.where(jnp.outer(mask, mask), matrix, outside))[1]

    def init() -> tuple[Int[Array, ""], Float[Array, "n n"], Float[Array, " n"]]:
        return jnp.zeros((), jnp.int32), jnp.zeros_like(matrix), jnp.diagonal(matrix)

    def add(memo, item):
        count, factor, variance = memo
        row = (matrix[item] - product(factor[:, item], factor)) / jnp.sqrt(variance[item])
        # At least 1 in exact arithmetic, because of the identity.
        left = jnp.maximum(variance - row**2, 1.0)
        return count + 1, factor.at[count].set(row), left

    return SetFunction(
        size=size,
        value=value,
        init=init,
        gains=lambda memo: jnp.log(memo[2]),
        gain=lambda memo, item: jnp.log(memo[2][item]),
        add=add,
    )


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
