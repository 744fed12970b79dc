"""The interface of DivFL, SubTrunc and UnionFL: cohorts that represent clients by gradients."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import KW_ONLY
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedjax_fair import checks
from fedjax_fair.base import Cohort, Context, Info, Selector
from fedjax_fair.numerics.distances import (
    nearest,
    pairwise_distances,
    renewed_distances,
)
from fedjax_fair.numerics.permutation import permutation_at
from fedjax_fair.numerics.products import product
from fedjax_fair.selectors import gradients as sources
from fedjax_fair.selectors.gradients import GradientSource
from fedjax_fair.selectors.uniform import sample_clients
from fedjax_fair.submodular import (
    Scaled,
    SetFunction,
    Sum,
    facility_location_from_distances,
    facility_location_from_features,
    greedy,
    stochastic_greedy,
)

__all__ = ["RepresentativeSelector"]


class RepresentativeSelector(Selector):
    """Interface of selectors whose cohort represents all clients by their gradients.

    A subclass defines `objective_term`, the term that it adds to the objective of `DivFL`, and may define the
    three methods after it. The term is a function of the cohort's participants alone, so that a sample
    of the clients that are represented leaves it exact.

    Attributes:
        cohort_size: Clients per round.
        candidates: As for `DivFL`, as all settings here.
        pool: Clients drawn in each round, among which the cohort is chosen.
        num_reference_clients: Clients outside of the pool that are drawn in each round to be represented.
        gradients: Source of losses and gradients.
        scale: Whether the representation is a mean or a sum over clients.
    """

    cohort_size: int
    _: KW_ONLY
    candidates: int | Literal["auto", "all"] = "auto"
    pool: int | None = None
    num_reference_clients: int | None = None
    gradients: Literal["fresh", "stale"] | GradientSource = "fresh"
    scale: Literal["mean", "sum"] = "mean"

    @abstractmethod
    def objective_term(
        self,
        memory: PyTree,
        context: Context,
        losses: Float[Array, " items"],
        clients: Int[Array, " items"],
    ) -> SetFunction | None:
        """Returns the term over these clients, in this order, given their losses; or None."""
        raise NotImplementedError

    def init_term(self, context: Context) -> PyTree:
        """Returns the memory of the term at the initial model."""
        return ()

    def term_info(
        self,
        memory: PyTree,
        context: Context,
        losses: Float[Array, " cohort"],
        clients: Int[Array, " cohort"],
    ) -> Info:
        """Returns info of the cohort and its losses, in the order of choice."""
        return {}

    def remember(self, memory: PyTree, context: Context, clients: Int[Array, " cohort"]) -> PyTree:
        """Returns the memory of the term after these clients have responded."""
        return memory

    def __post_init__(self):
        checks.positive_int("candidates", self.candidates, words=("auto", "all"))
        self._check_sizes()
        checks.one_of("scale", self.scale, ("mean", "sum"))
        sources.as_source(self.gradients)

    @property
    def _source(self) -> GradientSource:
        return sources.as_source(self.gradients)

    @property
    def _keeps_distances(self) -> bool:
        return self.pool is None and self._source.updates_only_responders

    @property
    def _candidates(self) -> int | Literal["all"]:
        if self.candidates == "auto":
            return self.cohort_size if self.pool is None else "all"
        return self.candidates

    def init(self, context):
        self._check_sizes(at_most=context.num_clients)
        source = self._source
        memory = source.init(context)
        kept = ()
        if self._keeps_distances:
            kept = pairwise_distances(source.read(memory, context)[0].gradient)
        return memory, self.init_term(context), kept

    def select(self, key, state, context):
        memory, own, kept = state
        source, pool = self._source, self.pool
        key_pool, key = (key, key) if pool is None else jax.random.split(key)
        items = _pool(key_pool, context, pool)
        if self.num_reference_clients is None:
            sample = _all_clients(context, items)
            known, memory = source.read(memory, context)
        else:
            key_references, key = jax.random.split(key)
            sample = _with_others(
                key_references, items, self.num_reference_clients, context.num_clients
            )
            known, memory = source.read(memory, context, sample.clients)
        if not source.updates_only_responders:
            known = sources.mask_nonfinite(known)
        finite = jnp.isfinite(known.loss)
        known = known._replace(loss=jnp.where(finite, known.loss, 0.0))
        if pool is None:
            distances = kept if self._keeps_distances else pairwise_distances(known.gradient)
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
        factor = 1 / context.num_clients if self.scale == "mean" else 1.0
        function = represent = Scaled(representation, factor)
        if (
            added := self.objective_term(own, context, known.loss[sample.items], items)
        ) is not None:
            function = Sum((represent, added))
        chosen = self._maximize(key, function, eligible[sample.items])
        clients, rows = items[chosen.items], sample.items[chosen.items]
        mask = jnp.zeros(function.size, bool).at[chosen.items].set(True)
        shares, info = _quality(known.gradient, rows, finite, sample, distances)
        # A length is never negative. But where distances are kept, nothing else makes the compiler
        # read the table of gradients before rows of it are replaced, and it would copy it twice.
        clients = jnp.where(info["representation_error"] < 0, -1, clients)
        nonfinite = jnp.where(finite, context.num_clients, sample.clients)
        info |= {
            "objective": chosen.value,
            "representation": chosen.value - (0.0 if added is None else added.value(mask)),
            "num_nonfinite": jnp.sum(~finite, dtype=jnp.int32),
            "first_nonfinite_client": jnp.where(finite.all(), -1, jnp.min(nonfinite)),
        }
        info |= self.term_info(own, context, known.loss[rows], clients)
        return Cohort(clients, shares), (memory, own, kept), info

    def _maximize(self, key, function, available):
        candidates = self._candidates
        if candidates in ("all", function.size):
            return greedy(function, self.cohort_size, candidate_mask=available)
        return stochastic_greedy(
            key, function, self.cohort_size, candidates=candidates, candidate_mask=available
        )

    def observe(self, state, cohort, results, context):
        memory, own, kept = state
        source = self._source
        memory = source.observe(memory, cohort, results, context)
        if self._keeps_distances:
            known, _ = source.read(memory, context)
            kept = renewed_distances(kept, known.gradient, cohort.responder_ids)
        return memory, self.remember(own, context, cohort.responder_ids), kept

    def _check_sizes(self, at_most: float = math.inf) -> None:
        """Checks that the cohort and the candidates fit into the pool, and all into the clients."""
        if self.num_reference_clients is not None:
            checks.positive_int(
                "num_reference_clients", self.num_reference_clients, at_most=at_most
            )
            if self.pool is None:
                raise ValueError(
                    f"num_reference_clients={self.num_reference_clients!r}: expected None where pool=None."
                )
        if self.pool is not None:
            checks.positive_int("pool", self.pool, at_most=at_most)
            at_most = self.pool
        checks.positive_int("cohort_size", self.cohort_size, at_most=at_most)
        if self._candidates != "all":
            checks.positive_int("candidates", self._candidates, at_most=at_most)


def _pool(key: Key[Array, ""], context: Context, pool: int | None) -> Int[Array, " items"]:
    """Draws the ids of the clients among which the cohort is chosen, ascending."""
    if pool is None or pool == context.num_clients:
        return jnp.arange(context.num_clients, dtype=jnp.int32)
    return jnp.sort(sample_clients(key, pool, context))


class _Sample(NamedTuple):
    """Clients that stand for all clients, one for each row of gradients that is read.

    Attributes:
        clients: Distinct ids, ``[rows]``.
        items: The rows that may be chosen, ``[items]``.
        weights: Number of clients that each row stands for, ``[rows]``; None where it is one.
        others: Number of clients outside of the pool; 0 where all are read.
    """

    clients: Int[Array, " rows"]
    items: Int[Array, " items"]
    weights: Float[Array, " rows"] | None = None
    others: int = 0


def _all_clients(context: Context, items: Int[Array, " items"]) -> _Sample:
    return _Sample(jnp.arange(context.num_clients, dtype=jnp.int32), items)


def _with_others(
    key: Key[Array, ""], pool: Int[Array, " pool"], num_reference_clients: int, num_clients: int
) -> _Sample:
    """Returns the pool and a uniform sample, without replacement, of the clients outside of it.

    A candidate represents itself perfectly. If the pool were not read as a whole, the sampled
    candidates would gain ``1 / num_reference_clients`` of their distance more than the remaining ones.
    """
    size = pool.shape[0]
    others = num_clients - size
    count = min(num_reference_clients, others)
    items = jnp.arange(size, dtype=jnp.int32)
    if not count:
        return _Sample(pool, items)
    ranks = permutation_at(key, jnp.arange(count, dtype=jnp.int32), others)
    # The client of a rank outside of the pool comes after all clients of the pool that have at most
    # this many outside clients before them.
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
    """Returns the share of clients that each participant represents, and errors of the cohort."""
    if distances is None:
        participant, distance = nearest(gradients, cohort)
    else:
        participant, distance = _nearest_by(distances, cohort, finite)
    counted = finite.astype(jnp.float32)
    if sample.weights is not None:
        counted = counted * sample.weights
    counted = counted / jnp.maximum(jnp.sum(counted), 1)
    shares = jax.ops.segment_sum(counted, participant, cohort.shape[0])
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
    """Finds nearest participants as `nearest` does, from known distances.

    Only finite participants count, except that each participant is nearest to itself.
    """
    places = jnp.argmin(jnp.where(finite[cohort][:, None], distances[cohort], jnp.inf), axis=0)
    places = places.astype(jnp.int32).at[cohort].set(jnp.arange(cohort.shape[0], dtype=jnp.int32))
    clients = jnp.arange(distances.shape[0], dtype=jnp.int32)
    return places, distances[cohort[places], clients]


def _standard_error(
    values: Float[Array, " references"], finite: Bool[Array, " references"], population: int
) -> Float[Array, ""]:
    """Estimates the standard error of a population's sum from a sample without replacement."""
    count = values.shape[0]
    deviations = jnp.where(finite, values - jnp.mean(values, where=finite), 0.0)
    variance = jnp.sum(deviations**2) / max(1, count - 1)
    return population * jnp.sqrt((1 - count / population) * variance / count)
