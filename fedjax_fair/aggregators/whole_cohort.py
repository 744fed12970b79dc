"""Aggregating with the updates of the whole cohort in memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from fedjax_fair.base import Cohort, Context, LocalResult, Variables
from fedjax_fair.numerics.finite import all_finite
from fedjax_fair.numerics.products import weighted_total

__all__ = ["gathered", "normalized", "weighted"]


def gathered(
    cohort: Cohort, results: LocalResult, context: Context
) -> tuple[Variables, Bool[Array, " cohort"]]:
    """All updates, on every device, with zeros for those that do not count; and which do."""
    updates = context.map_clients(lambda client, own: own, cohort.clients, results.update)
    participants = jax.vmap(all_finite)(updates)
    if cohort.responded is not None:
        participants &= cohort.responded

    def clear(leaf):
        return jnp.where(participants.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0)

    return jax.tree.map(clear, updates), participants


def normalized(
    participants: Bool[Array, " cohort"], weights: Float[Array, " cohort"] | float = 1.0
) -> Float[Array, " cohort"]:
    """Weights of the participants, divided by their sum; zeros for the others, or all."""
    given = jnp.where(participants, weights, 0.0)
    return given / jnp.maximum(jnp.sum(given), 1e-30)


def weighted(updates: PyTree, weights: Float[Array, " cohort"]) -> PyTree:
    """The sum of stacked updates with these weights."""
    return jax.tree.map(lambda leaf: weighted_total(weights, leaf), updates)
