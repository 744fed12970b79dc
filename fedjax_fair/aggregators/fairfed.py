"""FairFed: weights that move towards clients whose accuracy is near the average."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp

from fedjax_fair import checks
from fedjax_fair.aggregators.mean import scheme_weights
from fedjax_fair.base import Aggregation, Aggregator, Number, ServerView

__all__ = ["FairFed"]


class FairFed(Aggregator):
    r"""Remembers a weight for every client, and shifts it by how far the client is from the rest.

    Weights start at the shares of examples, :math:`\bar\omega_k = n_k / \sum_i n_i`. In a round the
    participants :math:`S` measure their training accuracy :math:`a_k` on the model they received, and

    .. math::

        \Delta_k = \Big|a_k - \frac{\sum_{j \in S} n_j a_j}{\sum_{j \in S} n_j}\Big|, \qquad
        \bar\omega_k \leftarrow \max\Big(0,\ \bar\omega_k - \beta \big(\Delta_k - \tfrac{1}{|S|}
        \sum_{j \in S} \Delta_j\big)\Big).

    The update is the mean with the weights of the participants, divided by their sum, or with their
    sizes if all are zero. A client that is not in the cohort keeps its weight. One that is in it
    more than once counts in every place, and its weight moves once.

    This is the method for clients without a sensitive attribute. It favors clients near the
    average, so it takes weight from a small group of clients that the model serves badly.

    Info: the ``deviation`` :math:`\Delta_k` of every participant.

    Args:
        beta: How fast weights move, >= 0, per unit of accuracy (a fraction). With 0 it is
            ``Mean("num_examples")``. Compare it to the initial weights, which add up to 1 over all clients.

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
        by_size = scheme_weights("num_examples", cohort, context)
        accuracy = context.accuracies(context.variables, cohort.clients)
        deviation = jnp.abs(accuracy - jnp.sum(by_size * accuracy))
        average = jnp.mean(deviation, where=cohort.responded)
        moved = jnp.maximum(state[cohort.clients] - self.beta * (deviation - average), 0)
        if cohort.responded is not None:
            moved = jnp.where(cohort.responded, moved, 0)
        total = jnp.sum(moved)
        weights = jnp.where(total > 0, moved / jnp.where(total > 0, total, 1), by_size)
        update = context.weighted_sum(weights, results.update)
        state = state.at[cohort.responder_ids].set(moved, mode="drop")
        return update, state, Aggregation(weights, {"deviation": deviation})
