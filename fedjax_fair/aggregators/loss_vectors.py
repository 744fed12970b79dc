"""Directions in which the losses of participants become equal."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

__all__ = ["fair_direction"]


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
