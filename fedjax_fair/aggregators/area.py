"""AREA: the mean of the last local models of all clients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from fedjax_fair.aggregators.whole_cohort import gather_updates, normalize_weights, replace_rows
from fedjax_fair.numerics.sketch import ravel
from fedjax_fair.roles import Aggregation, Aggregator

__all__ = ["AREA"]


class AREA(Aggregator):
    r"""Keeps the global model equal to the mean of the last local models of all clients.

    A client sends the change of its local model :math:`y_k` since its last result. The server adds
    the changes of a buffer,

    .. math:: x \leftarrow x + \frac{1}{N} \sum_k (y_k^{\text{new}} - y_k^{\text{old}}),

    where :math:`y_k` is the initial model at first. So :math:`x` is the mean over all :math:`N`
    clients, whatever their speeds. Here the server keeps the local models, which include running
    statistics. A client also counts by its last model while it is not in the buffer, which the
    reported weights, equal within the buffer, do not include. Results that are not finite are
    ignored. APPFL takes the change since the model that the client received, which is another
    method: :math:`x` is not the mean.

    Info: the factor ``scale`` of the mean of the changes in the buffer.

    References:
        Iakovidou, Kim, *Asynchronous Federated Stochastic Optimization for Heterogeneous Objectives
        Under Arbitrary Delays*, 2024, https://arxiv.org/abs/2405.10123

    Examples:
        >>> aggregator = AREA()
    """

    needs_schedule = True
    keeps_state = True
    uses_local_models = True

    def init(self, context):
        model = ravel(context.variables)
        return jnp.broadcast_to(model, (context.num_clients, model.size))

    def aggregate(self, state, cohort, results, context):
        updates, valid, _ = gather_updates(cohort, results, context)
        model, unravel = ravel_pytree(context.variables)
        local_models = model[None] + jax.vmap(ravel)(updates)
        state, change = replace_rows(state, cohort, valid, local_models)
        scale = jnp.sum(valid, dtype=jnp.float32) / context.num_clients
        aggregation = Aggregation(normalize_weights(valid), {"scale": scale})
        return unravel(change / context.num_clients), state, aggregation
