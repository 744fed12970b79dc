"""Greedy on the gains of a random sample of clients (Rafiey 2024, Algorithm 3).

A client responds with a probability proportional to its importance factor. Dividing its gains by
the probability makes the sum unbiased.
"""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from numpy.typing import ArrayLike

from fedjax_fair.numerics.products import product
from fedjax_fair.numerics.secure_sum import as_secure
from fedjax_fair.submodular.checked_arrays import as_host, as_known_epsilon
from fedjax_fair.submodular.federated import secure as messaging
from fedjax_fair.submodular.federated.importance_factors import compute_factors
from fedjax_fair.submodular.federated.problem import Problem, fill_weights
from fedjax_fair.submodular.federated.secure import Aggregation, secure_aggregate
from fedjax_fair.submodular.federated.trajectory import Communication, GreedyRun, check_arguments
from fedjax_fair.submodular.matroids import Matroid
from fedjax_fair.utils import checks

__all__ = ["discrete_greedy", "kappa_for_responses", "sufficient_kappa"]


def sufficient_kappa(epsilon: float, *, rank: int, size: int) -> float:
    r"""Computes the ``kappa`` of Theorem 5.1, with which usually all clients respond.

    With :math:`\kappa = (3 r / \varepsilon^2) (r \ln(n + 1) + \ln(2 n))` one sample of clients is
    within a factor of :math:`1 \pm \varepsilon` of *F* for all sets of at most *r* items, with
    probability :math:`1 - 1/n`.

    Examples:
        >>> round(sufficient_kappa(0.5, rank=5, size=30))
        1276
    """
    epsilon = as_known_epsilon(epsilon)
    checks.positive_int("rank", rank)
    checks.positive_int("size", size)
    return 3 * rank / epsilon**2 * (rank * math.log(size + 1) + math.log(2 * size))


# `kappa` has no intuitive unit, so the commands take the expected number of responses.
def kappa_for_responses(factors: ArrayLike, responses: float) -> float:
    """Computes the ``kappa`` for an expected number of responses.

    Args:
        factors: Importance factors, ``[clients]``.
        responses: Expected responses per step, at most the number of positive factors.

    Examples:
        >>> round(kappa_for_responses([0.5, 0.25, 0.25], responses=2), 6)
        2.0
        >>> round(kappa_for_responses([0.8, 0.2, 0.2], responses=2), 6)  # The first: always.
        2.5
    """
    checks.positive("responses", responses)
    values = as_host("factors", factors).astype(np.float64)
    checks.non_negative("factors", values, many=True)
    ordered = np.sort(values, axis=None)[::-1]
    ordered = ordered[ordered > 0]
    if responses > ordered.size:
        raise ValueError(
            f"{responses=}: expected a number in (0, {ordered.size}], the positive factors; lower "
            "responses."
        )
    # If the first m clients always respond, the others share the remaining responses. The smallest
    # consistent m is the solution.
    rest = ordered.sum() - np.append(0, np.cumsum(ordered)[:-1])
    kappas = (responses - np.arange(ordered.size)) / rest
    return float(kappas[np.argmax(kappas * ordered <= 1 + 1e-9)])


def discrete_greedy(
    key: Key[Array, ""],
    problem: Problem,
    matroid: Matroid,
    *,
    kappa: float | Float[Array, ""] | None = None,
    epsilon: float | None = None,
    resample: bool = True,
    client_weights: ArrayLike | None = None,
    aggregation: Aggregation = "plain",
) -> GreedyRun:
    """Adds the item with the largest estimated gain until the set is a base.

    If no client responds, the first feasible item is added.

    Args:
        key: Random key.
        problem: The clients' functions.
        matroid: Constraint on sets.
        kappa: Clients respond with probability ``min(1, kappa * w_i)``, where ``w_i`` are the
            ``importance_factors``. May be traced.
        epsilon: Determines kappa instead, in (0, 1), by ``sufficient_kappa``.
        resample: Whether clients are sampled at every step instead of once.
        client_weights: As for ``fedcg``.
        aggregation: As for ``fedcg``.

    Raises:
        ValueError: If not exactly one of kappa and epsilon is given, or an argument is invalid.

    Examples:
        >>> from fedjax_fair.submodular import federated, matroids
        >>> problem = federated.max_coverage(jnp.array([[True, False], [True, True]]))
        >>> run = discrete_greedy(jax.random.key(0), problem, matroids.Uniform(1, 2), kappa=2.0)
        >>> run.items.tolist(), run.values.tolist()
        ([0], [0.0, 1.0])
    """
    weights = check_arguments(problem, matroid, client_weights, key=key)
    if (kappa is None) == (epsilon is None):
        raise ValueError(
            f"{kappa=}, {epsilon=}: expected exactly one of them; set the other one to None."
        )
    if epsilon is not None:
        kappa = sufficient_kappa(epsilon, rank=matroid.rank, size=matroid.size)
    if checks.is_int(kappa) and abs(kappa) < 2**100:
        kappa = float(kappa)  # An integer may exceed 32 bits.
    checks.positive("kappa", kappa)
    kappa = kappa if isinstance(kappa, Array) else float(kappa)  # pyright: ignore
    if not isinstance(resample, (bool, np.bool_)):
        raise ValueError(f"{resample=}: expected True or False.")
    secure = as_secure(aggregation)
    return _discrete_greedy(key, problem, matroid, weights, kappa, secure, bool(resample))


@partial(jax.jit, static_argnames="resample")
def _discrete_greedy(key, problem, matroid, weights, kappa, secure, resample):
    weights = fill_weights(problem, weights)
    size, rank = problem.size, matroid.rank
    key_factors = jax.random.fold_in(key, rank)  # Steps fold in numbers below the rank.
    importance = compute_factors(problem, weights, secure, key_factors)
    probabilities = jnp.minimum(kappa * importance.factors, 1.0)

    def step(mask, number):
        key_step = jax.random.fold_in(key, number if resample else 0)
        responds = jax.random.uniform(key_step, probabilities.shape) < probabilities
        shares = jnp.where(responds, weights / jnp.where(responds, probabilities, 1), 0)
        key_masks = jax.random.fold_in(key, number)
        protocol = messaging.make_protocol(secure, key_masks, problem.num_clients)
        total = secure_aggregate(problem.gains(mask).messages(shares), size, protocol)
        feasible_gains = jnp.where(matroid.feasible_items(mask), total, -jnp.inf)
        best = jnp.argmax(feasible_gains).astype(jnp.int32)
        mask = mask.at[best].set(True)
        value = product(weights, problem.values(mask))
        value = messaging.nan_if_out_of_range(value, total, importance.singles)
        return mask, (best, value, jnp.sum(responds, dtype=jnp.int32))

    numbers = jnp.arange(rank, dtype=jnp.int32)
    chosen, (items, values, responded) = jax.lax.scan(step, jnp.zeros(size, bool), numbers)
    communication = Communication(
        contacted=jnp.full(rank, problem.num_clients, jnp.int32),
        responded=responded,
        down=numbers * messaging.base_bits(1, size),  # The set so far.
        up=jnp.full(rank, messaging.vector_bits(size), jnp.int32),
    )
    return GreedyRun(chosen, items, jnp.append(0.0, values), communication)
