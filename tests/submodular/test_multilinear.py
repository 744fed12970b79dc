"""Multilinear extensions against the sum over all subsets that defines them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_fair.submodular import multilinear as ml

# Corners, where a division would fail, as often as points inside.
PROBABILITY = st.sampled_from([0.0, 1.0, 0.25, 0.5, 1 / 3])


@jax.jit
def facility_location(scores, x):
    offers = ml.ranked(scores)
    return ml.facility_location_value(offers, x), ml.facility_location_gradient(offers, x)


@jax.jit
def coverage(covers, x):
    return ml.coverage_value(covers, x), ml.coverage_gradient(covers, x)


tabulated = jax.jit(jax.value_and_grad(ml.tabulated_value, 1))


def by_definition(value, x):
    """Value and gradient in double precision."""
    sets = np.array(list(itertools.product([False, True], repeat=len(x))))
    values = np.array([value(mask) for mask in sets], float)

    def expected(x):
        return np.where(sets, x, 1 - x).prod(axis=1) @ values

    unit = np.eye(len(x), dtype=bool)
    gains = [expected(np.where(e, 1.0, x)) - expected(np.where(e, 0.0, x)) for e in unit]
    return expected(x), np.array(gains)


@st.composite
def points(draw):
    size = draw(st.sampled_from([1, 2, 5, 8]))  # Each is compiled once
    x = draw(st.lists(PROBABILITY, min_size=size, max_size=size))
    return np.array(x, np.float32), np.random.default_rng(draw(st.integers(0, 99)))


@settings(max_examples=60, deadline=None)
@given(points())
def test_facility_location_is_exact(drawn):
    x, rng = drawn
    scores = rng.integers(0, 5, x.size).astype(np.float32)  # Ties and zeros too.
    value, gradient = by_definition(lambda mask: scores[mask].max(initial=0), x)
    actual = facility_location(jnp.asarray(scores), jnp.asarray(x))
    np.testing.assert_allclose(actual[0], value, atol=1e-5)
    np.testing.assert_allclose(actual[1], gradient, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(points())
def test_coverage_is_exact(drawn):
    x, rng = drawn
    covers = rng.random(x.size) < 0.6
    value, gradient = by_definition(lambda mask: float((covers & mask).any()), x)
    actual = coverage(jnp.asarray(covers), jnp.asarray(x))
    np.testing.assert_allclose(actual[0], value, atol=1e-6)
    np.testing.assert_allclose(actual[1], gradient, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(points())
def test_a_table_is_exact_for_any_function(drawn):
    x, rng = drawn
    values = rng.normal(size=2**x.size).astype(np.float32)
    place = 2 ** np.arange(x.size)
    value, gradient = by_definition(lambda mask: values[mask @ place], x)
    actual = tabulated(jnp.asarray(values), jnp.asarray(x))
    np.testing.assert_allclose(actual[0], value, atol=1e-5)
    np.testing.assert_allclose(actual[1], gradient, atol=1e-5)


def test_the_table_has_the_values_of_all_sets_in_order():
    weights = jnp.array([1.0, 10.0, 100.0])
    values = jax.jit(lambda: ml.table(lambda mask: mask.astype(jnp.float32) @ weights, 3))()
    assert values.tolist() == [0, 1, 10, 11, 100, 101, 110, 111]


def test_golden_values():
    value, gradient = facility_location(jnp.array([3.0, 1.0, 2.0]), jnp.full(3, 0.5))
    assert float(value) == 2.125
    assert gradient.tolist() == [1.75, 0.25, 0.75]
    value, gradient = coverage(jnp.array([True, True]), jnp.array([0.5, 0.2]))
    np.testing.assert_allclose(value, 0.6, rtol=1e-6)
    np.testing.assert_allclose(gradient, [0.8, 0.5], rtol=1e-6)


def test_marginals_at_a_corner_are_the_gradient_there():
    scores = jnp.array([3.0, 1.0, 2.0, 2.0])

    @jax.jit
    @jax.vmap
    def both(mask):
        gains = ml.marginals(lambda s: jnp.max(scores, where=s, initial=0), mask)
        return gains, facility_location(scores, mask.astype(jnp.float32))[1]

    gains, exact = both(np.array(list(itertools.product([False, True], repeat=4))))
    np.testing.assert_array_equal(gains, exact)


def test_the_sample_size_keeps_its_error_bound():
    """A single set would give more large errors than allowed."""
    size, sigma, delta, repeats = 5, 0.2, 0.3, 400
    enough = ml.sample_size(sigma, delta, size=size)
    assert enough == np.ceil(np.log(2 * 5 / 0.3) / 0.08)

    @jax.jit
    @jax.vmap
    def worst(key):
        offers, x = ml.ranked(jnp.ones(size)), jnp.full(size, 0.2)
        exact = ml.facility_location_gradient(offers, x)

        def gains(mask):
            return ml.facility_location_gradient(offers, mask.astype(jnp.float32))

        errors = [ml.sampled_mean(key, gains, x, samples) - exact for samples in (enough, 1)]
        return jnp.max(jnp.abs(jnp.stack(errors)), axis=1)

    with_enough, with_one = np.asarray(worst(jax.random.split(jax.random.key(0), repeats))).T
    assert np.mean(with_enough > sigma) <= delta
    assert np.mean(with_one > sigma) > delta


def test_sampled_means_are_unbiased_and_exact_at_corners():
    scores = np.array([3.0, 1.0, 2.0], np.float32)
    x, corner = np.array([0.0, 1.0, 0.3], np.float32), np.array([0.0, 1.0, 1.0], np.float32)

    @jax.jit
    def solve(key, x, corner):
        def value(mask):
            return jnp.max(scores, where=mask, initial=0)

        return (
            ml.sampled_mean(key, value, x, 20_000),
            ml.sampled_mean(key, lambda mask: ml.marginals(value, mask), x, 20_000),
            ml.sampled_mean(key, value, corner, 3),
        )

    exact, exact_gradient = by_definition(lambda mask: scores[mask].max(initial=0), x)
    value, gradient, certain = solve(jax.random.key(1), x, corner)
    np.testing.assert_allclose(value, exact, atol=0.02)  # Four standard errors: 4 * 0.46 / 141.
    np.testing.assert_allclose(gradient, exact_gradient, atol=0.03)
    assert float(certain) == 2.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sigma": 0.0}, "sigma=0.0"),
        ({"delta": 1.0}, "delta=1.0"),
        ({"delta": 0.0}, "delta=0.0"),
        ({"size": 0}, "size=0"),
        ({"estimates": 0}, "estimates=0"),
    ],
)
def test_bad_sample_sizes(settings, message):
    with pytest.raises(ValueError, match=message):
        ml.sample_size(**{"sigma": 0.1, "delta": 0.1, "size": 3, **settings})
