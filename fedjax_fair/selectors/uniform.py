"""Client selection that depends on the number of clients only: uniform, in turn, or of all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_fair.numerics.permutation import permutation_at
from fedjax_fair.roles import Cohort, Context, Sampling, Selector, setting
from fedjax_fair.utils import checks

__all__ = ["FixedSizeSelector", "Full", "RoundRobin", "Uniform", "sample_clients", "uniform_cohort"]


class FixedSizeSelector(Selector):
    """Interface of selectors whose cohorts all have the same number of slots.

    Attributes:
        cohort_size: Slots per round, positive.
    """

    cohort_size: int = setting(checks.positive_int)

    def init(self, context):
        checks.positive_int("cohort_size", self.cohort_size, at_most=context.num_clients)
        return ()


class Uniform(FixedSizeSelector):
    """Samples distinct clients with equal probabilities. The cohort has uniform weights.

    The cost does not depend on the number of clients, except with limited availability: available
    clients are counted in every round. In asynchronous rounds only those that train are counted.

    Args:
        cohort_size: Clients per round.

    Raises:
        ValueError: If ``cohort_size`` is not positive, or (at ``init``) exceeds the number of
            clients.

    References:
        McMahan, Moore, Ramage, Hampson, Aguera y Arcas, *Communication-Efficient Learning of Deep
        Networks from Decentralized Data*, 2017, https://arxiv.org/abs/1602.05629

    Examples:
        >>> Uniform(cohort_size=10)
        Uniform(cohort_size=10)
    """

    server_view = "aggregate"

    @property
    def sampling(self):
        return Sampling("uniform", self.cohort_size)

    def select(self, key, state, context):
        return uniform_cohort(sample_clients(key, self.cohort_size, context)), state, {}


class RoundRobin(FixedSizeSelector):
    """Selects clients in the order of their ids, continuing after those of the previous round.

    The cohort has uniform weights. The participation counts of clients differ by at most one.

    Args:
        cohort_size: Clients per round.

    Raises:
        ValueError: As for `Uniform`.

    Examples:
        >>> RoundRobin(cohort_size=10)
        RoundRobin(cohort_size=10)
    """

    server_view = "aggregate"

    @property
    def sampling(self):
        return Sampling("round_robin", self.cohort_size)

    def init(self, context):
        super().init(context)
        return jnp.zeros((), jnp.int32)

    def select(self, key, state, context):
        clients = (state + jnp.arange(self.cohort_size, dtype=jnp.int32)) % context.num_clients
        return uniform_cohort(clients), (state + self.cohort_size) % context.num_clients, {}


class Full(Selector):
    """Selects all clients in every round. The cohort has uniform weights.

    Examples:
        >>> Full()
        Full()
    """

    server_view = "aggregate"

    @property
    def sampling(self):
        return Sampling("full")

    def select(self, key, state, context):
        return uniform_cohort(jnp.arange(context.num_clients, dtype=jnp.int32)), state, {}


def uniform_weights(count: int) -> Float[Array, " count"]:
    """Returns equal weights that sum to 1."""
    return jnp.full(count, 1 / count, jnp.float32)


def uniform_cohort(clients: Int[Array, " cohort"]) -> Cohort:
    """Returns a cohort with uniform weights."""
    return Cohort(clients, uniform_weights(clients.shape[0]))


def sample_clients(key: Key[Array, ""], count: int, context: Context) -> Int[Array, " count"]:
    """Samples distinct clients uniformly: available ones, and others only if these are too few."""
    positions, size = jnp.arange(count, dtype=jnp.int32), context.num_clients
    if context.available is None:
        return permutation_at(key, positions, size)
    # A client's place is its rank among the available clients, or among the other ones.
    if context.unavailable is None:
        some, available_at, other_at = _ranks_by_mask(context.available)
    else:
        some, available_at, other_at = _ranks_by_ids(context.unavailable, size)
    place = permutation_at(key, positions, jnp.maximum(some, 1))
    rest = jnp.maximum(size - some, 1)
    other = permutation_at(jax.random.fold_in(key, 1), positions - some, rest)
    return jnp.where(positions < some, available_at(place), other_at(other))


_Ranks = tuple[Int[Array, ""], Callable[[Array], Array], Callable[[Array], Array]]
"""Number of available clients, and functions from ranks to ids, of these and of the others."""


def _ranks_by_mask(available: Bool[Array, " clients"]) -> _Ranks:
    places = jnp.cumsum(available, dtype=jnp.int32)
    others = jnp.arange(1, available.size + 1, dtype=jnp.int32) - places

    def id_at(ranks, place):
        return jnp.searchsorted(ranks, place + 1).astype(jnp.int32)

    return places[-1], partial(id_at, places), partial(id_at, others)


def _ranks_by_ids(unavailable: Int[Array, " unavailable"], size: int) -> _Ranks:
    """Returns them from `Context.unavailable`, in a time that does not depend on all clients."""
    is_client = unavailable < size
    ranks = jnp.arange(unavailable.size, dtype=jnp.int32)
    before = jnp.where(is_client, unavailable - ranks, size)  # Available clients of lower ids.

    def available_at(place):
        return place + jnp.searchsorted(before, place, side="right").astype(jnp.int32)

    def other_at(place):
        return unavailable[jnp.minimum(place, unavailable.size - 1)]

    return size - jnp.sum(is_client, dtype=jnp.int32), available_at, other_at
