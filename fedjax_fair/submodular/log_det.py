"""Log-determinant of a kernel."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, PyTree
from numpy.typing import ArrayLike

from fedjax_fair.numerics.products import product
from fedjax_fair.submodular.checked_arrays import as_symmetric
from fedjax_fair.submodular.set_function import ArraySetFunction
from fedjax_fair.utils.tree import Integer

__all__ = ["LogDet", "as_kernel"]


class LogDet(ArraySetFunction):
    """``log det(I + K_S)``, the volume of a set: monotone submodular.

    The gain of an item is the logarithm of its conditional variance, from a Cholesky factor with
    one row for each item of the set. The memo is as large as the kernel.

    Args:
        kernel: ``[n, n]``, symmetric and positive semi-definite.

    Raises:
        ValueError: If the matrix is not symmetric, finite, and (up to rounding) positive
            semi-definite.

    References:
        Chen, Zhang, Zhou, *Fast Greedy MAP Inference for Determinantal Point Process*, NeurIPS 2018

    Examples:
        >>> function = LogDet([[1.0, 0.0], [0.0, 3.0]])
        >>> [round(float(gain), 4) for gain in function.gains(function.init())]
        [0.6931, 1.3863]
    """

    kernel: Float[Array, "n n"]

    def __post_init__(self) -> None:
        self._convert(kernel=as_kernel("kernel", self.kernel))

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        identity = jnp.eye(self.size, dtype=self.kernel.dtype)
        inside = jnp.where(jnp.outer(mask, mask), self.kernel + identity, identity)
        return jnp.linalg.slogdet(inside)[1]

    # The memo is the number of items, the factor's rows, and the variance of each item.
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
        variance = jnp.maximum(variance - row**2, 1.0)
        return count + 1, factor.at[count].set(row), variance


def as_kernel(name: str, values: ArrayLike) -> Float[Array, "n n"]:
    """Returns a symmetric matrix that is positive semi-definite up to rounding.

    Raises:
        ValueError: If it is not, unless it is traced.
    """
    matrix = as_symmetric(name, values, negative=True)
    if isinstance(matrix, Tracer):
        return matrix
    kernel = np.asarray(matrix, np.float64)
    # Rounding to single precision makes some eigenvalues negative, by less than this.
    slack = 1e-6 * abs(np.trace(kernel)) + np.finfo(np.float32).tiny
    try:
        np.linalg.cholesky(kernel + slack * np.eye(len(kernel)))
    except np.linalg.LinAlgError:
        lowest = np.linalg.eigvalsh(kernel)[0]
        raise ValueError(
            f"{name}: expected a positive semi-definite matrix, but an eigenvalue is {lowest:.4g}; "
            "add a multiple of the identity."
        ) from None
    return matrix
