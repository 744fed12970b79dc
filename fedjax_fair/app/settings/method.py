"""Description of a method by its roles."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fedjax_fair.app.settings.constructors import Reference, classes_in, describe

if TYPE_CHECKING:
    from fedjax_fair.roles import Aggregator, Model, Selector, Solver
    from fedjax_fair.rounds.base_round import BaseRound
    from fedjax_fair.schedules import Schedule
    from fedjax_fair.server_optimizers import ServerOptimizer

__all__ = ["Method", "Range"]


class Range(NamedTuple):
    """Values of a numeric setting that a benchmark tries.

    Attributes:
        low: Lowest value; positive, because a plain zero changes what is compiled.
        high: Highest value.
        scale: Scale on which values are spread evenly.
    """

    low: float
    high: float
    scale: Literal["log", "linear"] = "log"

    def check(self, name: str) -> None:
        """Checks the range of a setting.

        Raises:
            ValueError: If it is empty, not finite or not positive, or the scale is unknown.

        Examples:
            >>> Range(1.0, 0.1).check("q")
            Traceback (most recent call last):
            ValueError: q=Range(low=1.0, high=0.1, scale='log'): expected 0 < low < high < inf.
        """
        if self.scale not in ("log", "linear"):
            raise ValueError(f"{name}={self!r}: expected scale 'log' or 'linear'.")
        if not 0 < self.low < self.high < math.inf:
            raise ValueError(f"{name}={self!r}: expected 0 < low < high < inf.")


class Method(NamedTuple):
    """The roles in which a method differs from federated averaging.

    A role is a class, or a ``functools.partial`` of one with other defaults.

    Attributes:
        summary: One line; by default from the docstring of a role, which is then necessary.
        selector: Class of the selector; None for ``selectors.Uniform``.
        solver: Class of the solver; None for ``solvers.SGD``. One with a parameter ``solver`` gets
            ``solvers.SGD``, and has the settings of both.
        aggregator: Class of the aggregator; None for ``aggregators.Mean``.
        server_optimizer: Class of the optimizer that applies the update of the aggregator; None to
            add the update unchanged.
        network: Function that changes the network, such as `models.with_residual`; None for none.
        schedule: Class of the schedule; None for ``schedules.Synchronous`` if clients have times,
            and no schedule otherwise.
        weighting: Default weights of the mean.
        centralized_fn: Makes a round of a model and a solver, for training on pooled examples.
        linked_settings: Settings, such as ``"solver.steps"``, by the parameters of selector and
            aggregator that they set.
        ranges: Ranges of the numeric settings that a benchmark tunes in addition to the learning
            rate, by names of the command line; at most two, which only enter arithmetic.
    """

    summary: str = ""
    selector: Callable[..., Selector] | None = None
    solver: Callable[..., Solver] | None = None
    aggregator: Callable[..., Aggregator] | None = None
    server_optimizer: Callable[..., ServerOptimizer] | None = None
    network: Callable[[Model], Model] | None = None
    schedule: Callable[..., Schedule] | None = None
    weighting: Literal["uniform", "num_examples"] = "num_examples"
    centralized_fn: Callable[[Model, Solver], BaseRound] | None = None
    linked_settings: Mapping[str, str] = {}
    ranges: Mapping[str, Range] = {}

    def roles(self) -> dict[str, Callable[..., Any]]:
        """Returns the classes of the roles in which the method differs from federated averaging.

        A function that changes the network counts as one.
        """
        if self.centralized_fn is not None:
            return {}
        return {name: role for name, role in self._asdict().items() if callable(role)}

    @property
    def weights_of_mean(self) -> str:
        """Weights of the mean of updates, "" if another aggregator combines them."""
        is_mean = self.aggregator is None and self.centralized_fn is None
        return self.weighting if is_mean else ""

    def describe(self) -> str:
        """Returns the summary, or the first sentence of the docstring of a role."""
        roles = (self.selector, self.aggregator, self.server_optimizer, self.solver)
        return self.summary or describe(classes_in(next(filter(None, roles)))[0]).summary

    def source(self) -> str:
        """Returns a link to the first reference in the docstrings of the roles, or ""."""
        if self.centralized_fn is not None:
            return ""
        roles = self.roles() or {"selector": Reference("selectors.Uniform")}
        sources = (describe(classes_in(role)[0]).source for role in roles.values())
        return next(filter(None, sources), "")
