"""FedLF: common descent directions of single layers that turn losses towards equality."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from fedjax_fair.aggregators.fair_descent import fair_direction, shortest_vector
from fedjax_fair.aggregators.whole_cohort import (
    gather_updates,
    normalize_or_equal,
    normalize_weights,
    weighted_sum,
    write_rows,
)
from fedjax_fair.numerics.products import product
from fedjax_fair.numerics.sketch import ravel
from fedjax_fair.numerics.tree_paths import names_of
from fedjax_fair.numerics.trees import scale_tree
from fedjax_fair.roles import Aggregation, Aggregator

__all__ = ["FedLF"]


class _History(NamedTuple):
    """The last update of each client as ``[clients, ...]``, and its round; -1 before the first."""

    updates: PyTree
    rounds: Int[Array, " clients"]


class FedLF(Aggregator):
    r"""Steps along common descent directions of all layers that also make losses more equal.

    With :math:`\Delta_k = w - w_k`, the vector :math:`F` of the participants' losses on the
    received model, :math:`l = F / \lVert F \rVert` and :math:`p = (1, \ldots, 1) / \sqrt m`, the
    direction of a layer is the shortest vector in the convex hull of

    - the layer's part of :math:`\Delta_k` of all participants,
    - the last ones of clients that are absent now and responded in the last :math:`\lfloor n / m
      \rfloor` rounds, with :math:`n` clients so far,
    - the sum of the first ones with weights :math:`h \propto \langle l, p \rangle l - p`, along
      which the cosine of :math:`F` and :math:`p` grows; none if all losses are equal,

    each scaled to the mean norm of the first ones. The directions of all layers together get the
    norm of the mean of all :math:`\Delta_k`. In every layer, none of these vectors has a negative
    inner product with the step. A layer has the arrays of one module, such as kernel and bias;
    participants whose part is zero are left out of it. A layer stays if its direction is shorter
    than a thousandth of these vectors.

    The last updates take the memory of one model for each client, on every device. Updates that are
    not finite do not count. Normalization statistics are averaged by size.

    Weights are the sums over layers of the non-negative coefficients of the cohort's updates,
    divided by their sum. Info: the ``received_loss`` of every participant, and the ``angle``
    between :math:`F` and :math:`p` in degrees.

    References:
        Pan, Li, Yu, Wang, Wang, Tang, Zhao, *FedLF: Layer-Wise Fair Federated Learning*, 2024,
        https://doi.org/10.1609/aaai.v38i13.29368

    Examples:
        >>> aggregator = FedLF()
    """

    def init(self, context):
        size = context.num_clients
        updates = jax.tree.map(
            lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), context.variables.params
        )
        return _History(updates, jnp.full(size, -1, jnp.int32))

    def aggregate(self, state, cohort, results, context):
        gathered = gather_updates(cohort, results, context)
        losses = context.losses(context.variables, cohort.clients)
        used = gathered.valid & jnp.isfinite(losses)
        turn, angle = fair_direction(losses, used)
        slopes = jax.tree.map(jnp.negative, gathered.stacked.params)
        num_seen = jnp.sum(state.rounds >= 0, dtype=jnp.int32)
        window = num_seen // jnp.maximum(jnp.sum(used, dtype=jnp.int32), 1)
        is_recent = (state.rounds >= 0) & (context.round - state.rounds <= window)
        is_absent = is_recent & ~cohort.is_present(context.num_clients)
        rows, tree = jax.tree.flatten(slopes)
        history = jax.tree.leaves(state.updates)
        layers: dict[str, list[int]] = {}
        for place, name in enumerate(names_of(context.variables.params)):
            layers.setdefault(name.rpartition("/")[0], []).append(place)
        directions = [jnp.zeros(())] * len(rows)
        coefficients = jnp.zeros(used.shape)
        for places in layers.values():
            direction, of_layer = _layer_direction(
                *(_join(rows, places), used, turn), *(_join(history, places), is_absent)
            )
            coefficients += of_layer
            for place in places:
                shape = rows[place].shape[1:]
                part, direction = jnp.split(direction, [rows[place][0].size])
                directions[place] = part.reshape(shape)
        direction = jax.tree.unflatten(tree, directions)
        norm = jnp.linalg.norm(ravel(direction))
        uniform = normalize_weights(used)
        length = jnp.linalg.norm(ravel(weighted_sum(slopes, uniform)))
        step = scale_tree(direction, -length / jnp.where(norm > 0, norm, 1))
        state = write_rows(state, cohort, used, _History(slopes, context.round))
        weights = normalize_or_equal(gathered.valid, coefficients)
        info = {"received_loss": losses, "angle": angle}
        return gathered.with_params(step), state, Aggregation(weights, info)


def _join(leaves: list[Array], places: list[int]) -> Float[Array, "rows width"]:
    """Returns the elements of some arrays as rows."""
    return jnp.concatenate([leaves[place].reshape(len(leaves[place]), -1) for place in places], 1)


def _layer_direction(
    rows: Float[Array, "cohort width"],
    used: Bool[Array, " cohort"],
    turn: Float[Array, " cohort"],
    history: Float[Array, "clients width"],
    is_absent: Bool[Array, " clients"],
) -> tuple[Float[Array, " width"], Float[Array, " cohort"]]:
    """Returns the shortest vector of one layer, and the coefficients of the cohort's updates."""
    norms = jnp.linalg.norm(rows, axis=1)
    used = used & (norms > 0)
    length = jnp.sum(normalize_weights(used) * norms)
    rows, scales = _scale_rows(rows, used, length)
    guide, guide_scales = _scale_rows(product(turn, rows)[None], jnp.any(turn != 0)[None], length)
    absent, absent_scales = _scale_rows(history, is_absent, length)
    hull = jnp.concatenate([rows, guide, absent])
    is_vertex = jnp.concatenate([scales, guide_scales, absent_scales]) > 0
    direction, mixture = shortest_vector(hull, is_vertex, length)
    own = mixture[: len(rows)] + mixture[len(rows)] * guide_scales[0] * turn
    return direction, jnp.maximum(own * scales, 0)


def _scale_rows(
    rows: Float[Array, "rows width"], used: Bool[Array, " rows"], length: Float[Array, ""]
) -> tuple[Float[Array, "rows width"], Float[Array, " rows"]]:
    """Scales used rows to a norm; returns them and their factors, which are zero for others."""
    norms = jnp.linalg.norm(rows, axis=1)
    used = used & (norms > 0)
    scales = jnp.where(used, length / jnp.where(used, norms, 1), 0)
    return scales[:, None] * rows, scales
