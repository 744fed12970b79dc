"""CA2FL: the mean of the last updates of all clients, corrected by a buffer of updates."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from fedjax_fair.aggregators.whole_cohort import (
    gather_updates,
    normalize_weights,
    replace_rows,
    weighted_sum,
)
from fedjax_fair.numerics.sketch import ravel
from fedjax_fair.numerics.trees import scale_tree
from fedjax_fair.roles import Aggregation, Aggregator, Number, Variables, setting
from fedjax_fair.utils import checks

__all__ = ["CA2FL"]


class _Cache(NamedTuple):
    """The last update of each client, zeros before its first, and their mean over all clients."""

    updates: Float[Array, "clients width"]
    mean: Float[Array, " width"]


class CA2FL(Aggregator):
    r"""Calibrates the mean of a buffer by the last updates of all clients.

    The server keeps the last update :math:`h_i` of each of :math:`N` clients, zeros at first, and
    their mean :math:`h`. With the updates :math:`\Delta_k` of a buffer of :math:`K` results,

    .. math:: x \leftarrow x + \eta \Big(h + \frac{1}{K} \sum_k (\Delta_k - h_k)\Big), \qquad
        h_k \leftarrow \Delta_k.

    The second difference of a client that is twice in the buffer is relative to its first update.
    Staleness has no factor. Running statistics are averaged over the buffer. A client also counts
    by its last update while it is not in the buffer, which the reported weights, :math:`1/K`, do
    not include. Updates that are not finite are ignored.

    Args:
        learning_rate: :math:`\eta` > 0.

    Raises:
        ValueError: If ``learning_rate`` is not positive.

    References:
        Wang, Cao, Wu, Chen, Chen, *Tackling the Data Heterogeneity in Asynchronous Federated
        Learning with Cached Update Calibration*, 2024, https://iclr.cc/virtual/2024/poster/19456

    Examples:
        >>> aggregator = CA2FL()
    """

    needs_schedule = True
    keeps_state = True

    learning_rate: Number = setting(checks.positive, default=1.0)

    def init(self, context):
        mean = jnp.zeros_like(ravel(context.variables.params))
        return _Cache(jnp.zeros((context.num_clients, mean.size), mean.dtype), mean)

    def aggregate(self, state, cohort, results, context):
        gathered = gather_updates(cohort, results, context)
        rows = gathered.vectors
        updates, change = replace_rows(state.updates, cohort, gathered.valid, rows)
        count = jnp.sum(gathered.valid, dtype=rows.dtype)
        # Without a valid update the model stays.
        direction = jnp.where(count > 0, state.mean + change / jnp.maximum(count, 1), 0)
        weights = normalize_weights(gathered.valid)
        _, unravel = ravel_pytree(context.variables.params)
        update = Variables(
            params=unravel(scale_tree(direction, self.learning_rate)),
            state=weighted_sum(gathered.stacked.state, weights),
        )
        cache = _Cache(updates, state.mean + change / context.num_clients)
        return update, cache, Aggregation(weights, {})
