"""Clients that train from a model of the past."""

from __future__ import annotations

from dataclasses import KW_ONLY

import jax
import jax.numpy as jnp

from fedjax_fair.roles import Faults, Number, setting
from fedjax_fair.utils import checks

__all__ = ["Staleness"]


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
