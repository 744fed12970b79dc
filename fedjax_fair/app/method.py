"""Description of a method by its roles."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from fedjax_fair.base import Aggregator, Model, Selector, Solver
from fedjax_fair.base_round import BaseRound
from fedjax_fair.server_optimizers import ServerOptimizer

__all__ = ["Method"]


class Method(NamedTuple):
    """The roles in which a method differs from federated averaging.

    A role is a class, or a ``functools.partial`` of one with other defaults.

    Attributes:
        summary: One line; by default from the docstring of a role.
        selector: Class of the selector; None for ``selectors.Uniform``.
        solver: Class of the solver; None for ``solvers.SGD``.
        aggregator: Class of the aggregator; None for ``aggregators.Mean``.
        server_optimizer: Class of the optimizer that applies the update of the aggregator; None to
            add the update unchanged.
        weighting: Default weights of the mean.
        centralized_fn: Makes a round of a model and a solver, for training on pooled examples.
        from_solver: Settings of the solver by the parameters of other roles that they set.
    """

    summary: str = ""
    selector: Callable[..., Selector] | None = None
    solver: Callable[..., Solver] | None = None
    aggregator: Callable[..., Aggregator] | None = None
    server_optimizer: Callable[..., ServerOptimizer] | None = None
    weighting: Literal["uniform", "num_examples"] = "num_examples"
    centralized_fn: Callable[[Model, Solver], BaseRound] | None = None
    from_solver: Mapping[str, str] = {}

    def describe(self) -> str:
        """Returns the summary, or the first sentence of the docstring of a role."""
        role = self.selector or self.aggregator or self.server_optimizer
        docstring = str(inspect.getdoc(role))
        return self.summary or docstring.splitlines()[0].partition(". ")[0].rstrip(".")
