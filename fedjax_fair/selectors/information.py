"""What a server knows of its clients' losses and gradients, and how old that knowledge is.

A selector that compares clients asks for a loss and a gradient of each. Asking everybody in every
round costs as much as a full-batch gradient; the modes here say who is asked, and when.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from fedjax_fair import checks
from fedjax_fair.base import ClientGradients, Cohort, Context, LocalResult
from fedjax_fair.population import ravel

__all__ = ["Information", "Project", "every", "fresh", "last_layer", "of", "stale", "updates"]

Project = Callable[[PyTree], Float[Array, " width"]]


class Information(NamedTuple):
    """A way to keep track of every client's loss and gradient.

    Attributes:
        init: ``init(context) -> memory``.
        read: ``read(memory, context) -> (ClientGradients, memory)`` of all clients, before anyone
            is chosen.
        ask: ``ask(memory, context, cohort) -> memory``, once the cohort is known: its members have
            received the model and not trained yet.
        observe: ``observe(memory, cohort, results, context) -> memory``, after local training.
    """

    init: Callable[[Context], PyTree]
    read: Callable[[PyTree, Context], tuple[ClientGradients, PyTree]]
    ask: Callable[[PyTree, Context, Cohort], PyTree]
    observe: Callable[[PyTree, Cohort, LocalResult, Context], PyTree]


def of(information: str | Information) -> Information:
    """Turns the words ``"fresh"`` and ``"stale"`` into what they stand for.

    Raises:
        ValueError: If it is neither a mode nor one of the two words.
    """
    if isinstance(information, Information):
        return information
    checks.one_of("info", information, ("fresh", "stale"))
    return fresh() if information == "fresh" else stale()


def fresh(project: Project = ravel) -> Information:
    """Asks every client at the current model, in every round: the papers' objective to the letter.

    Args:
        project: From a gradient, shaped like the parameters, to the vector that stands for it: all
            of it (default), `last_layer`, a `fedjax_fair.sketch.count_sketch`, or any function.

    Examples:
        >>> from fedjax_fair.selectors import divfl
        >>> selector = divfl(10, info=fresh(project=last_layer()))
    """

    def read(memory, context):
        return context.gradients(context.variables, project=project), memory

    return Information(lambda context: (), read, _keep, _keep)


def stale(project: Project = ravel) -> Information:
    """Asks all clients once, at the initial model, and then only those who train anyway.

    A member of the cohort sends its loss and full gradient at the model it received, before it
    trains (DivFL's "no-overhead" mode).

    Args:
        project: As for ``fresh``.

    Examples:
        >>> from fedjax_fair.selectors import subtrunc
        >>> selector = subtrunc(10, 0.5, info=stale())
    """
    return _remembered(project, renew=lambda memory, context: memory)


def every(rounds: int, project: Project = ravel) -> Information:
    """Asks all clients in every ``rounds``-th round, and in between as ``stale`` does.

    Seeds that run side by side (on an accelerator) all compute what only some rounds need.

    Args:
        rounds: Rounds from one full refresh to the next.
        project: As for ``fresh``.

    Raises:
        ValueError: If ``rounds`` is not a positive integer.

    Examples:
        >>> from fedjax_fair.selectors import divfl
        >>> selector = divfl(10, info=every(5))
    """
    checks.positive_int("rounds", rounds)

    def renew(memory, context):
        return jax.lax.cond(
            context.round % rounds == 0,
            lambda: context.gradients(context.variables, project=project),
            lambda: memory,
        )

    return _remembered(project, renew)


def updates(learning_rate: float | Float[Array, ""], project: Project = ravel) -> Information:
    """Takes a client's own local update, over learning rate and steps, for its gradient.

    Nobody sends anything more than in federated averaging. A client that has not trained yet counts
    with its gradient at the initial model, to which its update reduces for one full-batch step; its
    loss is the mean of the minibatch losses it saw when it last trained.

    Args:
        learning_rate: Step size of the local solver, > 0.
        project: As for ``fresh``.

    Raises:
        ValueError: If ``learning_rate`` is not positive.

    Examples:
        >>> from fedjax_fair.selectors import unionfl
        >>> selector = unionfl(10, 1.0, 5, info=updates(learning_rate=0.1))
    """
    checks.positive("learning_rate", learning_rate)
    by_asking = _remembered(project, renew=lambda memory, context: memory)

    def observe(memory, cohort, results, context):
        scale = -1 / (learning_rate * results.steps.astype(jnp.float32))
        moved = context.each(
            lambda client, update: project(update.params), cohort.clients, results.update
        )
        return _renew_rows(memory, cohort, ClientGradients(results.loss, moved * scale[:, None]))

    return Information(by_asking.init, by_asking.read, _keep, observe)


def _remembered(project: Project, renew: Callable) -> Information:
    """Keeps a row for every client and refreshes those of the cohort, by asking."""

    def init(context):
        return context.gradients(context.variables, project=project)

    def read(memory, context):
        memory = renew(memory, context)
        return memory, memory

    def ask(memory, context, cohort):
        told = context.gradients(context.variables, cohort.clients, project)
        return _renew_rows(memory, cohort, told)

    return Information(init, read, ask, _keep)


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


def _renew_rows(memory: ClientGradients, cohort: Cohort, told: ClientGradients) -> ClientGradients:
    return jax.tree.map(lambda old, new: old.at[cohort.clients].set(new), memory, told)


def _keep(memory, *ignored):
    return memory
