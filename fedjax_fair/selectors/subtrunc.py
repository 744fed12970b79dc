"""SubTrunc: representative clients with a truncated bonus for high losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array

from fedjax_fair.roles import Number, setting
from fedjax_fair.selectors.representative_selector import RepresentativeSelector
from fedjax_fair.submodular import truncated_modular
from fedjax_fair.utils import checks

__all__ = ["SubTrunc"]


_PHI = {"log1p": jnp.log1p, "identity": lambda loss: loss}


class SubTrunc(RepresentativeSelector):
    r"""Selects clients that represent all clients, with a truncated bonus for high losses.

    It maximizes (equations 11 to 13)

    .. math:: W(S) = G(S) + \lambda \min\Big(b, \sum_{i \in S} \phi(f_i(w))\Big)

    with the representation :math:`G` of `DivFL`, to which :math:`\lambda = 0` reduces it. Weights
    and info are as for `DivFL`. Additional info: ``bonus``, the second term; and ``unsaturated``,
    the fraction of greedy steps that start with a sum below ``b``, in which alone losses matter.

    With ``scale="sum"``, :math:`G` grows by tens per step, and a bonus of about 1 never matters.

    Args:
        cohort_size: Clients per round.
        lam: Weight of the bonus, >= 0.
        b: Limit of the sum in the bonus, >= 0. With ``"log1p"`` a single client of an untrained
            network of ten classes exceeds 1.1.
        phi: Utility of a loss: ``"log1p"`` is ``log(1 + loss)``, ``"identity"`` the loss; or any
            non-negative increasing function.
        candidates: As for `DivFL`.
        pool: As for `DivFL`.
        num_reference_clients: As for `DivFL`; the bonus of a cohort is exact.
        gradients: As for `DivFL`; losses are as old as gradients.
        scale: As for `DivFL`.

    Raises:
        ValueError: As for `DivFL`.

    References:
        Castillo, Kaya, Ye, Hashemi, *Submodular Maximization Approaches for Equitable Client
        Selection in Federated Learning*, 2024, https://arxiv.org/abs/2408.13683

    Examples:
        >>> SubTrunc(cohort_size=10, lam=0.7)
        SubTrunc(cohort_size=10, lam=0.7)
    """

    lam: Number = setting(checks.non_negative, default=0.5)
    b: Number = setting(checks.non_negative, default=1.1)
    _: KW_ONLY
    phi: Literal["log1p", "identity"] | Callable[[Array], Array] = "log1p"

    def __post_init__(self):
        super().__post_init__()
        if not callable(self.phi):
            checks.one_of("phi", self.phi, tuple(_PHI))

    def _utility(self, losses):
        return (self.phi if callable(self.phi) else _PHI[self.phi])(losses)

    def objective_term(self, memory, context, losses, clients):
        return truncated_modular(self._utility(losses), self.b, self.lam)

    def term_info(self, memory, context, losses, clients):
        utility = self._utility(losses)
        total = jnp.cumsum(utility)
        return {
            "bonus": self.lam * jnp.minimum(self.b, total[-1]),
            "unsaturated": jnp.mean((total - utility < self.b).astype(jnp.float32)),
        }
