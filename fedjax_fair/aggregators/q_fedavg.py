"""q-FedAvg: descent on the sum of the clients' losses to the power q + 1."""

from __future__ import annotations

from dataclasses import KW_ONLY

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from fedjax_fair.roles import Aggregation, Aggregator, Number, Variables, setting
from fedjax_fair.utils import checks

__all__ = ["QFedAvg"]

_OFFSET = 1e-10  # Added to losses, so that a loss of zero has a logarithm.


class QFedAvg(Aggregator):
    r"""Weights updates by losses to the power q, and shortens the step accordingly.

    With :math:`F_k` the mean training loss of a participant on the received model, :math:`u_k` its
    update and :math:`L = 1 / \text{learning rate}`, the paper's server step is

    .. math::

        w \leftarrow w + \frac{\sum_k F_k^q L u_k}
        {\sum_k \big(q F_k^{q-1} \lVert L u_k \rVert^2 + L F_k^q\big)}.

    This is the mean of the updates with weights :math:`a_k \propto F_k^q`, divided by :math:`1 + q
    L \sum_k a_k \lVert u_k \rVert^2 / F_k`, a form in which no power of a loss can overflow.
    Normalization statistics are averaged with the weights and not scaled.

    The paper draws clients in proportion to size without replacement; ``BySize`` draws with
    replacement. After uniform selection all clients count equally, whatever their sizes. :math:`L`
    is the same in all rounds; the paper's follows a learning rate that decays.

    Info: the ``received_loss`` :math:`F_k` of every participant, and the ``step_divisor`` of the
    mean, at least 1.

    Args:
        q: Exponent of the loss, >= 0; 0 is ``Mean("uniform")``.
        learning_rate: Step size of the local solver, > 0.
        any_learning_rate: Allows another step size than the solver's, to change :math:`L` alone.

    Raises:
        ValueError: If ``q`` is negative or ``learning_rate`` is not positive; or, in a `Round`, if
            it is not the solver's. A schedule, or a value that is traced, is not compared.

    References:
        Li, Sanjabi, Beirami, Smith, *Fair Resource Allocation in Federated Learning*, 2020,
        algorithm 2, https://arxiv.org/abs/1905.10497

    Examples:
        >>> aggregator = QFedAvg(q=1.0, learning_rate=0.1)
    """

    server_view = "scalars"

    q: Number = setting(checks.non_negative, default=1.0)
    _: KW_ONLY
    learning_rate: Number = setting(checks.positive)
    any_learning_rate: bool = False

    def check_solver(self, solver):
        of_solver = getattr(solver, "learning_rate", None)
        if self.any_learning_rate or of_solver is None or callable(of_solver):
            return
        if isinstance(self.learning_rate, Tracer) or isinstance(of_solver, Tracer):
            return
        if not np.allclose(self.learning_rate, of_solver, rtol=1e-6, atol=0):
            raise ValueError(
                f"aggregator: QFedAvg(learning_rate={self.learning_rate}), but the solver has "
                f"learning_rate={of_solver}: expected the same; set any_learning_rate=True to "
                "assume another one."
            )

    def aggregate(self, state, cohort, results, context):
        losses = context.losses(context.variables, cohort.clients) + _OFFSET
        weights = jax.nn.softmax(self.q * jnp.log(losses), where=cohort.responded)
        squared = context.map_clients(
            lambda client, params: optax.tree.norm(params, squared=True),
            cohort.clients,
            results.update.params,
        )
        step_divisor = 1 + self.q / self.learning_rate * jnp.sum(weights * squared / losses)
        mean = context.weighted_sum(weights, results.update)
        update = Variables(
            params=jax.tree.map(lambda leaf: leaf / step_divisor.astype(leaf.dtype), mean.params),
            state=mean.state,
        )
        info = {"received_loss": losses, "step_divisor": step_divisor}
        return update, state, Aggregation(weights, info)
