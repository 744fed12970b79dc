"""Training on the examples of all clients in one place: what a federation gives up."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Key

from fedjax_fair.aggregators import Mean
from fedjax_fair.base import Cohort, Selector, Solver
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.simulate import BaseRound, Round, RoundInfo, RoundState

__all__ = ["Centralized"]


class Centralized(BaseRound):
    """A reference method that trains on the pooled examples of all clients.

    Every round gives them to the solver as if they belonged to one client. With ``steps=`` a round
    takes as many gradient steps as a client of a federated round does; with ``epochs=`` it passes
    over all examples. No client takes part, so participation and traffic stay zero. It is evaluated
    on the same clients as any other method.

    Args:
        model: The network.
        solver: How to train.

    Raises:
        ValueError: If a role is not of its type; when a round is traced, on a mesh of devices that
            share the clients of a run.

    Examples:
        >>> import fedjax_fair as ff
        >>> reference = Centralized(
        ...     model=ff.models.logistic(num_classes=10),
        ...     solver=ff.solvers.SGD(learning_rate=0.1, batch_size=10, steps=20),
        ... )
    """

    solver: Solver
    is_centralized: ClassVar[bool] = True

    def __post_init__(self):
        _ = self._inner

    @property
    def _inner(self) -> Round:
        return Round(self.model, _First(), self.solver, Mean())

    def init(self, key: Key[Array, ""], data: FederatedData) -> RoundState:
        """Returns the state before the first round."""
        return self._inner.init(key, _pooled(data))

    def step(
        self, state: RoundState, data: FederatedData, drop_nonfinite: bool = False
    ) -> tuple[RoundState, RoundInfo]:
        """Returns the state after one more round, in which no client took part."""
        new_state, info = self._inner.step(state, _pooled(data), drop_nonfinite)
        new_state = new_state._replace(participation=state.participation)
        return new_state, info._replace(clients=jnp.full_like(info.clients, -1))


class _First(Selector):
    """Selects the client to which all examples were given."""

    def select(self, key, state, context):
        return Cohort(jnp.zeros(1, jnp.int32), jnp.ones(1, jnp.float32)), state, {}


def _pooled(data: FederatedData) -> FederatedData:
    """Gives all training examples to the first client."""
    train = data.train
    if not train.has_all_clients:
        raise ValueError(
            "mesh: expected none, cores or groups of one device for training on pooled examples."
        )
    pooled = train._replace(
        offsets=jnp.zeros_like(train.offsets),
        sizes=jnp.zeros_like(train.sizes).at[0].set(jnp.sum(train.sizes)),
    )
    return data._replace(train=pooled)
