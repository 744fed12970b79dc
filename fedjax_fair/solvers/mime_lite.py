r"""MimeLite: local steps with the momentum of the server."""

from __future__ import annotations

import jax

from fedjax_fair.evaluation.client_gradients import client_loss_and_gradient
from fedjax_fair.solvers.wrapped_sgd import WrappedSGD

__all__ = ["MimeLite"]


class MimeLite(WrappedSGD):
    r"""SGD with the momentum of the server; with `aggregators.MimeLiteMean`.

    With the received momentum :math:`m`, which stays fixed during the round, a step is

    .. math:: y \leftarrow y - \eta\,((1 - \beta) \nabla f_i(y; B) + \beta m).

    Sends: ``gradient``, :math:`\nabla f_i(x)` of all examples of the client at the received model,
    with decay and in evaluation mode, which is another pass over them.

    Args:
        solver: SGD without ``optimizer``.

    Raises:
        ValueError: If the solver is no `SGD`, or has an ``optimizer``.

    References:
        Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh, *Mime: Mimicking Centralized
        Stochastic Algorithms in Federated Learning*, 2020, https://arxiv.org/abs/2008.03606

    Examples:
        >>> from fedjax_fair.solvers import SGD
        >>> mime_lite = MimeLite(SGD(0.1, batch_size=10, epochs=1))
    """

    needs = ("beta", "momentum")

    accepts_optimizer = False

    def solve(self, key, variables, client):
        beta = client.broadcast["beta"]
        # The step is (1 - beta) times the rate along the gradient plus beta / (1 - beta) momentum.
        rate = (1 - beta) * self.solver.rate(client.round)
        offset = jax.tree.map(lambda m: beta / (1 - beta) * m, client.broadcast["momentum"])
        result = self.solver.replace(learning_rate=rate).solve(
            key, variables, client, gradient_offset=offset
        )
        _, gradient = client_loss_and_gradient(client.model, variables, client.examples, client.id)
        gradient = jax.tree.map(
            lambda g, leaf: g + self.solver.weight_decay * leaf, gradient, variables.params
        )
        return result._replace(sends=result.sends | {"gradient": gradient})

    def num_examples(self, sizes, max_steps=None):
        return self.solver.num_examples(sizes, max_steps) + sizes
