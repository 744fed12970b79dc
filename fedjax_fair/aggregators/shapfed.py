"""ShapFed: weights by the agreement of clients with all in the rows of the last layer."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from fedjax_fair.aggregators.whole_cohort import (
    gather_updates,
    normalize_or_equal,
    normalize_weights,
    weighted_sum,
    write_rows,
)
from fedjax_fair.numerics.products import weighted_total
from fedjax_fair.numerics.tree_paths import layers_of, names_of
from fedjax_fair.roles import Aggregation, Aggregator, Number, setting
from fedjax_fair.utils import checks

__all__ = ["ShapFed"]


class _Contributions(NamedTuple):
    """The contribution of each client, and whether it has responded."""

    values: Float[Array, " clients"]
    is_known: Bool[Array, " clients"]


class ShapFed(Aggregator):
    r"""Weights updates by contributions that are measured in the rows of the last layer.

    The contribution of a participant in a round is the mean over classes of the cosine of its
    update and the weighted mean update, both of the parameters of one class in the last layer.
    Contributions :math:`\gamma_k \leftarrow \mu \gamma_k + (1 - \mu) \gamma_k^{\text{new}}` are
    moving averages; of the first response, :math:`\gamma_k = \gamma_k^{\text{new}}`. Updates get
    the weights :math:`\max(\gamma_k, 0)`, divided by their sum. The weighted mean update has the
    weights of the contributions before the round, equal ones in the first.

    The Shapley value gives the method its name alone: the authors' code evaluates no coalition but
    that of all. Negative contributions occur; their weight of 0, and a cosine of 0 for a class
    without any change, are choices of this package. The paper also rewards clients with mixtures
    of the global and their own model, which are left out. The exact values are those of
    `fedjax_fair.analysis.contributions`.

    Updates that are not finite do not count. Normalization statistics are averaged by size. Info:
    the ``contribution`` :math:`\gamma_k` of every participant.

    Args:
        memory: :math:`\mu`, in ``[0, 1)``; 0 keeps no earlier rounds.
        last_layer: Key of the last layer in the parameters. Classes are the last axis of its
            arrays.

    Raises:
        ValueError: If ``memory`` is out of range, or (when traced) the parameters have no such
            layer.

    References:
        Tastan, Fares, Aremu, Horvath, Nandakumar, *Redefining Contributions: Shapley-Driven
        Federated Learning*, 2024, https://arxiv.org/abs/2406.00569

    Examples:
        >>> aggregator = ShapFed(memory=0.9)
    """

    memory: Number = setting(checks.unit_interval, default=0.9)
    last_layer: str = "head"

    def init(self, context):
        size = context.num_clients
        return _Contributions(jnp.zeros(size), jnp.zeros(size, bool))

    def aggregate(self, state, cohort, results, context):
        gathered = gather_updates(cohort, results, context)
        updates, valid = gathered.stacked, gathered.valid
        old, is_known = jax.tree.map(lambda leaf: leaf[cohort.clients], state)
        known = normalize_weights(valid & is_known)
        # A client without contribution counts as much as the others on average.
        typical = jnp.where(jnp.any(known > 0), jnp.sum(known * jnp.maximum(old, 0)), 1)
        before = jnp.where(is_known, old, typical)
        before = normalize_or_equal(valid, jnp.maximum(before, 0))
        rows = jax.vmap(lambda params: _class_rows(params, self.last_layer))(updates.params)
        mean = weighted_total(before, rows)
        found = jnp.mean(_cosines(rows, mean), axis=1)
        values = jnp.where(is_known, self.memory * old + (1 - self.memory) * found, found)
        weights = normalize_or_equal(valid, jnp.maximum(values, 0))
        state = write_rows(state, cohort, valid, _Contributions(values, jnp.array(True)))
        update = gathered.with_params(weighted_sum(updates.params, weights))
        return update, state, Aggregation(weights, {"contribution": values})


def _class_rows(params: PyTree, layer: str) -> Float[Array, "classes width"]:
    """Returns the parameters of each class in the last layer."""
    names = names_of(params)
    if layer in params:
        params = params[layer]
    elif any("/" in name for name in names):
        raise ValueError(
            f"last_layer={layer!r}: expected a layer of the model: {layers_of(names)}."
        )
    leaves = jax.tree.leaves(params)
    if len({leaf.shape[-1] for leaf in leaves}) != 1:
        shapes = ", ".join(str(leaf.shape) for leaf in leaves)
        raise ValueError(
            f"last_layer={layer!r} has arrays of shapes {shapes}: expected classes as the last "
            "axis of all; name the last layer."
        )
    return jnp.concatenate([leaf.reshape(-1, leaf.shape[-1]) for leaf in leaves]).T


def _cosines(
    rows: Float[Array, "cohort classes width"], mean: Float[Array, "classes width"]
) -> Float[Array, "cohort classes"]:
    """Returns cosines of rows and their mean; 0 for a row of zeros."""
    norms = jnp.linalg.norm(rows, axis=2) * jnp.linalg.norm(mean, axis=1)[None]
    inner = jnp.sum(rows * mean[None], axis=2)
    return inner / jnp.where(norms > 0, norms, 1)
