"""Greedy on the gains of a random sample of clients (Rafiey 2024, Algorithm 3).

A client responds with a probability in proportion to its importance factor, and its gains are
divided by that probability, so that their sum is unbiased.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from numpy.typing import ArrayLike

from fedjax_fair import checks
from fedjax_fair.numerics.products import product
from fedjax_fair.numerics.secure_sum import SecureAggregation, as_secure
from fedjax_fair.submodular.federated.importance_factors import factors_of
from fedjax_fair.submodular.federated.problem import Problem, as_client_weights, filled_weights
from fedjax_fair.submodular.federated.secure import (
    base_bits,
    nan_if_out_of_range,
    protocol,
    secure_aggregate,
    vector_bits,
)
from fedjax_fair.submodular.federated.trajectory import Communication, GreedyRun, check_sizes
from fedjax_fair.submodular.matroids import Matroid

__all__ = ["discrete_greedy", "kappa_for_responses", "sufficient_kappa"]


def sufficient_kappa(epsilon: float, *, rank: int, size: int) -> float:
    r"""The ``kappa`` for which Theorem 5.1 holds, without resampling.

    :math:`\kappa = (3 r / \varepsilon^2) (r \ln(n + 1) + \ln(2 n))`: then one fixed sample of
    clients is within a factor of :math:`1 \pm \varepsilon` of *F* for all sets of at most *r*
    items, with probability :math:`1 - 1/n`. With it usually all clients respond.

    Examples:
        >>> round(sufficient_kappa(0.5, rank=5, size=30))
        1276
    """
    checks.positive("epsilon", epsilon)
    checks.unit_interval("epsilon", epsilon)
    checks.positive_int("rank", rank)
    checks.positive_int("size", size)
    return 3 * rank / epsilon**2 * (rank * math.log(size + 1) + math.log(2 * size))


def kappa_for_responses(factors: ArrayLike, responses: float) -> float:
    """The ``kappa`` for which a given number of clients respond in expectation.

    Args:
        factors: The importance factors, ``[clients]``.
        responses: Expected responses in a step, at most the number of positive factors.

    Raises:
        ValueError: If ``responses`` is not positive or exceeds the number of positive factors.

    Examples:
        >>> round(kappa_for_responses([0.5, 0.25, 0.25], responses=2), 6)
        2.0
        >>> round(kappa_for_responses([0.8, 0.2, 0.2], responses=2), 6)  # The first always responds.
        2.5
    """
    checks.positive("responses", responses)
    ordered = np.sort(np.asarray(factors, np.float64))[::-1]
    ordered = ordered[ordered > 0]
    if responses > ordered.size:
        raise ValueError(
            f"{responses=}: expected a number in (0, {ordered.size}], the positive factors."
        )
    # If the first m always respond, the others share the rest; the smallest m that is consistent.
    rest = ordered.sum() - np.append(0, np.cumsum(ordered)[:-1])
    kappas = (responses - np.arange(ordered.size)) / rest
    fits = kappas * ordered <= 1 + 1e-9
    return float(kappas[np.argmax(fits)])


def discrete_greedy(
    key: Key[Array, ""],
    problem: Problem,
    matroid: Matroid,
    *,
    kappa: float | Float[Array, ""] | None = None,
    epsilon: float | None = None,
    resample: bool = True,
    client_weights: ArrayLike | None = None,
    aggregation: Literal["plain", "secure"] | SecureAggregation = "plain",
) -> GreedyRun:
    """Adds the item with the largest estimated gain until there is a base.

    Args:
        key: Random key.
        problem: The clients' functions.
        matroid: Which sets are allowed.
        kappa: A client responds with probability ``min(1, kappa * w_i)``; about ``kappa *
            sum(w_i)`` of them do. ``importance_factors`` gives the ``w_i``, and their cost. May be
            traced.
        epsilon: Determines kappa instead, in (0, 1), by ``sufficient_kappa``.
        resample: Whether the clients that respond are drawn at every step, or once for all steps,
            which is what ``bounds.theorem_5_1`` is about.
        client_weights: ``p_i``, summing to 1; by default all equal.
        aggregation: As for ``fedcg``; clients that do not respond mask zeros. Where a number
            exceeds max_abs_value, values are not numbers from there on.

    Returns:
        The run. If no client responds, the first item that is allowed is added.

    Raises:
        ValueError: If not just one of kappa and epsilon is given, it is out of range, the matroid
            is of other items, or the weights do not sum to 1.

    Examples:
        >>> from fedjax_fair.submodular import federated, matroids
        >>> problem = federated.max_coverage(jnp.array([[True, False], [True, True]]))
        >>> run = discrete_greedy(jax.random.key(0), problem, matroids.Uniform(1, 2), kappa=2.0)
        >>> run.items.tolist(), run.values.tolist()
        ([0], [0.0, 1.0])
    """
    check_sizes(problem, matroid)
    if kappa is None and epsilon is not None:
        kappa = sufficient_kappa(epsilon, rank=matroid.rank, size=matroid.size)
    elif kappa is None or epsilon is not None:
        raise ValueError(f"{kappa=}, {epsilon=}: expected just one of them.")
    checks.positive("kappa", kappa)
    return _discrete_greedy(
        key,
        problem,
        matroid,
        as_client_weights(problem, client_weights),
        # An integer may exceed 32 bits.
        kappa if isinstance(kappa, Array) else float(kappa),
        as_secure(aggregation),
        resample=bool(resample),
    )


@partial(jax.jit, static_argnames="resample")
def _discrete_greedy(key, problem, matroid, weights, kappa, secure, *, resample):
    weights = filled_weights(problem, weights)
    size, rank = problem.size, matroid.rank
    key_factors = jax.random.fold_in(key, rank)  # Steps are numbered below it.
    found = factors_of(problem, weights, secure, key_factors)
    probabilities = jnp.minimum(kappa * found.factors, 1.0)

    def step(mask, number):
        key_step = jax.random.fold_in(key, number if resample else 0)
        responds = jax.random.uniform(key_step, probabilities.shape) < probabilities
        shares = jnp.where(responds, weights / jnp.where(responds, probabilities, 1), 0)
        hidden = protocol(secure, jax.random.fold_in(key, number), problem.num_clients)
        total = secure_aggregate(problem.gains(mask).messages(shares), size, hidden)
        best = jnp.argmax(jnp.where(matroid.feasible_items(mask), total, -jnp.inf)).astype(
            jnp.int32
        )
        mask = mask.at[best].set(True)
        value = nan_if_out_of_range(product(weights, problem.values(mask)), total, found.singles)
        return mask, (best, value, jnp.sum(responds, dtype=jnp.int32))

    numbers = jnp.arange(rank, dtype=jnp.int32)
    chosen, (items, values, responded) = jax.lax.scan(step, jnp.zeros(size, bool), numbers)
    return GreedyRun(
        chosen=chosen,
        items=items,
        values=jnp.append(0.0, values),
        communication=Communication(
            contacted=jnp.full(rank, problem.num_clients, jnp.int32),
            responded=responded,
            down=numbers * base_bits(1, size),  # The set so far.
            up=jnp.full(rank, vector_bits(size), jnp.int32),
        ),
    )
