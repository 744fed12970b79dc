"""Clipping, noise and accounting of differential privacy."""

import math
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import linear_model
from scipy.optimize import brentq
from scipy.stats import norm
from test_conformance import FEDERATION, SELECTORS

from fedjax_fair import aggregators, faults, selectors, solvers
from fedjax_fair.communication import (
    AdaptiveClipping,
    DifferentialPrivacy,
    SecureAggregation,
    epsilon,
)
from fedjax_fair.communication.differential_privacy import add_noise, clip_update
from fedjax_fair.models import resnet18
from fedjax_fair.roles import Cohort, Variables
from fedjax_fair.rounds.round import Round, run
from fedjax_fair.rounds.round_context import make_context

DATA = jax.tree.map(jnp.asarray, FEDERATION)
KEY = jax.random.key(3)
PRIVATE = DifferentialPrivacy(1.0, 1.0)
ACCOUNT = {"num_clients": 3, "rounds": 1, "delta": 0.1}
COHORT = Cohort(jnp.arange(4, dtype=jnp.int32), jnp.full(4, 0.25))


def round_of(selector=None, aggregator=None, **settings):
    return Round(
        linear_model(),
        selector or selectors.Uniform(3),
        solvers.SGD(0.1, 2, steps=3),
        aggregator or aggregators.Mean(),
        **settings,
    )


def run_with(rounds=3, **settings):
    round = round_of(**settings)

    @jax.jit
    def program(key):
        state, info = run(round, round.init(key, DATA), DATA, rounds)
        return state._replace(key=jax.random.key_data(state.key)), info

    return program(KEY)


@jax.jit
def variables_after_a_round(round, data=DATA):
    return round.step(round.init(KEY, DATA), data)[0].variables


def norm_of_difference(one, other):
    leaves = map(jax.tree.leaves, (one, other))
    return np.sqrt(
        sum(np.sum((a - b) ** 2) for a, b in zip(*jax.device_get([*leaves]), strict=True))
    )


def tree(values):
    values = np.float32(values)
    return Variables({"a": values[:2], "b": values[2:].reshape(-1, 1)}, {})


clip_compiled = jax.jit(clip_update)


@pytest.mark.parametrize(
    "values", [[3.0, 0, 0, 4], [0.1, 0.2, 0, 0], [0.0] * 4, [1e30, 1e30, 0, 0]]
)
@pytest.mark.parametrize("clip", [0.5, 5.0, 100.0])
def test_updates_are_clipped(values, clip):
    clipped, unclipped = clip_compiled(tree(values), np.float32(clip))
    norm = np.linalg.norm(np.asarray(values, np.float64))
    expected = np.asarray(values) * min(1, clip / max(norm, 1e-30))
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(clipped)])
    np.testing.assert_allclose(flat, expected, rtol=1e-6)
    assert bool(unclipped) == (norm <= clip)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nonfinite_updates_become_zero(bad):
    clipped, unclipped = clip_compiled(tree([1.0, bad, 0, 0]), np.float32(1.0))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(clipped))
    assert not (bool(unclipped) and np.isinf(bad))


@pytest.mark.parametrize("responded", [None, [True, False, True, True], [False] * 4])
def test_noise_scales_with_norm_over_responding_clients(responded):
    cohort = COHORT._replace(responded=None if responded is None else jnp.array(responded))
    zeros = Variables({"a": jnp.zeros(20_000), "b": jnp.zeros((100, 100))}, {})
    settings = DifferentialPrivacy(3.0, 0.7)
    noise = jax.tree.leaves(jax.jit(add_noise)(KEY, settings, jnp.float32(3.0), cohort, zeros))
    noise = [np.asarray(leaf) for leaf in noise]
    count = 4 if responded is None else max(sum(responded), 1)
    for leaf in noise:
        spread = np.std(leaf) * count / (0.7 * 3.0)
        assert abs(spread - 1) < 4 / np.sqrt(2 * leaf.size)
        assert abs(np.mean(leaf)) < 4 * np.std(leaf) / np.sqrt(leaf.size)
    assert abs(np.corrcoef(noise[0][:10_000], noise[1].ravel())[0, 1]) < 0.04


def test_round_averages_clipped_updates():
    """With noise of zero, the round equals `NormClipping`."""
    clip = 0.05
    plain = round_of(selectors.Full(), aggregators.NormClipping(clip))
    private = round_of(selectors.Full(), privacy=DifferentialPrivacy(clip, 0.0))
    wide = round_of(selectors.Full(), privacy=DifferentialPrivacy(1e6, 0.0))
    noisy = round_of(selectors.Full(), privacy=DifferentialPrivacy(clip, 1.0))
    rounds = plain, private, wide, noisy
    expected, clipped, *others = (variables_after_a_round(round) for round in rounds)
    chex.assert_trees_all_close(expected, clipped, atol=1e-7)
    for other in others:
        assert norm_of_difference(other.params, clipped.params) > clip / 10


@pytest.mark.parametrize("aggregation", ["plain", "secure"])
def test_sensitivity_is_twice_the_clipping_norm(aggregation):
    """Whatever data a client has, unless it is Byzantine and does not clip."""
    clip, others = 0.5, DATA.num_clients
    private = round_of(
        selectors.Full(),
        privacy=DifferentialPrivacy(clip, 0.5),
        aggregation=aggregation,
    )
    wild = DATA.train.features.at[DATA.train.order[: DATA.train.sizes[0]]].multiply(-1e4)
    neighbor = DATA._replace(train=DATA.train._replace(features=wild))
    one, other = (variables_after_a_round(private, data).params for data in (DATA, neighbor))
    gap = norm_of_difference(one, other)
    # Nearly all of it: the other update points elsewhere, at the full norm.
    assert clip / others / 2 < gap <= 2 * clip / others * (1 + 1e-5)


def test_secure_aggregation_with_privacy():
    settings = {
        "privacy": DifferentialPrivacy(0.5, 0.3),
        "faults": [faults.Dropout(0.4)],
    }
    public, expected = run_with(faults=[faults.Dropout(0.4)])
    plain, info = run_with(**settings)
    np.testing.assert_array_equal(info.clients, expected.clients)
    assert not np.allclose(public.variables.params["kernel"], plain.variables.params["kernel"])
    secure, _ = run_with(aggregation="secure", **settings)
    assert not info.responded.all()
    chex.assert_trees_all_close(secure.variables, plain.variables, atol=1e-6)


@pytest.mark.parametrize(
    "aggregation", ["plain", "secure", SecureAggregation(0.9)], ids=["plain", "secure", "below 1"]
)
def test_adaptive_clipping_is_its_update_rule(aggregation):
    """Also with a bound of updates below the indicators of unclipped ones, which are 1."""
    quantile, rate, first = 0.5, 0.3, 0.4
    settings = AdaptiveClipping(
        1e-6,
        initial_clipping_norm=first,
        target_unclipped_quantile=quantile,
        learning_rate=rate,
        clipped_count_stddev=1e-3,
    )
    _, info = run_with(
        5, selector=selectors.Full(), privacy=settings, aggregation=aggregation,
        faults=[faults.Dropout(0.3)],
    )  # fmt: skip
    clips = np.asarray(info.aggregator["clipping_norm"], np.float64)
    assert clips[0] == np.float32(first)
    answered = np.asarray(info.responded).sum(axis=1)
    unclipped = (quantile - np.log(clips[1:] / clips[:-1]) / rate) * answered[:-1]
    # A whole number of participants was not clipped.
    np.testing.assert_allclose(unclipped, np.round(unclipped), atol=0.02)
    assert (np.round(unclipped) >= 0).all()
    assert (np.round(unclipped) <= answered[:-1]).all()
    assert np.unique(np.round(unclipped)).size > 1


def test_adaptive_clipping_converges_to_the_quantile():
    """From cohorts of 64 of a thousand norms."""
    norms = jnp.asarray(np.random.default_rng(0).lognormal(size=1000), jnp.float32)
    settings = AdaptiveClipping(1.0, target_unclipped_quantile=0.8, learning_rate=0.1)
    cohort = Cohort(jnp.arange(64, dtype=jnp.int32), jnp.full(64, 1 / 64))

    def step(clip, key):
        key_draw, key_noise = jax.random.split(key)
        drawn = jax.random.choice(key_draw, norms, (64,))
        unclipped = jnp.mean((drawn <= clip).astype(jnp.float32))
        clip = settings.adapt(key_noise, clip, cohort, unclipped)
        return clip, clip

    _, clips = jax.jit(lambda: jax.lax.scan(step, 0.1, jax.random.split(KEY, 800)))()
    assert abs(np.mean(norms <= np.exp(np.mean(np.log(clips[400:])))) - 0.8) < 0.02


def test_adaptive_clipping_splits_the_noise():
    """Inverse squares of the noise of both releases add up to that of the noise multiplier."""
    settings = AdaptiveClipping(0.8, initial_clipping_norm=1.0, clipped_count_stddev=0.5)

    @jax.jit
    def releases(norm, half):
        zeros = Variables({"a": jnp.zeros(100_000)}, {})
        keys = jax.random.split(KEY, 20_000)
        moved = jax.vmap(lambda key: settings.adapt(key, norm, COHORT, half))(keys)
        return add_noise(KEY, settings, norm, COHORT, zeros).params["a"], moved

    noise, moved = releases(jnp.float32(1), jnp.float32(settings.target_unclipped_quantile))
    updates = np.std(noise) * 4
    counts = np.std(np.log(moved)) / settings.learning_rate * 4
    np.testing.assert_allclose(counts, 0.5, rtol=0.02)
    np.testing.assert_allclose(updates**-2 + (2 * counts) ** -2, 0.8**-2, rtol=0.05)


def test_settings_may_be_traced():
    def last(clip, noise):
        round = round_of(privacy=DifferentialPrivacy(clip, noise))
        return round.step(round.init(KEY, DATA), DATA)[0].variables

    many = jax.device_get(jax.jit(jax.vmap(last))(np.float32([0.1, 1.0]), np.float32([0.5, 2.0])))
    for place, (clip, noise) in enumerate([(0.1, 0.5), (1.0, 2.0)]):
        one = jax.tree.map(lambda leaf, place=place: leaf[place], many)
        round = round_of(privacy=DifferentialPrivacy(clip, noise))
        chex.assert_trees_all_close(one, variables_after_a_round(round), atol=1e-6)


def delta_of(noise, epsilon):
    """Of one release of Gaussian noise on a number that moves by 1 (Balle and Wang, theorem 8)."""
    half, whole = 1 / (2 * noise), epsilon * noise
    return norm.cdf(half - whole) - np.exp(epsilon) * norm.cdf(-half - whole)


@pytest.mark.parametrize("noise", [1.0, 3.0, 10.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_epsilon_of_one_release_is_exact(noise, delta):
    """Replacing a client changes the sum by at most twice the clipping norm."""
    expected = brentq(lambda epsilon: delta_of(noise / 2, epsilon) - delta, 1e-6, 200)
    private, how = (
        DifferentialPrivacy(7.0, noise),
        {"num_clients": 9, "rounds": 1, "delta": delta},
    )
    spent = epsilon(private, selectors.Full(), **how)
    np.testing.assert_allclose(spent, expected, rtol=1e-5)
    # Composition over rounds, and rounds of RoundRobin without a given client.
    many = epsilon(
        DifferentialPrivacy(1.0, noise * 5),
        selectors.Full(),
        num_clients=9,
        rounds=25,
        delta=delta,
    )
    np.testing.assert_allclose(many, expected, rtol=1e-5)
    turns = epsilon(private, selectors.RoundRobin(3), **how | {"rounds": 3})
    np.testing.assert_allclose(turns, expected, rtol=1e-5)
    more = epsilon(private, selectors.RoundRobin(3), **how | {"rounds": 4})
    assert more > turns * 1.2


def test_sampling_amplifies_privacy():
    """Epsilon is between that of the worst pair of datasets and that without sampling."""
    how = {"num_clients": 100, "rounds": 1, "delta": 1e-5}
    private = DifferentialPrivacy(1.0, 2.0)
    full = epsilon(private, selectors.Full(), **how)
    sampled = epsilon(private, selectors.Uniform(10), **how)
    # The hockey-stick divergence of the mixture with a share of 0.1, by a sum over the line.
    line = np.linspace(-15, 15, 400_001)
    here, there = norm.pdf(line), norm.pdf(line, 1.0)  # Noise of 1 clip, moved by 2 half clips.
    mixed = 0.9 * here + 0.1 * there

    def delta_of_mixture(epsilon):
        return np.trapezoid(np.maximum(mixed - np.exp(epsilon) * here, 0), line)

    least = brentq(lambda epsilon: delta_of_mixture(epsilon) - 1e-5, 1e-3, 20)
    assert least < sampled < full
    assert epsilon(private, selectors.Uniform(100), **how) == full
    spent = [
        epsilon(private, selectors.Uniform(size), **how | {"rounds": 10}) for size in (1, 10, 50)
    ]
    assert spent == sorted(spent)


def test_epsilon_without_noise_is_infinite():
    how = {"num_clients": 10, "rounds": 1, "delta": 1e-5}
    assert epsilon(DifferentialPrivacy(1.0, 0.0), selectors.Full(), **how) == np.inf


COVERED = {"uniform", "full", "round_robin"}


@pytest.mark.parametrize("name", SELECTORS)
def test_data_dependent_selectors_are_not_covered(name):
    selector = SELECTORS[name]()
    assert (selector.sampling is not None) == (name in COVERED)
    if name not in COVERED:
        with pytest.raises(ValueError, match="guarantee"):
            epsilon(
                PRIVATE,
                selector,
                num_clients=10,
                rounds=1,
                delta=0.1,
            )


@pytest.mark.parametrize("name", sorted(COVERED))
def test_cohorts_match_declared_sampling(name):
    selector = SELECTORS[name]()
    round = round_of(selector)

    @jax.jit
    def cohorts(key):
        """Selections of 400 rounds without training, which these selectors do not depend on."""
        context = make_context(round.model, jnp.int32(0), None, DATA)

        def select(state, key):
            cohort, state, _ = selector.select(key, state, context)
            return state, cohort.clients

        return jax.lax.scan(select, selector.init(context), jax.random.split(key, 400))[1]

    clients, count = np.asarray(cohorts(KEY)), DATA.num_clients
    size = selector.sampling.cohort_size or count
    assert clients.shape[1] == size
    assert all(np.unique(row).size == size for row in clients)
    rounds = np.bincount(clients.ravel(), minlength=count)
    if name == "uniform":
        error = np.sqrt(400 * (size / count) * (1 - size / count))
        assert (np.abs(rounds - 400 * size / count) < 4 * error).all()
    else:
        assert (rounds <= np.ceil(400 * size / count)).all()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: round_of(aggregator=aggregators.Mean("num_examples"), privacy=PRIVATE),
            "privacy",
        ),
        (
            lambda: round_of(aggregator=aggregators.Tilted(), privacy=PRIVATE),
            "privacy",
        ),
        (lambda: round_of(privacy=1.0), "privacy"),
        (
            lambda: AdaptiveClipping(1.0, clipped_count_stddev=0.5),
            "clipped_count_stddev",
        ),
        (lambda: AdaptiveClipping(1.0, target_unclipped_quantile=1.5), "quantile=1.5"),
        (lambda: DifferentialPrivacy(0.0, 1.0), "clipping_norm=0.0"),
        *(
            (
                partial(epsilon, PRIVATE, selectors.Full(), **ACCOUNT | {"delta": delta}),
                rf"delta={delta}: expected a number in \(0, 1\)",
            )
            for delta in (0, 1, 1.0, -0.5, math.nan, math.inf)
        ),
        (lambda: epsilon(PRIVATE, selectors.Uniform(5), **ACCOUNT), "cohort_size=5"),
    ],
)
def test_invalid_privacy_raises(call, said, as_users_call):
    with pytest.raises(ValueError, match=said):
        call()


def test_a_model_with_running_statistics_is_refused():
    round = Round(
        resnet18(3, norm="batch"),
        selectors.Full(),
        solvers.SGD(0.1, 2, steps=1),
        aggregators.Mean(),
        privacy=PRIVATE,
    )
    data = DATA._replace(train=DATA.train._replace(features=jnp.zeros((32, 8, 8, 3))))
    with pytest.raises(ValueError, match="privacy"):
        jax.eval_shape(lambda: round.init(KEY, data))
