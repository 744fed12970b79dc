"""Selection by maximization of a set function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Literal

from jaxtyping import Array, Bool, Key

from fedjax_fair.roles import Context, Selector, setting
from fedjax_fair.selectors.uniform import uniform_cohort
from fedjax_fair.submodular import MaximizationResult, SetFunction, greedy, stochastic_greedy
from fedjax_fair.utils import checks

__all__ = ["Submodular", "maximize"]


class Submodular(Selector):
    """Selects the cohort that greedily maximizes a set function. It has uniform weights.

    Info: ``objective``, the value of the cohort.

    Args:
        set_function_fn: Function from the context of a round to a set function over all clients.
        cohort_size: Clients per round.
        candidates: Clients sampled at each step of stochastic greedy; ``"all"`` considers all.

    Raises:
        ValueError: If a size is not positive, or (at ``init``) exceeds the number of clients.

    Examples:
        Clients with the largest total loss, each counted up to one nat:

        >>> import jax.numpy as jnp
        >>> from fedjax_fair.submodular import Modular
        >>> def capped_losses(context):
        ...     return Modular(jnp.minimum(context.losses(context.variables), 1.0))
        >>> Submodular(capped_losses, cohort_size=10)
        Submodular(set_function_fn=capped_losses, cohort_size=10)
    """

    set_function_fn: Callable[[Context], SetFunction] = setting(
        checks.function, "from a context to a SetFunction"
    )
    cohort_size: int = setting(checks.positive_int)
    _: KW_ONLY
    candidates: int | Literal["all"] = setting(checks.positive_int, default="all", words=("all",))

    def init(self, context):
        count = context.num_clients
        checks.positive_int("cohort_size", self.cohort_size, at_most=count)
        checks.positive_int("candidates", self.candidates, at_most=count, words=("all",))
        return ()

    def select(self, key, state, context):
        function = self.set_function_fn(context)
        selected = maximize(key, function, self.cohort_size, self.candidates, context.available)
        return uniform_cohort(selected.items), state, {"objective": selected.value}


def maximize(
    key: Key[Array, ""],
    function: SetFunction,
    cohort_size: int,
    candidates: int | Literal["all"],
    available: Bool[Array, " items"] | None,
) -> MaximizationResult:
    """Maximizes a set function by greedy, or by stochastic greedy with a number of candidates."""
    if candidates == "all":
        return greedy(function, cohort_size, candidate_mask=available)
    return stochastic_greedy(
        key, function, cohort_size, candidates=candidates, candidate_mask=available
    )
