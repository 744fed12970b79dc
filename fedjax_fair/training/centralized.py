"""Centralized training: a reference method on the pooled examples of all clients."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Key

from fedjax_fair.aggregators import Mean
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.roles import Cohort, Selector, Solver
from fedjax_fair.rounds.base_round import BaseRound
from fedjax_fair.rounds.round import Round
from fedjax_fair.rounds.round_state import RoundInfo, RoundState

__all__ = ["Centralized"]


class Centralized(BaseRound):
    """A reference method that trains on the pooled examples of all clients.

    In each round the solver gets them as if one client owned them. Participation and traffic stay
    zero. Evaluations are the same as for federated methods.

    Raises:
        ValueError: If a round is traced on a mesh whose devices share the clients of a run.

    Examples:
        >>> import fedjax_fair as ff
        >>> reference = Centralized(ff.models.logistic(10), ff.solvers.SGD(0.1, 10, steps=20))
    """

    solver: Solver
    is_centralized: ClassVar[bool] = True

    def __post_init__(self):
        _ = self._inner

    @property
    def _inner(self) -> Round:
        return Round(self.model, _FirstClient(), self.solver, Mean())

    def init(self, key: Key[Array, ""], data: FederatedData) -> RoundState:
        """Returns the state before the first round."""
        return self._inner.init(key, _pooled(data))

    def step(
        self,
        state: RoundState,
        data: FederatedData,
        drop_nonfinite: bool = False,
        skip_nonfinite: bool = False,
    ) -> tuple[RoundState, RoundInfo]:
        """Returns the state after one more round, in which no client took part."""
        new_state, info = self._inner.step(state, _pooled(data), drop_nonfinite, skip_nonfinite)
        new_state = new_state._replace(participation=state.participation)
        return new_state, info._replace(clients=jnp.full_like(info.clients, -1))


class _FirstClient(Selector):
    """Selects the first client, which owns all examples."""

    def select(self, key, state, context):
        return Cohort(jnp.zeros(1, jnp.int32), jnp.ones(1, jnp.float32)), state, {}


def _pooled(data: FederatedData) -> FederatedData:
    """Assigns all training examples to the first client."""
    train = data.train
    if not train.has_all_clients:
        raise ValueError(
            "mesh: training on pooled examples needs all of them on each device; use no mesh, "
            "cores, or groups of one device."
        )
    pooled = train._replace(
        offsets=jnp.zeros_like(train.offsets),
        sizes=jnp.zeros_like(train.sizes).at[0].set(jnp.sum(train.sizes)),
    )
    return data._replace(train=pooled)
