"""Gradients as vectors, complete or sketched with approximately preserved distances."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from fedjax_fair.numerics.products import product
from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import Tree, setting

__all__ = ["CountSketch", "ravel"]


def ravel(gradient: PyTree) -> Float[Array, " width"]:
    """Returns all elements of a tree as one vector."""
    return ravel_pytree(gradient)[0]


class CountSketch(Tree):
    """Linear projection to a shorter vector, with random signs.

    Element *i* of the gradient is added to position *i* modulo ``size``, with a sign drawn once for
    all clients and rounds. Inner products, hence squared distances, are unbiased; the relative
    error of one distance is at most about ``1 / sqrt(size)`` (``docs/performance.md``).

    Args:
        size: Length of the sketch, positive.
        seed: Seed of the signs, of 32 bits.

    References:
        Charikar, Chen, Farach-Colton, *Finding Frequent Items in Data Streams*, 2002

    Examples:
        >>> from fedjax_fair.selectors import DivFL
        >>> from fedjax_fair.selectors.gradients import Fresh
        >>> selector = DivFL(10, gradients=Fresh(project=CountSketch(4096)))
        >>> CountSketch(2)({"kernel": jnp.ones((3, 2))}).shape
        (2,)
    """

    size: int = setting(checks.positive_int)
    seed: int = setting(checks.non_negative_int, default=0, at_most=2**32 - 1)

    def __call__(self, gradient: PyTree) -> Float[Array, " size"]:
        """Returns the sketch of a gradient."""
        vector = ravel(gradient)
        signs = jax.random.rademacher(jax.random.key(self.seed), vector.shape, vector.dtype)
        padded = jnp.pad(vector * signs, (0, -vector.shape[0] % self.size))
        slabs = padded.reshape(-1, self.size)
        return product(jnp.ones(slabs.shape[0], vector.dtype), slabs)
