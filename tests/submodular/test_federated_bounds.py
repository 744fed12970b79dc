"""The inequalities of the paper on 100 random instances of every problem, with the true optimum."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_fair.submodular import federated as fed
from fedjax_fair.submodular import matroids
from fedjax_fair.submodular.federated import bounds

INSTANCES, CLIENTS, N, ROUNDS = 100, 4, 6, 6
SETS = jnp.array(list(itertools.product([False, True], repeat=N)))
PLACES = 2 ** jnp.arange(N)[::-1]
RNG = np.random.default_rng(0)
# What single precision makes of values of a few units.
TOLERANCE = 2e-5


def tables():
    """Features of 100 instances at once, whose clients' values then are looked up."""
    features = [RNG.integers(0, 2, (20, N)) for _ in range(INSTANCES * CLIENTS)]
    labels = [(own[:, :3].sum(axis=1) + RNG.integers(0, 2, 20)) // 2 for own in features]
    together = fed.feature_selection(features, labels)
    values = jax.jit(jax.vmap(together.values))(SETS).T
    return values.reshape(INSTANCES, CLIENTS, len(SETS))


def looked_up(table):
    return fed.custom(lambda mask, own: own[jnp.sum(PLACES, where=mask)], table, size=N)


# name: (data of all instances, how they become a problem, matroid)
PROBLEMS = {
    "facility_location": (
        lambda: RNG.gamma(0.3, size=(INSTANCES, CLIENTS, N)),
        fed.facility_location,
        matroids.uniform(2, N),
    ),
    "max_coverage": (
        lambda: RNG.random((INSTANCES, CLIENTS, N)) < 0.3,
        fed.max_coverage,
        matroids.partition([0, 0, 0, 1, 1, 1], [1, 2]),
    ),
    "combinatorial_public_projects": (
        lambda: RNG.gamma(0.3, size=(INSTANCES, CLIENTS, 3, N)),
        fed.combinatorial_public_projects,
        matroids.uniform(3, N),
    ),
    "welfare": (
        lambda: RNG.gamma(0.3, size=(INSTANCES, 2, 2, 3)),
        lambda values: fed.welfare(fed.combinatorial_public_projects(values)),
        matroids.allocation(3, 2),
    ),
    "feature_selection": (
        tables,
        looked_up,
        matroids.laminar([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]], [1, 2]),
    ),
    "custom": (
        lambda: RNG.gamma(0.3, size=(INSTANCES, CLIENTS, N)),
        lambda data: fed.custom(lambda mask, own: jnp.sqrt(jnp.sum(own, where=mask)), data, size=N),
        matroids.graphic([[0, 1], [1, 2], [2, 0], [2, 3], [3, 0], [1, 3]]),
    ),
}


@pytest.fixture(params=PROBLEMS, scope="module")
def instances(request):
    """Optima, largest values of an item, and runs of all instances."""
    data, make, matroid = PROBLEMS[request.param]
    allowed = jax.vmap(matroid.independent)(SETS)

    @jax.jit
    @jax.vmap
    def solve(key, own, shares):
        problem = make(own)
        weights = shares[: problem.num_clients] / jnp.sum(shares[: problem.num_clients])
        values = jax.vmap(problem.values)(SETS) @ weights
        return (
            jnp.max(values, where=allowed, initial=0),
            bounds.largest_single(problem, weights),
            fed.fedcg(key, problem, matroid, ROUNDS, client_weights=weights),
            fed.fedcg(key, problem, matroid, ROUNDS, send="gradient", client_weights=weights),
            fed.centralized_greedy(problem, matroid, client_weights=weights).values[-1],
        )

    keys = jax.random.split(jax.random.key(0), INSTANCES)
    shares = jnp.asarray(RNG.uniform(0.5, 1.5, (INSTANCES, CLIENTS)), jnp.float32)
    return solve(keys, jax.tree.map(jnp.asarray, data()), shares)


def slacks(run, optimum, largest):
    return jax.vmap(bounds.per_round)(run, optimum, largest)


def test_three_inequalities_hold_in_every_round(instances):
    optimum, largest, base, gradient, _ = instances
    for run in (base, gradient):
        for name, slack in slacks(run, optimum, largest)._asdict().items():
            assert slack.shape == (INSTANCES, ROUNDS)
            assert float(slack.min()) >= -TOLERANCE, name


def test_they_would_fail_without_their_error_terms(instances):
    """Voting with bases needs the spread; a step of finite length needs the curvature."""
    optimum, largest, base, _, _ = instances
    spreadless = base._replace(spread=jnp.zeros_like(base.spread))
    assert float(slacks(spreadless, optimum, largest).direction.min()) < -0.01
    assert float(slacks(base, optimum, jnp.zeros_like(largest)).ascent.min()) < -TOLERANCE


def test_theorem_3_2_and_what_a_run_knows_of_the_optimum(instances):
    optimum, largest, base, gradient, greedy = instances
    for run in (base, gradient):
        guarantee = jax.vmap(lambda run, largest: bounds.theorem_3_2(run, largest)[:2])
        factor, error = guarantee(run, largest)
        slack = bounds.Guarantee(factor, error, 1.0).slack(run.extension[:, -1], optimum)
        assert float(slack.min()) >= -TOLERANCE
        assert (run.extension[:, :-1] + run.reach >= optimum[:, None] - TOLERANCE).all()
        assert (run.extension <= optimum[:, None] + TOLERANCE).all()
        assert (run.rounded <= optimum[:, None] + TOLERANCE).all()
    assert (greedy >= 0.5 * optimum - TOLERANCE).all()
    assert (greedy <= optimum + TOLERANCE).all()


def test_gradients_do_what_continuous_greedy_promises(instances):
    """No spread in the error where the server sees the mean gradient (Vondrak 2008)."""
    optimum, largest, _, run, _ = instances
    error = ROUNDS * run.step**2 * run.rank**2 * largest / 2
    factor = 1 - (1 - 1 / ROUNDS) ** ROUNDS
    assert (run.extension[:, -1] + error >= factor * optimum - TOLERANCE).all()


def a_run(key, rounds=20, **settings):
    scores = jnp.asarray(np.random.default_rng(3).gamma(0.3, size=(12, N)), jnp.float32)
    problem = fed.facility_location(scores)
    matroid = matroids.uniform(2, N)
    values = jax.vmap(problem.values)(SETS).mean(axis=1)
    optimum = float(values[SETS.sum(axis=1) <= 2].max())
    algorithm = fed.fedcg_plus if "local_steps" in settings else fed.fedcg
    runs = jax.vmap(lambda k: algorithm(k, problem, matroid, rounds, **settings))(key)
    return problem, runs, optimum


def test_theorems_with_few_clients_hold_as_often_as_they_say():
    delta, keys = 0.2, jax.random.split(jax.random.key(1), 200)
    problem, runs, optimum = a_run(keys, cohort=3)
    largest = bounds.largest_single(problem)

    def slack(run):
        guarantee = bounds.theorem_3_5(run, largest, cohort=3, delta=delta)
        return guarantee.slack(run.extension[-1], optimum)

    assert np.mean(jax.vmap(slack)(runs) < 0) <= delta
    problem, runs, optimum = a_run(keys, rounds=5, cohort=3, local_steps=4)

    def slack_plus(run):
        guarantee = bounds.theorem_4_3(run, largest, cohort=3, delta=delta, sigma=0.0)
        return guarantee.slack(run.extension[-1], optimum)

    assert np.mean(jax.vmap(slack_plus)(runs) < 0) <= delta
    assert (runs.lipschitz > 0).any()


def test_formulas_by_hand():
    run = fed.ContinuousRun(
        x=jnp.zeros(4), step=jnp.float32(0.5), rank=jnp.float32(4), directions=jnp.zeros((2, 4)),
        extension=jnp.array([0.0, 1.0, 2.0]), rounded=jnp.zeros(3), spread=jnp.array([1.0, 2.0]),
        promised=jnp.array([5.0, 4.0]), progress=jnp.array([3.0, 2.0]),
        reach=jnp.array([6.0, 4.0]), lipschitz=jnp.array([0.5, 0.25]),
        communication=fed.Communication(*[jnp.zeros(2, jnp.int32)] * 4),
    )  # fmt: skip
    found = bounds.per_round(run, 4.0, 0.125)
    assert found.promised.tolist() == [1.0, 1.0]
    assert found.direction.tolist() == [3.0, 7.0]
    assert found.ascent.tolist() == [-0.25, 0.25]  # 1 - 0.5 * (3, 2) + 0.25 * 16 * 0.125 / 2
    full = bounds.theorem_3_2(run, 0.125)
    assert (float(full.factor), float(full.error)) == (0.75, 0.5 * 4 * 3 + 0.5)
    # Root of 2 / (2 * 0.25) is 2.
    part = bounds.theorem_3_5(run, 0.125, cohort=2, delta=0.25)
    assert float(part.error) == 6.5 + 6 * 0.5 * 4 * 3 * 2
    plus = bounds.theorem_4_3(run, 0.125, cohort=2, delta=0.25, sigma=0.5)
    local = 2 * 2 * 0.5 * 4 + 2 * 8 * 0.75
    assert float(plus.error) == 6.5 + 0.5 * (local + 2 * (6 * 4 * 3 + local))
    said = bounds.report(run, full, value=1.5, greedy=3.0)
    assert said["optimum_at_most"] == 5.0
    assert said["ratio"] == 0.5
    assert said["guaranteed"] == 0.75 * 3 - 6.5
    assert said["slack"] == 2 - said["guaranteed"]


def test_theorem_5_1_on_random_instances():
    scores = jnp.asarray(RNG.gamma(0.3, size=(40, 300, N)), jnp.float32)
    matroid, epsilon = matroids.uniform(2, N), 0.4

    @jax.vmap
    def ratio(key, own):
        problem = fed.facility_location(own)
        found = fed.discrete_greedy(key, problem, matroid, epsilon=epsilon).values[-1]
        values = jax.vmap(problem.values)(SETS).mean(axis=1)
        return found / jnp.max(values, where=SETS.sum(axis=1) <= 2, initial=0)

    ratios = ratio(jax.random.split(jax.random.key(0), 40), scores)
    guarantee = bounds.theorem_5_1(epsilon, size=N, cardinality=True)
    assert np.mean(ratios < guarantee.factor) <= 1 - guarantee.probability
    assert bounds.theorem_5_1(0.1, size=5, cardinality=False)[:2] == (0.4, 0.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"cohort": 0}, "cohort=0"), ({"delta": 0.0}, "delta=0.0"), ({"sigma": -1.0}, "sigma=-1.0")],
)
def test_bad_input(settings, message):
    _, runs, _ = a_run(jax.random.split(jax.random.key(0), 1), rounds=2)
    run = jax.tree.map(lambda leaf: leaf[0], runs)
    with pytest.raises(ValueError, match=message):
        bounds.theorem_4_3(run, 1.0, **{"cohort": 2, "delta": 0.1, "sigma": 0.0, **settings})
