"""Common descent directions, and those in which the losses of participants become equal."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_fair.numerics.products import product
from fedjax_fair.numerics.simplex import least_norm_weights

__all__ = ["fair_direction", "shortest_vector"]

# Squared norms have the accuracy of float32, relative to those of the vectors.
_RESOLUTION = 1e-3


def fair_direction(
    losses: Float[Array, " cohort"], used: Bool[Array, " cohort"]
) -> tuple[Float[Array, " cohort"], Float[Array, ""]]:
    """Returns the direction of losses in which their cosine with equal ones falls, and their angle.

    The direction has norm 1, or is zero for equal losses; the angle is in degrees.

    Examples:
        >>> direction, angle = fair_direction(jnp.array([1.0, 3.0]), jnp.ones(2, bool))
        >>> [round(float(each), 4) for each in (*direction, angle)]
        [-0.9487, 0.3162, 26.5651]
    """
    equal = jnp.where(used, 1 / jnp.sqrt(jnp.maximum(jnp.sum(used, dtype=jnp.float32), 1)), 0)
    losses = jnp.where(used, losses, 0)
    unit = losses / jnp.maximum(jnp.linalg.norm(losses), 1e-30)
    cosine = jnp.sum(unit * equal)
    direction = cosine * unit - equal
    sine = jnp.linalg.norm(direction)
    # The inverse cosine is inaccurate near 1.
    angle = jnp.degrees(jnp.arctan2(sine, cosine))
    is_equal = sine < 1e-6
    return jnp.where(is_equal, 0, direction / jnp.where(is_equal, 1, sine)), angle


def shortest_vector(
    vectors: Float[Array, "n width"], used: Bool[Array, " n"], length: Float[Array, ""]
) -> tuple[Float[Array, " width"], Float[Array, " n"]]:
    """Returns the shortest vector in the convex hull of the used vectors, and their weights.

    It is zero if it is shorter than a thousandth of ``length``, the length of the vectors: it would
    be a rounding error, of which methods change the length.
    """
    weights = least_norm_weights(product(vectors, vectors.T), used)
    found = product(weights, vectors)
    return jnp.where(jnp.linalg.norm(found) > _RESOLUTION * length, found, 0), weights
