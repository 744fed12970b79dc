"""Federated averaging, optionally with an optimiser at the server."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from fedjax_fair import checks
from fedjax_fair.base import Aggregator, Variables

__all__ = ["MeanInfo", "mean", "weighted_mean"]


class MeanInfo(NamedTuple):
    """What ``mean`` reports.

    Attributes:
        weights: Weight given to each member of the cohort, ``[cohort]``, summing to 1.
    """

    weights: Float[Array, " cohort"]


def mean(
    weights: Literal["uniform", "size", "cohort"] = "uniform",
    server_optimizer: optax.GradientTransformation | None = None,
) -> Aggregator:
    """Averages the updates of the cohort.

    Args:
        weights: ``"uniform"`` gives every member ``1 / cohort_size``, ``"size"`` weighs by training
            examples, ``"cohort"`` takes the weights that the selector proposed.
        server_optimizer: An optax optimiser fed with minus the mean update as its gradient (Reddi
            et al.); without one the mean update is applied as it is. Normalisation statistics are
            averaged in either case.

    Returns:
        An ``Aggregator``.

    Raises:
        ValueError: If ``weights`` is none of the three words.

    References:
        McMahan, Moore, Ramage, Hampson, Aguera y Arcas, *Communication-Efficient Learning of Deep
        Networks from Decentralized Data*, 2017, https://arxiv.org/abs/1602.05629

        Reddi et al., *Adaptive Federated Optimization*, 2021, https://arxiv.org/abs/2003.00295

    Examples:
        >>> fedavg = mean(weights="size")
        >>> fedadam = mean(server_optimizer=optax.adam(1e-2))
    """
    checks.one_of("weights", weights, ("uniform", "size", "cohort"))

    def init(variables):
        return () if server_optimizer is None else server_optimizer.init(variables.params)

    def aggregate(state, variables, cohort, results, context):
        given = cohort.weights
        if weights == "uniform":
            given = jnp.full_like(given, 1 / given.shape[0])
        elif weights == "size":
            sizes = context.sizes[cohort.clients].astype(given.dtype)
            given = sizes / jnp.sum(sizes)
        update = weighted_mean(given, results.update)
        if server_optimizer is not None:
            gradient = jax.tree.map(jnp.negative, update.params)
            params, state = server_optimizer.update(gradient, state, variables.params)
            update = Variables(params=params, state=update.state)
        return update, state, MeanInfo(weights=given)

    return Aggregator(init, aggregate)


def weighted_mean(weights: Float[Array, " cohort"], updates: PyTree) -> PyTree:
    """Sums stacked updates ``[cohort, ...]`` with the given weights.

    Examples:
        >>> weighted_mean(jnp.array([0.25, 0.75]), jnp.array([[4.0, 0.0], [0.0, 4.0]])).tolist()
        [1.0, 3.0]
    """
    return jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, 1), updates)
