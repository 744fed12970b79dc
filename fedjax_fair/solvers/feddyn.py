r"""FedDyn: a linear and a quadratic term align local optima with the global one."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedjax_fair.roles import Number, setting
from fedjax_fair.solvers.wrapped_sgd import WrappedSGD
from fedjax_fair.utils import checks

__all__ = ["FedDyn"]


class FedDyn(WrappedSGD):
    r"""SGD on a dynamically regularized objective; with `aggregators.FedDynMean`.

    A client with the state :math:`g_i`, initially 0, trains from the received model :math:`x` on

    .. math:: f_i(y) - \langle g_i, y \rangle + \frac{\alpha}{2} \|y - x\|^2

    and then keeps :math:`g_i^+ = g_i - \alpha (y - x)`. After an exact local solution this is
    :math:`\nabla f_i(y)`. The first participation of a client trains as FedProx with
    :math:`\mu = \alpha`. A proximal term of the solver is added to the term of :math:`\alpha`, and
    gradients are not clipped.

    Args:
        solver: SGD.
        alpha: :math:`\alpha` > 0. With small values and rare participation the model may diverge.

    Raises:
        ValueError: If the solver is no `SGD`, or ``alpha`` is not positive.

    References:
        Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, *Federated Learning Based on
        Dynamic Regularization*, 2021, https://arxiv.org/abs/2111.04263

    Examples:
        >>> from fedjax_fair.solvers import SGD
        >>> feddyn = FedDyn(SGD(0.1, batch_size=10, epochs=1), alpha=0.1)
    """

    needs = ("drift",)

    alpha: Number = setting(checks.positive, default=0.1)

    def init(self, key, variables, client):
        return jax.tree.map(jnp.zeros_like, variables.params)

    def solve(self, key, variables, client):
        regularized = self.solver.replace(prox=self.solver.prox + self.alpha)
        offset = jax.tree.map(jnp.negative, client.state)
        result = regularized.solve(key, variables, client, gradient_offset=offset)
        state = jax.tree.map(
            lambda g, leaf: g - self.alpha * leaf, client.state, result.update.params
        )
        # Nothing more is sent; the name states that the server may use the updates as drift.
        return result._replace(state=state, sends=result.sends | {"drift": ()})
