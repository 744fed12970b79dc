"""The server of SCAFFOLD: mean of the updates, and the control variate of the server."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedjax_fair.aggregators.mean import Mean
from fedjax_fair.numerics.trees import keep_finite
from fedjax_fair.roles import Aggregation

__all__ = ["ScaffoldMean"]


class ScaffoldMean(Mean):
    r"""Averages updates and control variates, for `solvers.Scaffold`.

    With the sent changes :math:`\Delta c_i` of the clients :math:`A` that responded, of :math:`N`,

    .. math:: x \leftarrow x + \sum_{i \in A} p_i \Delta_i, \qquad
        c \leftarrow c + \sum_{i \in A} q_i \Delta c_i,

    where :math:`q_i = 1/N`, so that :math:`c` is the mean of all :math:`c_i`, also of clients that
    did not take part. With weights by examples, an extension of the paper, :math:`q_i` is the
    client's share of all training examples. Of a client that is drawn repeatedly, the last response
    counts in :math:`c`, because its state comes from the last one. The paper's step size
    :math:`\eta_g` of the server is a setting of `WithServerOptimizer`.

    Args:
        weights: The weights :math:`p_i`, as of `Mean`; ``"uniform"`` is the paper's.

    References:
        Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, *SCAFFOLD: Stochastic Controlled Averaging
        for Federated Learning*, 2020, https://arxiv.org/abs/1910.06378

    Examples:
        >>> ScaffoldMean()
        ScaffoldMean()
    """

    def init(self, context):
        return jax.tree.map(jnp.zeros_like, context.variables.params)

    def broadcast(self, state, context):
        return {"control": state}

    def aggregate(self, state, cohort, results, context):
        changes = results.sent("control", "solvers.Scaffold")
        share = 1 / context.num_clients
        if self.weights == "num_examples":
            sizes = context.sizes.astype(jnp.float32)
            share = sizes[cohort.clients] / jnp.sum(sizes)
        counted = jnp.where(cohort.is_last_response, share, 0.0)
        control = jax.tree.map(jnp.add, state, context.weighted_sum(counted, changes))
        weights = self.compute_weights(state, cohort, context)
        return results.weighted_sum, keep_finite(control, state), Aggregation(weights, {})
