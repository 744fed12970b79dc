"""Federated averaging, optionally with an optimizer at the server."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from fedjax_fair import checks
from fedjax_fair.base import Aggregation, Aggregator, Cohort, Context, Variables

__all__ = ["mean", "weights_before"]


def mean(
    weights: Literal["uniform", "size", "cohort"] = "uniform",
    server_optimizer: optax.GradientTransformation | None = None,
) -> Aggregator:
    """Averages the updates of the cohort.

    Args:
        weights: ``"uniform"`` gives every member ``1 / cohort_size``, ``"size"`` weighs by training
            examples, ``"cohort"`` takes the weights that the selector proposed.
        server_optimizer: An optax optimizer fed with minus the mean update as its gradient (Reddi
            et al.); without one the mean update is applied as it is. Normalization statistics are
            averaged in either case.

    Returns:
        An ``Aggregator``.

    Raises:
        ValueError: If ``weights`` is none of the three words, or the optimizer is none of optax.

    References:
        McMahan, Moore, Ramage, Hampson, Aguera y Arcas, *Communication-Efficient Learning of Deep
        Networks from Decentralized Data*, 2017, https://arxiv.org/abs/1602.05629

        Reddi et al., *Adaptive Federated Optimization*, 2021, https://arxiv.org/abs/2003.00295

    Examples:
        >>> fedavg = mean(weights="size")
        >>> fedadam = mean(server_optimizer=optax.adam(1e-2))
    """
    checks.one_of("weights", weights, ("uniform", "size", "cohort"))
    if server_optimizer is not None:
        kind = optax.GradientTransformation
        checks.instance("server_optimizer", server_optimizer, kind, "optax.adam(0.01)")

    def init(context):
        return () if server_optimizer is None else server_optimizer.init(context.variables.params)

    def weigh(state, cohort, context):
        return weights_before(weights, cohort, context)

    def aggregate(state, cohort, results, context):
        update = results.weighted_sum
        if server_optimizer is not None:
            gradient = jax.tree.map(jnp.negative, update.params)
            params, state = server_optimizer.update(gradient, state, context.variables.params)
            update = Variables(params=params, state=update.state)
        return update, state, Aggregation(weigh(state, cohort, context), {})

    return Aggregator(init, aggregate, weigh=weigh, sees="sum", equal_weights=weights == "uniform")


def weights_before(
    weights: Literal["uniform", "size", "cohort"], cohort: Cohort, context: Context
) -> Float[Array, " cohort"]:
    """The weights of a cohort that do not depend on its results, as ``mean`` describes them.

    Once it is known who answered, they are those of these members alone.
    """
    given = cohort.weights
    if weights == "uniform":
        given = jnp.full_like(given, 1 / given.shape[0])
    elif weights == "size":
        sizes = context.sizes[cohort.clients].astype(given.dtype)
        given = sizes / jnp.sum(sizes)
    return cohort.among_answers(given)
