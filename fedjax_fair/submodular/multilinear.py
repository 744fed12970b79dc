r"""Multilinear extensions: the expected value of a set function over random sets.

:math:`\hat f(x) = E[f(R)]` for a random set *R* that has item *e* with probability :math:`x_e`,
independently. Its partial derivatives are expected gains,
:math:`\partial\hat f/\partial x_e = E[f(R \cup e) - f(R \setminus e)]`. Functions are of one
client; all but `sampled_mean` are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_fair.submodular.checked_arrays import as_partial, check_epsilon
from fedjax_fair.utils import checks

__all__ = [
    "Ranked",
    "coverage_gradient",
    "coverage_value",
    "facility_location_gradient",
    "facility_location_value",
    "marginals",
    "ranked",
    "sample_size",
    "sampled_mean",
    "table",
    "tabulated_value",
]


_MAX_SAMPLES = 2**31 - 1


class Ranked(NamedTuple):
    """The scores of one client's facility location, best item first.

    Attributes:
        scores: Decreasing scores, ``[offers]``, >= 0.
        items: Item of each score, ``[offers]``, distinct. Items with score 0 may be missing; one
            outside of the ground set is padding.
    """

    scores: Float[Array, " offers"]
    items: Int[Array, " offers"]


@jax.jit
def ranked(scores: Float[Array, " n"]) -> Ranked:
    """Sorts the scores of ``f(S) = max_{j in S} scores_j``, once for all evaluations.

    Examples:
        >>> ranked(jnp.array([3.0, 1.0, 2.0])).items.tolist()
        [0, 2, 1]
    """
    items = jnp.argsort(-scores, stable=True).astype(jnp.int32)
    return Ranked(scores[items], items)


@jax.jit
def facility_location_value(offers: Ranked, x: Float[Array, " n"]) -> Float[Array, ""]:
    """Returns the expected best score of a random set.

    Examples:
        >>> offers = ranked(jnp.array([3.0, 1.0, 2.0]))
        >>> float(facility_location_value(offers, jnp.full(3, 0.5)))
        2.125
    """
    return _suffix_values(offers, _present(offers, x))[0]


@jax.jit
def facility_location_gradient(offers: Ranked, x: Float[Array, " n"]) -> Float[Array, " n"]:
    """Returns the expected gain of each item.

    It is the probability that the set contains no better item, times the score minus the expected
    best score of the worse items. It needs no division, so certain items are exact.

    Examples:
        >>> offers = ranked(jnp.array([3.0, 1.0, 2.0]))
        >>> facility_location_gradient(offers, jnp.full(3, 0.5)).tolist()
        [1.75, 0.25, 0.75]
    """
    present = _present(offers, x)
    worse = jnp.append(_suffix_values(offers, present)[1:], jnp.zeros(1, present.dtype))
    gains = _products_before(1 - present) * (offers.scores - worse)
    return jnp.zeros_like(x).at[offers.items].set(gains, mode="drop")


def _present(offers: Ranked, x: Float[Array, " n"]) -> Float[Array, " offers"]:
    return x.at[offers.items].get(mode="fill", fill_value=0)


def _suffix_values(offers: Ranked, present: Float[Array, " offers"]) -> Float[Array, " offers"]:
    """Returns the expected best score of every suffix of the ranking."""

    def step(worse, offer):
        score, probability = offer
        value = probability * score + (1 - probability) * worse
        return value, value

    zero = jnp.zeros((), present.dtype)
    return jax.lax.scan(step, zero, (offers.scores, present), reverse=True)[1]


def _products_before(factors: Float[Array, " n"]) -> Float[Array, " n"]:
    """Returns the product of all factors before each."""
    one = jnp.ones((), factors.dtype)
    return jax.lax.scan(lambda product, factor: (product * factor, product), one, factors)[1]


@jax.jit
def coverage_value(covers: Bool[Array, " n"], x: Float[Array, " n"]) -> Float[Array, ""]:
    """Returns the probability that a random set covers the client.

    Examples:
        >>> covers = jnp.array([True, True, False])
        >>> f"{coverage_value(covers, jnp.array([0.5, 0.2, 0.9])):.2f}"
        '0.60'
    """
    return 1 - jnp.prod(jnp.where(covers, 1 - x, 1))


@jax.jit
def coverage_gradient(covers: Bool[Array, " n"], x: Float[Array, " n"]) -> Float[Array, " n"]:
    """Returns the probability that no other item covers the client, 0 for items that do not.

    Examples:
        >>> covers = jnp.array([True, True, False])
        >>> [f"{g:.1f}" for g in coverage_gradient(covers, jnp.array([0.5, 0.2, 0.9])).tolist()]
        ['0.8', '0.5', '0.0']
    """
    absent = jnp.where(covers, 1 - x, 1)
    # Products from both sides avoid a division.
    others = _products_before(absent) * _products_before(absent[::-1])[::-1]
    return jnp.where(covers, others, 0)


def marginals(
    value: Callable[[Bool[Array, " n"]], Float[Array, ""]], mask: Bool[Array, " n"]
) -> Float[Array, " n"]:
    """Returns ``f(S + e) - f(S - e)`` for every item, by ``2n`` evaluations of a function.

    Examples:
        >>> best = lambda mask: jnp.max(jnp.array([3.0, 1.0, 2.0]), where=mask, initial=0)
        >>> jax.jit(lambda mask: marginals(best, mask))(jnp.array([False, True, False])).tolist()
        [2.0, 1.0, 1.0]
    """
    items = jnp.arange(mask.shape[0])
    return jax.vmap(lambda e: value(mask.at[e].set(True)) - value(mask.at[e].set(False)))(items)


def table(
    value: Callable[[Bool[Array, " n"]], Float[Array, ""]], size: int
) -> Float[Array, " subsets"]:
    """Returns the values of all ``2**size`` subsets; bit ``e`` of an index stands for item ``e``.

    Examples:
        >>> best = lambda mask: jnp.max(jnp.array([1.0, 2.0]), where=mask, initial=0)
        >>> jax.jit(lambda: table(best, 2))().tolist()
        [0.0, 1.0, 2.0, 2.0]
    """
    places = jnp.arange(2**size, dtype=jnp.int32)
    masks = (places[:, None] >> jnp.arange(size, dtype=jnp.int32)[None]) & 1
    return jax.vmap(value)(masks == 1)


def tabulated_value(values: Float[Array, " subsets"], x: Float[Array, " n"]) -> Float[Array, ""]:
    """Returns the exact extension of a tabulated function; ``jax.grad`` of it is exact.

    Examples:
        >>> evaluate = jax.jit(jax.value_and_grad(tabulated_value, argnums=1))
        >>> value, gradient = evaluate(jnp.array([0.0, 1.0, 2.0, 2.0]), jnp.array([0.5, 0.5]))
        >>> float(value), gradient.tolist()
        (1.25, [0.5, 1.5])
    """
    for e in range(x.shape[0]):
        without, included = values.reshape(-1, 2).T
        values = (1 - x[e]) * without + x[e] * included
    return values[0]


def sample_size(sigma: float, delta: float, *, size: int, estimates: int = 1) -> int:
    r"""Returns the number of random sets for which all estimated gradients are accurate.

    :math:`m = \lceil \ln(2 n Q / \delta) / (2 \sigma^2) \rceil` by Hoeffding's inequality and a
    union bound, for marginal gains in :math:`[0, m_f]` with :math:`m_f = \max_e f(\{e\})`.

    Args:
        sigma: Largest error of a coordinate, as a share of ``m_f``; > 0.
        delta: Probability of a larger error, in (0, 1).
        size: Number of items, *n*.
        estimates: Number of gradients in a run, *Q*; for FedCG+ the clients of all rounds times
            their local steps.

    Examples:
        >>> sample_size(0.1, 0.05, size=20, estimates=100)
        565
    """
    checks.positive("sigma", sigma)
    check_epsilon(delta, "delta")
    checks.positive_int("size", size)
    checks.positive_int("estimates", estimates)
    samples = math.log(2 * size * estimates / delta) / 2 / max(sigma**2, 1e-300)
    if samples > _MAX_SAMPLES:
        raise ValueError(f"{sigma=}: expected a larger one; it needs {samples:.2g} random sets.")
    return math.ceil(samples)


def sampled_mean(
    key: Key[Array, ""],
    function: Callable[[Bool[Array, " n"]], Float[Array, "..."]],
    x: Float[Array, " n"],
    samples: int,
) -> Float[Array, "..."]:
    """Returns the mean of a function of random sets, an unbiased estimate of its expectation.

    Args:
        key: Random key.
        function: A value, for the extension, or `marginals`, for the gradient. A
            ``jax.tree_util.Partial`` does not compile again.
        x: Probability of each item.
        samples: Number of random sets.

    Examples:
        >>> best = lambda mask: jnp.max(jnp.array([1.0, 2.0]), where=mask, initial=0)
        >>> mean = sampled_mean(jax.random.key(0), best, jnp.full(2, 0.5), 10_000)
        >>> abs(float(mean) - 1.25) < 0.03  # The mean of 0, 1, 2 and 2.
        True
    """
    checks.positive_int("samples", samples)
    return _sampled_mean(key, as_partial(function), x, samples)


@partial(jax.jit, static_argnums=3)
def _sampled_mean(key, function, x, samples):
    # Sequentially: in parallel memory would grow with the number of sets.
    def step(total, number):
        mask = jax.random.uniform(jax.random.fold_in(key, number), x.shape, x.dtype) < x
        return total + function(mask), None

    empty = jax.eval_shape(function, jax.ShapeDtypeStruct(x.shape, jnp.bool_))
    start = jnp.zeros(empty.shape, empty.dtype)
    return jax.lax.scan(step, start, jnp.arange(samples, dtype=jnp.int32))[0] / samples
