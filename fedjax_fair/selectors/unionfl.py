"""UnionFL: representative clients, with a penalty for those chosen lately."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_fair import checks
from fedjax_fair.base import Selector
from fedjax_fair.selectors.divfl import Term, representatives
from fedjax_fair.selectors.information import Information
from fedjax_fair.submodular import union_penalty

__all__ = ["unionfl"]

_NEVER = -(2**30)  # Longer ago than any window reaches back.


def unionfl(
    cohort_size: int,
    mu: float | Float[Array, ""] = 1.0,
    window: int | Int[Array, ""] = 5,
    *,
    candidates: int | None = 10,
    pool: int | None = None,
    info: str | Information = "fresh",
    scale: Literal["mean", "sum"] = "mean",
) -> Selector:
    r"""Picks clients that represent everybody, but rather not those of the last few rounds.

    It maximises (equation 14)

    .. math:: G(S) - \mu\, |U_t \cap S|

    with the representation :math:`G` of `divfl` and the union :math:`U_t` of the last ``window``
    cohorts, empty at first. A client counts once however often it was in them. The objective is
    submodular but not monotone; a cohort is filled up even where that lowers it. With :math:`\mu =
    0` it chooses as `divfl` does. Beyond what `divfl` tells of a round it tells ``penalty``, the
    second term without its sign, and ``repeated``, the members who were in the union.

    Args:
        cohort_size: Clients per round.
        mu: Price of a member who trained lately, >= 0; may be traced. How it compares to :math:`G`
            depends on ``scale``.
        window: Rounds to look back, >= 1; may be traced, since all that is kept is the round in
            which each client was last chosen.
        candidates: As for `divfl`.
        pool: As for `divfl`.
        info: As for `divfl`.
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
    checks.positive("window", window)

    def init(context):
        return jnp.full(context.num_clients, _NEVER, jnp.int32)

    def union(last, context):
        return context.round - last <= window

    def function(last, context, losses, items):
        return union_penalty(union(last, context)[items], mu)

    def tell(last, context, losses, clients):
        repeated = jnp.sum(union(last, context)[clients], dtype=jnp.int32)
        return {"penalty": mu * repeated.astype(jnp.float32), "repeated": repeated}

    def remember(last, context, clients):
        return last.at[clients].set(context.round)

    return representatives(
        cohort_size, Term(init, function, tell, remember), candidates, pool, info, scale
    )
