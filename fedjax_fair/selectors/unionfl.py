"""UnionFL: representative clients, with a penalty for recently selected ones."""

from __future__ import annotations

import jax.numpy as jnp

from fedjax_fair import checks
from fedjax_fair.base import Integer, Number
from fedjax_fair.selectors.representative_selector import RepresentativeSelector
from fedjax_fair.submodular import union_penalty

__all__ = ["UnionFL"]

_NEVER = -(2**30)  # Before any window.


class UnionFL(RepresentativeSelector):
    r"""Selects clients that represent all clients, with a penalty for participants of recent cohorts.

    It maximizes (equation 14)

    .. math:: G(S) - \mu\, |U_t \cap S|

    with the representation :math:`G` of `DivFL` and the union :math:`U_t` of the last ``window``
    cohorts, empty at first. A client counts once however often it was in them. The objective is
    submodular but not monotone; a cohort is filled up even where that lowers it. With :math:`\mu =
    0` it chooses as `DivFL` does. The weights of the cohort are as for `DivFL`. Info: that of
    `DivFL`, ``penalty``, the second term without its sign, and ``repeated``, the number of participants
    that were in the union.

    As for `DivFL`, no guarantee of differential privacy covers this selector.

    Args:
        cohort_size: Clients per round.
        mu: Penalty of a recently selected participant, >= 0. Its size relative to :math:`G` depends on
            ``scale``.
        window: Rounds to look back, an integer >= 1. The state has the round in which each client
            was last chosen, and does not grow with the window.
        candidates: As for `DivFL`.
        pool: As for `DivFL`.
        num_reference_clients: As for `DivFL`; the penalty of a cohort stays exact.
        gradients: As for `DivFL`.
        scale: Whether :math:`G` is a mean or a sum over clients.

    Raises:
        ValueError: If a setting is out of range, or (at ``init``) larger than the number of
            clients.

    References:
        Castillo J., Kaya, Ye, Hashemi, *Submodular Maximization Approaches for Equitable Client
        Selection in Federated Learning*, 2024

    Examples:
        >>> UnionFL(cohort_size=10, mu=0.3)
        UnionFL(cohort_size=10, mu=0.3)
    """

    mu: Number = 1.0
    window: Integer = 5

    def __post_init__(self):
        super().__post_init__()
        checks.non_negative("mu", self.mu)
        checks.positive_integer("window", self.window, at_most=-_NEVER - 1)

    def init_term(self, context):
        return jnp.full(context.num_clients, _NEVER, jnp.int32)

    def _union(self, last, context):
        return context.round - last <= self.window

    def objective_term(self, memory, context, losses, clients):
        return union_penalty(self._union(memory[clients], context), self.mu)

    def term_info(self, memory, context, losses, clients):
        repeated = jnp.sum(self._union(memory[clients], context), dtype=jnp.int32)
        return {"penalty": self.mu * repeated.astype(jnp.float32), "repeated": repeated}

    def remember(self, memory, context, clients):
        return memory.at[clients].set(context.round, mode="drop")
