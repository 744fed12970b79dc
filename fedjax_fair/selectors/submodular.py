"""Selection by any set function: the shortest way to a new selector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Literal

import jax.numpy as jnp

from fedjax_fair import checks
from fedjax_fair.base import Cohort, Context, Selector
from fedjax_fair.submodular import SetFunction, greedy, stochastic_greedy

__all__ = ["Submodular"]


class Submodular(Selector):
    """Selects the cohort that maximizes a set function, greedily. It has uniform weights.

    Info: ``objective``, the value of the cohort.

    Args:
        set_function_fn: From the context of a round to a set function over all clients, which
            is made again in every round.
        cohort_size: Clients per round.
        candidates: Clients drawn again at each step of stochastic greedy; ``"all"`` considers all
            clients.

    Raises:
        ValueError: If an integer is not positive, or (at ``init``) more than the clients.

    Examples:
        Clients whose losses add up to the most, each counted up to one nat:

        >>> from fedjax_fair.submodular import Modular
        >>> def capped_losses(context):
        ...     return Modular(jnp.minimum(context.losses(context.variables), 1.0))
        >>> Submodular(capped_losses, cohort_size=10)
        Submodular(set_function_fn=capped_losses, cohort_size=10)
    """

    set_function_fn: Callable[[Context], SetFunction]
    cohort_size: int
    _: KW_ONLY
    candidates: int | Literal["all"] = "all"

    def __post_init__(self):
        function = self.set_function_fn
        checks.function("set_function_fn", function, "from a context to a SetFunction")
        checks.positive_int("cohort_size", self.cohort_size)
        checks.positive_int("candidates", self.candidates, words=("all",))

    def init(self, context):
        count = context.num_clients
        checks.positive_int("cohort_size", self.cohort_size, at_most=count)
        checks.positive_int("candidates", self.candidates, at_most=count, words=("all",))
        return ()

    def select(self, key, state, context):
        function, size = self.set_function_fn(context), self.cohort_size
        if self.candidates == "all":
            chosen = greedy(function, size, candidate_mask=context.available)
        else:
            chosen = stochastic_greedy(
                key, function, size, candidates=self.candidates, candidate_mask=context.available
            )
        weights = jnp.full(size, 1 / size, jnp.float32)
        return Cohort(chosen.items, weights), state, {"objective": chosen.value}
