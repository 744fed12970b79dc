"""The server of FedDyn: mean of the local models, corrected by the mean drift."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedjax_fair.aggregators.mean import scheme_weights
from fedjax_fair.numerics.trees import keep_finite
from fedjax_fair.roles import Aggregation, Aggregator, Variables

__all__ = ["FedDynMean"]


class FedDynMean(Aggregator):
    r"""Averages local models and subtracts the mean drift, for `solvers.FedDyn`.

    With the local models :math:`y_i` of the clients :math:`A` that responded, of :math:`N`,

    .. math:: h \leftarrow h - \frac{\alpha}{N} \sum_{i \in A} (y_i - x), \qquad
        x \leftarrow \frac{1}{|A|} \sum_{i \in A} y_i - \frac{h}{\alpha}.

    The state is :math:`h / \alpha`, which needs no :math:`\alpha`. Here :math:`h` is the mean of
    the states :math:`g_i` of all clients, also of those that did not take part. Of a client that is
    drawn repeatedly the last response counts in :math:`h`. Evaluations measure :math:`x`, from
    which clients start; the authors' code reports the mean of the local models. Running statistics
    are averaged.

    References:
        Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, *Federated Learning Based on
        Dynamic Regularization*, 2021, https://arxiv.org/abs/2111.04263

    Examples:
        >>> FedDynMean()
        FedDynMean()
    """

    server_view = "aggregate"
    equal_weights = True

    def init(self, context):
        return jax.tree.map(jnp.zeros_like, context.variables.params)

    def broadcast(self, state, context):
        return {"drift": ()}  # Without elements: only FedDynMean has what clients need.

    def compute_weights(self, state, cohort, context):
        return scheme_weights("uniform", cohort, context)

    def aggregate(self, state, cohort, results, context):
        results.sent("drift", "solvers.FedDyn")  # Without a value: its updates are drift.
        counted = jnp.where(cohort.is_last_response, 1 / context.num_clients, 0.0)
        moved = context.weighted_sum(counted, results.update.params)
        drift = keep_finite(jax.tree.map(jnp.subtract, state, moved), state)
        mean = results.weighted_sum
        assert mean is not None  # With `compute_weights`.
        params = jax.tree.map(jnp.subtract, mean.params, drift)
        weights = self.compute_weights(state, cohort, context)
        return Variables(params, mean.state), drift, Aggregation(weights, {})
