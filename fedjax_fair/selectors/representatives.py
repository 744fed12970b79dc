"""What DivFL, SubTrunc and UnionFL share: a cohort that represents clients by their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedjax_fair import checks
from fedjax_fair.base import Cohort, Context, Info, InitFn, Selector
from fedjax_fair.numerics.distances import (
    nearest,
    pairwise_distances,
    renewed_distances,
)
from fedjax_fair.numerics.permutation import permutation_at
from fedjax_fair.numerics.products import product
from fedjax_fair.selectors import gradients as sources
from fedjax_fair.selectors.gradients import GradientSource
from fedjax_fair.selectors.uniform import draw
from fedjax_fair.submodular import (
    Scaled,
    SetFunction,
    Sum,
    facility_location_from_distances,
    facility_location_from_features,
    greedy,
    stochastic_greedy,
)

__all__ = ["Term", "representatives"]


def _keep_memory(memory: PyTree, context: Context, clients: Int[Array, " cohort"]) -> PyTree:
    return memory


class Term(NamedTuple):
    """What a method adds to the objective of ``divfl``.

    It is a function of the cohort's members alone, so that a sample of the clients that are
    represented leaves it exact.

    Attributes:
        init: ``init(context) -> memory``.
        function: ``function(memory, context, losses, clients) -> SetFunction`` of these clients, in
            this order, given their losses; or None for nothing.
        info: ``info(memory, context, losses, clients) -> Info`` of the chosen cohort and its
            losses, in the order of choice.
        remember: ``remember(memory, context, clients) -> memory``.
    """

    init: InitFn
    function: Callable[..., SetFunction | None]
    info: Callable[..., Info]
    remember: Callable[[PyTree, Context, Int[Array, " cohort"]], PyTree] = _keep_memory


def representatives(
    cohort_size: int,
    term: Term,
    candidates: int | Literal["auto", "all"],
    pool: int | None,
    points: int | None,
    gradients: str | GradientSource,
    scale: Literal["mean", "sum"],
) -> Selector:
    """What `divfl`, `subtrunc` and `unionfl` share; they differ in ``term``."""
    checks.positive_int("candidates", candidates, words=("auto", "all"))
    if candidates == "auto":
        candidates = cohort_size if pool is None else "all"
    _check_sizes(cohort_size, candidates, pool, points)
    checks.one_of("scale", scale, ("mean", "sum"))
    source = sources.as_source(gradients)
    keeps_distances = pool is None and source.renews_answered

    def init(context):
        _check_sizes(cohort_size, candidates, pool, points, at_most=context.num_clients)
        memory = source.init(context)
        kept = ()
        if keeps_distances:
            kept = pairwise_distances(source.read(memory, context)[0].gradient)
        return memory, term.init(context), kept

    def select(key, state, context):
        memory, own, kept = state
        key_pool, key = (key, key) if pool is None else jax.random.split(key)
        items = _pool(key_pool, context, pool)
        if points is None:
            sample = _all_clients(context, items)
            known, memory = source.read(memory, context)
        else:
            key_points, key = jax.random.split(key)
            sample = _with_others(key_points, items, points, context.num_clients)
            known, memory = source.read(memory, context, sample.clients)
        if not source.renews_answered:
            known = sources.cleared(known)
        finite = jnp.isfinite(known.loss)
        known = known._replace(loss=jnp.where(finite, known.loss, 0.0))
        if pool is None:
            distances = kept if keeps_distances else pairwise_distances(known.gradient)
            distances = jnp.where(finite[:, None] & finite[None, :], distances, 0.0)
            representation = facility_location_from_distances(distances)
        else:
            distances = None
            representation = facility_location_from_features(
                known.gradient, sample.items, finite, sample.weights
            )
        eligible = (
            finite if context.available is None else finite & context.available[sample.clients]
        )
        factor = 1 / context.num_clients if scale == "mean" else 1.0
        function = represent = Scaled(representation, factor)
        if (added := term.function(own, context, known.loss[sample.items], items)) is not None:
            function = Sum((represent, added))
        if candidates in ("all", function.size):
            chosen = greedy(function, cohort_size, available=eligible[sample.items])
        else:
            chosen = stochastic_greedy(
                key, function, cohort_size, candidates=candidates, available=eligible[sample.items]
            )
        clients, rows = items[chosen.items], sample.items[chosen.items]
        mask = jnp.zeros(function.size, bool).at[chosen.items].set(True)
        shares, info = _quality(known.gradient, rows, finite, sample, distances)
        # No length is negative. But where distances are kept, nothing else says that the table of
        # gradients is read before rows of it are replaced, and the compiler would copy it twice.
        clients = jnp.where(info["representation_error"] < 0, -1, clients)
        not_finite = jnp.where(finite, context.num_clients, sample.clients)
        info |= {
            "objective": chosen.value,
            "representation": chosen.value - (0.0 if added is None else added.value(mask)),
            "not_finite": jnp.sum(~finite, dtype=jnp.int32),
            "first_not_finite": jnp.where(finite.all(), -1, jnp.min(not_finite)),
        }
        info |= term.info(own, context, known.loss[rows], clients)
        cohort = Cohort(clients, shares)
        return cohort, (memory, own, kept), info

    def observe(state, cohort, results, context):
        memory, own, kept = state
        memory = source.observe(memory, cohort, results, context)
        if keeps_distances:
            known, _ = source.read(memory, context)
            kept = renewed_distances(kept, known.gradient, cohort.answered)
        return memory, term.remember(own, context, cohort.answered), kept

    return Selector(init, select, observe)


def _check_sizes(
    cohort_size: int,
    candidates: int | Literal["all"],
    pool: int | None,
    points: int | None,
    at_most: float = math.inf,
) -> None:
    """A cohort comes from a pool of the clients; candidates are of the pool as well."""
    if points is not None:
        checks.positive_int("points", points, at_most=at_most)
        if pool is None:
            raise ValueError(f"{points=}: expected None where {pool=}.")
    if pool is not None:
        checks.positive_int("pool", pool, at_most=at_most)
        at_most = pool
    checks.positive_int("cohort_size", cohort_size, at_most=at_most)
    if candidates != "all":
        checks.positive_int("candidates", candidates, at_most=at_most)


def _pool(key: Key[Array, ""], context: Context, pool: int | None) -> Int[Array, " items"]:
    """Ids of the clients among which the cohort is chosen, ascending."""
    if pool is None or pool == context.num_clients:
        return jnp.arange(context.num_clients, dtype=jnp.int32)
    return jnp.sort(draw(key, pool, context))


class _Sample(NamedTuple):
    """Clients that stand for all, each of them a row of what is read.

    Attributes:
        clients: Their ids, all different, ``[rows]``.
        items: The rows that may be chosen, ``[items]``.
        weights: How many clients each row stands for, ``[rows]``; None where it is one each.
        others: How many clients outside of the pool there are; 0 where all are read.
    """

    clients: Int[Array, " rows"]
    items: Int[Array, " items"]
    weights: Float[Array, " rows"] | None = None
    others: int = 0


def _all_clients(context: Context, items: Int[Array, " items"]) -> _Sample:
    return _Sample(jnp.arange(context.num_clients, dtype=jnp.int32), items)


def _with_others(
    key: Key[Array, ""], pool: Int[Array, " pool"], points: int, num_clients: int
) -> _Sample:
    """The pool, and a uniform sample without replacement of the clients outside of it.

    A candidate represents itself perfectly. Were the pool not read whole, those that happen to be
    sampled would gain ``1 / points`` of their distance more than the others.
    """
    size = pool.shape[0]
    others = num_clients - size
    count = min(points, others)
    items = jnp.arange(size, dtype=jnp.int32)
    if not count:
        return _Sample(pool, items)
    ranks = permutation_at(key, jnp.arange(count, dtype=jnp.int32), others)
    # The client of a rank among the others comes after all of the pool that have no more others
    # than this before them.
    sampled = ranks + jnp.searchsorted(pool - items, ranks, side="right").astype(jnp.int32)
    weights = jnp.ones(size + count, jnp.float32).at[size:].set(others / count)
    return _Sample(jnp.concatenate([pool, sampled]), items, weights, others)


def _quality(
    gradients: Float[Array, "rows width"],
    cohort: Int[Array, " cohort"],
    finite: Bool[Array, " rows"],
    sample: _Sample,
    distances: Float[Array, "rows rows"] | None,
) -> tuple[Float[Array, " cohort"], dict[str, Float[Array, ""]]]:
    """The share of clients that each member represents, and how well the cohort does it."""
    if distances is None:
        member, distance = nearest(gradients, cohort)
    else:
        member, distance = _nearest_by(distances, cohort, finite)
    counted = finite.astype(jnp.float32)
    if sample.weights is not None:
        counted = counted * sample.weights
    counted = counted / jnp.maximum(jnp.sum(counted), 1)
    shares = jax.ops.segment_sum(counted, member, cohort.shape[0])
    zeros = jnp.zeros_like(counted)
    by_shares, alike = zeros.at[cohort].set(shares), zeros.at[cohort].set(1 / cohort.shape[0])
    # Means over the first axis are slow on a CPU, and rows looked up one by one on a TPU.
    sums = product(jnp.stack([counted, alike, by_shares]), gradients)
    info = {
        "approximation_error": jnp.linalg.norm(sums[1] - sums[0]),
        "representation_error": jnp.linalg.norm(sums[2] - sums[0]),
        "representation_bound": product(counted, distance),
    }
    if sample.others:
        pool, total = sample.items.shape[0], sample.items.shape[0] + sample.others
        error = _standard_error(distance[pool:], finite[pool:], sample.others)
        info["standard_error"] = error / total
    return shares, info


def _nearest_by(
    distances: Float[Array, "clients clients"],
    cohort: Int[Array, " cohort"],
    finite: Bool[Array, " clients"],
) -> tuple[Int[Array, " clients"], Float[Array, " clients"]]:
    """As `nearest`, from what is known, to members that are finite; those to themselves."""
    places = jnp.argmin(jnp.where(finite[cohort][:, None], distances[cohort], jnp.inf), axis=0)
    places = places.astype(jnp.int32).at[cohort].set(jnp.arange(cohort.shape[0], dtype=jnp.int32))
    clients = jnp.arange(distances.shape[0], dtype=jnp.int32)
    return places, distances[cohort[places], clients]


def _standard_error(
    values: Float[Array, " points"], finite: Bool[Array, " points"], population: int
) -> Float[Array, ""]:
    """Of a sum over a population, estimated from a uniform sample without replacement."""
    count = values.shape[0]
    deviations = jnp.where(finite, values - jnp.mean(values, where=finite), 0.0)
    variance = jnp.sum(deviations**2) / max(1, count - 1)
    return population * jnp.sqrt((1 - count / population) * variance / count)
