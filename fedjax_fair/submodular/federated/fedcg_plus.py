"""Federated continuous greedy with local steps (Rafiey 2024, Algorithm 2).

Clients take several steps of continuous greedy on their own functions in every round, so that fewer
rounds suffice.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key
from numpy.typing import ArrayLike

from fedjax_fair import checks
from fedjax_fair.numerics.products import product
from fedjax_fair.numerics.secure_sum import SecureAggregation, as_secure
from fedjax_fair.submodular.federated.problem import (
    Problem,
    as_client_weights,
    filled_weights,
    rows,
)
from fedjax_fair.submodular.federated.secure import (
    base_bits,
    protocol,
    secure_aggregate,
    vector_bits,
)
from fedjax_fair.submodular.federated.trajectory import (
    ContinuousRun,
    Sent,
    ascend,
    check_sizes,
    sample_cohort,
    step_size,
)
from fedjax_fair.submodular.matroids import Matroid
from fedjax_fair.submodular.multilinear import sample_size, sampled_mean

__all__ = ["fedcg_plus"]

# Clients computed side by side, each of which takes memory for its path.
_SIDE_BY_SIDE = 256


def fedcg_plus(
    key: Key[Array, ""],
    problem: Problem,
    matroid: Matroid,
    rounds: int,
    local_steps: int,
    *,
    cohort_size: int | None = None,
    step: float | None = None,
    gradient: str = "exact",
    sigma: float = 0.1,
    delta: float = 0.05,
    local: str = "clip",
    client_weights: ArrayLike | None = None,
    aggregation: Literal["plain", "secure"] | SecureAggregation = "plain",
) -> ContinuousRun:
    """Maximizes the multilinear extension in few rounds.

    Local steps as printed can leave the unit cube, where the extension is not an expectation;
    ``local`` is the correction. With one local step and exact gradients it is ``fedcg``.

    Args:
        key: Random key.
        problem: The clients' functions.
        matroid: Which sets are allowed.
        rounds: Communication rounds, *R = T / tau*.
        local_steps: Steps of each client in a round, *tau*.
        cohort_size: As for ``fedcg``.
        step: Step size of the server, at most ``1 / rounds``, which is the default.
        gradient: ``"exact"``, or ``"sampled"``: estimated from the values of random sets.
        sigma: Largest error of a sampled gradient, as a share of a client's largest value of an
            item; with ``delta`` it determines the number of sets (``multilinear.sample_size``).
        delta: Probability that any of the sampled gradients has a larger error.
        local: ``"clip"`` takes steps of ``1 / local_steps`` and clips coordinates at 1,
            ``"scaled"`` takes steps of ``step / local_steps``, which need no clipping.
        client_weights: As for ``fedcg``.
        aggregation: As for ``fedcg``; the participants of the cohort mask their messages.

    Raises:
        ValueError: As ``fedcg``; or if ``gradient="exact"`` and the problem has no exact one.

    Examples:
        >>> from fedjax_fair.submodular import federated, matroids
        >>> problem = federated.facility_location([[3.0, 1.0, 0.0], [0.0, 2.0, 0.0]])
        >>> run = fedcg_plus(jax.random.key(0), problem, matroids.Uniform(1, 3), 2, local_steps=3)
        >>> run.x.tolist()
        [0.5, 0.5, 0.0]
    """
    check_sizes(problem, matroid)
    checks.positive_int("local_steps", local_steps)
    checks.one_of("gradient", gradient, ("exact", "sampled"))
    checks.one_of("local", local, ("clip", "scaled"))
    step = step_size(step, rounds)
    if cohort_size is not None:
        checks.positive_int("cohort_size", cohort_size)
    if gradient == "exact" and not problem.exact:
        raise ValueError(f"{gradient=}: expected 'sampled', since {problem.name} has no exact one.")
    estimates = rounds * local_steps * (cohort_size or problem.num_clients)
    samples = sample_size(sigma, delta, size=problem.size, estimates=estimates)
    return _fedcg_plus(
        key,
        problem,
        matroid,
        as_client_weights(problem, client_weights),
        step,
        # In double precision, as all steps: the quotient of two that are rounded can differ.
        (1.0 if local == "clip" else step) / local_steps,
        as_secure(aggregation),
        rounds=rounds,
        local_steps=local_steps,
        cohort_size=cohort_size,
        samples=samples if gradient == "sampled" else None,
    )


@partial(jax.jit, static_argnames=("rounds", "local_steps", "cohort_size", "samples"))
def _fedcg_plus(
    key,
    problem,
    matroid,
    weights,
    step,
    local_step,
    secure,
    *,
    rounds,
    local_steps,
    cohort_size,
    samples,
):
    weights = filled_weights(problem, weights)
    function, size, number = problem.function, problem.size, cohort_size or problem.num_clients

    def gradient_at(own, key, y):
        if samples is None:
            return function.gradient(own, key, y)
        return sampled_mean(key, lambda mask: function.gains(own, mask), y, samples)

    def work(client, key, x):
        """A client's mean base, and its diagnostics ``client_base_gain`` and ``lipschitz``."""
        own = problem.own(client)
        start = function.gradient(own, key, x)

        def one_step(carry, number):
            y, change = carry
            base = matroid.max_weight_base(gradient_at(own, jax.random.fold_in(key, number), y))
            base = base.astype(x.dtype)
            moved = jnp.minimum(y + local_step * base, 1.0)
            return (moved, change + base / local_steps), y

        numbers = jnp.arange(local_steps, dtype=jnp.int32)
        (_, change), path = jax.lax.scan(one_step, (x, jnp.zeros_like(x)), numbers)
        lipschitz = jnp.zeros(())
        if local_steps > 1 and not problem.exact:
            # Differences of estimates are mostly their errors.
            lipschitz = jnp.full((), jnp.nan)
        elif local_steps > 1:
            bends = jax.lax.map(lambda y: _bend(function.gradient(own, key, y), start, y, x), path)
            lipschitz = jnp.max(bends)
        return change, product(change, start), lipschitz

    def communicate(key_cohort, key_work, x, _):
        clients, shares = jnp.arange(number, dtype=jnp.int32), weights
        if cohort_size is not None:
            clients = sample_cohort(key_cohort, weights, cohort_size)
            shares = jnp.full(cohort_size, 1 / cohort_size)
        keys = jax.random.split(key_work, number)
        changes, client_base_gain, lipschitz = jax.lax.map(
            lambda pair: work(pair[0], pair[1], x),
            (clients, keys),
            batch_size=min(_SIDE_BY_SIDE, number),
        )
        hidden = protocol(secure, key_work, number)
        direction = secure_aggregate(rows(changes).messages(shares), size, hidden)
        return Sent(direction, product(shares, client_base_gain), jnp.max(lipschitz))

    up = base_bits(matroid.rank, size) if local_steps == 1 else vector_bits(size)
    costs = (number, vector_bits(size), up)
    return ascend(problem, matroid, weights, key, rounds, step, communicate, costs)


def _bend(there, here, y, x):
    """The largest change of a coordinate of the gradient per distance; 0 at distance 0."""
    distance = jnp.linalg.norm(y - x)
    return jnp.max(jnp.abs(there - here)) / jnp.where(distance > 0, distance, jnp.inf)
