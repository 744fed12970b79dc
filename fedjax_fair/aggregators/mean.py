"""Federated averaging."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_fair.roles import Aggregation, Aggregator, Cohort, Context

__all__ = ["Mean", "WeightingScheme", "scheme_weights"]

WeightingScheme = Literal["uniform", "num_examples", "selector"]


class Mean(Aggregator):
    """Averages the updates of the cohort.

    Args:
        weights: ``"uniform"``, proportional to ``"num_examples"`` for training, or those that the
            ``"selector"`` proposes.

    Raises:
        ValueError: If ``weights`` is none of the three options.

    References:
        McMahan, Moore, Ramage, Hampson, Aguera y Arcas, *Communication-Efficient Learning of Deep
        Networks from Decentralized Data*, 2017, https://arxiv.org/abs/1602.05629

    Examples:
        >>> fedavg = Mean(weights="num_examples")
    """

    server_view = "aggregate"

    weights: WeightingScheme = "uniform"

    @property
    def equal_weights(self):
        return self.weights == "uniform"

    def compute_weights(self, state, cohort, context):
        return scheme_weights(self.weights, cohort, context)

    def aggregate(self, state, cohort, results, context):
        update = results.weighted_sum
        if update is None:
            raise ValueError(
                "results.weighted_sum is None: expected an aggregator that wraps Mean to define "
                "compute_weights; return the weights of Mean.compute_weights there."
            )
        return update, state, Aggregation(self.compute_weights(state, cohort, context), {})


def scheme_weights(
    scheme: WeightingScheme, cohort: Cohort, context: Context
) -> Float[Array, " cohort"]:
    """Returns the weights of a scheme (see `Mean`), renormalized over the responding clients."""
    weights = cohort.weights
    if scheme == "uniform":
        weights = jnp.full_like(weights, 1 / weights.shape[0])
    elif scheme == "num_examples":
        sizes = context.sizes[cohort.clients].astype(weights.dtype)
        weights = sizes / jnp.sum(sizes)
    return cohort.renormalize_weights(weights)
