"""Robust aggregators: their definitions in NumPy, and how many Byzantine clients they withstand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import aggregate, linear_model, make_context, make_federation
from jaxtyping import PyTree

from fedjax_fair import aggregators, selectors, solvers
from fedjax_fair.roles import Cohort, LocalResult, Selector, Solver, Variables
from fedjax_fair.rounds.round import Round

SIZES = (3, 8, 5, 1, 6, 9, 4)
NUM = len(SIZES)
EXAMPLES = make_federation(sizes=SIZES).train
CONTEXT = make_context(EXAMPLES, Variables({"a": jnp.zeros((2, 3)), "b": jnp.zeros(4)}, {}))


def random_vectors(seed=0, scale=1.0, shift=0.0):
    rng = np.random.default_rng(seed)
    return (shift + scale * rng.normal(size=(NUM, 10))).astype(np.float32)


def results_of(vectors):
    params = {"a": vectors[:, :6].reshape(-1, 2, 3), "b": vectors[:, 6:]}
    size = len(vectors)
    return LocalResult(
        Variables(jax.tree.map(jnp.asarray, params), {}), jnp.ones(size), jnp.ones(size, jnp.int32)
    )


def run_aggregator(aggregator, vectors, responded=None, state=None):
    """Returns the update as a vector, the new state and the aggregation."""
    weights = jnp.linspace(1, 2, NUM)
    cohort = Cohort(jnp.arange(NUM, dtype=jnp.int32), weights / weights.sum(), responded=responded)
    state = aggregator.init(CONTEXT) if state is None else state
    update, state, info = aggregate(aggregator, state, cohort, results_of(vectors), CONTEXT)
    joined = np.concatenate([np.ravel(update.params["a"]), np.ravel(update.params["b"])])
    return joined, state, info


RESPONDED = [None, jnp.array([True, False, True, True, True, False, True]), jnp.arange(NUM) < 4]


@pytest.mark.parametrize("responded", RESPONDED, ids=["all", "five", "four"])
def test_median_equals_numpy(responded):
    vectors = random_vectors()
    expected = np.median(vectors[... if responded is None else np.asarray(responded)], axis=0)
    np.testing.assert_allclose(
        run_aggregator(aggregators.Median(), vectors, responded)[0], expected, rtol=1e-6
    )


@pytest.mark.parametrize("responded", RESPONDED, ids=["all", "five", "four"])
@pytest.mark.parametrize("trim", [0.0, 0.2, 0.3, 0.49])
def test_trimmed_mean_equals_the_mean_of_sorted_values(trim, responded):
    vectors = random_vectors()
    ranked = np.sort(vectors[... if responded is None else np.asarray(responded)], axis=0)
    cut = int(trim * len(ranked) + 1e-9)
    expected = ranked[cut : len(ranked) - cut].mean(axis=0)
    update, _, info = run_aggregator(aggregators.TrimmedMean(trim), vectors, responded)
    np.testing.assert_allclose(update, expected, rtol=1e-5, atol=1e-6)
    counts = np.ones(NUM) if responded is None else np.asarray(responded)
    np.testing.assert_allclose(info.weights, counts / counts.sum(), rtol=1e-6)


def test_trimming_is_rounded_down_exactly():
    """In float32 0.26 of 1,950 is less than 507, which must not become 506."""
    size, cut = 1950, 507
    vectors = np.random.default_rng(0).standard_cauchy((size, 10)).astype(np.float32)
    cohort = Cohort(jnp.arange(size, dtype=jnp.int32) % NUM, jnp.full(size, 1 / size))
    trim = aggregators.TrimmedMean(0.26)
    update, _, _ = aggregate(trim, (), cohort, results_of(vectors), CONTEXT)
    expected = np.sort(vectors, axis=0)[cut : size - cut].astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(update.params["b"], expected[6:], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("selected", [1, 3])
@pytest.mark.parametrize("responded", RESPONDED[:2], ids=["all", "five"])
def test_krum_selects_updates_with_the_closest_neighbors(selected, responded):
    vectors = random_vectors(scale=0.01, shift=5.0)
    participants = np.arange(NUM) if responded is None else np.flatnonzero(responded)
    scores = np.full(NUM, np.inf)
    for own in participants:
        apart = [np.sum((vectors[own] - vectors[one]).astype(float) ** 2) for one in participants]
        scores[own] = np.sort(apart)[1 : 1 + len(participants) - 1 - 2].sum()
    chosen = np.argsort(scores)[:selected]
    update, _, info = run_aggregator(aggregators.Krum(1, selected=selected), vectors, responded)
    np.testing.assert_allclose(update, vectors[chosen].mean(axis=0), rtol=1e-5)
    assert set(np.flatnonzero(info.weights)) == set(chosen)
    np.testing.assert_allclose(info.info["score"], scores, rtol=1e-3)


@pytest.mark.parametrize("slot", [0, 3])
@pytest.mark.parametrize("selected", [1, 3])
def test_krum_selects_the_only_valid_update(selected, slot):
    """Its score is infinite, as it has no neighbor."""
    vectors, responded = random_vectors(), jnp.arange(NUM) == slot
    krum = aggregators.Krum(1, selected=selected)
    update, _, info = run_aggregator(krum, vectors, responded)
    np.testing.assert_allclose(update, vectors[slot], rtol=1e-6)
    np.testing.assert_allclose(info.weights, responded, atol=1e-6)
    assert np.isinf(info.info["score"]).all()


def test_krum_checks_the_cohort_size():
    with pytest.raises(ValueError, match="byzantine=3"):
        run_aggregator(aggregators.Krum(3), random_vectors())


@pytest.mark.parametrize("weights", ["uniform", "num_examples"])
def test_the_geometric_median_minimizes_the_sum_of_distances(weights):
    vectors = random_vectors()
    shares = np.ones(NUM) if weights == "uniform" else np.array(SIZES, float)
    update, _, info = run_aggregator(aggregators.GeometricMedian(weights, iterations=60), vectors)

    def cost(point):
        return shares @ np.linalg.norm(vectors - point, axis=1)

    rng = np.random.default_rng(0)
    for size in (1e-1, 1e-2):
        others = update + size * rng.normal(size=(200, 10))
        assert cost(update) <= min(map(cost, others)) * (1 + 1e-6)
    np.testing.assert_allclose(np.asarray(info.weights) @ vectors, update, rtol=1e-4, atol=1e-5)


def test_the_geometric_median_may_be_an_update():
    vectors = random_vectors()
    vectors[:4] = 0.25
    update, _, _ = run_aggregator(aggregators.GeometricMedian(iterations=60), vectors)
    np.testing.assert_allclose(update, 0.25, atol=1e-4)


@pytest.mark.parametrize("weights", ["uniform", "selector"])
def test_updates_are_clipped_to_the_bound(weights):
    vectors, bound = random_vectors(), 2.5
    norms = np.linalg.norm(vectors, axis=1)
    assert (norms > bound).any()
    assert (norms < bound).any()
    shares = np.ones(NUM) if weights == "uniform" else np.linspace(1, 2, NUM)
    expected = shares / shares.sum() * np.minimum(1, bound / norms) @ vectors
    update, _, info = run_aggregator(aggregators.NormClipping(bound, weights), vectors)
    np.testing.assert_allclose(update, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(info.info["norm"], norms, rtol=1e-5)


def test_centered_clipping_starts_from_the_last_update():
    bound, center = 1.5, np.zeros(10)
    aggregator = aggregators.CenteredClipping(bound, iterations=2)
    state = aggregator.init(CONTEXT)
    for seed in range(3):
        vectors = random_vectors(seed, shift=1.0)
        update, state, _ = run_aggregator(aggregator, vectors, state=state)
        for _ in range(2):
            apart = vectors - center
            norms = np.linalg.norm(apart, axis=1, keepdims=True)
            center = center + (apart * np.minimum(1, bound / norms)).mean(axis=0)
        np.testing.assert_allclose(update, center, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["median", "norm_clipping", "centered_clipping"])
def test_without_a_valid_update_the_model_stays(name):
    """The next round goes on from the state before."""
    aggregator, _ = BYZANTINE[name]
    _, state, _ = run_aggregator(aggregator, random_vectors(shift=1.0))
    update, after, info = run_aggregator(aggregator, np.full((NUM, 10), np.nan), state=state)
    np.testing.assert_array_equal(update, 0)
    np.testing.assert_array_equal(info.weights, 0)
    jax.tree.map(np.testing.assert_array_equal, after, state)


class Learned(Solver):
    """Returns a given result."""

    result: PyTree

    def solve(self, key, variables, client):
        return self.result


def fltrust_with(root):
    """Returns FLTrust with a server that learns a given vector."""
    learned = jax.tree.map(lambda leaf: leaf[0], results_of(root[None]))
    examples = np.asarray(EXAMPLES.features)[:2], np.asarray(EXAMPLES.labels)[:2]
    return aggregators.FLTrust(examples, Learned(learned))


@pytest.mark.parametrize("responded", RESPONDED, ids=["all", "five", "four"])
def test_fltrust_equals_numpy(responded):
    vectors, root = random_vectors(shift=0.3), random_vectors(seed=9, shift=0.3)[0]
    norms = np.linalg.norm(vectors, axis=1)
    trust = np.maximum(0, vectors @ root / norms / np.linalg.norm(root))
    trust *= 1 if responded is None else np.asarray(responded)
    assert 0 < (trust > 0).sum() < NUM
    expected = trust @ (vectors / norms[:, None]) * np.linalg.norm(root) / trust.sum()
    update, _, info = run_aggregator(fltrust_with(root), vectors, responded)
    np.testing.assert_allclose(update, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(info.weights, trust / trust.sum(), rtol=1e-5)
    np.testing.assert_allclose(info.info["trust"], trust, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(info.info["root_norm"], np.linalg.norm(root), rtol=1e-5)


@pytest.mark.parametrize("attack", [1e6, -1e6, np.nan, np.inf, 1e30, "equal", "against"])
def test_no_number_of_byzantine_clients_moves_the_model_far_or_against_the_server(attack):
    vectors, root = (
        random_vectors(scale=0.1, shift=1.0),
        random_vectors(seed=9, scale=0.1, shift=1.0)[0],
    )
    rng = np.random.default_rng(1)
    vectors[1:] = {"equal": rng.normal(size=10), "against": -100 * root}.get(attack, attack)
    update, _, info = run_aggregator(fltrust_with(root), vectors)
    assert np.linalg.norm(update) <= np.linalg.norm(root) * (1 + 1e-5)
    assert update @ root >= 0
    if attack in (-1e6, np.nan, np.inf, "against"):  # The only honest one is left.
        own = vectors[0] / np.linalg.norm(vectors[0]) * np.linalg.norm(root)
        np.testing.assert_allclose(update, own, rtol=1e-5)
        np.testing.assert_allclose(info.weights, np.arange(NUM) == 0, atol=1e-6)


def test_the_model_stays_if_no_client_agrees_with_the_server():
    update, _, info = run_aggregator(
        fltrust_with(np.ones(10, np.float32)), -np.abs(random_vectors())
    )
    assert (update == 0).all()
    assert (info.weights == 0).all()


def test_the_server_trains_as_its_solver_does_on_its_own_examples():
    """A client with the same examples, all in one batch, learns what the server does."""
    data = make_federation()
    train, client = data.train, 3
    own = train.order[train.offsets[client] : train.offsets[client] + train.sizes[client]]
    solver = solvers.SGD(0.5, 16, steps=3)
    trust = aggregators.FLTrust((train.features[own], train.labels[own].astype(np.int64)), solver)
    cohort = Cohort(jnp.array([client], jnp.int32), jnp.ones(1))
    one = Selector.from_functions(lambda key, state, context: (cohort, state, {}))
    states = {}
    for name, aggregator in {"mean": aggregators.Mean(), "fltrust": trust}.items():
        round = Round(linear_model(), one, solver, aggregator)
        states[name], info = jax.jit(round.step)(round.init(jax.random.key(0), data), data)
    np.testing.assert_allclose(info.aggregator["trust"], 1, rtol=1e-5)
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6),
        states["fltrust"].variables,
        states["mean"].variables,
    )


def round_with_root(features, labels):
    data = make_federation()
    trust = aggregators.FLTrust((features, labels), solvers.SGD(0.1, 2, steps=1))
    round = Round(linear_model(), selectors.Uniform(2), solvers.SGD(0.1, 2, steps=1), trust)
    jax.eval_shape(round.step, jax.eval_shape(round.init, jax.random.key(0), data), data)


BYZANTINE = {  # Of seven, as many as the method withstands.
    "median": (aggregators.Median(), 3),
    "trimmed_mean": (aggregators.TrimmedMean(0.43), 3),
    "krum": (aggregators.Krum(2), 2),
    "multi-krum": (aggregators.Krum(2, selected=3), 2),
    "geometric_median": (aggregators.GeometricMedian(iterations=30), 3),
    "norm_clipping": (aggregators.NormClipping(2.0), 3),
    "centered_clipping": (aggregators.CenteredClipping(2.0), 3),
}


@pytest.mark.parametrize("attack", [1e6, -1e6, np.nan, np.inf])
@pytest.mark.parametrize("name", sorted(BYZANTINE))
def test_a_few_byzantine_clients_do_not_matter(name, attack):
    aggregator, count = BYZANTINE[name]
    vectors = random_vectors(scale=0.1, shift=1.0)
    vectors[:count] = attack
    honest = vectors[count:]
    update, _, _ = run_aggregator(aggregator, vectors)
    spread = np.linalg.norm(honest - honest.mean(axis=0), axis=1).max()
    if (
        "clipping" in name
    ):  # A Byzantine client moves the mean by its weight times the bound, at most.
        spread = 2.0 * count / NUM + np.linalg.norm(honest.mean(axis=0))
    if name == "geometric_median":  # Byzantine clients in one place, far away (Pillutla et al.).
        spread *= (1 - count / NUM) / (1 - 2 * count / NUM)
    assert np.linalg.norm(update - honest.mean(axis=0)) <= 2 * spread
    if name in ("median", "trimmed_mean"):
        assert (honest.min(axis=0) <= update).all()
        assert (update <= honest.max(axis=0)).all()


@pytest.mark.parametrize(
    ("aggregator", "count"),
    [(aggregators.Median(), 4), (aggregators.TrimmedMean(0.2), 2), (aggregators.Mean(), 1),
     (aggregators.GeometricMedian(iterations=30), 4)],
    ids=["median", "trimmed_mean", "mean", "geometric_median"],
)  # fmt: skip
def test_one_more_byzantine_client_breaks_it(aggregator, count):
    vectors = random_vectors(scale=0.1, shift=1.0)
    vectors[:count] = 1e6
    assert np.abs(run_aggregator(aggregator, vectors)[0]).max() > 1e4


ROOT, SOLVER = np.ones((2, 3), np.float32), solvers.SGD(0.1, 2, steps=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(aggregators.FLTrust, 1, SOLVER), "root"),
        (partial(aggregators.FLTrust, (ROOT, ROOT[:1, 0]), SOLVER), "root"),
        (partial(aggregators.FLTrust, (ROOT * np.nan, [0, 1]), SOLVER), "finite .* features"),
        (partial(aggregators.FLTrust, (ROOT, ["a", "b"]), SOLVER), "numbers as labels"),
        (partial(aggregators.FLTrust, (ROOT, [0, 1]), None), "solver"),
        (partial(round_with_root, np.ones((2, 99)), [0, 1]), "root:"),
        (partial(round_with_root, np.ones((2, 99), np.uint8), [0, 1]), r"features uint8\[99\]"),
    ],
)
def test_bad_settings_are_refused(make, message, as_users_call):
    with pytest.raises(ValueError, match=message):
        make()
