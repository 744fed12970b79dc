"""q-FedAvg: descent on the sum of the clients' losses to the power q + 1."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from fedjax_fair import checks
from fedjax_fair.base import Aggregation, Aggregator, Number, Variables, empty_state

__all__ = ["q_fedavg"]

_OFFSET = 1e-10  # Added to losses, so that one of zero has a logarithm.


def q_fedavg(q: Number = 1.0, *, learning_rate: Number) -> Aggregator:
    r"""Weighs updates by losses to the power q, and shortens the step where that is steep.

    With :math:`F_k` the mean training loss of a member on the model it received, :math:`u_k` its
    update and :math:`L = 1 / \text{learning rate}`, the paper's server step is

    .. math::

        w \leftarrow w + \frac{\sum_k F_k^q L u_k}
        {\sum_k \big(q F_k^{q-1} \lVert L u_k \rVert^2 + L F_k^q\big)}.

    In other words it is the mean of the updates with weights :math:`a_k \propto F_k^q`, divided by
    :math:`1 + q L \sum_k a_k \lVert u_k \rVert^2 / F_k`: shorter than any mean. It is computed in
    this form, in which no power of a loss can overflow. Normalization statistics are averaged with
    the weights and not shortened; no norm sees them.

    Every place in the cohort counts the same before losses do. The paper draws clients in
    proportion to size, as ``by_size`` does (though without replacement).

    Args:
        q: How much high losses count, >= 0; may be traced. With 0 it is ``mean("uniform")``.
        learning_rate: Step size of the local solver, > 0; may be traced.

    Returns:
        An ``Aggregator``. The weights it reports are the :math:`a_k`. Info: the
        ``received_loss`` :math:`F_k` of every member, and the ``shortening`` by which the mean was
        divided, at least 1.

    Raises:
        ValueError: If ``q`` is negative or ``learning_rate`` not positive.

    References:
        Li, Sanjabi, Beirami, Smith, *Fair Resource Allocation in Federated Learning*, 2020,
        algorithm 2, https://arxiv.org/abs/1905.10497

    Examples:
        >>> aggregator = q_fedavg(q=1.0, learning_rate=0.1)
    """
    checks.non_negative("q", q)
    checks.positive("learning_rate", learning_rate)

    def aggregate(state, cohort, results, context):
        losses = context.losses(context.variables, cohort.clients) + _OFFSET
        weights = jax.nn.softmax(q * jnp.log(losses), where=cohort.answers)
        squared = context.map_clients(_squared_length, cohort.clients, results.update.params)
        shortening = 1 + q / learning_rate * jnp.sum(weights * squared / losses)
        mean = context.weighted_sum(weights, results.update)
        update = Variables(
            params=jax.tree.map(lambda leaf: leaf / shortening.astype(leaf.dtype), mean.params),
            state=mean.state,
        )
        info = {"received_loss": losses, "shortening": shortening}
        return update, state, Aggregation(weights, info)

    return Aggregator(empty_state, aggregate, sees="numbers")


def _squared_length(client: Array, params: PyTree) -> Float[Array, ""]:
    return optax.tree.norm(params, squared=True)
