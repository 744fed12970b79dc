"""Clustered sampling: each slot of the cohort is sampled from a distribution over similar clients.

If the probabilities of a client over all slots add up to the number of slots times its share of the
examples, the uniform average of the cohort is an unbiased estimate of the average of all clients,
with less variance than independent samples. Probabilities are integers out of the number of all
examples, so that these sums, and those of a slot, are exact.
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from fedjax_fair.numerics.distances import pairwise_distances
from fedjax_fair.numerics.sketch import ravel
from fedjax_fair.parallel import collectives
from fedjax_fair.roles import Cohort, Context
from fedjax_fair.selectors.uniform import FixedSizeSelector, uniform_cohort

__all__ = ["ClusteredBySimilarity", "ClusteredBySize", "rows_by_groups", "rows_by_size"]


class ClusteredBySize(FixedSizeSelector):
    """Samples each slot from clients of similar size (algorithm 1). Weights are uniform.

    A client can be sampled more than once if its share of the examples exceeds the share of a slot.

    Args:
        cohort_size: Slots per round.

    Raises:
        ValueError: If ``cohort_size`` is not positive, or (at ``init``) times the number of
            examples exceeds 32 bits.

    References:
        Fraboni, Vidal, Kameni, Lorenzi, *Clustered Sampling: Low-Variance and Improved
        Representativity for Clients Selection in Federated Learning*, 2021,
        https://arxiv.org/abs/2105.05883

    Examples:
        >>> ClusteredBySize(cohort_size=10)
        ClusteredBySize(cohort_size=10)
    """

    server_view = "aggregate"

    def init(self, context):
        _check_mass(self.cohort_size, context)
        return rows_by_size(context.sizes, self.cohort_size)

    def select(self, key, state, context):
        rows = state
        if context.available is not None:
            rows = rows_by_size(_masses(context), self.cohort_size)
        return _sample(key, rows), state, {}


class ClusteredBySimilarity(FixedSizeSelector):
    """Samples each slot from clients whose last updates were similar (algorithm 2).

    Weights are uniform. A client that has not trained has the update zero. Ward's tree is cut where
    the mass of a subtree exceeds the capacity of a slot. The heaviest groups get a slot each, which
    the remaining groups fill. Memory is ``clients * parameters``
    floats, and time of order ``clients ** 3``. Differential privacy does not cover it.

    Args:
        cohort_size: Slots per round.
        measure: Angle between updates, or their squared Euclidean or absolute distance. A zero or
            non-finite update has the angle 0 to all others.
        ward_input: Input of the tree: rows of the distance matrix, as in the authors' program, or
            the distances.

    Raises:
        ValueError: As for `ClusteredBySize`.

    References:
        Fraboni, Vidal, Kameni, Lorenzi, *Clustered Sampling: Low-Variance and Improved
        Representativity for Clients Selection in Federated Learning*, 2021,
        https://arxiv.org/abs/2105.05883

    Examples:
        >>> ClusteredBySimilarity(cohort_size=10, measure="l2")
        ClusteredBySimilarity(cohort_size=10, measure='l2')
    """

    _: KW_ONLY
    measure: Literal["arccos", "l2", "l1"] = "arccos"
    ward_input: Literal["rows", "distances"] = "rows"

    def init(self, context):
        _check_mass(self.cohort_size, context)
        width = ravel(context.variables.params).shape[0]
        return jnp.zeros((context.num_clients, width))

    def select(self, key, state, context):
        updates = state
        key_rows, key_sample = jax.random.split(key)
        distances = _MEASURES[self.measure](updates)
        if self.ward_input == "rows":
            distances = pairwise_distances(distances)
        sizes = _masses(context)
        remainders = _remainders(sizes, self.cohort_size)
        groups = ward_groups(distances, remainders, jnp.sum(sizes))
        rows = jnp.where(
            (updates == 0).all(),
            rows_by_size(sizes, self.cohort_size),
            rows_by_groups(key_rows, sizes, self.cohort_size, groups),
        )
        return _sample(key_sample, rows), state, {}

    def observe(self, state, cohort, results, context):
        new = context.map_clients(
            lambda client, update: ravel(update.params), cohort.clients, results.update
        )
        new = jnp.where(jnp.isfinite(new).all(axis=1, keepdims=True), new, 0.0)
        # The last response of a client counts, so that the result does not depend on devices.
        return state.at[cohort.responder_ids].set(new[cohort.last_slots], mode="drop")


def _masses(context: Context) -> Int[Array, " clients"]:
    """Returns sizes, with 0 for clients that are not available unless this is all of them."""
    if context.available is None:
        return context.sizes
    eligible = context.available | ~jnp.any(context.available)
    return jnp.where(eligible, context.sizes, 0)


def rows_by_size(sizes: Int[Array, " clients"], cohort_size: int) -> Int[Array, "slots clients"]:
    """Computes the probabilities of algorithm 1, out of the number of all examples.

    Clients, in order of decreasing size, are adjacent intervals of length ``cohort_size`` times
    their examples. Equal slots divide this line.

    Examples:
        >>> rows_by_size(jnp.array([3, 1]), 2).tolist()
        [[4, 0], [2, 2]]
    """
    order = jnp.argsort(sizes, descending=True, stable=True)
    capacities = jnp.full(cohort_size, jnp.sum(sizes), sizes.dtype)
    overlaps = _overlaps(capacities, cohort_size * sizes[order])
    return jnp.zeros_like(overlaps).at[:, order].set(overlaps)


def rows_by_groups(
    key: Key[Array, ""],
    sizes: Int[Array, " clients"],
    cohort_size: int,
    groups: Int[Array, " clients"],
) -> Int[Array, "slots clients"]:
    """Computes the probabilities of algorithm 2, out of the number of all examples.

    Args:
        key: Random key for the order of clients within groups that share slots.
        sizes: Examples of each client.
        cohort_size: Number of slots.
        groups: Group of each client, in ``[0, clients)``; without the slots that clients fill
            alone, each fits into a slot.

    Returns:
        Slots with a single client first, then slots of groups, heaviest first.
    """
    capacity = jnp.sum(sizes)
    slots = jnp.arange(cohort_size, dtype=sizes.dtype)[:, None]
    num_alone = (cohort_size * sizes) // capacity
    remainders = _remainders(sizes, cohort_size)
    ends = jnp.cumsum(num_alone)
    alone = (slots >= (ends - num_alone)[None]) & (slots < ends[None])
    first = ends[-1]

    masses = jnp.zeros_like(sizes).at[groups].add(remainders)
    ranks = jnp.argsort(jnp.argsort(masses, descending=True, stable=True))
    rank = ranks[groups].astype(sizes.dtype)
    has_slot = rank < cohort_size - first
    seeds = jnp.where((slots == (first + rank)[None]) & has_slot[None], remainders[None], 0)

    # The remaining groups, lightest first, fill the rest of the slots, lightest slot first.
    spare = jnp.where(slots[:, 0] >= first, capacity - jnp.sum(seeds, axis=1), 0)
    order = jnp.lexsort((jax.random.uniform(key, sizes.shape), -rank))
    overlaps = _overlaps(spare[::-1], jnp.where(has_slot, 0, remainders)[order])[::-1]
    rest = jnp.zeros_like(overlaps).at[:, order].set(overlaps)
    return jnp.where(alone, capacity, 0) + seeds + rest


def ward_groups(
    distances: Float[Array, "n n"], masses: Int[Array, " n"], capacity: Int[Array, ""]
) -> Int[Array, " n"]:
    """Labels clients by the largest subtrees of Ward's tree with mass at most ``capacity``."""
    count = distances.shape[0]
    clients = jnp.arange(count)

    def merge(_, tree):
        squared, sizes, masses, clusters, groups = tree
        flat = jnp.argmin(squared)
        i, j = jnp.minimum(flat // count, flat % count), jnp.maximum(flat // count, flat % count)
        # The Lance-Williams formula updates squared distances to the merged cluster.
        weights = sizes[i] + sizes[j] + sizes
        joint = (sizes[i] + sizes) * squared[i] + (sizes[j] + sizes) * squared[j]
        joint = (joint - sizes * squared[i, j]) / weights
        apart = jnp.isfinite(squared[i]) & (clients != j)
        joint = jnp.where(apart, joint, jnp.inf)
        squared = squared.at[i].set(joint).at[:, i].set(joint)
        squared = squared.at[j].set(jnp.inf).at[:, j].set(jnp.inf)
        both = (clusters == i) | (clusters == j)
        groups = jnp.where(both & (masses[i] + masses[j] <= capacity), i, groups)
        # Masses above the capacity are truncated to prevent overflow.
        mass = jnp.minimum(masses[i] + masses[j], capacity + 1)
        sizes, masses = sizes.at[i].add(sizes[j]), masses.at[i].set(mass)
        return squared, sizes, masses, jnp.where(both, i, clusters), groups

    squared = jnp.where(jnp.eye(count, dtype=bool), jnp.inf, distances**2)
    labels = clients.astype(jnp.int32)
    tree = (squared, jnp.ones(count, distances.dtype), masses, labels, labels)
    return jax.lax.fori_loop(0, count - 1, merge, tree)[-1]


def _angles(vectors: Float[Array, "n width"]) -> Float[Array, "n n"]:
    """Computes angles between rows from chords, which are accurate for small angles."""
    norms = jnp.linalg.norm(vectors, axis=1, keepdims=True)
    nonzero = norms > 0
    chords = pairwise_distances(vectors / jnp.where(nonzero, norms, 1.0))
    angles = 2 * jnp.arcsin(jnp.minimum(chords / 2, 1.0))
    return jnp.where(nonzero & nonzero.T, angles, 0.0)


def _absolute(vectors: Float[Array, "n width"]) -> Float[Array, "n n"]:
    return jax.lax.map(lambda row: jnp.sum(jnp.abs(vectors - row[None]), axis=1), vectors)


_MEASURES = {
    "arccos": _angles,
    "l2": lambda vectors: pairwise_distances(vectors) ** 2,
    "l1": _absolute,
}


def _remainders(sizes: Int[Array, " clients"], cohort_size: int) -> Int[Array, " clients"]:
    """Computes the mass of each client beyond the slots that it fills alone."""
    return (cohort_size * sizes) % jnp.sum(sizes)


def _overlaps(
    slots: Int[Array, " slots"], masses: Int[Array, " clients"]
) -> Int[Array, "slots clients"]:
    """Computes the overlaps of slots and clients, both adjacent intervals of given lengths."""
    slot_ends, ends = jnp.cumsum(slots)[:, None], jnp.cumsum(masses)[None]
    starts = jnp.maximum(slot_ends - slots[:, None], ends - masses[None])
    return jnp.maximum(jnp.minimum(slot_ends, ends) - starts, 0)


def _sample(key: Key[Array, ""], rows: Int[Array, "slots clients"]) -> Cohort:
    """Samples one client for each slot."""
    ends = jnp.cumsum(rows, axis=1)
    places = jax.random.randint(key, rows.shape[:1], 0, ends[:, -1], rows.dtype)
    find = jax.vmap(lambda end, place: jnp.searchsorted(end, place, side="right"))
    return uniform_cohort(find(ends, places).astype(jnp.int32))


def _check_mass(cohort_size: int, context: Context) -> None:
    mass = cohort_size * collectives.num_examples(context.examples)
    if mass >= 2**31:
        raise ValueError(
            f"{cohort_size=}: expected cohort_size times the number of examples below 2**31, got "
            f"{mass}; use fewer slots or Uniform."
        )
