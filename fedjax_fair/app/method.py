"""What a method that has a name consists of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from fedjax_fair.base import Aggregator, Model, Selector, Solver
from fedjax_fair.simulate import BaseRound

__all__ = ["Method"]


class Method(NamedTuple):
    """A federated method: the roles in which it differs from federated averaging.

    Attributes:
        summary: One-line description.
        selector: Class of its selector, or None for uniform draws. As those that follow, it may be
            a ``functools.partial`` that gives other defaults.
        solver: Class of its local solver, or None for SGD.
        aggregator: Class of its aggregator, or None for the average that follows.
        weighting: Weights of the mean over a cohort as the method's paper has them: alike, or by
            training examples. Another aggregator, or ``--aggregator.weights``, replaces them.
        centralized_fn: Class of its round, of a model and a solver, for a method that is no federation.
        from_solver: Settings of the solver that its other roles need, by their parameter there.

    Examples:
        >>> from fedjax_fair import selectors
        >>> turns = Method("Clients in turn", selector=selectors.RoundRobin)
        >>> turns.weighting
        'num_examples'
    """

    summary: str
    selector: Callable[..., Selector] | None = None
    solver: Callable[..., Solver] | None = None
    aggregator: Callable[..., Aggregator] | None = None
    weighting: Literal["uniform", "num_examples"] = "num_examples"
    centralized_fn: Callable[[Model, Solver], BaseRound] | None = None
    from_solver: Mapping[str, str] = {}
