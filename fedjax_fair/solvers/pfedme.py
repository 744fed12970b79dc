"""pFedMe: averages of the gradients of Moreau envelopes."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedjax_fair.roles import Number, Variables, setting
from fedjax_fair.solvers.sgd import BatchGradient
from fedjax_fair.solvers.wrapped_sgd import WrappedSGD
from fedjax_fair.utils import checks

__all__ = ["PFedMe"]


class PFedMe(WrappedSGD):
    r"""SGD on the Moreau envelope of the client's loss.

    From :math:`w = \theta = x`, a local step takes a minibatch :math:`B`, some inner steps on it,

    .. math:: \theta \leftarrow \theta - \eta_p\,(\nabla f_i(\theta; B) + \lambda (\theta - w)),

    which continue from :math:`\theta` of the local step before, and then :math:`w \leftarrow w -
    \eta \lambda (w - \theta)`. Clients send :math:`w`. The personalized model of a client is the
    last :math:`\theta` of the same local training from the current global model; it is discarded
    after the evaluation. Weight decay applies to :math:`\theta`. The paper's :math:`\beta` is the
    step size of the server, as of ``server_optimizers.FedAvgM(beta, beta1=0)``. In the paper all
    clients train and some send; those that do not send have no effect on the global model.

    Args:
        solver: SGD of :math:`w`, with :math:`\eta` as ``learning_rate`` and the paper's :math:`R`
            as ``steps``.
        personal_prox: :math:`\lambda` >= 0; the inner steps are stable for
            :math:`\eta_p \lambda < 2`, the local ones for :math:`\eta \lambda < 2`.
        inner_learning_rate: :math:`\eta_p` >= 0; 0 leaves the model as it is.
        inner_steps: Inner steps :math:`K` of each local step.

    Raises:
        ValueError: If the solver is no `SGD`, or a setting is out of range.

    References:
        Dinh, Tran, Nguyen, *Personalized Federated Learning with Moreau Envelopes*, 2020,
        https://arxiv.org/abs/2006.08848

    Examples:
        >>> from fedjax_fair.solvers import SGD
        >>> pfedme = PFedMe(SGD(0.01, batch_size=20, steps=20), inner_learning_rate=0.05)
    """

    personal_prox: Number = setting(checks.non_negative, default=15.0)
    inner_learning_rate: Number = setting(checks.non_negative, default=0.01)
    inner_steps: int = setting(checks.positive_int, default=5)

    def _train(self, key, variables, client):
        """Returns the result of the local training, and the last personalized parameters."""

        def batch_gradient(gradient_fn, variables, theta):
            def step(theta, _):
                found = gradient_fn(Variables(theta, variables.state))
                theta = jax.tree.map(
                    lambda t, g, w: (
                        t - self.inner_learning_rate * (g + self.personal_prox * (t - w))
                    ),
                    theta,
                    found.gradient,
                    variables.params,
                )
                return theta, (found.loss, found.state)

            theta, values = jax.lax.scan(step, theta, length=self.inner_steps)
            gradient = jax.tree.map(
                lambda w, t: self.personal_prox * (w - t), variables.params, theta
            )
            return BatchGradient(gradient, *jax.tree.map(lambda leaf: leaf[-1], values)), theta

        result = self.solver.solve(
            key, variables, client, batch_gradient=batch_gradient, memory=variables.params
        )
        return result._replace(state=client.state), result.state

    def solve(self, key, variables, client):
        return self._train(key, variables, client)[0]

    def num_examples(self, sizes, max_steps=None):
        return self.inner_steps * self.solver.num_examples(sizes, max_steps)

    def personalize(self, key, variables, client):
        result, theta = self._train(key, variables, client)
        return Variables(theta, jax.tree.map(jnp.add, variables.state, result.update.state))
