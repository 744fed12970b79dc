"""Federated continuous greedy (Rafiey 2024, Algorithm 1).

Each client sends the heaviest base for its gradient, and the server steps towards the mean base.
Bases take few bits, but lack the size of the gains; where that differs much between clients,
``send="gradient"`` is better.
"""

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
from fedjax_fair.submodular.federated.problem import Problem, fill_weights
from fedjax_fair.submodular.federated.secure import Aggregation, secure_aggregate
from fedjax_fair.submodular.federated.trajectory import ContinuousRun, RoundResult
from fedjax_fair.submodular.matroids import Matroid
from fedjax_fair.utils import checks

__all__ = ["fedcg"]


def fedcg(
    key: Key[Array, ""],
    problem: Problem,
    matroid: Matroid,
    rounds: int,
    *,
    cohort_size: int | None = None,
    step: float | None = None,
    send: str = "base",
    client_weights: ArrayLike | None = None,
    aggregation: Aggregation = "plain",
) -> ContinuousRun:
    """Maximizes the multilinear extension over the matroid polytope.

    Args:
        key: Random key.
        problem: The clients' functions.
        matroid: Constraint on sets.
        rounds: Communication rounds, *T*.
        cohort_size: Clients sampled per round, with replacement and probabilities ``p_i``, and
            averaged equally. None for all clients, weighted by ``p_i``.
        step: Step size, at most ``1 / rounds``, the default.
        send: ``"base"``, or ``"gradient"``: the direction is the heaviest base for the mean.
        client_weights: ``p_i``, summing to 1; equal by default.
        aggregation: ``"secure"``, or ``SecureAggregation(max_abs_value)``, masks messages, in time
            quadratic in the clients. Results are NaN if a weighted element exceeds the maximum.

    Returns:
        The run; ``rounding.swap(key, matroid, run.x)`` rounds its last point to a set.

    Raises:
        ValueError: If ``step * rounds > 1``, or sizes or weights do not fit.

    Examples:
        >>> from fedjax_fair.submodular import federated, matroids
        >>> problem = federated.facility_location([[3.0, 1.0, 0.0], [0.0, 2.0, 0.0]])
        >>> run = fedcg(jax.random.key(0), problem, matroids.Uniform(1, 3), rounds=4)
        >>> run.x.tolist(), run.communication.bits_up().tolist()
        ([0.5, 0.5, 0.0], [4, 4, 4, 4])
    """
    weights = trajectory.check_arguments(problem, matroid, client_weights, cohort_size, key)
    checks.one_of("send", send, ("base", "gradient"))
    step, secure = trajectory.step_size(step, rounds), as_secure(aggregation)
    return _fedcg(key, problem, matroid, weights, step, secure, rounds, cohort_size, send)


@partial(jax.jit, static_argnames=("rounds", "cohort_size", "send"))
def _fedcg(key, problem, matroid, weights, step, secure, rounds, cohort_size, send):
    size, weights = problem.size, fill_weights(problem, weights)

    def communicate(key, key_masks, x, gradients):
        protocol = messaging.make_protocol(secure, key_masks, problem.num_clients)
        shares = weights
        if cohort_size is not None:
            cohort = trajectory.sample_cohort(key, weights, cohort_size)
            shares = jnp.zeros_like(weights).at[cohort].add(1 / cohort_size)
        if send == "gradient":
            mean = secure_aggregate(gradients.messages(shares), size, protocol)
            base = matroid.max_weight_base(mean)
            direction = messaging.nan_if_out_of_range(base.astype(x.dtype), mean)
            return RoundResult(direction, jnp.sum(mean, where=base), jnp.zeros(()))
        bases = gradients.bases(matroid)
        direction = secure_aggregate(bases.messages(shares), size, protocol)
        return RoundResult(direction, product(shares, bases.utility), jnp.zeros(()))

    vector_bits = messaging.vector_bits(size)
    up = messaging.base_bits(matroid.rank, size) if send == "base" else vector_bits
    costs = (cohort_size or problem.num_clients, vector_bits, up)
    return trajectory.ascend(problem, matroid, weights, key, rounds, step, communicate, costs)
