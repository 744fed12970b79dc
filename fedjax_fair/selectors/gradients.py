"""Sources of the clients' losses and gradients, which differ in when they are recomputed.

Recomputing all of them in every round costs as much as a full-batch gradient.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from fedjax_fair.numerics.sketch import ravel
from fedjax_fair.roles import ClientGradients, Cohort, Context, LocalResult, Number, setting
from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import Tree

__all__ = ["Fresh", "GradientSource", "LastLayer", "RefreshEvery", "Stale", "Updates"]

Project = Callable[[PyTree], Float[Array, " width"]]


class GradientSource(Tree):
    """Interface of sources of a loss and a gradient of every client.

    Gradients that are not finite have to be masked (`ClientGradients.mask_nonfinite`), as those of
    ``context.gradients`` are.

    Attributes:
        updates_only_responders: Whether gradients change only in ``observe``, and only those of
            responding clients, so that distances of all others stay valid.
    """

    updates_only_responders: ClassVar[bool] = False

    @abstractmethod
    def init(self, context: Context) -> PyTree:
        """Returns the state at the initial model."""

    @abstractmethod
    def read(
        self, memory: PyTree, context: Context, clients: Int[Array, " ids"] | None = None
    ) -> tuple[ClientGradients, PyTree]:
        """Returns gradients of the given clients, by default of all, and the new state."""

    def observe(
        self, memory: PyTree, cohort: Cohort, results: LocalResult, context: Context
    ) -> PyTree:
        """Returns the state after local training, given the context before it."""
        return memory


def as_source(gradients: str | GradientSource) -> GradientSource:
    """Returns the source named ``"fresh"`` or ``"stale"``, or the given source."""
    if isinstance(gradients, GradientSource):
        return gradients
    checks.one_of("gradients", gradients, ("fresh", "stale"))
    return Fresh() if gradients == "fresh" else Stale()


class Fresh(GradientSource):
    """Computes all gradients in every round, as in the objective of the papers.

    Args:
        project: Function from a gradient, shaped like the parameters, to a vector, such as
            `LastLayer` or `fedjax_fair.numerics.sketch.CountSketch`; by default all of it.

    Examples:
        >>> from fedjax_fair.selectors import DivFL
        >>> selector = DivFL(10, gradients=Fresh(project=LastLayer()))
    """

    project: Project = ravel

    def init(self, context):
        return ()

    def read(self, memory, context, clients=None):
        return context.gradients(context.variables, clients, project=self.project), memory


class _StoredGradients(GradientSource):
    """Base of sources that store a gradient of every client, with a last field ``project``."""

    def _compute(self, context, clients=None):
        project = self.project  # pyright: ignore[reportAttributeAccessIssue]
        return context.gradients(context.variables, clients, project=project)

    def init(self, context):
        return self._compute(context)

    def read(self, memory, context, clients=None):
        some = memory if clients is None else jax.tree.map(lambda rows: rows[clients], memory)
        return some, memory

    def observe(self, memory, cohort, results, context):
        return self._store(memory, cohort, self._compute(context, cohort.clients))

    def _store(self, memory, cohort, new):
        ids = cohort.responder_ids
        return jax.tree.map(lambda old, new: old.at[ids].set(new, mode="drop"), memory, new)


class Stale(_StoredGradients):
    """Computes all gradients at the initial model, and then only gradients of the cohort.

    A participant computes them before it trains (DivFL's "no-overhead" mode).

    Args:
        project: As for `Fresh`.

    Examples:
        >>> from fedjax_fair.selectors import SubTrunc
        >>> selector = SubTrunc(10, 0.5, gradients=Stale())
    """

    updates_only_responders = True

    project: Project = ravel


class RefreshEvery(_StoredGradients):
    """Computes all gradients in every ``rounds``-th round, and otherwise as `Stale` does.

    Seeds that run in parallel (on an accelerator) compute all gradients in every round.

    Args:
        rounds: Rounds between full refreshes, positive.
        project: As for `Fresh`.

    Examples:
        >>> from fedjax_fair.selectors import DivFL
        >>> DivFL(10, gradients=RefreshEvery(5))
        DivFL(cohort_size=10, gradients=RefreshEvery(rounds=5))
    """

    rounds: int = setting(checks.positive_int)
    project: Project = ravel

    def read(self, memory, context, clients=None):
        refresh = context.round % self.rounds == 0
        memory = jax.lax.cond(refresh, lambda: self._compute(context), lambda: memory)
        return super().read(memory, context, clients)


class Updates(_StoredGradients):
    """Estimates a client's gradient as its last local update over learning rate and steps.

    Clients send no more than in federated averaging. For one full-batch step the estimate is exact.
    Losses are mean minibatch losses. A client that has not trained has the loss and gradient at the
    initial model.

    Args:
        learning_rate: Step size of the local solver, > 0.
        project: As for `Fresh`.

    Examples:
        >>> from fedjax_fair.selectors import UnionFL
        >>> selector = UnionFL(10, 1.0, 5, gradients=Updates(learning_rate=0.1))
    """

    updates_only_responders = True

    learning_rate: Number = setting(checks.positive)
    project: Project = ravel

    def observe(self, memory, cohort, results, context):
        scale = -1 / (self.learning_rate * results.steps.astype(jnp.float32))
        updates = context.map_clients(
            lambda client, update: self.project(update.params), cohort.clients, results.update
        )
        gradients = ClientGradients(results.loss, updates * scale[:, None])
        return self._store(memory, cohort, gradients.mask_nonfinite())


class LastLayer(Tree):
    """Projection to the gradient of one layer, by default the classifier of the package's networks.

    Args:
        name: Key of the layer in the parameters.

    Raises:
        ValueError: If the parameters have no such layer (when called).

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
