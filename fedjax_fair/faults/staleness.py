"""Clients that train from a model of the past."""

from __future__ import annotations

from dataclasses import KW_ONLY

import jax
import jax.numpy as jnp

from fedjax_fair import checks
from fedjax_fair.base import Faults, Number

__all__ = ["Staleness"]


class Staleness(Faults):
    """Some participants send an update of an older model than the current one.

    A stale participant was given the model some rounds ago, and what it learned from it arrives now. How
    many rounds is uniform from 1 to ``max_staleness``, but no more than have been done; a participant that is
    not stale trains from the current model. Everything else, its learning rate and its minibatches
    among it, is of the current round.

    Args:
        probability: How likely a participant is stale in a round, in ``[0, 1]``.
        max_staleness: How old its model is, at most. So many models of the past are kept, which takes
            their memory in every run.

    Raises:
        ValueError: If a number is out of range.

    References:
        Xie, Koyejo, Gupta, *Asynchronous Federated Optimization*, 2019,
        https://arxiv.org/abs/1903.03934 (staleness that is bounded and uniform, in its experiments)

    Examples:
        >>> stale = Staleness(0.3, max_staleness=4)
    """

    probability: Number
    _: KW_ONLY
    max_staleness: int

    def __post_init__(self):
        checks.probability("probability", self.probability)
        checks.positive_int("max_staleness", self.max_staleness)

    @property
    def history_length(self) -> int:
        """Global models of the past to keep."""
        return self.max_staleness

    def instruct(self, key, context):
        key_stale, key_age = jax.random.split(key)
        age = jax.random.randint(key_age, (), 1, self.max_staleness + 1, jnp.int32)
        age = jnp.where(jax.random.uniform(key_stale) < self.probability, age, 0)
        return {"model_round": context.round - jnp.minimum(age, context.round)}
