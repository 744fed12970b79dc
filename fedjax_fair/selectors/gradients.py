"""Where a selector's losses and gradients of clients come from, and how old they are.

A selector that compares clients needs a loss and a gradient of each. Computing all of them in every
round costs as much as a full-batch gradient; the sources here differ in which clients are
refreshed, and when.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from fedjax_fair import checks
from fedjax_fair.base import (
    ClientGradients,
    Cohort,
    Context,
    InitFn,
    Number,
    ObserveFn,
    empty_state,
    keep_state,
)
from fedjax_fair.numerics.sketch import ravel

__all__ = [
    "GradientSource",
    "Project",
    "as_source",
    "cleared",
    "fresh",
    "last_layer",
    "refresh_every",
    "stale",
    "updates",
]

Project = Callable[[PyTree], Float[Array, " width"]]


class ReadFn(Protocol):
    """Reads gradients of clients before the choice."""

    def __call__(
        self, memory: PyTree, context: Context, clients: Int[Array, " ids"] | None = None
    ) -> tuple[ClientGradients, PyTree]:
        """Returns the gradients of these clients, or of all, and the new memory."""
        ...


class GradientSource(NamedTuple):
    """A way to keep track of every client's loss and gradient.

    Attributes:
        init: ``init(context) -> memory``.
        read: ``read(memory, context, clients=None) -> (ClientGradients, memory)`` of some clients
            or of all, before the choice. Selectors name clients where they have ``points``.
        observe: ``observe(memory, cohort, results, context) -> memory``, after local training; the
            context is that of the start of the round.
        renews_answered: Whether gradients change in ``observe`` alone, and only those of clients
            that answered. What was computed of the others, such as distances, then still holds.
            What is read has been `cleared`.
    """

    init: InitFn
    read: ReadFn
    observe: ObserveFn = keep_state
    renews_answered: bool = False


def as_source(gradients: str | GradientSource) -> GradientSource:
    """Turns the words ``"fresh"`` and ``"stale"`` into the sources of these names.

    Raises:
        ValueError: If it is neither a source nor one of the two words.
    """
    if isinstance(gradients, GradientSource):
        return gradients
    checks.one_of("gradients", gradients, ("fresh", "stale"))
    return fresh() if gradients == "fresh" else stale()


def fresh(project: Project = ravel) -> GradientSource:
    """Computes all gradients at the current model in every round, as the papers' objective says.

    Args:
        project: From a gradient, shaped like the parameters, to the vector that stands for it: all
            of it (default), `last_layer`, a `fedjax_fair.numerics.sketch.count_sketch`, or any
            function.

    Examples:
        >>> from fedjax_fair.selectors import divfl
        >>> selector = divfl(10, gradients=fresh(project=last_layer()))
    """

    def read(memory, context, clients=None):
        return context.gradients(context.variables, clients, project=project), memory

    return GradientSource(empty_state, read)


def stale(project: Project = ravel) -> GradientSource:
    """Computes all gradients once, at the initial model, and then only those of the cohort.

    A member of the cohort sends its loss and full gradient at the model it received, before it
    trains (DivFL's "no-overhead" mode).

    Args:
        project: As for ``fresh``.

    Examples:
        >>> from fedjax_fair.selectors import subtrunc
        >>> selector = subtrunc(10, 0.5, gradients=stale())
    """
    return _remembered(project)


def refresh_every(rounds: int, project: Project = ravel) -> GradientSource:
    """Computes all gradients in every ``rounds``-th round, and in between as ``stale`` does.

    Seeds that run side by side (on an accelerator) all compute what only some rounds need.

    Args:
        rounds: Rounds from one full refresh to the next.
        project: As for ``fresh``.

    Raises:
        ValueError: If ``rounds`` is not a positive integer.

    Examples:
        >>> from fedjax_fair.selectors import divfl
        >>> selector = divfl(10, gradients=refresh_every(5))
    """
    checks.positive_int("rounds", rounds)

    def renew(memory, context):
        return jax.lax.cond(
            context.round % rounds == 0,
            lambda: context.gradients(context.variables, project=project),
            lambda: memory,
        )

    return _remembered(project, renew)


def updates(learning_rate: Number, project: Project = ravel) -> GradientSource:
    """Takes a client's own local update, over learning rate and steps, for its gradient.

    Clients send nothing more than in federated averaging. A client that has not trained yet counts
    with its gradient at the initial model, to which its update reduces for one full-batch step; its
    loss is the mean of the minibatch losses it saw when it last trained.

    Args:
        learning_rate: Step size of the local solver, > 0.
        project: As for ``fresh``.

    Raises:
        ValueError: If ``learning_rate`` is not positive.

    Examples:
        >>> from fedjax_fair.selectors import unionfl
        >>> selector = unionfl(10, 1.0, 5, gradients=updates(learning_rate=0.1))
    """
    checks.positive("learning_rate", learning_rate)
    remembered = _remembered(project)

    def observe(state, cohort, results, context):
        scale = -1 / (learning_rate * results.steps.astype(jnp.float32))
        moved = context.map_clients(
            lambda client, update: project(update.params), cohort.clients, results.update
        )
        return _renew_rows(state, cohort, ClientGradients(results.loss, moved * scale[:, None]))

    return remembered._replace(observe=observe)


def _remembered(project: Project, renew: Callable | None = None) -> GradientSource:
    """Keeps a row for every client and refreshes those of the cohort; ``renew`` may do more."""

    def init(context):
        return cleared(context.gradients(context.variables, project=project))

    def read(memory, context, clients=None):
        if renew is not None:
            memory = renew(memory, context)
        if clients is None:
            return memory, memory
        return jax.tree.map(lambda rows: rows[clients], memory), memory

    def observe(state, cohort, results, context):
        new = context.gradients(context.variables, cohort.clients, project=project)
        return _renew_rows(state, cohort, new)

    return GradientSource(init, read, observe, renews_answered=renew is None)


def cleared(known: ClientGradients) -> ClientGradients:
    """Zeros for gradients that are not finite, whose clients then have no finite loss either."""
    finite = jnp.isfinite(known.gradient).all(axis=1)
    return ClientGradients(
        jnp.where(finite, known.loss, jnp.nan), jnp.where(finite[:, None], known.gradient, 0.0)
    )


def last_layer(name: str = "head") -> Project:
    """Keeps only the gradient of one layer, by default the classifier of the package's networks.

    Args:
        name: Key of the layer in the parameters.

    Returns:
        A projection; it raises a ``ValueError`` where there is no such layer.

    Examples:
        >>> keep = last_layer()
        >>> keep({"body": jnp.zeros(3), "head": {"bias": jnp.ones(2)}}).tolist()
        [1.0, 1.0]
    """

    def project(gradient):
        if name not in gradient:
            raise ValueError(f"{name=}: expected a layer of the model, {', '.join(gradient)}.")
        return ravel(gradient[name])

    return project


def _renew_rows(memory: ClientGradients, cohort: Cohort, new: ClientGradients) -> ClientGradients:
    clients = cohort.answered
    return jax.tree.map(
        lambda old, new: old.at[clients].set(new, mode="drop"), memory, cleared(new)
    )
