"""Gradients as vectors: whole, or sketched so that distances between them stay."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from fedjax_fair import checks
from fedjax_fair.numerics.products import product

__all__ = ["count_sketch", "ravel"]


def ravel(gradient: PyTree) -> Float[Array, " width"]:
    """All numbers of a tree as one vector."""
    return ravel_pytree(gradient)[0]


def count_sketch(size: int, seed: int = 0) -> Callable[[PyTree], Float[Array, " size"]]:
    """Adds up a vector into a shorter one, with random signs.

    Number *i* of the gradient goes to place *i* modulo ``size``, with a sign drawn once for all
    clients and rounds. The sketch is linear, and inner products, hence squared distances, are right
    on average; one distance is off by about ``1 / sqrt(size)`` of itself at worst. What that costs
    a selector is less, because it compares sums over all clients: on LeNet gradients of MNIST
    clients, cohorts of 10 found from sketches reach the share of the exact ones' representation
    that ``docs/performance.md`` lists by size.

    Args:
        size: Length of the sketch.
        seed: Of the signs.

    Returns:
        A projection for `fedjax_fair.selectors.gradients`, computed as soon as a client's
        gradient is there, so that only ``clients * size`` numbers are ever held.

    Raises:
        ValueError: If ``size`` is not positive.

    References:
        Charikar, Chen, Farach-Colton, *Finding Frequent Items in Data Streams*, 2002

    Examples:
        >>> from fedjax_fair.selectors import divfl
        >>> from fedjax_fair.selectors.gradients import fresh
        >>> selector = divfl(10, gradients=fresh(project=count_sketch(4096)))
        >>> count_sketch(2)({"kernel": jnp.ones((3, 2))}).shape
        (2,)
    """
    checks.positive_int("size", size)
    checks.non_negative_int("seed", seed)

    def project(gradient: PyTree) -> Float[Array, " size"]:
        vector = ravel(gradient)
        signs = jax.random.rademacher(jax.random.key(seed), vector.shape, vector.dtype)
        padded = jnp.pad(vector * signs, (0, -vector.shape[0] % size))
        slabs = padded.reshape(-1, size)
        return product(jnp.ones(slabs.shape[0], vector.dtype), slabs)

    return project
