"""UnionFL: representative clients with a penalty for recent participants."""

from __future__ import annotations

import jax.numpy as jnp

from fedjax_fair.roles import Integer, Number, setting
from fedjax_fair.selectors.representative_selector import RepresentativeSelector
from fedjax_fair.submodular import union_penalty
from fedjax_fair.utils import checks

__all__ = ["UnionFL"]

_NEVER = -(2**30)  # A round before any window.


class UnionFL(RepresentativeSelector):
    r"""Selects clients that represent all clients, with a penalty for recent participants.

    It maximizes (equation 14)

    .. math:: G(S) - \mu\, |U_t \cap S|

    with the representation :math:`G` of `DivFL`, to which :math:`\mu = 0` reduces it, and the union
    :math:`U_t` of the last ``window`` cohorts. The objective is submodular but not monotone.
    UnionFL always selects ``cohort_size`` clients, even when an additional client lowers the
    objective. Weights and info are as for `DivFL`. Additional info: ``penalty``, the second term
    without its sign; ``repeated``, the selected clients in the union.

    Args:
        cohort_size: Clients per round.
        mu: Penalty per recent participant, >= 0. Its size relative to :math:`G` depends on
            ``scale``.
        window: Number of recent cohorts, >= 1. Memory use does not depend on it.
        candidates: As for `DivFL`.
        pool: As for `DivFL`.
        num_reference_clients: As for `DivFL`; the penalty of a cohort is exact.
        gradients: As for `DivFL`.
        scale: As for `DivFL`.

    Raises:
        ValueError: As for `DivFL`.

    References:
        Castillo, Kaya, Ye, Hashemi, *Submodular Maximization Approaches for Equitable Client
        Selection in Federated Learning*, 2024, https://arxiv.org/abs/2408.13683

    Examples:
        >>> UnionFL(cohort_size=10, mu=0.3)
        UnionFL(cohort_size=10, mu=0.3)
    """

    mu: Number = setting(checks.non_negative, default=1.0)
    window: Integer = setting(checks.integer, default=5, at_most=-_NEVER - 1)

    def init_term(self, context):
        # The round of the last selection serves windows of any length, which may be traced.
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
