"""PropFair: proportional fairness by a logarithm of the minibatch loss."""

from __future__ import annotations

import jax.numpy as jnp

from fedjax_fair.roles import Number, setting
from fedjax_fair.solvers.wrapped_sgd import WrappedSGD
from fedjax_fair.utils import checks

__all__ = ["PropFair"]


class PropFair(WrappedSGD):
    r"""SGD on a logarithm of the utility :math:`M - \ell` of each minibatch.

    With the mean loss :math:`\ell` of the minibatch, a step descends on

    .. math::

        -\log_\epsilon(M - \ell), \qquad \log_\epsilon(x) = \begin{cases} \log x & x \ge \epsilon \\
        \log \epsilon + (x - \epsilon) / \epsilon & x < \epsilon, \end{cases}

    whose slope is :math:`1 / (M - \ell)`, and :math:`1 / \epsilon` for losses above :math:`M -
    \epsilon`. Minibatches of high loss thus count more. With :math:`M \to \infty` at a learning
    rate proportional to :math:`M` the method is FedAvg. The loss of 10 classes starts near 2.3, on
    the linear part of the default :math:`M`.

    The linear part is as in the paper; the authors' code by default uses :math:`\ell / M` there,
    which reduces the weight of minibatches of high loss. A minibatch of sequences of labels has the
    mean of its examples' losses.

    Args:
        solver: SGD.
        baseline: :math:`M` > 0, per nat of loss.
        threshold: :math:`\epsilon` > 0; the slope is at most ``1 / threshold``.

    Raises:
        ValueError: If the solver is no `SGD`, or a setting is not positive.

    References:
        Zhang, Malekmohammadi, Chen, Yu, *Proportional Fairness in Federated Learning*, 2023,
        https://arxiv.org/abs/2202.01666

    Examples:
        >>> from fedjax_fair.solvers import SGD
        >>> propfair = PropFair(SGD(0.1, batch_size=10, epochs=1), baseline=3.0)
    """

    baseline: Number = setting(checks.positive, default=2.0)
    threshold: Number = setting(checks.positive, default=0.2)

    def solve(self, key, variables, client):
        def batch_loss(losses, mask, indices, outputs):
            utility = self.baseline - jnp.mean(losses, where=mask)
            # Clipping first keeps the gradient of the unused logarithm finite.
            above = jnp.maximum(utility, self.threshold)
            return -jnp.log(above) - jnp.minimum(utility / self.threshold - 1, 0)

        return self.solver.solve(key, variables, client, batch_loss=batch_loss)
