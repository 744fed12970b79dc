"""Federated continuous greedy with local steps, for fewer rounds (Rafiey 2024, Algorithm 2)."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key
from numpy.typing import ArrayLike

from fedjax_fair.numerics.products import product
from fedjax_fair.numerics.secure_sum import as_secure
from fedjax_fair.submodular.federated import secure as messaging
from fedjax_fair.submodular.federated import trajectory
from fedjax_fair.submodular.federated.problem import Problem, dense_gains, fill_weights
from fedjax_fair.submodular.federated.secure import Aggregation, secure_aggregate
from fedjax_fair.submodular.federated.trajectory import ContinuousRun, RoundResult
from fedjax_fair.submodular.matroids import Matroid
from fedjax_fair.submodular.multilinear import sample_size, sampled_mean
from fedjax_fair.utils import checks

__all__ = ["fedcg_plus"]

# Clients per vmap batch, each of which needs memory for its path.
_CLIENT_BATCH_SIZE = 256


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
    aggregation: Aggregation = "plain",
) -> ContinuousRun:
    """Maximizes the multilinear extension in few rounds.

    The paper's local steps can leave the unit cube, which ``local`` corrects. With one local step
    and exact gradients it equals ``fedcg``.

    Args:
        key: Random key.
        problem: The clients' functions.
        matroid: Constraint on sets.
        rounds: Communication rounds, *R = T / tau*.
        local_steps: Steps of each client per round, *tau*.
        cohort_size: As for ``fedcg``.
        step: As for ``fedcg``.
        gradient: ``"exact"``, or ``"sampled"``: estimated from random sets.
        sigma: Largest error of a sampled gradient, relative to a client's largest value of an item
            (``multilinear.sample_size``).
        delta: Probability that any sampled gradient has a larger error.
        local: ``"clip"`` takes steps of ``1 / local_steps`` and clips coordinates at 1,
            ``"scaled"`` takes steps of ``step / local_steps``.
        client_weights: As for ``fedcg``.
        aggregation: As for ``fedcg``, between the clients of the cohort.

    Raises:
        ValueError: As ``fedcg``; or if the problem has no exact gradient.

    Examples:
        >>> from fedjax_fair.submodular import federated, matroids
        >>> problem = federated.facility_location([[3.0, 1.0, 0.0], [0.0, 2.0, 0.0]])
        >>> run = fedcg_plus(jax.random.key(0), problem, matroids.Uniform(1, 3), 2, local_steps=3)
        >>> run.x.tolist()
        [0.5, 0.5, 0.0]
    """
    weights = trajectory.check_arguments(problem, matroid, client_weights, cohort_size, key)
    checks.positive_int("local_steps", local_steps)
    checks.one_of("gradient", gradient, ("exact", "sampled"))
    checks.one_of("local", local, ("clip", "scaled"))
    step, secure = trajectory.step_size(step, rounds), as_secure(aggregation)
    if gradient == "exact" and not problem.exact:
        raise ValueError(f"{gradient=}: {problem.name} has no exact gradient; use 'sampled'.")
    estimates = rounds * local_steps * (cohort_size or problem.num_clients)
    samples = sample_size(sigma, delta, size=problem.size, estimates=estimates)
    # Both steps are divided in double precision: quotients of rounded values could differ.
    steps = (step, (1.0 if local == "clip" else step) / local_steps)
    counts = (rounds, local_steps, cohort_size, samples if gradient == "sampled" else None)
    return _fedcg_plus(key, problem, matroid, weights, steps, secure, counts)


@partial(jax.jit, static_argnames="counts")
def _fedcg_plus(key, problem, matroid, weights, steps, secure, counts):
    weights = fill_weights(problem, weights)
    (step, local_step), (rounds, local_steps, cohort_size, samples) = steps, counts
    function, size = problem.function, problem.size
    num_participants = cohort_size or problem.num_clients

    def gradient_at(data, key, y):
        if samples is None:
            return function.gradient(data, key, y)
        return sampled_mean(key, lambda mask: function.gains(data, mask), y, samples)

    def work(client, key, x):
        """Returns a client's mean base, its gain to first order, and its Lipschitz constant."""
        data = problem.client_data(client)
        start = function.gradient(data, key, x)

        def one_step(carry, number):
            y, change = carry
            base = matroid.max_weight_base(gradient_at(data, jax.random.fold_in(key, number), y))
            base = base.astype(x.dtype)
            moved = jnp.minimum(y + local_step * base, 1.0)
            return (moved, change + base / local_steps), y

        numbers = jnp.arange(local_steps, dtype=jnp.int32)
        (_, change), path = jax.lax.scan(one_step, (x, jnp.zeros_like(x)), numbers)

        def gradient_change(y):
            """Returns the largest change of a coordinate per distance; 0 at distance 0."""
            there, distance = function.gradient(data, key, y), jnp.linalg.norm(y - x)
            return jnp.max(jnp.abs(there - start)) / jnp.where(distance > 0, distance, jnp.inf)

        lipschitz = jnp.zeros(())
        if local_steps > 1 and not problem.exact:
            # Differences of estimates consist mostly of their errors.
            lipschitz = jnp.full((), jnp.nan)
        elif local_steps > 1:
            lipschitz = jnp.max(jax.lax.map(gradient_change, path))
        return change, product(change, start), lipschitz

    def communicate(key_cohort, key_work, x, _):
        clients, shares = jnp.arange(num_participants, dtype=jnp.int32), weights
        if cohort_size is not None:
            clients = trajectory.sample_cohort(key_cohort, weights, cohort_size)
            shares = jnp.full(cohort_size, 1 / cohort_size)
        keys = jax.random.split(key_work, num_participants)
        changes, client_base_gain, lipschitz = jax.lax.map(
            lambda pair: work(pair[0], pair[1], x),
            (clients, keys),
            batch_size=min(_CLIENT_BATCH_SIZE, num_participants),
        )
        protocol = messaging.make_protocol(secure, key_work, num_participants)
        direction = secure_aggregate(dense_gains(changes).messages(shares), size, protocol)
        return RoundResult(direction, product(shares, client_base_gain), jnp.max(lipschitz))

    vector_bits = messaging.vector_bits(size)
    up = messaging.base_bits(matroid.rank, size) if local_steps == 1 else vector_bits
    costs = (num_participants, vector_bits, up)
    return trajectory.ascend(problem, matroid, weights, key, rounds, step, communicate, costs)
