"""Clustered sampling: one client from each of several distributions that are unbiased together.

Each slot of the cohort has a distribution over clients. If the distributions add up, for every
client, to the number of slots times its share of the examples, then a cohort averaged uniformly is
an unbiased estimate of the average of all clients, and varies less than independent draws.

Probabilities are integers here, out of the number of all examples, so that both sums are exact:
each row of ``rows`` sums to the examples of all clients, each column to the number of slots times
the examples of a client.
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from fedjax_fair import checks
from fedjax_fair.base import Cohort, Context, Selector, ServerView, Variables
from fedjax_fair.numerics.distances import pairwise_distances
from fedjax_fair.numerics.sketch import ravel
from fedjax_fair.parallel import collectives

__all__ = ["ClusteredBySimilarity", "ClusteredBySize", "rows_by_groups", "rows_by_size"]


class ClusteredBySize(Selector):
    """Draws each slot from clients of similar size: algorithm 1. The cohort has uniform weights.

    A client may be drawn more than once if its share of the examples exceeds that of a slot.

    Args:
        cohort_size: Slots per round.

    Raises:
        ValueError: If ``cohort_size`` is not positive, or (at ``init``) times the number of
            examples exceeds 32 bits.

    References:
        Fraboni, Vidal, Kameni, Lorenzi, *Clustered Sampling: Low-Variance and Improved
        Representativity for Clients Selection in Federated Learning*, ICML 2021

    Examples:
        >>> ClusteredBySize(cohort_size=10)
        ClusteredBySize(cohort_size=10)
    """

    server_view: ClassVar[ServerView] = "aggregate"

    cohort_size: int

    def __post_init__(self):
        checks.positive_int("cohort_size", self.cohort_size)

    def init(self, context):
        _check_mass(self.cohort_size, context)
        return rows_by_size(context.sizes, self.cohort_size)

    def select(self, key, state, context):
        if context.available is None:
            return _sample(key, state), state, {}
        return _sample(key, rows_by_size(_masses(context), self.cohort_size)), state, {}


class ClusteredBySimilarity(Selector):
    """Draws each slot from clients whose last updates were similar: algorithm 2.

    The cohort has uniform weights. A client's update is that of the last round in which it trained,
    zero before. Ward's tree of all clients is cut where the mass of a subtree exceeds the capacity
    of a slot. The heaviest groups get a slot each, and the remaining groups fill the slots up.
    Takes ``clients * parameters`` floats of memory and time of order ``clients ** 3`` for the tree.

    No guarantee of differential privacy covers this selector, because its choice depends on the
    clients' updates.

    Args:
        cohort_size: Slots per round.
        measure: The angle between updates, their squared Euclidean or their absolute distance. An
            update of zero, or one that is not finite, has the angle 0 to every other.
        ward_input: Input of the tree: the rows of the matrix of distances, as in the authors'
            program, or the distances themselves.

    Raises:
        ValueError: If ``cohort_size`` is not positive, or (at ``init``) times the number of
            examples exceeds 32 bits.

    References:
        Fraboni, Vidal, Kameni, Lorenzi, *Clustered Sampling: Low-Variance and Improved
        Representativity for Clients Selection in Federated Learning*, ICML 2021

    Examples:
        >>> ClusteredBySimilarity(cohort_size=10, measure="l2")
        ClusteredBySimilarity(cohort_size=10, measure='l2')
    """

    cohort_size: int
    _: KW_ONLY
    measure: Literal["arccos", "l2", "l1"] = "arccos"
    ward_input: Literal["rows", "distances"] = "rows"

    def __post_init__(self):
        checks.positive_int("cohort_size", self.cohort_size)
        checks.one_of("measure", self.measure, tuple(_MEASURES))
        checks.one_of("ward_input", self.ward_input, ("rows", "distances"))

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
        new = context.map_clients(_params, cohort.clients, results.update)
        new = jnp.where(jnp.isfinite(new).all(axis=1, keepdims=True), new, 0.0)
        # Of a client that was drawn more than once the last slot counts, on any device.
        slots = jnp.arange(cohort.clients.shape[0], dtype=jnp.int32)
        last = jnp.zeros(state.shape[0], jnp.int32).at[cohort.clients].max(slots)
        return state.at[cohort.responder_ids].set(new[last[cohort.clients]], mode="drop")


def _masses(context: Context) -> Int[Array, " clients"]:
    """Returns the examples of available clients and zeros; of all clients, if none is available."""
    if context.available is None:
        return context.sizes
    some = context.available | ~jnp.any(context.available)
    return jnp.where(some, context.sizes, 0)


def rows_by_size(sizes: Int[Array, " clients"], cohort_size: int) -> Int[Array, "slots clients"]:
    """Returns probabilities of algorithm 1, out of the number of all examples.

    Clients, largest first, are intervals of a line, each ``cohort_size`` times as long as it has
    examples. The line is cut into equal slots.

    Examples:
        >>> rows_by_size(jnp.array([3, 1]), 2).tolist()
        [[4, 0], [2, 2]]
    """
    order = jnp.argsort(sizes, descending=True, stable=True)
    masses = cohort_size * sizes[order]
    total = jnp.sum(sizes)
    laid = _overlaps(jnp.full(cohort_size, total, sizes.dtype), masses)
    return jnp.zeros_like(laid).at[:, order].set(laid)


def rows_by_groups(
    key: Key[Array, ""],
    sizes: Int[Array, " clients"],
    cohort_size: int,
    groups: Int[Array, " clients"],
) -> Int[Array, "slots clients"]:
    """Returns probabilities of algorithm 2, out of the number of all examples.

    Args:
        key: Random key for the order of clients within groups that share slots.
        sizes: Examples of each client.
        cohort_size: Slots.
        groups: A label of each client, in ``[0, clients)``. The rest of a group, without the slots
            that a client fills alone, must fit into a slot.

    Returns:
        Slots of a single client first, then the slots of groups, heaviest first.
    """
    capacity = jnp.sum(sizes)
    slots = jnp.arange(cohort_size, dtype=sizes.dtype)
    whole = (cohort_size * sizes) // capacity
    left = _remainders(sizes, cohort_size)
    ends = jnp.cumsum(whole)
    alone = (slots[:, None] >= (ends - whole)[None]) & (slots[:, None] < ends[None])
    first, free = ends[-1], cohort_size - ends[-1]

    masses = jnp.zeros_like(sizes).at[groups].add(left)
    rank = jnp.argsort(jnp.argsort(masses, descending=True, stable=True))
    own = rank[groups].astype(sizes.dtype)
    seeded = own < free
    seeds = (slots[:, None] == (first + own)[None]) & seeded[None]

    # The remaining groups, lightest first, fill the rest of the slots, lightest slot first.
    filled = jnp.sum(jnp.where(seeds, left[None], 0), axis=1)
    spare = jnp.where(slots >= first, capacity - filled, 0)
    order = jnp.lexsort((jax.random.uniform(key, sizes.shape), -own))
    laid = _overlaps(spare[::-1], jnp.where(seeded, 0, left)[order])[::-1]
    poured = jnp.zeros_like(laid).at[:, order].set(laid)
    return jnp.where(alone, capacity, 0) + jnp.where(seeds, left[None], 0) + poured


def ward_groups(
    distances: Float[Array, "clients clients"],
    masses: Int[Array, " clients"],
    capacity: Int[Array, ""],
) -> Int[Array, " clients"]:
    """Labels of the largest subtrees of Ward's tree whose mass is at most ``capacity``."""
    count = distances.shape[0]
    clients = jnp.arange(count)

    def merge(_, tree):
        squared, sizes, masses, clusters, groups = tree
        flat = jnp.argmin(squared)
        i, j = jnp.minimum(flat // count, flat % count), jnp.maximum(flat // count, flat % count)
        # Lance and Williams' update of the squared distances of all clusters to the merged one.
        weights = sizes[i] + sizes[j] + sizes
        joint = (
            (sizes[i] + sizes) * squared[i]
            + (sizes[j] + sizes) * squared[j]
            - sizes * squared[i, j]
        ) / weights
        apart = jnp.isfinite(squared[i]) & (clients != j)
        joint = jnp.where(apart, joint, jnp.inf)
        squared = squared.at[i].set(joint).at[:, i].set(joint)
        squared = squared.at[j].set(jnp.inf).at[:, j].set(jnp.inf)
        both = (clusters == i) | (clusters == j)
        groups = jnp.where(both & (masses[i] + masses[j] <= capacity), i, groups)
        # Beyond the capacity a mass only has to stay beyond it, and must not overflow.
        mass = jnp.minimum(masses[i] + masses[j], capacity + 1)
        return (
            squared,
            sizes.at[i].add(sizes[j]),
            masses.at[i].set(mass),
            jnp.where(both, i, clusters),
            groups,
        )

    squared = jnp.where(jnp.eye(count, dtype=bool), jnp.inf, distances**2)
    labels = clients.astype(jnp.int32)
    sizes = jnp.ones(count, distances.dtype)
    tree = (squared, sizes, masses, labels, labels)
    return jax.lax.fori_loop(0, count - 1, merge, tree)[-1]


def _angles(vectors: Float[Array, "n width"]) -> Float[Array, "n n"]:
    """Returns angles between rows, from chords, which are accurate also for small angles."""
    lengths = jnp.linalg.norm(vectors, axis=1, keepdims=True)
    some = lengths > 0
    chords = pairwise_distances(vectors / jnp.where(some, lengths, 1.0))
    angles = 2 * jnp.arcsin(jnp.minimum(chords / 2, 1.0))
    return jnp.where(some & some.T, angles, 0.0)


def _absolute(vectors: Float[Array, "n width"]) -> Float[Array, "n n"]:
    return jax.lax.map(lambda row: jnp.sum(jnp.abs(vectors - row[None]), axis=1), vectors)


_MEASURES = {
    "arccos": _angles,
    "l2": lambda vectors: pairwise_distances(vectors) ** 2,
    "l1": _absolute,
}


def _remainders(sizes: Int[Array, " clients"], cohort_size: int) -> Int[Array, " clients"]:
    """Returns the mass of each client beyond the slots that it fills alone."""
    return (cohort_size * sizes) % jnp.sum(sizes)


def _overlaps(
    slots: Int[Array, " slots"], masses: Int[Array, " clients"]
) -> Int[Array, "slots clients"]:
    """Returns the overlap of each client with each slot where both are intervals of a line."""
    slot_ends, ends = jnp.cumsum(slots)[:, None], jnp.cumsum(masses)[None]
    starts = jnp.maximum(slot_ends - slots[:, None], ends - masses[None])
    return jnp.maximum(jnp.minimum(slot_ends, ends) - starts, 0)


def _sample(key: Key[Array, ""], rows: Int[Array, "slots clients"]) -> Cohort:
    """Draws one client for each slot."""
    ends = jnp.cumsum(rows, axis=1)
    places = jax.random.randint(key, rows.shape[:1], 0, ends[:, -1], rows.dtype)
    find = jax.vmap(lambda end, place: jnp.searchsorted(end, place, side="right"))
    clients = find(ends, places).astype(jnp.int32)
    return Cohort(clients, jnp.full(rows.shape[0], 1 / rows.shape[0], jnp.float32))


def _params(client: Array, update: Variables) -> Float[Array, " width"]:
    return ravel(update.params)


def _check_mass(cohort_size: int, context: Context) -> None:
    mass = cohort_size * collectives.num_examples(context.examples)
    if mass >= 2**31:
        raise ValueError(
            f"{cohort_size=}: expected cohort_size times the number of examples to be below "
            f"2**31, got {mass}."
        )
