"""Interface of DivFL, SubTrunc and UnionFL: cohorts that represent all clients by gradients."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import KW_ONLY
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedjax_fair.numerics.distances import nearest, pairwise_distances, renewed_distances
from fedjax_fair.numerics.permutation import permutation_at
from fedjax_fair.numerics.products import product
from fedjax_fair.roles import Cohort, Context, Info, Selector, setting
from fedjax_fair.selectors import gradients as sources
from fedjax_fair.selectors.gradients import GradientSource
from fedjax_fair.selectors.submodular import maximize
from fedjax_fair.selectors.uniform import sample_clients
from fedjax_fair.submodular import (
    Scaled,
    SetFunction,
    Sum,
    facility_location_from_distances,
    facility_location_from_features,
)
from fedjax_fair.utils import checks

__all__ = ["RepresentativeSelector"]


class RepresentativeSelector(Selector):
    """Interface of selectors whose cohort represents all clients by their gradients.

    A subclass defines `objective_term`, which is added to the objective of `DivFL`, and may define
    `init_term`, `term_info` and `remember`. The term depends only on the cohort, so that sampling
    reference clients does not change it. `DivFL` describes the fields.
    """

    cohort_size: int
    _: KW_ONLY
    candidates: int | Literal["auto", "all"] = setting(
        checks.positive_int, default="auto", words=("auto", "all")
    )
    # A pool limits the candidates, as in Power-of-Choice, not the clients represented: gains and
    # diagnostics count all clients.
    pool: int | None = None
    num_reference_clients: int | None = None
    gradients: Literal["fresh", "stale"] | GradientSource = "fresh"
    # With the sum, as in the papers, the weights λ that they vary change no choice on MNIST.
    scale: Literal["mean", "sum"] = "mean"

    @abstractmethod
    def objective_term(
        self,
        memory: PyTree,
        context: Context,
        losses: Float[Array, " n"],
        clients: Int[Array, " n"],
    ) -> SetFunction | None:
        """Returns the additional term over the given clients, or None."""

    def init_term(self, context: Context) -> PyTree:
        """Returns the state of the term at the initial model."""
        return ()

    def term_info(
        self,
        memory: PyTree,
        context: Context,
        losses: Float[Array, " n"],
        clients: Int[Array, " n"],
    ) -> Info:
        """Returns info of a cohort, in the order of selection."""
        return {}

    def remember(self, memory: PyTree, context: Context, clients: Int[Array, " cohort"]) -> PyTree:
        """Returns the state of the term after these clients have responded."""
        return memory

    def __post_init__(self):
        self._check_sizes()
        sources.as_source(self.gradients)

    @property
    def _source(self) -> GradientSource:
        return sources.as_source(self.gradients)

    @property
    def _stores_distances(self) -> bool:
        return self.pool is None and self._source.updates_only_responders

    @property
    def _candidates(self) -> int | Literal["all"]:
        if self.candidates == "auto":
            return self.cohort_size if self.pool is None else "all"
        return self.candidates

    def init(self, context):
        self._check_sizes(at_most=context.num_clients)
        memory = self._source.init(context)
        distances = ()
        if self._stores_distances:
            distances = pairwise_distances(self._source.read(memory, context)[0].gradient)
        return memory, self.init_term(context), distances

    def select(self, key, state, context):
        memory, term_state, stored_distances = state
        source, stored = self._source, self._stores_distances
        key_pool, key = (key, key) if self.pool is None else jax.random.split(key)
        items = _pool(key_pool, context, self.pool)
        if (count := self.num_reference_clients) is None:
            sample = _Sample(jnp.arange(context.num_clients, dtype=jnp.int32), items)
            clients, memory = source.read(memory, context)
        else:
            key_references, key = jax.random.split(key)
            sample = _sample_references(key_references, items, count, context.num_clients)
            clients, memory = source.read(memory, context, sample.clients)
        finite = jnp.isfinite(clients.loss)
        losses = jnp.where(finite, clients.loss, 0.0)
        if self.pool is not None:
            distances = None
            representation = facility_location_from_features(
                clients.gradient, sample.items, finite, sample.weights, finite[sample.items]
            )
        else:
            measured = stored_distances if stored else pairwise_distances(clients.gradient)
            representation = facility_location_from_distances(measured, counted=finite)
            distances = representation.distances
        available = context.available
        eligible = finite if available is None else finite & available[sample.clients]
        function = Scaled(representation, 1 / context.num_clients if self.scale == "mean" else 1.0)
        term = self.objective_term(term_state, context, losses[sample.items], items)
        if term is not None:
            function = Sum((function, term))
        candidates = "all" if self._candidates == function.size else self._candidates
        selected = maximize(key, function, self.cohort_size, candidates, eligible[sample.items])
        ids, rows = items[selected.items], sample.items[selected.items]
        mask = jnp.zeros(function.size, bool).at[selected.items].set(True)
        shares, info = _quality(clients.gradient, rows, finite, sample, distances)
        # A norm is never negative. With stored distances, this is the only read of all gradients
        # before rows of them are replaced; without it XLA copies the table.
        ids = jnp.where(info["representation_error"] < 0, -1, ids)
        nonfinite_ids = jnp.where(finite, context.num_clients, sample.clients)
        info |= {
            "objective": selected.value,
            "representation": selected.value - (0.0 if term is None else term.value(mask)),
            "num_nonfinite": jnp.sum(~finite, dtype=jnp.int32),
            "first_nonfinite_client": jnp.where(finite.all(), -1, jnp.min(nonfinite_ids)),
        }
        info |= self.term_info(term_state, context, losses[rows], ids)
        return Cohort(ids, shares), (memory, term_state, stored_distances), info

    def observe(self, state, cohort, results, context):
        memory, term_state, distances = state
        memory = self._source.observe(memory, cohort, results, context)
        # Only rows of the responding clients are computed again. Each distance is computed from two
        # gradients, so errors do not accumulate.
        if self._stores_distances:
            gradients = self._source.read(memory, context)[0].gradient
            distances = renewed_distances(distances, gradients, cohort.responder_ids)
        return memory, self.remember(term_state, context, cohort.responder_ids), distances

    def _check_sizes(self, at_most: float = math.inf) -> None:
        if (count := self.num_reference_clients) is not None:
            checks.positive_int("num_reference_clients", count, at_most=at_most)
            if self.pool is None:
                raise ValueError(
                    f"num_reference_clients={count!r}: expected None where pool=None; set pool."
                )
        if self.pool is not None:
            checks.positive_int("pool", self.pool, at_most=at_most)
            at_most = self.pool
        checks.positive_int("cohort_size", self.cohort_size, at_most=at_most)
        if self._candidates != "all":
            checks.positive_int("candidates", self._candidates, at_most=at_most)


def _pool(key: Key[Array, ""], context: Context, pool: int | None) -> Int[Array, " items"]:
    """Samples the ids of the clients from which the cohort is selected, in ascending order."""
    if pool is None or pool == context.num_clients:
        return jnp.arange(context.num_clients, dtype=jnp.int32)
    return jnp.sort(sample_clients(key, pool, context))


class _Sample(NamedTuple):
    """Clients whose gradients are read, one per row.

    Attributes:
        clients: Distinct ids.
        items: Rows that can be selected.
        weights: Number of clients that each row represents; None if all are 1.
        others: Number of clients outside of the pool; 0 if all are read.
    """

    clients: Int[Array, " rows"]
    items: Int[Array, " items"]
    weights: Float[Array, " rows"] | None = None
    others: int = 0


def _sample_references(
    key: Key[Array, ""], pool: Int[Array, " pool"], num_references: int, num_clients: int
) -> _Sample:
    """Returns the pool and a uniform sample, without replacement, of all other clients."""
    # A candidate represents itself perfectly. With only a sample of the pool, sampled candidates
    # would gain 1 / num_references of their distance more than the other candidates.
    # Uniform, because other designs need the gradients of all clients in every round, for which
    # twice as many reference clients cost some tenths of a second (20,000 lose 0.012% among 100,000
    # clients). Diagnostics use the sample too, so that no cost grows with the number of clients.
    size = pool.shape[0]
    others = num_clients - size
    count = min(num_references, others)
    items = jnp.arange(size, dtype=jnp.int32)
    if not count:
        return _Sample(pool, items)
    ranks = permutation_at(key, jnp.arange(count, dtype=jnp.int32), others)
    # A rank among the other clients is shifted by the pool clients before it: those that have at
    # most this many other clients before them.
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
    """Computes the share of clients that each member represents, and errors of the cohort."""
    if distances is None:
        representative, distance = nearest(gradients, cohort, finite[cohort])
    else:
        representative, distance = _nearest_by(distances, cohort, finite)
    weights = finite.astype(jnp.float32) * (1 if sample.weights is None else sample.weights)
    weights = weights / jnp.maximum(jnp.sum(weights), 1)
    shares = jax.ops.segment_sum(weights, representative, cohort.shape[0])
    zeros = jnp.zeros_like(weights)
    by_shares, equal = zeros.at[cohort].set(shares), zeros.at[cohort].set(1 / cohort.shape[0])
    # A product is used because means over the first axis are slow on CPUs, and gathers on TPUs.
    sums = product(jnp.stack([weights, equal, by_shares]), gradients)
    info = {
        "approximation_error": jnp.linalg.norm(sums[1] - sums[0]),
        "representation_error": jnp.linalg.norm(sums[2] - sums[0]),
        "representation_bound": product(weights, distance),
    }
    if sample.others:
        pool, total = sample.items.shape[0], sample.items.shape[0] + sample.others
        error = _standard_error(distance[pool:], finite[pool:], sample.others)
        info["standard_error"] = error / total
    return shares, info


def _nearest_by(
    distances: Float[Array, "n n"], cohort: Int[Array, " cohort"], finite: Bool[Array, " n"]
) -> tuple[Int[Array, " n"], Float[Array, " n"]]:
    """Finds the nearest finite member of the cohort of each client; each member is its own."""
    slots = jnp.argmin(jnp.where(finite[cohort][:, None], distances[cohort], jnp.inf), axis=0)
    slots = slots.astype(jnp.int32).at[cohort].set(jnp.arange(cohort.shape[0], dtype=jnp.int32))
    clients = jnp.arange(distances.shape[0], dtype=jnp.int32)
    return slots, distances[cohort[slots], clients]


def _standard_error(
    values: Float[Array, " references"], finite: Bool[Array, " references"], population: int
) -> Float[Array, ""]:
    """Estimates the standard error of a population sum from a sample without replacement."""
    count = values.shape[0]
    deviations = jnp.where(finite, values - jnp.mean(values, where=finite), 0.0)
    variance = jnp.sum(deviations**2) / max(1, count - 1)
    return population * jnp.sqrt((1 - count / population) * variance / count)
