"""Projection and quadratic programs on the simplex with bounds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_fair.numerics.products import product

__all__ = ["least_norm_weights", "minimize_quadratic", "project"]

_ITERATIONS = 300
"""Iterations of a quadratic program, each with one product."""


def project(
    values: Float[Array, " n"], lower: Float[Array, " n"], upper: Float[Array, " n"]
) -> Float[Array, " n"]:
    """Returns the nearest point with a sum of 1 between bounds, in Euclidean distance.

    The bounds must admit a sum of 1.

    Examples:
        >>> zeros, ones = jnp.zeros(3), jnp.ones(3)
        >>> project(jnp.array([1.2, 0.15, -3.0]), zeros, ones).tolist()
        [1.0, 0.0, 0.0]
    """
    # The sum of clip(values - shift) is piecewise linear in the shift, and decreasing.
    kinks = jnp.sort(jnp.concatenate([values - upper, values - lower]))
    clipped = jnp.clip(values[None] - kinks[:, None], lower[None], upper[None])
    sums = jnp.sum(clipped, axis=1)
    last = jnp.clip(jnp.sum(sums >= 1, dtype=jnp.int32) - 1, 0, kinks.size - 2)
    width, drop = kinks[last + 1] - kinks[last], sums[last] - sums[last + 1]
    part = jnp.clip((sums[last] - 1) / jnp.where(drop > 0, drop, 1), 0, 1)
    return jnp.clip(values - (kinks[last] + part * width), lower, upper)


def minimize_quadratic(
    matrix: Float[Array, "n n"],
    linear: Float[Array, " n"],
    lower: Float[Array, " n"],
    upper: Float[Array, " n"],
    start: Float[Array, " n"],
) -> Float[Array, " n"]:
    """Minimizes ``x @ matrix @ x / 2 - linear @ x`` over sums of 1 between bounds.

    Accelerated projected gradient descent, without acceleration where it would turn back.

    Args:
        matrix: Symmetric and positive semidefinite.
        linear: Linear part.
        lower: Lower bounds.
        upper: Upper bounds; both must admit a sum of 1.
        start: A point between the bounds.

    Examples:
        >>> identity, zeros = jnp.eye(2), jnp.zeros(2)
        >>> start = jnp.array([1.0, 0.0])
        >>> minimize_quadratic(identity, zeros, zeros, zeros + 1, start).tolist()
        [0.5, 0.5]
    """
    # The largest sum of a row is at least the largest eigenvalue.
    curvature = jnp.maximum(jnp.max(jnp.sum(jnp.abs(matrix), axis=1)), 1e-30)

    def iterate(_, carry):
        old, ahead, momentum = carry
        gradient = product(matrix, ahead) - linear
        new = project(ahead - gradient / curvature, lower, upper)
        restart = jnp.sum((ahead - new) * (new - old)) > 0
        momentum = jnp.where(restart, 1.0, momentum)
        grown = (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2
        return new, new + (momentum - 1) / grown * (new - old), grown

    carry = start, start, jnp.ones((), start.dtype)
    return jax.lax.fori_loop(0, _ITERATIONS, iterate, carry)[0]


def least_norm_weights(gram: Float[Array, "n n"], used: Bool[Array, " n"]) -> Float[Array, " n"]:
    """Returns the weights of the shortest vector in the convex hull of vectors.

    Args:
        gram: Inner products of the vectors.
        used: Vectors that count; without any, all weights are 0.

    Examples:
        >>> gram = jnp.array([[4.0, 0.0, 9.0], [0.0, 1.0, 9.0], [9.0, 9.0, 9.0]])
        >>> weights = least_norm_weights(gram, jnp.array([True, True, False]))
        >>> [round(float(weight), 5) for weight in weights]
        [0.2, 0.8, 0.0]
    """
    upper = used.astype(gram.dtype)
    start = upper / jnp.maximum(jnp.sum(upper), 1)
    gram = jnp.where(used[:, None] & used[None, :], gram, 0)
    return minimize_quadratic(gram, jnp.zeros_like(start), jnp.zeros_like(start), upper, start)
