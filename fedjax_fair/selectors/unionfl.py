"""UnionFL: representative clients, with a penalty for recently selected ones."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp

from fedjax_fair import checks
from fedjax_fair.base import Integer, Number, Selector
from fedjax_fair.selectors.gradients import GradientSource
from fedjax_fair.selectors.representatives import Term, representatives
from fedjax_fair.submodular import union_penalty

__all__ = ["unionfl"]

_NEVER = -(2**30)  # Longer ago than any window reaches back.


def unionfl(
    cohort_size: int,
    mu: Number = 1.0,
    window: Integer = 5,
    *,
    candidates: int | Literal["auto", "all"] = "auto",
    pool: int | None = None,
    points: int | None = None,
    gradients: Literal["fresh", "stale"] | GradientSource = "fresh",
    scale: Literal["mean", "sum"] = "mean",
) -> Selector:
    r"""Picks clients that represent all clients, with a penalty for those of the last few rounds.

    It maximizes (equation 14)

    .. math:: G(S) - \mu\, |U_t \cap S|

    with the representation :math:`G` of `divfl` and the union :math:`U_t` of the last ``window``
    cohorts, empty at first. A client counts once however often it was in them. The objective is
    submodular but not monotone; a cohort is filled up even where that lowers it. With :math:`\mu =
    0` it chooses as `divfl` does. Info: that of `divfl`, ``penalty``, the second term without
    its sign, and ``repeated``, the number of members that were in the union.

    As for `divfl`, no guarantee of differential privacy covers it.

    Args:
        cohort_size: Clients per round.
        mu: Penalty of a recently selected member, >= 0; may be traced. How it compares to :math:`G`
            depends on ``scale``.
        window: Rounds to look back, an integer >= 1; may be traced, since all that is kept is the
            round in which each client was last chosen.
        candidates: As for `divfl`.
        pool: As for `divfl`.
        points: As for `divfl`; the penalty of a cohort stays exact.
        gradients: As for `divfl`.
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
        >>> selector = unionfl(cohort_size=10, mu=1.0, window=5)
    """
    checks.non_negative("mu", mu)
    checks.positive_integer("window", window, at_most=-_NEVER - 1)

    def init(context):
        return jnp.full(context.num_clients, _NEVER, jnp.int32)

    def union(last, context):
        return context.round - last <= window

    def function(last, context, losses, clients):
        return union_penalty(union(last[clients], context), mu)

    def info(last, context, losses, clients):
        repeated = jnp.sum(union(last[clients], context), dtype=jnp.int32)
        return {"penalty": mu * repeated.astype(jnp.float32), "repeated": repeated}

    def remember(last, context, clients):
        return last.at[clients].set(context.round, mode="drop")

    penalty = Term(init, function, info, remember)
    return representatives(cohort_size, penalty, candidates, pool, points, gradients, scale)
