"""Clients that are slow: they stop early, or train from a model of the past."""

from __future__ import annotations

from dataclasses import KW_ONLY

import jax
import jax.numpy as jnp

from fedjax_fair.roles import Faults, Number, setting
from fedjax_fair.utils import checks

__all__ = ["Staleness", "Stragglers"]

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


class Staleness(Faults):
    """Some participants train from the global model of an earlier round.

    Their staleness is uniform from 1 to ``max_staleness``, limited by the number of completed
    rounds. Learning rates and minibatches are from the current round.

    Args:
        probability: Probability, in ``[0, 1]``, that a participant is stale in a round.
        max_staleness: Maximum staleness, in rounds; as many models are in memory.

    Raises:
        ValueError: If a setting is out of range.

    References:
        Xie, Koyejo, Gupta, *Asynchronous Federated Optimization*, 2019,
        https://arxiv.org/abs/1903.03934 (bounded uniform staleness in its experiments)

    Examples:
        >>> stale = Staleness(0.3, max_staleness=4)
    """

    probability: Number = setting(checks.probability)
    _: KW_ONLY
    max_staleness: int = setting(checks.positive_int)

    @property
    def history_length(self) -> int:
        """Past global models to keep."""
        return self.max_staleness

    def instruct(self, key, context):
        key_stale, key_age = jax.random.split(key)
        age = jax.random.randint(key_age, (), 1, self.max_staleness + 1, jnp.int32)
        age = jnp.where(jax.random.uniform(key_stale) < self.probability, age, 0)
        return {"model_round": context.round - jnp.minimum(age, context.round)}
