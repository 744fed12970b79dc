"""Federated averaging, optionally with an optimizer at the server."""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from fedjax_fair import checks
from fedjax_fair.base import Aggregation, Aggregator, Cohort, Context, ServerView, Variables

__all__ = ["WEIGHTING_SCHEMES", "Mean", "WeightingScheme", "scheme_weights"]

WeightingScheme = Literal["uniform", "num_examples", "selector"]
WEIGHTING_SCHEMES: tuple[str, ...] = get_args(WeightingScheme)


class Mean(Aggregator):
    """Averages the updates of the cohort.

    Args:
        weights: ``"uniform"`` weights, weights proportional to ``"num_examples"`` for training, or
            the weights that the ``"selector"`` proposes.
        server_optimizer: An optax optimizer that takes the negative mean update as gradient (Reddi
            et al.); by default the mean update is applied unchanged. Normalization statistics are
            averaged in either case.

    Raises:
        ValueError: If ``weights`` is none of the three options, or the optimizer is not of optax.

    References:
        McMahan, Moore, Ramage, Hampson, Aguera y Arcas, *Communication-Efficient Learning of Deep
        Networks from Decentralized Data*, 2017, https://arxiv.org/abs/1602.05629

        Reddi et al., *Adaptive Federated Optimization*, 2021, https://arxiv.org/abs/2003.00295

    Examples:
        >>> fedavg = Mean(weights="num_examples")
        >>> fedadam = Mean(server_optimizer=optax.adam(1e-2))
    """

    server_view: ClassVar[ServerView] = "aggregate"

    weights: WeightingScheme = "uniform"
    server_optimizer: optax.GradientTransformation | None = None

    def __post_init__(self):
        checks.one_of("weights", self.weights, WEIGHTING_SCHEMES)
        if self.server_optimizer is not None:
            kind = optax.GradientTransformation
            checks.instance("server_optimizer", self.server_optimizer, kind, "optax.adam(0.01)")

    @property
    def equal_weights(self):
        return self.weights == "uniform"

    def init(self, context):
        if self.server_optimizer is None:
            return ()
        return self.server_optimizer.init(context.variables.params)

    def compute_weights(self, state, cohort, context):
        return scheme_weights(self.weights, cohort, context)

    def aggregate(self, state, cohort, results, context):
        update = results.weighted_sum
        assert update is not None  # Weights are known before training.
        if self.server_optimizer is not None:
            gradient = jax.tree.map(jnp.negative, update.params)
            params, state = self.server_optimizer.update(gradient, state, context.variables.params)
            update = Variables(params=params, state=update.state)
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
