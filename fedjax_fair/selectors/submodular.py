"""Selection by any set function: the shortest way to a new selector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax.numpy as jnp

from fedjax_fair import checks
from fedjax_fair.base import Cohort, Context, Selector, empty_state
from fedjax_fair.submodular import SetFunction, greedy, stochastic_greedy

__all__ = ["submodular"]


def submodular(
    function_of_context: Callable[[Context], SetFunction],
    cohort_size: int,
    *,
    candidates: int | Literal["all"] = "all",
) -> Selector:
    """Picks the cohort that maximizes a set function, greedily.

    Info: the ``objective`` that the cohort reached.

    Args:
        function_of_context: What a cohort is worth, from the context of the round: a set function
            over all clients, made anew in every round.
        cohort_size: Clients per round.
        candidates: Clients drawn anew at each step of stochastic greedy; ``"all"`` considers all
            clients.

    Returns:
        A ``Selector`` whose cohort has uniform weights.

    Raises:
        ValueError: If a number is not positive, or (at ``init``) more than the clients.

    Examples:
        Clients whose losses add up to the most, each counted up to one nat:

        >>> from fedjax_fair.submodular import Modular
        >>> def worth(context):
        ...     return Modular(jnp.minimum(context.losses(context.variables), 1.0))
        >>> selector = submodular(worth, cohort_size=10)
    """
    checks.function("function_of_context", function_of_context, "from a context to a SetFunction")
    checks.positive_int("cohort_size", cohort_size)
    checks.positive_int("candidates", candidates, words=("all",))

    def init(context):
        checks.positive_int("cohort_size", cohort_size, at_most=context.num_clients)
        checks.positive_int("candidates", candidates, at_most=context.num_clients, words=("all",))
        return empty_state(context)

    def select(key, state, context):
        function = function_of_context(context)
        if candidates == "all":
            chosen = greedy(function, cohort_size, available=context.available)
        else:
            chosen = stochastic_greedy(
                key, function, cohort_size, candidates=candidates, available=context.available
            )
        weights = jnp.full(cohort_size, 1 / cohort_size, jnp.float32)
        return Cohort(chosen.items, weights), state, {"objective": chosen.value}

    return Selector(init, select)
