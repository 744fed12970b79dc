"""IFCA: every client trains the one of several models that has the lowest loss on its examples."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from fedjax_fair.evaluation.clients import client_loss
from fedjax_fair.roles import Client, Variables
from fedjax_fair.solvers.wrapped_sgd import WrappedSGD

__all__ = ["IFCA"]


class IFCA(WrappedSGD):
    r"""SGD on the best of :math:`k` received models; with `aggregators.IFCAMean`.

    The client evaluates the mean loss of all its training examples at every received model, in
    evaluation mode, before local training. It trains from the model :math:`\theta_j` with the
    lowest loss, or the first of several, and sends its update relative to :math:`\theta_j`.
    Sends: ``cluster``, the index :math:`j`. The personalized model of a client is the current model
    with the lowest training loss, also of clients that never took part. Clients keep no state.
    `num_examples` does not count the evaluations, which have no gradients.
    With the fault ``Staleness`` only the first of the received models is from an older round.

    Args:
        solver: SGD of the local training.

    Raises:
        ValueError: If the solver is no `SGD`.

    References:
        Ghosh, Chung, Yin, Ramchandran, *An Efficient Framework for Clustered Federated Learning*,
        2020, https://arxiv.org/abs/2006.04088

    Examples:
        >>> from fedjax_fair.solvers import SGD
        >>> ifca = IFCA(SGD(0.1, batch_size=10, epochs=1))
    """

    has_global_model = False
    needs = ("models",)

    def solve(self, key, variables, client):
        cluster, model = _choose(variables, client)
        result = self.solver.solve(key, model, client)
        return result._replace(sends=result.sends | {"cluster": cluster})

    def personalize(self, key, variables, client):
        return _choose(variables, client)[1]


def _choose(variables: Variables, client: Client) -> tuple[Int[Array, ""], Variables]:
    """Returns the index of the received model with the lowest training loss, and this model."""
    received = (variables, *client.broadcast["models"])
    models = jax.tree.map(lambda *leaves: jnp.stack(leaves), *received)
    losses = jax.lax.map(
        lambda model: client_loss(client.model, model, client.examples, client.id), models
    )
    # NaN would be the lowest of all.
    cluster = jnp.argmin(jnp.where(jnp.isnan(losses), jnp.inf, losses)).astype(jnp.int32)
    return cluster, jax.tree.map(lambda leaf: leaf[cluster], models)
