"""Federated averaging, optionally with an optimizer at the server."""

from __future__ import annotations

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from fedjax_fair import checks
from fedjax_fair.base import Aggregation, Aggregator, Cohort, Context, ServerView, Variables

__all__ = ["Mean", "scheme_weights"]


class Mean(Aggregator):
    """Averages the updates of the cohort.

    Args:
        weights: ``"uniform"`` gives every participant ``1 / cohort_size``, ``"num_examples"`` weighs by training
            examples, ``"selector"`` takes the weights that the selector proposed.
        server_optimizer: An optax optimizer fed with minus the mean update as its gradient (Reddi
            et al.); without one the mean update is applied as it is. Normalization statistics are
            averaged in either case.

    Raises:
        ValueError: If ``weights`` is none of the three words, or the optimizer is none of optax.

    References:
        McMahan, Moore, Ramage, Hampson, Aguera y Arcas, *Communication-Efficient Learning of Deep
        Networks from Decentralized Data*, 2017, https://arxiv.org/abs/1602.05629

        Reddi et al., *Adaptive Federated Optimization*, 2021, https://arxiv.org/abs/2003.00295

    Examples:
        >>> fedavg = Mean(weights="num_examples")
        >>> fedadam = Mean(server_optimizer=optax.adam(1e-2))
    """

    server_view: ClassVar[ServerView] = "aggregate"

    weights: Literal["uniform", "num_examples", "selector"] = "uniform"
    server_optimizer: optax.GradientTransformation | None = None

    def __post_init__(self):
        checks.one_of("weights", self.weights, ("uniform", "num_examples", "selector"))
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
        assert update is not None  # As weights are known before training.
        if self.server_optimizer is not None:
            gradient = jax.tree.map(jnp.negative, update.params)
            params, state = self.server_optimizer.update(gradient, state, context.variables.params)
            update = Variables(params=params, state=update.state)
        return update, state, Aggregation(self.compute_weights(state, cohort, context), {})


def scheme_weights(
    weights: Literal["uniform", "num_examples", "selector"], cohort: Cohort, context: Context
) -> Float[Array, " cohort"]:
    """The weights of a cohort that do not depend on its results, as ``Mean`` describes them.

    Once it is known who answered, they are those of these participants alone.
    """
    given = cohort.weights
    if weights == "uniform":
        given = jnp.full_like(given, 1 / given.shape[0])
    elif weights == "num_examples":
        sizes = context.sizes[cohort.clients].astype(given.dtype)
        given = sizes / jnp.sum(sizes)
    return cohort.renormalize_weights(given)
