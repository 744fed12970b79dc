"""Products of low-rank adapters, for aggregators of factors."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from fedjax_fair.aggregators.mean import WeightingScheme, scheme_weights
from fedjax_fair.models.lora_variants import check_lora
from fedjax_fair.numerics.products import product
from fedjax_fair.roles import Aggregator, Cohort, Context, LocalResult

__all__ = [
    "AdapterAggregator",
    "Moments",
    "aggregation_error",
    "gather_adapters",
    "moments",
    "stack_factors",
    "weighted_product",
]

Matrix = Float[Array, "in out"]


class AdapterAggregator(Aggregator):
    """Base class of aggregators of the factors of low-rank adapters.

    Args:
        weights: Weights of clients, as of `Mean`.
    """

    weights: WeightingScheme = "num_examples"

    def check_model(self, model):
        check_lora(f"aggregator: {type(self).__name__}", model)

    def compute_weights(self, state, cohort, context):
        """Returns the weights of the mean of factors and of the other arrays."""
        return scheme_weights(self.weights, cohort, context)


class Moments(NamedTuple):
    r"""Means of the factors and of the products of an adapter.

    Attributes:
        a: Mean :math:`\bar A` ``[in, rank]``.
        b: Mean :math:`\bar B` ``[rank, out]``.
        covariance: :math:`\sum_i p_i (A_i - \bar A)(B_i - \bar B)`, which is the mean of the
            products minus the product of the means.
    """

    a: Float[Array, "in rank"]
    b: Float[Array, "rank out"]
    covariance: Matrix

    @property
    def mean_product(self) -> Matrix:
        r"""The mean of the products, :math:`\sum_i p_i A_i B_i`."""
        return product(self.a, self.b) + self.covariance


def moments(
    weights: Float[Array, " cohort"], cohort: Cohort, results: LocalResult, context: Context
) -> dict[str, Moments]:
    """Returns the moments of the adapters after local training by path, on every device.

    Args:
        weights: Weights that sum to 1.
        cohort: The cohort.
        results: Results with the sum of updates of these weights.
        context: Context of the round.
    """
    updates = gather_adapters(cohort, results, context)
    before = context.variables.params["adapters"]
    assert results.weighted_sum is not None  # `compute_weights` is defined.
    mean = results.weighted_sum.params["adapters"]
    found = {}
    for path, update in updates.items():
        change = mean[path]
        # Deviations from the mean, because a difference of two products would cancel: they are
        # exactly zero where a factor is equal on all clients.
        spread = {name: update[name] - change[name][None] for name in ("a", "b")}
        found[path] = Moments(
            before[path]["a"] + change["a"],
            before[path]["b"] + change["b"],
            weighted_product(weights, spread["a"], spread["b"]),
        )
    return found


def gather_adapters(
    cohort: Cohort, results: LocalResult, context: Context
) -> dict[str, dict[str, Float[Array, "cohort ..."]]]:
    """Returns the updates of adapters of all participants on every device."""
    updates = context.map_clients(lambda client, update: update, cohort.clients, results.update)
    return updates.params["adapters"]


def weighted_product(
    weights: Float[Array, " cohort"],
    a: Float[Array, "cohort in rank"],
    b: Float[Array, "cohort rank out"],
) -> Matrix:
    """Returns the weighted sum of products, as one product without an array for each client.

    Examples:
        >>> a, b = jnp.ones((2, 3, 1)), jnp.array([[[1.0, 2.0]], [[3.0, 4.0]]])
        >>> weighted_product(jnp.array([0.5, 0.5]), a, b)[0].tolist()
        [2.0, 3.0]
    """
    return product(*stack_factors(weights, a, b))


def stack_factors(
    weights: Float[Array, " cohort"],
    a: Float[Array, "cohort in rank"],
    b: Float[Array, "cohort rank out"],
) -> tuple[Float[Array, "in width"], Float[Array, "width out"]]:
    """Returns two factors of the weighted sum of products, of width cohort times rank."""
    weighted = weights.astype(a.dtype)[:, None, None] * a
    left = weighted.transpose(1, 0, 2).reshape(a.shape[1], -1)
    return left, b.reshape(-1, b.shape[2])


def aggregation_error(
    errors: dict[str, Matrix], found: dict[str, Moments]
) -> dict[str, Float[Array, ""]]:
    """Returns the info of the norm of errors of all adapters, relative to the mean products."""
    total = optax.tree.norm([one.mean_product for one in found.values()], squared=True)
    error = optax.tree.norm(errors, squared=True) / jnp.where(total > 0, total, 1)
    return {"error": jnp.sqrt(jnp.where(total > 0, error, 0))}
