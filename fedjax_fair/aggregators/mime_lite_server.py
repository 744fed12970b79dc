"""The server of MimeLite: mean of the updates, and momentum of gradients at the global model."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedjax_fair.aggregators.mean import Mean
from fedjax_fair.numerics.trees import keep_finite
from fedjax_fair.roles import Aggregation, Number, setting
from fedjax_fair.utils import checks

__all__ = ["MimeLiteMean"]


class MimeLiteMean(Mean):
    r"""Averages updates, and gradients into momentum that clients use, for `solvers.MimeLite`.

    With the sent gradients :math:`\nabla f_i(x)` at the received model,

    .. math:: x \leftarrow x + \sum_i p_i \Delta_i, \qquad
        m \leftarrow (1 - \beta) \sum_i p_i \nabla f_i(x) + \beta m.

    Clients use the momentum of the round before, initially 0. This is the paper's SGD with
    momentum; other implementations have :math:`m \leftarrow \nabla f + \beta m`, with
    :math:`\eta (1 - \beta)` for the same steps.

    Args:
        beta: :math:`\beta` in ``[0, 1)``; 0 is FedAvg.
        weights: The weights :math:`p_i`, as of `Mean`; ``"uniform"`` is the paper's.

    Raises:
        ValueError: If ``beta`` is out of range, or ``weights`` is not a scheme of `Mean`.

    References:
        Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh, *Mime: Mimicking Centralized
        Stochastic Algorithms in Federated Learning*, 2020, https://arxiv.org/abs/2008.03606

    Examples:
        >>> MimeLiteMean(beta=0.5)
        MimeLiteMean(beta=0.5)
    """

    beta: Number = setting(checks.unit_interval, default=0.9)

    def init(self, context):
        return jax.tree.map(jnp.zeros_like, context.variables.params)

    def broadcast(self, state, context):
        return {"beta": jnp.asarray(self.beta, jnp.float32), "momentum": state}

    def aggregate(self, state, cohort, results, context):
        gradients = results.sent("gradient", "solvers.MimeLite")
        weights = self.compute_weights(state, cohort, context)
        gradient = context.weighted_sum(weights, gradients)
        momentum = jax.tree.map(lambda g, m: (1 - self.beta) * g + self.beta * m, gradient, state)
        return results.weighted_sum, keep_finite(momentum, state), Aggregation(weights, {})
