"""Federated maximizers: against plain loops, against each other, and what the server may see."""

import importlib
import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_fair import submodular as sm
from fedjax_fair.submodular import federated as fed
from fedjax_fair.submodular import matroids
from fedjax_fair.submodular.federated.problem import Bases, Gains
from fedjax_fair.submodular.federated.trajectory import to_dataset

CLIENTS, N = 7, 6
RNG = np.random.default_rng(0)
SCORES = RNG.gamma(0.3, size=(CLIENTS, N)).astype(np.float32)
WEIGHTS = RNG.dirichlet(np.ones(CLIENTS)).astype(np.float32)
SETS = np.array(list(itertools.product([False, True], repeat=N)))
KEY = jax.random.key(0)
PARTITION = matroids.partition([0, 1, 0, 1, 0, 1], [1, 2])


def solve(algorithm, *arguments, **settings):
    """One compilation of all, where calls from outside would compile every operation alone."""
    return jax.jit(lambda key: algorithm(key, *arguments, **settings))(KEY)


@pytest.fixture(scope="module")
def problem():
    return fed.facility_location(SCORES)


def plain_fedcg(rounds, weights):
    """Algorithm 1 as printed, in double precision, by enumeration."""
    values = np.array([np.where(mask, SCORES, 0).max(axis=1) for mask in SETS], np.float64)

    def expected(x):
        return np.where(SETS, x, 1 - x).prod(axis=1) @ values

    x, path = np.zeros(N), []
    for _ in range(rounds):
        unit = np.eye(N, dtype=bool)
        gains = [expected(np.where(e, 1.0, x)) - expected(np.where(e, 0.0, x)) for e in unit]
        votes = [np.isin(np.arange(N), np.argsort(-own, kind="stable")[:2])
                 for own in np.transpose(gains)]  # fmt: skip
        path.append((weights @ expected(x), np.max(np.abs(np.array(gains) - np.array(gains)
                     @ weights[:, None]))))  # fmt: skip
        x = x + weights @ np.array(votes) / rounds
    return x, np.array(path).T


def test_fedcg_is_algorithm_1(problem):
    x, (extension, spread) = plain_fedcg(5, WEIGHTS.astype(float))
    run = solve(fed.fedcg, problem, matroids.uniform(2, N), 5, client_weights=WEIGHTS)
    np.testing.assert_allclose(run.x, x, atol=1e-5)
    np.testing.assert_allclose(run.extension[:-1], extension, atol=1e-5)
    np.testing.assert_allclose(run.spread, spread, atol=1e-5)
    np.testing.assert_allclose(run.extension[-1], WEIGHTS @ problem.extensions(KEY, run.x).values)
    np.testing.assert_allclose(run.x, run.directions.mean(axis=0), atol=1e-6)


def test_few_clients_are_right_on_average(problem):
    def first(key):
        settings = {"rounds": 2, "cohort": 3, "client_weights": WEIGHTS}
        return fed.fedcg(key, problem, PARTITION, **settings).directions

    found = jax.jit(jax.vmap(first))(jax.random.split(KEY, 4000))
    everybody = solve(fed.fedcg, problem, PARTITION, 2, client_weights=WEIGHTS).directions
    # Standard errors are at most 0.5 / sqrt(3 * 4000) = 0.005.
    np.testing.assert_allclose(found[:, 0].mean(axis=0), everybody[0], atol=0.02)
    np.testing.assert_allclose(3 * found, np.round(3 * found), atol=1e-5)
    np.testing.assert_allclose(found.sum(axis=-1), PARTITION.rank, rtol=1e-5)
    assert (found[:, 0] != found[:, 1]).any(axis=1).mean() > 0.5  # Others in every round.


def test_with_gradients_it_is_continuous_greedy(problem):
    sent = solve(fed.fedcg, problem, PARTITION, 8, send="gradient")
    alone = solve(fed.centralized_continuous_greedy, problem, PARTITION, 8)
    np.testing.assert_array_equal(sent.x, alone.x)
    np.testing.assert_array_equal(sent.extension, alone.extension)
    assert alone.communication.bits_up().sum() == 0


def test_voting_splits_welfare_equally_and_gradients_do_not():
    """The warning of the specification: bases tell nothing of how much an agent cares."""
    valuations = RNG.gamma(0.5, size=(3, 1, 4)).astype(np.float32)
    additive = np.eye(4, dtype=np.float32)[None] * valuations
    problem = fed.welfare(fed.combinatorial_public_projects(additive))
    allocation = matroids.allocation(4, 3)
    voted = solve(fed.fedcg, problem, allocation, 10)
    # Agent 0 comes first where it gains nothing too, so what others do not claim goes to it.
    np.testing.assert_allclose(voted.x.reshape(4, 3)[:, 1:], 1 / 3, atol=1e-5)
    sent = solve(fed.fedcg, problem, allocation, 10, send="gradient")
    best = valuations[:, 0].max(axis=0).sum() / 3
    np.testing.assert_allclose(sent.extension[-1], best, rtol=1e-5)
    assert float(voted.extension[-1]) < 0.8 * best


def test_sparse_problems_run_as_dense_ones_do():
    # No client scores two items alike: rounding would decide between equal gains.
    ratings = np.argsort(RNG.random((20, 12)))[:, :N].astype(np.float32) - 3
    ratings = np.maximum(ratings, 0)
    clients, items = np.nonzero(ratings)
    listed = fed.sparse_scores(clients, items, ratings[clients, items], num_clients=20, size=N)
    assert listed.cells is not None
    dense, sparse = fed.facility_location(ratings), fed.facility_location(listed)
    for settings in ({}, {"send": "gradient"}, {"cohort": 4}):
        runs = [solve(fed.fedcg, one, matroids.uniform(2, N), 3, **settings)
                for one in (dense, sparse)]  # fmt: skip
        for one, other in zip(*map(jax.tree.leaves, runs), strict=True):
            np.testing.assert_allclose(one, other, atol=2e-6)
    runs = [fed.centralized_greedy(one, PARTITION) for one in (dense, sparse)]
    np.testing.assert_array_equal(runs[0].items, runs[1].items)
    runs = [solve(fed.discrete_greedy, one, PARTITION, kappa=9.0) for one in (dense, sparse)]
    np.testing.assert_array_equal(runs[0].items, runs[1].items)


def test_one_local_step_is_fedcg(problem):
    for cohort in (None, 3):
        plain = solve(fed.fedcg, problem, PARTITION, 4, cohort=cohort, client_weights=WEIGHTS)
        plus = solve(
            fed.fedcg_plus, problem, PARTITION, 4, 1, cohort=cohort, client_weights=WEIGHTS
        )
        np.testing.assert_allclose(plus.x, plain.x, atol=1e-6)
        np.testing.assert_allclose(plus.promised, plain.promised, atol=1e-6)
        assert (plus.communication.bits_up() == plain.communication.bits_up()).all()


def plain_local(own, x, local_steps, local_step):
    """A client's turn of Algorithm 2 on its two passes, one item at a time."""
    y, change = x.copy(), np.zeros(N)
    for _ in range(local_steps):
        gains = np.zeros(N)
        for e in range(N):
            others = np.arange(N) != e
            masks = SETS[~SETS[:, e]]
            chance = np.where(masks, y, 1 - y)[:, others].prod(axis=1)
            lifted = np.maximum(np.where(masks, own, 0).max(axis=1), own[e])
            gains[e] = chance @ (lifted - np.where(masks, own, 0).max(axis=1))
        base = np.isin(np.arange(N), np.argsort(-gains, kind="stable")[:2])
        y = np.minimum(y + local_step * base, 1)
        change += base / local_steps
    return change


@pytest.mark.parametrize("local", ["clip", "scaled"])
def test_fedcg_plus_is_algorithm_2(problem, local):
    rounds, local_steps = 2, 3
    x = np.zeros(N)
    local_step = (1 if local == "clip" else 1 / rounds) / local_steps
    for _ in range(rounds):
        changes = [plain_local(own, x, local_steps, local_step) for own in SCORES.astype(float)]
        x = x + WEIGHTS @ np.array(changes) / rounds
    run = solve(fed.fedcg_plus, problem, matroids.uniform(2, N), rounds, local_steps, local=local,
        client_weights=WEIGHTS,
    )  # fmt: skip
    np.testing.assert_allclose(run.x, x, atol=1e-5)


def test_sampled_gradients_come_near_exact_ones(problem):
    settings = {"rounds": 3, "local_steps": 2, "client_weights": WEIGHTS}
    exact = solve(fed.fedcg_plus, problem, PARTITION, **settings)
    settings |= {"gradient": "sampled"}
    coarse = solve(fed.fedcg_plus, problem, PARTITION, sigma=2.0, **settings)
    fine = solve(fed.fedcg_plus, problem, PARTITION, sigma=0.1, **settings)
    assert np.abs(coarse.x - exact.x).max() > 0.05
    np.testing.assert_allclose(fine.x, exact.x, atol=0.05)


def test_importance_factors_are_the_largest_shares(problem):
    found = fed.importance_factors(problem, WEIGHTS)
    worth = WEIGHTS[:, None] * SCORES
    np.testing.assert_allclose(found.singles, worth.sum(axis=0), rtol=1e-5)
    np.testing.assert_allclose(found.factors, (worth / worth.sum(axis=0)).max(axis=1), rtol=1e-5)
    assert found.factors.sum() <= N
    assert found.communication.bits_up().tolist() == [CLIENTS * N * 32, 0]
    assert found.communication.bits_down().tolist() == [0, CLIENTS * N * 32]
    # Algorithm 5: one over the size of the smallest group that a client is in.
    groups = np.array([[1, 1, 0], [1, 0, 0], [1, 0, 0], [0, 0, 0]], bool)
    factors = fed.importance_factors(fed.max_coverage(groups)).factors
    np.testing.assert_allclose(factors, [1, 1 / 3, 1 / 3, 0], rtol=1e-6)


def test_when_all_answer_it_is_greedy(problem):
    for matroid in (PARTITION, matroids.uniform(3, N)):
        alone = fed.centralized_greedy(problem, matroid, client_weights=WEIGHTS)
        all_answer = solve(fed.discrete_greedy, problem, matroid, kappa=1e9, client_weights=WEIGHTS)
        np.testing.assert_array_equal(all_answer.items, alone.items)
        np.testing.assert_allclose(all_answer.values, alone.values, rtol=1e-5)
        assert matroid.independent(alone.chosen)
        assert all_answer.communication.responded.tolist() == [CLIENTS] * 3
    chosen = sm.greedy(sm.facility_location(SCORES), 3)
    alone = fed.centralized_greedy(problem, matroids.uniform(3, N))
    np.testing.assert_array_equal(alone.items, chosen.items)
    np.testing.assert_allclose(alone.values[-1], chosen.value / CLIENTS, rtol=1e-5)


def test_clients_answer_as_often_as_they_matter(problem):
    kappa, keys = 2.0, jax.random.split(KEY, 2000)
    answers = np.minimum(1, kappa * np.asarray(fed.importance_factors(problem).factors))

    def run(key, resample):
        return fed.discrete_greedy(key, problem, PARTITION, kappa=kappa, resample=resample)

    fresh = jax.vmap(lambda key: run(key, True))(keys).communication.responded
    # A standard error is at most sqrt(7 / 4 / 2000) = 0.03.
    np.testing.assert_allclose(fresh.mean(axis=0), answers.sum(), atol=0.12)
    assert (fresh[:, 0] != fresh[:, 1]).any()
    fixed = jax.vmap(lambda key: run(key, False))(keys).communication.responded
    assert (fixed == fixed[:, :1]).all()
    np.testing.assert_allclose(fixed[:, 0].mean(), answers.sum(), atol=0.12)


def test_answers_are_right_on_average(problem):
    """Unlikely ones count for as much more: any other scaling would prefer other items."""
    module = importlib.import_module("fedjax_fair.submodular.federated.discrete_greedy")
    sums = []

    def keep(messages, size):
        sums.append(fed.secure_aggregate(messages, size))
        return sums[-1]

    def first_step(step, start, numbers):
        return jax.tree.map(lambda leaf: jnp.stack([leaf]), step(start, numbers[0]))

    def total(key):
        fed.discrete_greedy(key, problem, matroids.uniform(1, N), kappa=0.8)
        return sums.pop()

    outside = SimpleNamespace(lax=SimpleNamespace(scan=first_step), random=jax.random)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "secure_aggregate", keep)
        patch.setattr(module, "jax", outside)
        found = jax.jit(jax.vmap(total))(jax.random.split(KEY, 20_000)).mean(axis=0)
    np.testing.assert_allclose(found, SCORES.mean(axis=0), rtol=0.05)


def test_if_nobody_answers_the_first_item_allowed_is_added(problem):
    run = solve(fed.discrete_greedy, problem, PARTITION, kappa=1e-9)
    assert run.communication.responded.tolist() == [0, 0, 0]
    assert run.items.tolist() == [0, 1, 3]  # Items 2 and 4 are no longer allowed then.


def test_bits_are_counted_as_in_the_paper():
    problem = fed.facility_location(np.ones((5, 9), np.float32))
    matroid = matroids.uniform(3, 9)
    base = solve(fed.fedcg, problem, matroid, 2).communication
    assert base.bits_up().tolist() == [5 * 3 * 4] * 2
    assert base.bits_down().tolist() == [5 * 9 * 32] * 2
    gradient = solve(fed.fedcg, problem, matroid, 2, send="gradient", cohort=2).communication
    assert gradient.bits_up().tolist() == [2 * 9 * 32] * 2
    assert gradient.contacted.tolist() == [2, 2]
    plus = solve(fed.fedcg_plus, problem, matroid, 2, 3, cohort=2).communication
    assert plus.bits_up().tolist() == [2 * 9 * 32] * 2
    greedy = solve(fed.discrete_greedy, problem, matroid, kappa=100.0).communication
    assert greedy.bits_up().tolist() == [5 * 9 * 32] * 3
    assert greedy.bits_down().tolist() == [0, 5 * 4, 5 * 8]
    big = fed.Communication(*(jnp.array([10**6], jnp.int32),) * 4)
    assert big.bits_up().tolist() == [10**12]


class Opaque:
    """What a protocol hands to the server: it can be passed on, and nothing else."""

    __slots__ = ("_secret",)

    def __init__(self, secret):
        object.__setattr__(self, "_secret", secret)

    def __getattribute__(self, name):
        raise AssertionError(f"the server looked at {name} of a message")


def sealed(gains):
    """Gains all of whose messages are opaque."""

    def bases(matroid):
        chosen = gains.bases(matroid)
        return Bases(chosen.worth, lambda weights: Opaque(chosen.messages(weights)))

    return Gains(lambda weights: Opaque(gains.messages(weights)), bases, gains.spread, gains.shares)


def secretive(problem):
    def extensions(key, x):
        values, gradients = problem.extensions(key, x)
        return fed.Extensions(values, sealed(gradients))

    return problem._replace(
        extensions=extensions,
        gains=lambda mask: sealed(problem.gains(mask)),
    )


ALGORITHMS = {
    "fedcg": lambda problem: solve(fed.fedcg, problem, PARTITION, 3).x,
    "fedcg gradient": lambda problem: solve(fed.fedcg, problem, PARTITION, 3, send="gradient").x,
    "fedcg cohort": lambda problem: solve(fed.fedcg, problem, PARTITION, 3, cohort=2).x,
    "fedcg_plus": lambda problem: solve(fed.fedcg_plus, problem, PARTITION, 3, 2).x,
    "discrete_greedy": lambda p: solve(fed.discrete_greedy, p, PARTITION, kappa=3.0).items,
    "importance_factors": lambda problem: fed.importance_factors(problem).singles,
}
SERVERS = ("fedcg", "fedcg_plus", "discrete_greedy", "importance_factors", "trajectory")


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_messages_reach_the_server_through_the_secure_sum_only(problem, algorithm, monkeypatch):
    """Opaque messages do, and with the same sums it does the same whatever clients have."""
    sums = jnp.array([0.3, 0.9, 0.1, 0.5, 0.2, 0.4])

    def protocol(messages, size):
        assert type(messages) is Opaque
        return sums

    for name in SERVERS:
        module = importlib.import_module(f"fedjax_fair.submodular.federated.{name}")
        monkeypatch.setattr(module, "secure_aggregate", protocol)
        if hasattr(module, "rows"):
            rows = module.rows
            monkeypatch.setattr(module, "rows", lambda matrix, rows=rows: sealed(rows(matrix)))
    other = fed.facility_location(RNG.gamma(1.0, size=(CLIENTS, N)).astype(np.float32))
    results = [algorithm(secretive(one)) for one in (problem, other)]
    np.testing.assert_array_equal(*results)


def test_the_order_of_clients_does_not_matter(problem):
    shuffled = RNG.permutation(CLIENTS)
    other = fed.facility_location(SCORES[shuffled])
    runs = [solve(fed.fedcg, one, PARTITION, 4, client_weights=weights)
            for one, weights in ((problem, WEIGHTS), (other, WEIGHTS[shuffled]))]  # fmt: skip
    np.testing.assert_allclose(runs[0].x, runs[1].x, atol=1e-6)


def test_references(problem):
    popular = fed.popular_base(problem, PARTITION, client_weights=WEIGHTS)
    expected = PARTITION.max_weight_base(jnp.asarray(WEIGHTS @ SCORES))
    np.testing.assert_array_equal(popular, expected)
    drawn = jax.vmap(lambda key: fed.random_base(key, PARTITION))(jax.random.split(KEY, 3000))
    assert jax.vmap(PARTITION.independent)(drawn).all()
    shares = [1 / 3, 2 / 3] * 3
    np.testing.assert_allclose(drawn.mean(axis=0), shares, atol=0.04)  # 4 standard errors.


def test_datasets(problem):
    keys = jax.random.split(KEY, 3)
    runs = jax.vmap(lambda key: fed.fedcg(key, problem, PARTITION, 4, cohort=2))(keys)
    found = to_dataset(runs, seeds=(5, 6, 7))
    assert dict(found.sizes) == {"seed": 3, "round": 5, "training_round": 4, "item": N}
    np.testing.assert_array_equal(found.extension, runs.extension)
    assert found.bits_up.dtype == np.int64
    assert found.bits_up.isel(seed=1).values.tolist() == [0, 18, 36, 54, 72]
    assert found.contacted.isel(seed=0).values.tolist() == [0, 2, 4, 6, 8]
    greedy = to_dataset(solve(fed.discrete_greedy, problem, PARTITION, kappa=1e9))
    assert dict(greedy.sizes) == {"round": 4, "item": N}
    assert greedy.responded.values.tolist() == [0, CLIENTS, 2 * CLIENTS, 3 * CLIENTS]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: fed.fedcg(KEY, p, PARTITION, 4, step=0.3), "step=0.3, rounds=4.*got 1.2"),
        (lambda p: fed.fedcg(KEY, p, PARTITION, 4, step=0.0), "step=0.0"),
        (lambda p: fed.fedcg(KEY, p, PARTITION, 0), "rounds=0"),
        (lambda p: fed.fedcg(KEY, p, PARTITION, 4, cohort=0), "cohort=0"),
        (lambda p: fed.fedcg(KEY, p, PARTITION, 4, send="vote"), "send='vote'"),
        (lambda p: fed.fedcg(KEY, p, matroids.uniform(2, 5), 4), "6 items.*got 5"),
        (lambda p: fed.fedcg(KEY, p, PARTITION, 4, client_weights=2 * WEIGHTS), "sum of 1, got 2"),
        (
            lambda p: fed.fedcg(KEY, p, PARTITION, 4, client_weights=[-1.0, 2, 0, 0, 0, 0, 0]),
            "client_weights",
        ),
        (lambda p: fed.fedcg_plus(KEY, p, PARTITION, 4, 0), "local_steps=0"),
        (lambda p: fed.fedcg_plus(KEY, p, PARTITION, 4, 2, cohort=0), "cohort=0"),
        (lambda p: fed.fedcg_plus(KEY, p, PARTITION, 4, 2, local="cut"), "local='cut'"),
        (lambda p: fed.fedcg_plus(KEY, p, PARTITION, 4, 2, sigma=0.0), "sigma=0.0"),
        (
            lambda p: fed.fedcg_plus(KEY, p._replace(exact=False), PARTITION, 4, 2),
            "facility_location has no exact",
        ),
        (lambda p: fed.discrete_greedy(KEY, p, PARTITION), "just one"),
        (lambda p: fed.discrete_greedy(KEY, p, PARTITION, kappa=1.0, epsilon=0.5), "just one"),
        (lambda p: fed.discrete_greedy(KEY, p, PARTITION, kappa=0.0), "kappa=0.0"),
        (lambda p: fed.discrete_greedy(KEY, p, PARTITION, epsilon=1.0), "epsilon=1.0"),
        (lambda p: fed.discrete_greedy(KEY, p, PARTITION, epsilon=0.0), "epsilon=0"),
        (lambda p: fed.centralized_greedy(p, matroids.uniform(1, 2)), "got 2"),
        (lambda p: fed.popular_base(p, matroids.uniform(1, 2)), "got 2"),
    ],
)
def test_bad_input(problem, call, message):
    with pytest.raises(ValueError, match=message):
        call(problem)
