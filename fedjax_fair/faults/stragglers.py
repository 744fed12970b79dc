"""Clients that are slow."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedjax_fair import checks
from fedjax_fair.base import Faults, Number

__all__ = ["stragglers"]

_NO_LIMIT = 2**31 - 1


def stragglers(probability: Number, *, deadline_steps: int) -> Faults:
    """Some members get no further than some steps until the others are done.

    What they have reached by then counts as their result.

    Args:
        probability: How likely a member is slow in a round, in ``[0, 1]``; may be traced.
        deadline_steps: Local steps of those who are, at most.

    Returns:
        ``Faults``, for a solver that follows the instruction ``max_steps``, as
        `fedjax_fair.solvers.sgd` does.

    Raises:
        ValueError: If a number is out of range.

    Examples:
        >>> slow = stragglers(0.3, deadline_steps=5)
    """
    checks.probability("probability", probability)
    checks.positive_int("deadline_steps", deadline_steps)

    def instruct(key, member):
        slow = jax.random.uniform(key) < probability
        return {"max_steps": jnp.where(slow, deadline_steps, _NO_LIMIT)}

    return Faults(instruct=instruct)
