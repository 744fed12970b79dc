"""Tests of federated maximizers: against plain loops, against each other, and secrecy."""

import importlib
import itertools
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_fair import submodular as sm
from fedjax_fair.submodular import federated as fed
from fedjax_fair.submodular import matroids
from fedjax_fair.submodular.federated.method_comparison import baselines, compare
from fedjax_fair.submodular.federated.trajectory import to_dataset

CLIENTS, N = 7, 6
RNG = np.random.default_rng(0)
SCORES = RNG.gamma(0.3, size=(CLIENTS, N)).astype(np.float32)
WEIGHTS = RNG.dirichlet(np.ones(CLIENTS)).astype(np.float32)
SETS = np.array(list(itertools.product([False, True], repeat=N)))
KEY = jax.random.key(0)
PARTITION = matroids.Partition([0, 1, 0, 1, 0, 1], [1, 2])


def solve(runs, scores=SCORES):
    """Compiles all runs together, since separate calls would compile every operation alone.

    Args:
        runs: ``runs(key, problem)``, the computation.
        scores: Scores of a facility location.
    """
    return jax.jit(lambda key, scores: runs(key, fed.facility_location(scores)))(KEY, scores)


@pytest.fixture(scope="module")
def problem():
    return fed.facility_location(SCORES)


def expected(x):
    """Computes the multilinear extensions of all clients by definition."""
    values = np.array([np.where(mask, SCORES, 0).max(axis=1) for mask in SETS], np.float64)
    return np.where(SETS, x, 1 - x).prod(axis=1) @ values


def gradients(x):
    """Computes the gradients of the extensions, ``[clients, N]``."""
    unit = np.eye(N, dtype=bool)
    return np.transpose(
        [expected(np.where(e, 1.0, x)) - expected(np.where(e, 0.0, x)) for e in unit]
    )


def top_two(gains):
    """Returns the heaviest base of two items; ties go to the first items."""
    return np.isin(np.arange(N), np.argsort(-gains, kind="stable")[:2])


def plain_fedcg(rounds, weights):
    """Runs Algorithm 1 in double precision, by enumeration; returns point and diagnostics."""
    x, records = np.zeros(N), []
    for _ in range(rounds):
        client_gradients = gradients(x)
        mean = weights @ client_gradients
        votes = np.array([top_two(gains) for gains in client_gradients])
        records.append(
            {
                "extension": weights @ expected(x),
                "spread": np.abs(client_gradients - mean).max(),
                "client_base_gain": weights @ (votes * client_gradients).sum(axis=1),
                "progress": weights @ votes @ mean,
                "max_base_gain": mean[top_two(mean)].sum(),
            }
        )
        x = x + weights @ votes / rounds
    return x, records


def test_fedcg_is_algorithm_1():
    x, rounds = plain_fedcg(5, WEIGHTS.astype(float))
    uniform = matroids.Uniform(2, N)
    run = solve(lambda key, p: fed.fedcg(key, p, uniform, 5, client_weights=WEIGHTS))
    np.testing.assert_allclose(run.x, x, atol=1e-5)
    for number, measured in enumerate(rounds):
        for name, value in measured.items():
            np.testing.assert_allclose(getattr(run, name)[number], value, atol=1e-5)
    np.testing.assert_allclose(run.extension[-1], WEIGHTS @ expected(x), atol=1e-5)
    np.testing.assert_allclose(run.x, run.directions.mean(axis=0), atol=1e-6)


@pytest.fixture(scope="module")
def sampled_runs():
    """Runs of two rounds with three clients per round, for many seeds."""

    @partial(jax.vmap, in_axes=(0, None))
    def run(key, problem):
        return fed.fedcg(key, problem, PARTITION, 2, cohort_size=3, client_weights=WEIGHTS)

    runs = solve(lambda key, problem: run(jax.random.split(key, 4000), problem))
    return jax.tree.map(np.asarray, runs)


def test_directions_of_sampled_cohorts_are_unbiased(sampled_runs):
    directions = sampled_runs.directions
    bases = jax.jit(jax.vmap(PARTITION.max_weight_base))(SCORES)  # At the empty set.
    # Standard errors are at most 0.5 / sqrt(3 * 4000) = 0.005.
    np.testing.assert_allclose(directions[:, 0].mean(axis=0), WEIGHTS @ np.array(bases), atol=0.02)
    np.testing.assert_allclose(3 * directions, np.round(3 * directions), atol=1e-5)
    np.testing.assert_allclose(directions.sum(axis=-1), PARTITION.rank, rtol=1e-5)
    # Cohorts differ between rounds.
    assert (directions[:, 0] != directions[:, 1]).any(axis=1).mean() > 0.5


def test_fedcg_with_gradients_equals_continuous_greedy(problem):
    sent = fed.fedcg(KEY, problem, PARTITION, 8, send="gradient")
    alone = fed.centralized_continuous_greedy(KEY, problem, PARTITION, 8)
    np.testing.assert_array_equal(sent.x, alone.x)
    np.testing.assert_array_equal(sent.extension, alone.extension)
    assert alone.communication.bits_up().sum() == 0


def test_welfare_needs_gradients_instead_of_bases():
    """Bases do not contain the size of an agent's gains, so they split items equally."""
    valuations = RNG.gamma(0.5, size=(3, 1, 4)).astype(np.float32)
    allocation = matroids.allocation(4, 3)

    @jax.jit
    def runs(key, additive):
        problem = fed.Welfare(fed.combinatorial_public_projects(additive))
        voted = fed.fedcg(key, problem, allocation, 10)
        return voted, fed.fedcg(key, problem, allocation, 10, send="gradient")

    voted, sent = runs(KEY, np.eye(4, dtype=np.float32)[None] * valuations)
    # Ties go to agent 0, so it also gets the items that no agent votes for.
    np.testing.assert_allclose(voted.x.reshape(4, 3)[:, 1:], 1 / 3, atol=1e-5)
    best = valuations[:, 0].max(axis=0).sum() / 3
    np.testing.assert_allclose(sent.extension[-1], best, rtol=1e-5)
    assert float(voted.extension[-1]) < 0.8 * best


def test_sparse_problems_equal_dense_problems():
    # Scores of a client differ, since rounding would decide between equal gains.
    ratings = np.argsort(RNG.random((20, 12)))[:, :N].astype(np.float32) - 3
    ratings = np.maximum(ratings, 0)
    clients, items = np.nonzero(ratings)
    listed = fed.sparse_scores(clients, items, ratings[clients, items], num_clients=20, size=N)
    assert listed.cells is not None
    uniform = matroids.Uniform(2, N)

    def runs(key, problem):
        return (
            fed.fedcg(key, problem, uniform, 3, cohort_size=4),
            fed.centralized_greedy(problem, PARTITION),
            fed.discrete_greedy(key, problem, PARTITION, kappa=9.0),
        )

    dense, sparse = solve(runs, ratings), solve(runs, listed)
    for one, other in zip(*map(jax.tree.leaves, (dense, sparse)), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


def test_one_local_step_equals_fedcg():
    def runs(key, problem):
        settings = {"cohort_size": 3, "client_weights": WEIGHTS}
        plain = fed.fedcg(key, problem, PARTITION, 4, **settings)
        return plain, fed.fedcg_plus(key, problem, PARTITION, 4, 1, **settings)

    plain, plus = solve(runs)
    np.testing.assert_allclose(plus.x, plain.x, atol=1e-6)
    np.testing.assert_allclose(plus.client_base_gain, plain.client_base_gain, atol=1e-6)
    assert (plus.communication.bits_up() == plain.communication.bits_up()).all()


def plain_fedcg_plus(rounds, local_steps, local_step):
    """Runs Algorithm 2 in double precision; returns point and diagnostics."""
    x, records = np.zeros(N), []
    for _ in range(rounds):
        changes, slopes, start = np.zeros((CLIENTS, N)), [0.0], gradients(x)
        for client in range(CLIENTS):
            y = x.copy()
            for _ in range(local_steps):
                gains = gradients(y)[client]
                if (y != x).any():
                    bend = np.abs(gains - start[client]).max() / np.linalg.norm(y - x)
                    slopes.append(bend)
                y = np.minimum(y + local_step * top_two(gains), 1)
                changes[client] += top_two(gains) / local_steps
        client_base_gain = WEIGHTS @ (changes * start).sum(axis=1)
        records.append({"client_base_gain": client_base_gain, "lipschitz": max(slopes)})
        x = x + WEIGHTS @ changes / rounds
    return x, records


def test_fedcg_plus_is_algorithm_2():
    rounds, local_steps, uniform = 2, 3, matroids.Uniform(2, N)

    def runs(key, problem):
        return {
            local: fed.fedcg_plus(
                key, problem, uniform, rounds, local_steps, local=local, client_weights=WEIGHTS
            )
            for local in ("clip", "scaled")
        }

    for local, run in solve(runs).items():
        local_step = (1 if local == "clip" else 1 / rounds) / local_steps
        x, measured = plain_fedcg_plus(rounds, local_steps, local_step)
        np.testing.assert_allclose(run.x, x, atol=1e-5)
        for number, values in enumerate(measured):
            np.testing.assert_allclose(
                run.client_base_gain[number], values["client_base_gain"], atol=1e-5
            )
            np.testing.assert_allclose(run.lipschitz[number], values["lipschitz"], rtol=1e-4)


def test_sampled_gradients_come_near_exact_ones():
    def runs(key, problem):
        settings = {"rounds": 3, "local_steps": 2, "client_weights": WEIGHTS}
        exact = fed.fedcg_plus(key, problem, PARTITION, **settings).x
        settings |= {"gradient": "sampled"}
        return exact, *[
            fed.fedcg_plus(key, problem, PARTITION, sigma=sigma, **settings).x
            for sigma in (2.0, 0.1)
        ]

    exact, coarse, fine = map(np.asarray, solve(runs))
    assert np.abs(coarse - exact).max() > 0.05
    np.testing.assert_allclose(fine, exact, atol=0.05)


@pytest.mark.parametrize("cohort", [None, 3])
def test_the_sample_size_covers_every_gradient_of_a_run(problem, cohort, monkeypatch):
    """The error bound covers all rounds, local steps and clients of a run."""
    module = importlib.import_module("fedjax_fair.submodular.federated.fedcg_plus")
    sizes = []

    def record(key, gains, x, samples):
        sizes.append(samples)
        return x

    monkeypatch.setattr(module, "sampled_mean", record)
    settings = {"gradient": "sampled", "sigma": 0.02, "delta": 0.1, "cohort_size": cohort}
    jax.eval_shape(lambda key: fed.fedcg_plus(key, problem, PARTITION, 3, 5, **settings), KEY)
    gradients = 3 * 5 * (cohort or CLIENTS)
    assert set(sizes) == {np.ceil(np.log(2 * N * gradients / 0.1) / (2 * 0.02**2))}


def test_every_sampled_gradient_has_a_separate_key(monkeypatch):
    """With one key for several steps, clients or rounds they would select the same bases."""
    module = importlib.import_module("fedjax_fair.submodular.federated.fedcg_plus")
    monkeypatch.setattr(
        module, "sampled_mean", lambda key, gains, x, samples: jax.random.uniform(key, x.shape)
    )
    uniform, steps = matroids.Uniform(2, N), 5
    run = solve(lambda key, p: fed.fedcg_plus(key, p, uniform, 2, steps, gradient="sampled"))
    chosen = np.asarray(run.directions) * CLIENTS * steps  # How often each item was chosen.
    np.testing.assert_allclose(chosen, np.round(chosen), atol=1e-4)
    counts = np.round(chosen).astype(int)
    assert (counts % steps != 0).any()
    assert (counts % CLIENTS != 0).any()
    assert (counts[0] != counts[1]).any()


def test_the_progress_of_estimated_gradients_is_unbiased():
    """Evaluating a direction by the estimate that it maximizes would be biased."""
    rounds, uniform = 4, matroids.Uniform(2, N)
    scores = np.random.default_rng(2).uniform(0.5, 1.5, (1, N)).astype(np.float32)

    @jax.jit
    @partial(jax.vmap, in_axes=(0, None))
    def errors_of(key, scores):
        problem = fed.custom(
            lambda mask, row: jnp.max(row, where=mask, initial=0), scores, size=N, samples=1
        )
        run = fed.fedcg(key, problem, uniform, rounds, send="gradient")
        before = run.x - run.directions[-1] / rounds
        exact = fed.facility_location(scores).extensions(key, before).gradients
        gradient = fed.secure_aggregate(exact.messages(jnp.ones(1)), N)
        return run.progress[-1] - run.directions[-1] @ gradient

    errors = np.asarray(errors_of(jax.random.split(KEY, 2000), scores))
    assert np.abs(errors.mean()) < 4 * errors.std() / np.sqrt(len(errors))


def test_importance_factors_are_the_largest_shares():
    importance = solve(lambda key, problem: fed.importance_factors(problem, WEIGHTS))
    values = WEIGHTS[:, None] * SCORES
    np.testing.assert_allclose(importance.singles, values.sum(axis=0), rtol=1e-5)
    np.testing.assert_allclose(
        importance.factors, (values / values.sum(axis=0)).max(axis=1), rtol=1e-5
    )
    assert np.sum(importance.factors) <= N
    assert importance.communication.bits_up().tolist() == [CLIENTS * N * 32, 0]
    assert importance.communication.bits_down().tolist() == [0, CLIENTS * N * 32]
    # Algorithm 5: one over the size of the smallest group that a client is in.
    groups = np.array([[1, 1, 0], [1, 0, 0], [1, 0, 0], [0, 0, 0]], bool)
    factors = jax.jit(lambda g: fed.importance_factors(fed.max_coverage(g)).factors)(groups)
    np.testing.assert_allclose(factors, [1, 1 / 3, 1 / 3, 0], rtol=1e-6)


@jax.jit
def discrete(kappa, weights):
    """Runs discrete greedy on a partition."""
    settings = {"kappa": kappa, "client_weights": weights}
    return fed.discrete_greedy(KEY, fed.facility_location(SCORES), PARTITION, **settings)


def test_discrete_greedy_with_all_responses_equals_greedy():
    uniform = matroids.Uniform(3, N)

    def runs(key, problem):
        alone = [
            fed.centralized_greedy(problem, matroid, client_weights=WEIGHTS)
            for matroid in (PARTITION, uniform)
        ]
        other = fed.discrete_greedy(key, problem, uniform, kappa=1e9, client_weights=WEIGHTS)
        plain = fed.centralized_greedy(problem, uniform)
        return alone, other, plain, sm.greedy(sm.facility_location(SCORES), 3)

    alone, other, plain, chosen = solve(runs)
    for one, all_respond in zip(alone, (discrete(1e9, WEIGHTS), other), strict=True):
        np.testing.assert_array_equal(all_respond.items, one.items)
        np.testing.assert_allclose(all_respond.values, one.values, rtol=1e-5)
        assert all_respond.communication.responded.tolist() == [CLIENTS] * 3
    assert jax.jit(PARTITION.independent)(alone[0].chosen)
    np.testing.assert_array_equal(plain.items, chosen.items)
    np.testing.assert_allclose(plain.values[-1], chosen.value / CLIENTS, rtol=1e-5)


def test_clients_respond_in_proportion_to_their_importance():
    kappa = 2.0

    def runs(key, problem):
        def run(key, resample):
            settings = {"kappa": kappa, "resample": resample}
            return fed.discrete_greedy(key, problem, PARTITION, **settings).communication.responded

        keys = jax.random.split(key, 2000)
        every = [jax.vmap(lambda key, r=r: run(key, r))(keys) for r in (True, False)]
        return *every, fed.importance_factors(problem).factors

    fresh, fixed, factors = map(np.asarray, solve(runs))
    responses = np.minimum(1, kappa * factors).sum()
    # A standard error is at most sqrt(7 / 4 / 2000) = 0.03.
    np.testing.assert_allclose(fresh.mean(axis=0), responses, atol=0.12)
    assert (fresh[:, 0] != fresh[:, 1]).any()
    assert (fixed == fixed[:, :1]).all()
    np.testing.assert_allclose(fixed[:, 0].mean(), responses, atol=0.12)


def test_estimated_gains_are_unbiased(problem):
    """Gains are divided by the probability of a response."""
    module = importlib.import_module("fedjax_fair.submodular.federated.discrete_greedy")
    sums = []

    def record(messages, size, _):
        sums.append(fed.secure_aggregate(messages, size))
        return sums[-1]

    def first_step(step, start, numbers):
        return jax.tree.map(lambda leaf: jnp.stack([leaf]), step(start, numbers[0]))

    def total(key):
        fed.discrete_greedy(key, problem, matroids.Uniform(1, N), kappa=0.8)
        return sums.pop()

    outside = SimpleNamespace(lax=SimpleNamespace(scan=first_step), random=jax.random)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "secure_aggregate", record)
        patch.setattr(module, "jax", outside)
        # Values recorded inside of jit could not be used outside.
        patch.setattr(module, "_discrete_greedy", module._discrete_greedy.__wrapped__)
        totals = np.asarray(jax.jit(jax.vmap(total))(jax.random.split(KEY, 20_000)))
    np.testing.assert_allclose(totals.mean(axis=0), SCORES.mean(axis=0), rtol=0.05)


def test_without_responses_the_first_feasible_item_is_added():
    run = discrete(1e-9, WEIGHTS)
    assert run.communication.responded.tolist() == [0, 0, 0]
    assert run.items.tolist() == [0, 1, 3]  # Items 2 and 4 are no longer feasible.


def test_communicated_bits():
    matroid = matroids.Uniform(3, 9)

    def runs(key, problem):
        every = (
            fed.fedcg(key, problem, matroid, 2),
            fed.fedcg(key, problem, matroid, 2, send="gradient", cohort_size=2),
            fed.fedcg_plus(key, problem, matroid, 2, 3, cohort_size=2),
            fed.discrete_greedy(key, problem, matroid, kappa=100.0),
        )
        return [run.communication for run in every]

    base, gradient, plus, greedy = solve(runs, np.ones((5, 9), np.float32))
    assert base.bits_up().tolist() == [5 * 3 * 4] * 2
    assert base.bits_down().tolist() == [5 * 9 * 32] * 2
    assert gradient.bits_up().tolist() == [2 * 9 * 32] * 2
    assert gradient.contacted.tolist() == [2, 2]
    assert plus.bits_up().tolist() == [2 * 9 * 32] * 2
    assert greedy.bits_up().tolist() == [5 * 9 * 32] * 3
    assert greedy.bits_down().tolist() == [0, 5 * 4, 5 * 8]
    big = fed.Communication(*(np.array([10**6], np.int32),) * 4)
    assert big.bits_up().tolist() == [10**12]


def test_the_order_of_clients_does_not_matter():
    shuffled = RNG.permutation(CLIENTS)

    @jax.jit
    def run(scores, weights):
        problem = fed.facility_location(scores)
        return fed.fedcg(KEY, problem, PARTITION, 4, client_weights=weights).x

    one, other = run(SCORES, WEIGHTS), run(SCORES[shuffled], WEIGHTS[shuffled])
    np.testing.assert_allclose(one, other, atol=1e-6)


def test_baselines():
    def runs(key, problem):
        top = fed.top_singletons(problem, PARTITION, client_weights=WEIGHTS)
        singles = PARTITION.max_weight_base(jnp.asarray(WEIGHTS @ SCORES))
        random = jax.vmap(lambda key: fed.random_base(key, PARTITION))
        bases = random(jax.random.split(key, 3000))
        return top, singles, bases, jax.vmap(PARTITION.independent)(bases)

    top, expected, bases, independent = map(np.asarray, solve(runs))
    np.testing.assert_array_equal(top, expected)
    assert independent.all()
    shares = [1 / 3, 2 / 3] * 3
    np.testing.assert_allclose(bases.mean(axis=0), shares, atol=0.04)  # 4 standard errors.


def test_conversion_to_a_dataset(sampled_runs):
    runs = jax.tree.map(lambda leaf: leaf[:3], sampled_runs)
    dataset = to_dataset(runs, seeds=(5, 6, 7))
    assert dict(dataset.sizes) == {"seed": 3, "round": 3, "training_round": 2, "item": N}
    np.testing.assert_array_equal(dataset.extension, runs.extension)
    assert dataset.bits_up.dtype == np.int64
    assert dataset.bits_up.isel(seed=1).values.tolist() == [0, 27, 54]
    assert dataset.contacted.isel(seed=0).values.tolist() == [0, 3, 6]
    greedy = to_dataset(discrete(1e9, WEIGHTS))
    assert dict(greedy.sizes) == {"round": 4, "item": N}
    assert greedy.responded.values.tolist() == [0, CLIENTS, 2 * CLIENTS, 3 * CLIENTS]


class Inexact(fed.FacilityLocation):
    exact = False


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: fed.fedcg(KEY, p, PARTITION, 4, step=0.3), "step="),
        (lambda p: fed.fedcg(KEY, p, PARTITION, 4, step=0.0), "step=0.0"),
        (lambda p: fed.fedcg(KEY, p, PARTITION, 0), "rounds=0"),
        (lambda p: fed.fedcg(KEY, p, PARTITION, 4, cohort_size=0), "cohort_size=0"),
        (lambda p: fed.fedcg(KEY, p, PARTITION, 4, send="vote"), "send='vote'"),
        (lambda p: fed.fedcg(KEY, p, matroids.Uniform(2, 5), 4), "got one of 5 items.*6 items"),
        (lambda p: fed.fedcg(KEY, p, PARTITION, 4, client_weights=2 * WEIGHTS), "got a sum of 2"),
        (
            lambda p: fed.fedcg(KEY, p, PARTITION, 4, client_weights=[-1.0, 2, 0, 0, 0, 0, 0]),
            "client_weights",
        ),
        (lambda p: fed.fedcg_plus(KEY, p, PARTITION, 4, 0), "local_steps=0"),
        (lambda p: fed.fedcg_plus(KEY, p, PARTITION, 4, 2, cohort_size=0), "cohort_size=0"),
        (lambda p: fed.fedcg_plus(KEY, p, PARTITION, 4, 2, local="cut"), "local='cut'"),
        (lambda p: fed.fedcg_plus(KEY, p, PARTITION, 4, 2, sigma=0.0), "sigma=0.0"),
        (
            lambda p: fed.fedcg_plus(KEY, Inexact(p.scores, p.ranked), PARTITION, 4, 2),
            "facility_location has no exact",
        ),
        (lambda p: fed.discrete_greedy(KEY, p, PARTITION), "exactly one"),
        (lambda p: fed.discrete_greedy(KEY, p, PARTITION, kappa=1.0, epsilon=0.5), "exactly one"),
        (lambda p: fed.discrete_greedy(KEY, p, PARTITION, kappa=0.0), "kappa=0.0"),
        (lambda p: fed.discrete_greedy(KEY, p, PARTITION, epsilon=1.0), "epsilon=1.0"),
        (lambda p: fed.discrete_greedy(KEY, p, PARTITION, epsilon=0.0), "epsilon=0"),
        (lambda p: fed.centralized_greedy(p, matroids.Uniform(1, 2)), "got one of 2"),
        (lambda p: fed.top_singletons(p, matroids.Uniform(1, 2)), "got one of 2"),
        (lambda p: compare(p, matroids.Uniform(1, 2), baselines(), (0,)), "got one of 2"),
    ],
)
def test_bad_input(problem, call, message):
    with pytest.raises(ValueError, match=message):
        call(problem)
