"""Helpers of aggregators that hold the updates of the whole cohort in memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from fedjax_fair.numerics.products import weighted_total
from fedjax_fair.numerics.trees import all_finite
from fedjax_fair.roles import Cohort, Context, LocalResult, Variables

__all__ = ["gather_updates", "mask_updates", "normalize_weights", "replace_rows", "weighted_sum"]


def gather_updates(
    cohort: Cohort, results: LocalResult, context: Context
) -> tuple[Variables, Bool[Array, " cohort"]]:
    """Returns all updates on every device, with zeros for invalid ones, and the mask of valid ones.

    An update is valid if it has arrived and is finite.
    """
    updates = context.map_clients(lambda client, update: update, cohort.clients, results.update)
    valid = jax.vmap(all_finite)(updates)
    if cohort.responded is not None:
        valid &= cohort.responded
    return mask_updates(updates, valid), valid


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


def weighted_sum(updates: PyTree, weights: Float[Array, " cohort"]) -> PyTree:
    """Sums stacked updates with weights."""
    return jax.tree.map(lambda leaf: weighted_total(weights, leaf), updates)
