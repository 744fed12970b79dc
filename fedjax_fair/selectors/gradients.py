"""Sources of the clients' losses and gradients for selectors, which differ in how old these are.

A selector that compares clients needs a loss and a gradient of each. Computing all of them in every
round costs as much as a full-batch gradient. The sources differ in which clients are refreshed, and
when.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from fedjax_fair import checks
from fedjax_fair.base import ClientGradients, Cohort, Context, LocalResult, Number
from fedjax_fair.numerics.sketch import ravel
from fedjax_fair.tree import Tree

__all__ = [
    "Fresh",
    "GradientSource",
    "LastLayer",
    "Project",
    "RefreshEvery",
    "Stale",
    "Updates",
    "as_source",
    "mask_nonfinite",
]

Project = Callable[[PyTree], Float[Array, " width"]]


class GradientSource(Tree):
    """Interface of sources, which keep track of every client's loss and gradient.

    Attributes:
        updates_only_responders: Whether gradients change in ``observe`` alone, and only those of clients
            that answered. Results computed from all other gradients, such as distances, then stay
            valid. The gradients that are read have been masked by `mask_nonfinite`.
    """

    updates_only_responders: ClassVar[bool] = False

    @abstractmethod
    def init(self, context: Context) -> PyTree:
        """Returns the memory at the initial model."""
        raise NotImplementedError

    @abstractmethod
    def read(
        self, memory: PyTree, context: Context, clients: Int[Array, " ids"] | None = None
    ) -> tuple[ClientGradients, PyTree]:
        """Returns the gradients of these clients, or of all, before the choice; and the new memory.

        Selectors name clients where they have ``num_reference_clients``.
        """
        raise NotImplementedError

    def observe(
        self, memory: PyTree, cohort: Cohort, results: LocalResult, context: Context
    ) -> PyTree:
        """Returns the new memory after local training; the context is that before it."""
        return memory


def as_source(gradients: str | GradientSource) -> GradientSource:
    """Returns the source that ``"fresh"`` or ``"stale"`` names, or a source as it is.

    Raises:
        ValueError: If it is neither a source nor one of the two names.
    """
    if isinstance(gradients, GradientSource):
        return gradients
    checks.one_of("gradients", gradients, ("fresh", "stale"))
    return Fresh() if gradients == "fresh" else Stale()


class Fresh(GradientSource):
    """Computes all gradients at the current model in every round, as in the papers' objective.

    Args:
        project: From a gradient, shaped like the parameters, to the vector that stands for it: all
            of it (default), `LastLayer`, a `fedjax_fair.numerics.sketch.CountSketch`, or any
            function.

    Examples:
        >>> from fedjax_fair.selectors import DivFL
        >>> selector = DivFL(10, gradients=Fresh(project=LastLayer()))
    """

    project: Project = ravel

    def init(self, context):
        return ()

    def read(self, memory, context, clients=None):
        return context.gradients(context.variables, clients, project=self.project), memory


class Stale(GradientSource):
    """Computes all gradients once, at the initial model, and then only those of the cohort.

    A participant of the cohort sends its loss and full gradient at the model it received, before it
    trains (DivFL's "no-overhead" mode).

    Args:
        project: As for `Fresh`.

    Examples:
        >>> from fedjax_fair.selectors import SubTrunc
        >>> selector = SubTrunc(10, 0.5, gradients=Stale())
    """

    updates_only_responders: ClassVar[bool] = True

    project: Project = ravel

    def init(self, context):
        return mask_nonfinite(context.gradients(context.variables, project=self.project))

    def read(self, memory, context, clients=None):
        return _rows(memory, clients), memory

    def observe(self, memory, cohort, results, context):
        new = context.gradients(context.variables, cohort.clients, project=self.project)
        return _renew_rows(memory, cohort, new)


class RefreshEvery(GradientSource):
    """Computes all gradients in every ``rounds``-th round, and in between as `Stale` does.

    Seeds that run in parallel (on an accelerator) compute all gradients in every round.

    Args:
        rounds: Rounds from one full refresh to the next.
        project: As for `Fresh`.

    Raises:
        ValueError: If ``rounds`` is not a positive integer.

    Examples:
        >>> from fedjax_fair.selectors import DivFL
        >>> DivFL(10, gradients=RefreshEvery(5))
        DivFL(cohort_size=10, gradients=RefreshEvery(rounds=5))
    """

    rounds: int
    project: Project = ravel

    def __post_init__(self):
        checks.positive_int("rounds", self.rounds)

    @property
    def _stale(self) -> Stale:
        return Stale(self.project)

    def init(self, context):
        return self._stale.init(context)

    def read(self, memory, context, clients=None):
        memory = jax.lax.cond(
            context.round % self.rounds == 0,
            lambda: context.gradients(context.variables, project=self.project),
            lambda: memory,
        )
        return _rows(memory, clients), memory

    def observe(self, memory, cohort, results, context):
        return self._stale.observe(memory, cohort, results, context)


class Updates(GradientSource):
    """Takes a client's local update, divided by learning rate and steps, for its gradient.

    Clients send nothing more than in federated averaging. A client that has not trained yet counts
    with its gradient at the initial model, to which its update reduces for one full-batch step. Its
    loss is the mean of the minibatch losses of its last local training.

    Args:
        learning_rate: Step size of the local solver, > 0.
        project: As for `Fresh`.

    Raises:
        ValueError: If ``learning_rate`` is not positive.

    Examples:
        >>> from fedjax_fair.selectors import UnionFL
        >>> selector = UnionFL(10, 1.0, 5, gradients=Updates(learning_rate=0.1))
    """

    updates_only_responders: ClassVar[bool] = True

    learning_rate: Number
    project: Project = ravel

    def __post_init__(self):
        checks.positive("learning_rate", self.learning_rate)

    @property
    def _stale(self) -> Stale:
        return Stale(self.project)

    def init(self, context):
        return self._stale.init(context)

    def read(self, memory, context, clients=None):
        return self._stale.read(memory, context, clients)

    def observe(self, memory, cohort, results, context):
        scale = -1 / (self.learning_rate * results.steps.astype(jnp.float32))
        moved = context.map_clients(
            lambda client, update: self.project(update.params), cohort.clients, results.update
        )
        return _renew_rows(memory, cohort, ClientGradients(results.loss, moved * scale[:, None]))


def mask_nonfinite(known: ClientGradients) -> ClientGradients:
    """Replaces gradients that are not finite by zeros, and the losses of their clients by NaN."""
    finite = jnp.isfinite(known.gradient).all(axis=1)
    return ClientGradients(
        jnp.where(finite, known.loss, jnp.nan), jnp.where(finite[:, None], known.gradient, 0.0)
    )


class LastLayer(Tree):
    """Projection to the gradient of one layer, by default the classifier of the package's networks.

    Args:
        name: Key of the layer in the parameters.

    Raises:
        ValueError: If (when it is called) there is no such layer.

    Examples:
        >>> project = LastLayer()
        >>> project({"body": jnp.zeros(3), "head": {"bias": jnp.ones(2)}}).tolist()
        [1.0, 1.0]
    """

    name: str = "head"

    def __call__(self, gradient: PyTree) -> Float[Array, " width"]:
        """Returns the gradient of the layer as a vector."""
        if self.name not in gradient:
            layers = ", ".join(gradient)
            raise ValueError(f"name={self.name!r}: expected a layer of the model, {layers}.")
        return ravel(gradient[self.name])


def _rows(memory: ClientGradients, clients: Int[Array, " ids"] | None) -> ClientGradients:
    if clients is None:
        return memory
    return jax.tree.map(lambda rows: rows[clients], memory)


def _renew_rows(memory: ClientGradients, cohort: Cohort, new: ClientGradients) -> ClientGradients:
    clients = cohort.responder_ids
    return jax.tree.map(
        lambda old, new: old.at[clients].set(new, mode="drop"), memory, mask_nonfinite(new)
    )
