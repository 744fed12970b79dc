"""Helpers of aggregators that hold the updates of the whole cohort in memory."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from fedjax_fair.aggregators.mean import scheme_weights
from fedjax_fair.evaluation.client_predictions import apply_model
from fedjax_fair.numerics.labels import count_labels, sum_labels
from fedjax_fair.numerics.products import weighted_total
from fedjax_fair.numerics.sketch import ravel
from fedjax_fair.numerics.trees import all_finite
from fedjax_fair.roles import Cohort, Context, LocalResult, Variables

__all__ = [
    "CohortUpdates", "gather_updates", "mask_updates", "normalize_or_equal", "normalize_weights",
    "replace_rows", "trained_means", "weighted_sum", "write_rows",
]  # fmt: skip


class CohortUpdates(NamedTuple):
    """The updates of a cohort, on every device.

    Attributes:
        stacked: Updates ``[cohort, ...]``, with zeros for invalid ones.
        valid: Whether an update has arrived and is finite.
        shares: Weights of valid updates in proportion to size.
    """

    stacked: Variables
    valid: Bool[Array, " cohort"]
    shares: Float[Array, " cohort"]

    @property
    def vectors(self) -> Float[Array, "cohort width"]:
        """The parameters of each update as a vector."""
        return jax.vmap(ravel)(self.stacked.params)

    def with_params(self, params: PyTree) -> Variables:
        """Returns an update of given parameters, and of running statistics averaged by size."""
        return Variables(params, weighted_sum(self.stacked.state, self.shares))

    def from_vector(self, direction: Float[Array, " width"]) -> Variables:
        """Returns the update `with_params` of a vector."""
        _, unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], self.stacked.params))
        return self.with_params(unravel(direction))


def gather_updates(cohort: Cohort, results: LocalResult, context: Context) -> CohortUpdates:
    """Returns all updates on every device."""
    updates = context.map_clients(lambda client, update: update, cohort.clients, results.update)
    valid = jax.vmap(all_finite)(updates)
    if cohort.responded is not None:
        valid &= cohort.responded
    shares = normalize_weights(valid, scheme_weights("num_examples", cohort, context))
    return CohortUpdates(mask_updates(updates, valid), valid, shares)


def mask_updates(updates: Variables, mask: Bool[Array, " cohort"]) -> Variables:
    """Replaces masked-out updates by zeros, as a weight of zero times NaN is NaN."""

    def mask_leaf(leaf):
        return jnp.where(mask.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0)

    return jax.tree.map(mask_leaf, updates)


def normalize_weights(
    valid: Bool[Array, " cohort"], weights: Float[Array, " cohort"] | float = 1.0
) -> Float[Array, " cohort"]:
    """Divides the weights of valid updates by their sum; the other weights are zeros."""
    masked = jnp.where(valid, weights, 0.0)
    return masked / jnp.maximum(jnp.sum(masked), 1e-30)


def normalize_or_equal(
    valid: Bool[Array, " cohort"], weights: Float[Array, " cohort"]
) -> Float[Array, " cohort"]:
    """Normalizes weights as `normalize_weights`; they are equal if no valid one is positive.

    Examples:
        >>> valid = jnp.array([True, True, False])
        >>> normalize_or_equal(valid, jnp.array([0.0, 2.0, 5.0])).tolist()
        [0.0, 1.0, 0.0]
        >>> normalize_or_equal(valid, jnp.array([0.0, 0.0, 5.0])).tolist()
        [0.5, 0.5, 0.0]
    """
    is_positive = valid & (weights > 0)
    return normalize_weights(valid, jnp.where(jnp.any(is_positive), weights, 1.0))


def replace_rows(
    table: Float[Array, "clients width"],
    cohort: Cohort,
    valid: Bool[Array, " cohort"],
    rows: Float[Array, "cohort width"],
) -> tuple[Float[Array, "clients width"], Float[Array, " width"]]:
    """Replaces the row of each client by that of its last valid result, by one scatter.

    Returns:
        The new table, and the sum of the changes of its rows.

    Examples:
        >>> cohort = Cohort(jnp.array([2, 0, 2]), jnp.ones(3) / 3)
        >>> rows = jnp.array([[1.0], [2.0], [3.0]])
        >>> table, change = replace_rows(jnp.ones((3, 1)), cohort, jnp.ones(3, bool), rows)
        >>> table.tolist(), change.tolist()
        ([[2.0], [1.0], [3.0]], [3.0])
    """
    is_last = cohort._replace(responded=valid).is_last_response
    old = table[cohort.clients]
    # What is written depends on what is read, so that the table is changed in place.
    new = jnp.where(is_last[:, None], rows, old)
    ids = jnp.where(is_last, cohort.clients, table.shape[0])
    return table.at[ids].set(new, mode="drop"), jnp.sum(new - old, axis=0)


def trained_means(
    measure: Literal["loss", "accuracy"],
    cohort: Cohort,
    results: LocalResult,
    context: Context,
) -> Float[Array, " cohort"]:
    """Returns the mean of a measure over the labels of each client, at its model after training.

    Args:
        measure: Name of a function of the model.
        cohort: The cohort.
        results: Results of the cohort.
        context: Context of the round.
    """

    def sums(variables, features, labels):
        outputs = apply_model(context.model, variables, features)
        values = getattr(context.model, measure)(outputs, labels)
        return sum_labels(values, labels), count_labels(labels)

    # Both are means over examples.
    total, count = context.client_means(sums, cohort.clients, updates=results.update)
    return total if count is None else total / count


def write_rows(
    tables: PyTree, cohort: Cohort, valid: Bool[Array, " cohort"], rows: PyTree
) -> PyTree:
    """Replaces the rows of each client by those of its last valid result.

    Args:
        tables: Arrays ``[clients, ...]``.
        cohort: The cohort.
        valid: Whether a result counts.
        rows: Arrays ``[cohort, ...]``, or scalars for all rows.

    Examples:
        >>> cohort = Cohort(jnp.array([2, 0, 2]), jnp.ones(3) / 3)
        >>> rows = jnp.array([4.0, 5.0, 6.0])
        >>> write_rows(jnp.ones(3), cohort, jnp.array([True, True, False]), rows).tolist()
        [5.0, 1.0, 4.0]
    """
    is_last = cohort._replace(responded=valid).is_last_response

    def write(table, rows):
        ids = jnp.where(is_last, cohort.clients, table.shape[0])
        return table.at[ids].set(rows, mode="drop")

    return jax.tree.map(write, tables, rows)


def weighted_sum(updates: PyTree, weights: Float[Array, " cohort"]) -> PyTree:
    """Sums stacked updates with weights."""
    return jax.tree.map(lambda leaf: weighted_total(weights, leaf), updates)
