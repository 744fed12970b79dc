"""SubTrunc: representative clients, with a truncated bonus for high losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array

from fedjax_fair import checks
from fedjax_fair.base import Number, Selector, empty_state
from fedjax_fair.selectors.gradients import GradientSource
from fedjax_fair.selectors.representatives import Term, representatives
from fedjax_fair.submodular import truncated_modular

__all__ = ["PHI", "subtrunc"]

PHI = {"log1p": jnp.log1p, "identity": lambda loss: loss}
"""What may stand for ``phi`` by name."""


def subtrunc(
    cohort_size: int,
    lam: Number = 0.5,
    b: Number = 1.1,
    *,
    phi: Literal["log1p", "identity"] | Callable[[Array], Array] = "log1p",
    candidates: int | Literal["auto", "all"] = "auto",
    pool: int | None = None,
    points: int | None = None,
    gradients: Literal["fresh", "stale"] | GradientSource = "fresh",
    scale: Literal["mean", "sum"] = "mean",
) -> Selector:
    r"""Picks clients that represent all clients, with a bonus for high losses up to a limit.

    It maximizes (equations 11 to 13)

    .. math:: W(S) = G(S) + \lambda \min\Big(b, \sum_{i \in S} \phi(f_i(w))\Big)

    with the representation :math:`G` of `divfl`. With :math:`\lambda = 0` it chooses as `divfl`
    does. Info: that of `divfl`, ``bonus``, the second term, and
    ``unsaturated``, the fraction of greedy steps at whose start the sum was still below ``b``: only
    in those can a loss decide.

    How :math:`G` is scaled decides everything. As a sum over a hundred clients it grows by tens in
    a step, which no bonus of about 1 ever outweighs; divided by the number of clients (the default)
    it does.

    As for `divfl`, no guarantee of differential privacy covers it.

    Args:
        cohort_size: Clients per round.
        lam: Weight of the bonus, >= 0; may be traced.
        b: Where the bonus stops growing, >= 0; may be traced. With ``"log1p"`` an untrained network
            of ten classes exceeds 1.1 with a single client.
        phi: What a loss is worth: ``"log1p"`` is ``log(1 + loss)``, ``"identity"`` the loss itself,
            and a function may be any that is increasing and not negative.
        candidates: As for `divfl`.
        pool: As for `divfl`.
        points: As for `divfl`; the bonus of a cohort stays exact.
        gradients: As for `divfl`; losses are as old as gradients are.
        scale: Whether :math:`G` is a mean or a sum over clients.

    Returns:
        A ``Selector``, with weights as those of `divfl`.

    Raises:
        ValueError: If a setting is out of range, or (at ``init``) larger than the number of
            clients.

    References:
        Castillo J., Kaya, Ye, Hashemi, *Submodular Maximization Approaches for Equitable Client
        Selection in Federated Learning*, 2024

    Examples:
        >>> selector = subtrunc(cohort_size=10, lam=0.5)
    """
    checks.non_negative("lam", lam)
    checks.non_negative("b", b)
    if not callable(phi):
        checks.one_of("phi", phi, tuple(PHI))
    worth_of = phi if callable(phi) else PHI[phi]

    def function(memory, context, losses, clients):
        return truncated_modular(worth_of(losses), b, lam)

    def info(memory, context, losses, clients):
        worth = worth_of(losses)
        total = jnp.cumsum(worth)
        return {
            "bonus": lam * jnp.minimum(b, total[-1]),
            "unsaturated": jnp.mean((total - worth < b).astype(jnp.float32)),
        }

    bonus = Term(empty_state, function, info)
    return representatives(cohort_size, bonus, candidates, pool, points, gradients, scale)
