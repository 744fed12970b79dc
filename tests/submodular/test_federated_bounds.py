"""Tests of the paper's inequalities on 100 random instances of every problem."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_fair.submodular import federated as fed
from fedjax_fair.submodular import matroids
from fedjax_fair.submodular.federated import bounds

INSTANCES, CLIENTS, N, ROUNDS = 100, 4, 6, 6
SETS = np.array(list(itertools.product([False, True], repeat=N)))
PLACES = 2 ** np.arange(N, dtype=np.int32)[::-1]
RNG = np.random.default_rng(0)
# Rounding errors of values of a few units.
TOLERANCE = 2e-5


def tables():
    """Evaluates feature selection of 100 instances at once, for lookups."""
    features = [RNG.integers(0, 2, (20, N)) for _ in range(INSTANCES * CLIENTS)]
    labels = [(rows[:, :3].sum(axis=1) + RNG.integers(0, 2, 20)) // 2 for rows in features]

    @jax.jit
    def values(sets):
        return jax.vmap(fed.feature_selection(features, labels).values)(sets)

    return values(SETS).T.reshape(INSTANCES, CLIENTS, len(SETS))


def roots():
    """Evaluates square roots of sums on all sets."""
    amounts = RNG.gamma(0.3, size=(INSTANCES, CLIENTS, N))
    return np.sqrt(amounts @ SETS.T)


def from_table(table):
    return fed.custom(lambda mask, row: row[jnp.sum(PLACES, where=mask)], table, size=N)


def solver(make, matroid):
    """Returns a compiled function for optima, largest values and runs of all instances."""

    @jax.jit
    @jax.vmap
    def solve(key, data, shares):
        problem = make(data)
        allowed = jax.vmap(matroid.independent)(SETS)
        weights = shares[: problem.num_clients] / jnp.sum(shares[: problem.num_clients])
        values = jax.vmap(problem.values)(SETS) @ weights
        return (
            jnp.max(values, where=allowed, initial=0),
            bounds.largest_single(problem, weights),
            fed.fedcg(key, problem, matroid, ROUNDS, client_weights=weights),
            fed.fedcg(key, problem, matroid, ROUNDS, send="gradient", client_weights=weights),
            fed.centralized_greedy(problem, matroid, client_weights=weights).values[-1],
        )

    return solve


LAMINAR = matroids.Laminar([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]], [1, 2])
FROM_TABLE = solver(from_table, LAMINAR)  # Compiled once for two problems.

# name: (data of all instances, solver)
PROBLEMS = {
    "facility_location": (
        lambda: RNG.gamma(0.3, size=(INSTANCES, CLIENTS, N)),
        solver(fed.facility_location, matroids.Uniform(2, N)),
    ),
    "max_coverage": (
        lambda: RNG.random((INSTANCES, CLIENTS, N)) < 0.3,
        solver(fed.max_coverage, matroids.Partition([0, 0, 0, 1, 1, 1], [1, 2])),
    ),
    "combinatorial_public_projects": (
        lambda: RNG.gamma(0.3, size=(INSTANCES, CLIENTS, 3, N)),
        solver(fed.combinatorial_public_projects, LAMINAR),
    ),
    "welfare": (
        lambda: RNG.gamma(0.3, size=(INSTANCES, 2, 2, 3)),
        solver(
            lambda values: fed.Welfare(fed.combinatorial_public_projects(values)),
            matroids.allocation(3, 2),
        ),
    ),
    "feature_selection": (tables, FROM_TABLE),
    "custom": (roots, FROM_TABLE),
}


@pytest.fixture(params=PROBLEMS, scope="module")
def instances(request):
    data, solve = PROBLEMS[request.param]
    keys = jax.random.split(jax.random.key(0), INSTANCES)
    shares = RNG.uniform(0.5, 1.5, (INSTANCES, CLIENTS)).astype(np.float32)
    return jax.tree.map(np.asarray, solve(keys, np.asarray(data()), shares))


@jax.jit
def slacks(run, optimum, largest):
    """Slacks of three inequalities of a round with all clients; negative if violated."""
    optimum, largest = optimum[:, None], largest[:, None]
    step, rank = run.step[:, None], run.rank[:, None]
    before, after = run.extension[:, :-1], run.extension[:, 1:]
    missing = optimum - before
    curvature = step**2 * rank**2 * largest / 2
    return {
        "client_base_gain": run.client_base_gain - missing,
        "direction": run.progress + rank * run.spread - missing,
        "ascent": after - before - step * run.progress + curvature,
    }


@jax.jit
def slack_of_theorem_3_2(run, optimum, largest):
    def slack(run, optimum, largest):
        return bounds.theorem_3_2(run, largest).slack(run.extension[-1], optimum)

    return jax.vmap(slack)(run, optimum, largest)


def test_three_inequalities_hold_in_every_round(instances):
    optimum, largest, base, gradient, _ = instances
    for run in (base, gradient):
        for name, slack in slacks(run, optimum, largest).items():
            assert slack.shape == (INSTANCES, ROUNDS)
            assert float(slack.min()) >= -TOLERANCE, name


def test_inequalities_fail_without_their_error_terms(instances):
    """Voting with bases needs the spread; a step of finite length needs the curvature."""
    optimum, largest, base, _, _ = instances
    spreadless = base._replace(spread=np.zeros_like(base.spread))
    assert float(slacks(spreadless, optimum, largest)["direction"].min()) < -0.01
    assert float(slacks(base, optimum, np.zeros_like(largest))["ascent"].min()) < -TOLERANCE


def test_theorem_3_2_and_upper_bounds_of_the_optimum(instances):
    optimum, largest, base, gradient, greedy = instances
    for run in (base, gradient):
        assert float(slack_of_theorem_3_2(run, optimum, largest).min()) >= -TOLERANCE
        assert (run.extension[:, :-1] + run.max_base_gain >= optimum[:, None] - TOLERANCE).all()
        assert (run.extension <= optimum[:, None] + TOLERANCE).all()
        assert (run.rounded <= optimum[:, None] + TOLERANCE).all()
    assert (greedy >= 0.5 * optimum - TOLERANCE).all()
    assert (greedy <= optimum + TOLERANCE).all()


def test_gradients_have_the_guarantee_of_continuous_greedy(instances):
    """The error has no spread if the server knows the mean gradient (Vondrak 2008)."""
    optimum, largest, _, run, _ = instances
    error = ROUNDS * run.step**2 * run.rank**2 * largest / 2
    factor = 1 - (1 - 1 / ROUNDS) ** ROUNDS
    assert (run.extension[:, -1] + error >= factor * optimum - TOLERANCE).all()


def test_theorems_with_sampled_clients_hold_with_their_probability():
    scores = np.random.default_rng(3).gamma(0.3, size=(12, N)).astype(np.float32)
    values = np.where(SETS[:, None], scores, 0).max(axis=2).mean(axis=1)
    optimum, matroid, delta = (
        float(values[SETS.sum(axis=1) <= 2].max()),
        matroids.Uniform(2, N),
        0.2,
    )

    @jax.jit
    @jax.vmap
    def solve(key):
        problem = fed.facility_location(scores)
        largest = bounds.largest_single(problem)
        run = fed.fedcg(key, problem, matroid, 20, cohort_size=3)
        guarantee = bounds.theorem_3_5(run, largest, cohort_size=3, delta=delta)
        plus = fed.fedcg_plus(key, problem, matroid, 5, 4, cohort_size=3)
        guarantee_plus = bounds.theorem_4_3(plus, largest, cohort_size=3, delta=delta, sigma=0.0)
        return (
            guarantee.slack(run.extension[-1], optimum),
            guarantee_plus.slack(plus.extension[-1], optimum),
            plus.lipschitz,
        )

    keys = jax.random.split(jax.random.key(1), 200)
    slack, slack_plus, lipschitz = map(np.asarray, solve(keys))
    assert np.mean(slack < 0) <= delta
    assert np.mean(slack_plus < 0) <= delta
    assert (lipschitz > 0).any()


RUN = fed.ContinuousRun(
    x=np.zeros(4, np.float32), step=np.float32(0.5), rank=np.float32(4),
    directions=np.zeros((2, 4), np.float32), extension=np.array([0, 1, 2], np.float32),
    rounded=np.zeros(3, np.float32), spread=np.array([1, 2], np.float32),
    client_base_gain=np.array([5, 4], np.float32), progress=np.array([3, 2], np.float32),
    max_base_gain=np.array([6, 4], np.float32), lipschitz=np.array([0.5, 0.25], np.float32),
    communication=fed.Communication(*[np.zeros(2, np.int32)] * 4),
)  # fmt: skip


def test_formulas_by_hand():
    run = RUN
    full = bounds.theorem_3_2(run, 0.125)
    assert (float(full.factor), float(full.error)) == (0.75, 0.5 * 4 * 3 + 0.5)
    # Root of 2 / (2 * 0.25) is 2.
    part = bounds.theorem_3_5(run, 0.125, cohort_size=2, delta=0.25)
    assert float(part.error) == 6.5 + 6 * 0.5 * 4 * 3 * 2
    plus = bounds.theorem_4_3(run, 0.125, cohort_size=2, delta=0.25, sigma=0.5)
    local = 2 * 2 * 0.5 * 4 + 2 * 8 * 0.75
    assert float(plus.error) == 6.5 + 0.5 * (local + 2 * (6 * 4 * 3 + local))
    summary = bounds.report(run, full, value=1.5, greedy=3.0)
    assert summary["optimum_upper_bound"] == 5.0
    assert summary["ratio"] == 0.5
    assert summary["guaranteed"] == 0.75 * 3 - 6.5
    assert summary["slack"] == 2 - summary["guaranteed"]


def test_theorem_5_1_on_random_instances():
    scores = RNG.gamma(0.3, size=(40, 300, N)).astype(np.float32)
    matroid, epsilon = matroids.Uniform(2, N), 0.4

    @jax.jit
    @jax.vmap
    def solve(key, scores):
        problem = fed.facility_location(scores)
        run = fed.discrete_greedy(key, problem, matroid, epsilon=epsilon, resample=False)
        return run.values[-1] / jnp.max(
            jax.vmap(problem.values)(SETS[SETS.sum(axis=1) <= 2]).mean(axis=1)
        )

    ratios = np.asarray(solve(jax.random.split(jax.random.key(0), 40), scores))
    guarantee = bounds.theorem_5_1(epsilon, size=N, cardinality=True)
    assert np.mean(ratios < guarantee.factor) <= 1 - guarantee.probability
    half = bounds.theorem_5_1(0.1, size=5, cardinality=False)
    assert half[:2] == (0.5 * 0.9 / 1.1, 0.0)
    # Less than the paper's 1 - 1/e - 0.1.
    assert bounds.theorem_5_1(0.1, size=5, cardinality=True).factor == (1 - np.exp(-1)) * 0.9 / 1.1


def test_theorem_4_3_is_nan_with_estimated_gradients():
    rates = RNG.gamma(1.0, size=(3, N)).astype(np.float32)
    problem = fed.custom(lambda mask, row: jnp.sum(row, where=mask), rates, N, samples=2)

    @partial(jax.jit, static_argnums=0)
    def solve(local_steps):
        return fed.fedcg_plus(
            jax.random.key(0), problem, matroids.Uniform(2, N), 2, local_steps,
            gradient="sampled", sigma=0.9, delta=0.9,
        )  # fmt: skip

    assert np.isnan(solve(2).lipschitz).all()
    plus = bounds.theorem_4_3(solve(2), 1.0, cohort_size=3, delta=0.5, sigma=0.1)
    assert np.isnan(plus.error)
    assert (solve(1).lipschitz == 0).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cohort_size": 0}, "cohort_size=0"),
        ({"delta": 0.0}, "delta=0.0"),
        ({"sigma": -1.0}, "sigma=-1.0"),
    ],
)
def test_bad_input(settings, message):
    with pytest.raises(ValueError, match=message):
        bounds.theorem_4_3(RUN, 1.0, **{"cohort_size": 2, "delta": 0.1, "sigma": 0.0, **settings})
