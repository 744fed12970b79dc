"""SubTrunc: representative clients, with a truncated bonus for high losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array

from fedjax_fair import checks
from fedjax_fair.base import Number
from fedjax_fair.selectors.representative_selector import RepresentativeSelector
from fedjax_fair.submodular import truncated_modular

__all__ = ["PHI", "SubTrunc"]


def _identity(loss: Array) -> Array:
    return loss


PHI = {"log1p": jnp.log1p, "identity": _identity}
"""Functions ``phi`` by name."""


class SubTrunc(RepresentativeSelector):
    r"""Selects clients that represent all clients, with a bonus for high losses up to a limit.

    It maximizes (equations 11 to 13)

    .. math:: W(S) = G(S) + \lambda \min\Big(b, \sum_{i \in S} \phi(f_i(w))\Big)

    with the representation :math:`G` of `DivFL`. With :math:`\lambda = 0` it chooses as `DivFL`
    does. The weights of the cohort are as for `DivFL`. Info: that of `DivFL`, ``bonus``, the second
    term, and ``unsaturated``, the fraction of greedy steps at whose start the sum was still below
    ``b``. Losses decide in these steps only.

    The scale of :math:`G` decides whether the bonus matters. As a sum over a hundred clients
    :math:`G` grows by tens in a step, which a bonus of about 1 never outweighs. Divided by the
    number of clients (the default), it is of the size of the bonus.

    As for `DivFL`, no guarantee of differential privacy covers this selector.

    Args:
        cohort_size: Clients per round.
        lam: Weight of the bonus, >= 0.
        b: Limit of the sum in the bonus, >= 0. With ``"log1p"`` an untrained network of ten classes
            exceeds 1.1 with a single client.
        phi: Utility of a loss: ``"log1p"`` is ``log(1 + loss)``, ``"identity"`` the loss itself. Or
            any function that is increasing and not negative.
        candidates: As for `DivFL`.
        pool: As for `DivFL`.
        num_reference_clients: As for `DivFL`; the bonus of a cohort stays exact.
        gradients: As for `DivFL`; losses are as old as gradients are.
        scale: Whether :math:`G` is a mean or a sum over clients.

    Raises:
        ValueError: If a setting is out of range, or (at ``init``) larger than the number of
            clients.

    References:
        Castillo J., Kaya, Ye, Hashemi, *Submodular Maximization Approaches for Equitable Client
        Selection in Federated Learning*, 2024

    Examples:
        >>> SubTrunc(cohort_size=10, lam=0.7)
        SubTrunc(cohort_size=10, lam=0.7)
    """

    lam: Number = 0.5
    b: Number = 1.1
    _: KW_ONLY
    phi: Literal["log1p", "identity"] | Callable[[Array], Array] = "log1p"

    def __post_init__(self):
        super().__post_init__()
        checks.non_negative("lam", self.lam)
        checks.non_negative("b", self.b)
        if not callable(self.phi):
            checks.one_of("phi", self.phi, tuple(PHI))

    def _utility(self, losses):
        phi = self.phi if callable(self.phi) else PHI[self.phi]
        return phi(losses)

    def objective_term(self, memory, context, losses, clients):
        return truncated_modular(self._utility(losses), self.b, self.lam)

    def term_info(self, memory, context, losses, clients):
        utility = self._utility(losses)
        total = jnp.cumsum(utility)
        return {
            "bonus": self.lam * jnp.minimum(self.b, total[-1]),
            "unsaturated": jnp.mean((total - utility < self.b).astype(jnp.float32)),
        }
