"""Clients that are slow."""

from __future__ import annotations

from dataclasses import KW_ONLY

import jax
import jax.numpy as jnp

from fedjax_fair.roles import Faults, Number, setting
from fedjax_fair.utils import checks

__all__ = ["Stragglers"]

_NO_LIMIT = 2**31 - 1


class Stragglers(Faults):
    """Slow participants stop after some local steps and send the model reached by then.

    The solver has to follow the instruction ``max_steps``, as `fedjax_fair.solvers.SGD` does.

    Args:
        probability: Probability, in ``[0, 1]``, that a participant is slow in a round.
        deadline_steps: Maximum number of local steps of a slow participant.

    Raises:
        ValueError: If a setting is out of range.

    Examples:
        >>> slow = Stragglers(0.3, deadline_steps=5)
    """

    probability: Number = setting(checks.probability)
    _: KW_ONLY
    deadline_steps: int = setting(checks.positive_int)

    def instruct(self, key, context):
        slow = jax.random.uniform(key) < self.probability
        return {"max_steps": jnp.where(slow, self.deadline_steps, _NO_LIMIT)}
