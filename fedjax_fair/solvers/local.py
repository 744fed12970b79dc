"""Training without federation: every client trains a model alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedjax_fair.solvers.ditto import PERSONAL_KEY
from fedjax_fair.solvers.wrapped_sgd import WrappedSGD

__all__ = ["Local"]


class Local(WrappedSGD):
    """SGD on a model that stays on the client, as a reference of personalized models.

    All clients start from the same model. A client trains in the rounds in which it is drawn, which
    is FedAvg's budget; with ``selectors.Full`` it trains in all rounds. A proximal term of the
    solver pulls to the client's model at the start of the round. Nothing is communicated.

    Args:
        solver: SGD.

    Raises:
        ValueError: If the solver is no `SGD`.

    Examples:
        >>> from fedjax_fair.solvers import SGD
        >>> alone = Local(SGD(0.1, batch_size=10, epochs=1))
    """

    has_global_model = False

    def is_personal(self, variables, model, x):
        return jax.tree.map(lambda leaf: True, variables)

    def init(self, key, variables, client):
        return variables

    def solve(self, key, variables, client):
        # With the key of Ditto, whose personalized models at personal_prox=0 are these at prox=0.
        key_personal = jax.random.fold_in(key, PERSONAL_KEY)
        result = self.solver.solve(
            key_personal, variables, client, start=client.state, anchor=client.state.params
        )
        return result._replace(
            update=jax.tree.map(jnp.zeros_like, result.update),
            state=jax.tree.map(jnp.add, client.state, result.update),
        )

    def personalize(self, key, variables, client):
        return client.state
