"""Ditto: a personalized model next to the global one, pulled towards it."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedjax_fair.roles import Number, setting
from fedjax_fair.solvers.wrapped_sgd import WrappedSGD
from fedjax_fair.utils import checks

__all__ = ["PERSONAL_KEY", "Ditto"]

PERSONAL_KEY = 2
"""Of the key of a second local training. SGD splits its key, into the children 0 and 1."""


class Ditto(WrappedSGD):
    r"""Local SGD on the global model, and separately on a personalized model.

    Each client keeps a personalized model :math:`v_i`, initially the first global model. When drawn
    it receives the global model :math:`x`, trains it as in FedAvg, and takes as many steps

    .. math:: v_i \leftarrow v_i - \eta (\nabla f_i(v_i; B) + \lambda (v_i - x)),

    on minibatches of another stream of random numbers. The global model is the same as in FedAvg
    whatever :math:`\lambda` is. Evaluations use :math:`v_i` as it is.

    Args:
        solver: SGD of the global model, and of the personalized one with :math:`\lambda` as
            ``prox``.
        personal_prox: :math:`\lambda` >= 0; 0 is training alone. Training is stable for
            :math:`\eta \lambda < 2`.

    Raises:
        ValueError: If the solver is no `SGD`, or ``personal_prox`` is negative.

    References:
        Li, Hu, Beirami, Smith, *Ditto: Fair and Robust Federated Learning Through Personalization*,
        2021, https://arxiv.org/abs/2012.04221

    Examples:
        >>> from fedjax_fair.solvers import SGD
        >>> ditto = Ditto(SGD(0.1, batch_size=10, epochs=1), personal_prox=0.5)
    """

    personal_prox: Number = setting(checks.non_negative, default=1.0)

    def init(self, key, variables, client):
        return variables

    def solve(self, key, variables, client):
        result = self.solver.solve(key, variables, client)
        key_personal = jax.random.fold_in(key, PERSONAL_KEY)
        personal = self.solver.replace(prox=self.personal_prox).solve(
            key_personal, variables, client, start=client.state
        )
        return result._replace(state=jax.tree.map(jnp.add, client.state, personal.update))

    def num_examples(self, sizes, max_steps=None):
        return 2 * self.solver.num_examples(sizes, max_steps)

    def personalize(self, key, variables, client):
        return client.state
