"""Training on the examples of all clients in one place: what a federation gives up."""

from __future__ import annotations

import jax.numpy as jnp

from fedjax_fair.aggregators import mean
from fedjax_fair.base import Cohort, Model, Selector, Solver, empty_state
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.simulate import Round, make_round

__all__ = ["make_centralized"]


def make_centralized(model: Model, solver: Solver) -> Round:
    """A reference method that trains on the pooled examples of all clients.

    Every round gives them to the solver as if they belonged to one client. With ``steps=`` a round
    takes as many gradient steps as a client of a federated round does; with ``epochs=`` it passes
    over all examples. No client takes part, so participation and traffic stay zero.

    Args:
        model: The network.
        solver: How to train.

    Returns:
        A ``Round``, evaluated on the same clients as any other. It raises a ``ValueError`` on a
        mesh of devices that share the clients of a run.

    Examples:
        >>> import fedjax_fair as ff
        >>> reference = make_centralized(
        ...     model=ff.models.logistic(num_classes=10),
        ...     solver=ff.solvers.sgd(learning_rate=0.1, batch_size=10, steps=20),
        ... )
    """
    inner = make_round(model, _FIRST, solver, mean())

    def init(key, data):
        return inner.init(key, _pooled(data))

    def step(state, data, drop_nonfinite=False):
        new_state, info = inner.step(state, _pooled(data), drop_nonfinite)
        new_state = new_state._replace(participation=state.participation)
        return new_state, info._replace(clients=jnp.full_like(info.clients, -1))

    return Round(model, init, step, pooled=True)


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


_FIRST = Selector(
    init=empty_state,
    select=lambda key, state, context: (
        Cohort(jnp.zeros(1, jnp.int32), jnp.ones(1, jnp.float32)),
        state,
        {},
    ),
)
