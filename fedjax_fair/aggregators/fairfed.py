"""FairFed: weights that move towards clients of average accuracy."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp

from fedjax_fair import checks
from fedjax_fair.aggregators.mean import scheme_weights
from fedjax_fair.base import Aggregation, Aggregator, Number, ServerView

__all__ = ["FairFed"]


class FairFed(Aggregator):
    r"""Keeps a weight for every client, and reduces it by the distance from the mean accuracy.

    Weights start at :math:`\bar\omega_k = n_k / \sum_i n_i`. With :math:`a_k` the training accuracy
    of participants :math:`S` on the received model,

    .. math::

        \Delta_k = \Big|a_k - \frac{\sum_{j \in S} n_j a_j}{\sum_{j \in S} n_j}\Big|, \qquad
        \bar\omega_k \leftarrow \max\Big(0,\ \bar\omega_k - \beta \big(\Delta_k - \tfrac{1}{|S|}
        \sum_{j \in S} \Delta_j\big)\Big).

    The update is the mean with these weights, or with sizes if all are zero. A repeated client
    counts in every slot. Without a sensitive attribute, as here, the method reduces the weight of a
    small group of low accuracy.

    Info: the ``deviation`` :math:`\Delta_k` of every participant.

    Args:
        beta: Change of weights, which initially sum to 1 over all clients, per unit of accuracy (a
            fraction), >= 0; 0 is ``Mean("num_examples")``.

    Raises:
        ValueError: If ``beta`` is negative.

    References:
        Ezzeldin, Yan, He, Ferrara, Avestimehr, *FairFed: Enabling Group Fairness in Federated
        Learning*, 2023, https://arxiv.org/abs/2110.00857; clamped at 0 as in *Equitable Federated
        Learning with Activation Clustering*.

    Examples:
        >>> aggregator = FairFed(beta=0.5)
    """

    server_view: ClassVar[ServerView] = "scalars"

    beta: Number = 1.0

    def __post_init__(self):
        checks.non_negative("beta", self.beta)

    def init(self, context):
        sizes = context.sizes.astype(jnp.float32)
        return sizes / jnp.sum(sizes)

    def aggregate(self, state, cohort, results, context):
        shares = scheme_weights("num_examples", cohort, context)
        accuracy = context.accuracies(context.variables, cohort.clients)
        deviation = jnp.abs(accuracy - jnp.sum(shares * accuracy))
        average = jnp.mean(deviation, where=cohort.responded)
        moved = jnp.maximum(state[cohort.clients] - self.beta * (deviation - average), 0)
        moved = jnp.where(cohort.responded_mask, moved, 0)
        total = jnp.sum(moved)
        weights = jnp.where(total > 0, moved / jnp.where(total > 0, total, 1), shares)
        update = context.weighted_sum(weights, results.update)
        state = state.at[cohort.responder_ids].set(moved, mode="drop")
        return update, state, Aggregation(weights, {"deviation": deviation})
