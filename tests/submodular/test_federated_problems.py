"""Tests of every problem against its definition, on all subsets of a few items."""

import importlib
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_fair.submodular import federated as fed
from fedjax_fair.submodular import matroids

N, CLIENTS = 6, 5
RNG = np.random.default_rng(0)
SETS = np.array(list(itertools.product([False, True], repeat=N)))
RATINGS = RNG.integers(0, 4, (CLIENTS, N)) * (RNG.random((CLIENTS, N)) < 0.7)
RATINGS[3] = 0  # A client without a rating still sends a base.
SCORES = np.where(RATINGS > 0, RNG.random((CLIENTS, N)), 0).astype(np.float32)
MEMBERSHIP = RATINGS > 1
NEEDS = RNG.gamma(1.0, size=(CLIENTS, 2, N)).astype(np.float32)
AGENTS = 2
VALUES = RNG.gamma(1.0, size=(AGENTS, 1, N // AGENTS)).astype(np.float32)
EXAMPLES = [RNG.integers(0, 2, (count, N)) for count in (30, 12, 50, 7, 20)]
LABELS = [
    (rows[:, 0] + rows[:, 3] * rows[:, 1] + RNG.integers(0, 2, len(rows))) % 3 for rows in EXAMPLES
]


def listed(matrix, **sizes):
    clients, items = np.nonzero(matrix)
    shuffled = RNG.permutation(clients.size)
    clients, items = clients[shuffled], items[shuffled]
    sizes = {"num_clients": matrix.shape[0], "size": matrix.shape[1], **sizes}
    return fed.sparse_scores(clients, items, matrix[clients, items], **sizes)


def best(scores):
    return lambda mask: np.where(mask, scores, 0).max(axis=-1)


def information(mask):
    """Computes mutual information of features and label from the complete joint table."""
    return [_information(*examples, mask) for examples in zip(EXAMPLES, LABELS, strict=True)]


def _information(rows, classes, mask):
    prior = np.array([(classes == c).sum() + 1 for c in range(3)]) / (len(classes) + 3)
    joint = np.zeros((2,) * N + (3,))
    for c in range(3):
        ones = (rows[classes == c].sum(axis=0) + 1) / ((classes == c).sum() + 2)
        for x in itertools.product([0, 1], repeat=N):
            joint[(*x, c)] = prior[c] * np.where(x, ones, 1 - ones).prod()
    marginal = joint.sum(axis=tuple(np.flatnonzero(~mask)))
    independent = marginal.sum(axis=-1, keepdims=True) * prior
    return (marginal * np.log(marginal / independent)).sum()


def _without_levels(scores):
    """Lists scores as if they took many values."""
    module = importlib.import_module("fedjax_fair.submodular.federated.sparse_scores")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MAX_LEVELS", 0)
        return listed(scores)


def square_root(mask, row):
    return jnp.sqrt(jnp.sum(row, where=mask))


# name: (data, function from data to problem, function from mask to values of all clients)
PROBLEMS = {
    "facility_location": (SCORES, fed.facility_location, best(SCORES)),
    "facility_location levels": (listed(RATINGS), fed.facility_location, best(RATINGS)),
    "facility_location ranks": (_without_levels(SCORES), fed.facility_location, best(SCORES)),
    "max_coverage": (MEMBERSHIP, fed.max_coverage, best(MEMBERSHIP * 1.0)),
    "max_coverage sparse": (
        listed(MEMBERSHIP.astype(int)),
        fed.max_coverage,
        best(MEMBERSHIP * 1.0),
    ),
    "combinatorial_public_projects": (
        NEEDS,
        fed.combinatorial_public_projects,
        lambda mask: best(NEEDS)(mask).sum(axis=-1),
    ),
    "welfare": (
        VALUES,
        lambda values: fed.Welfare(fed.combinatorial_public_projects(values)),
        lambda mask: [
            best(values)(mask.reshape(-1, AGENTS)[:, i]).sum() for i, values in enumerate(VALUES)
        ],
    ),
    "feature_selection": (
        (),
        lambda _: fed.feature_selection(EXAMPLES, LABELS),
        information,
    ),
    "custom": (
        SCORES,
        lambda scores: fed.custom(square_root, scores, size=N),
        lambda mask: np.sqrt(SCORES[:, mask].sum(axis=1)),
    ),
}


MATROIDS = {
    "uniform": matroids.Uniform(3, N),
    "partition": matroids.Partition([0, 0, 1, 1, 1, 2], [1, 2, 1]),  # As any other matroid.
}
POINTS = np.concatenate(
    [np.zeros((1, N)), np.ones((1, N)), RNG.choice([0, 0.25, 0.5, 1], (6, N)), RNG.random((4, N))]
).astype(np.float32)
INSIDE = 9  # Index of a point with all coordinates between 0 and 1.
UNIT = np.eye(N, dtype=bool)


class Case:
    """Values of all sets by definition, and all computations of a problem, compiled together."""

    def __init__(self, data, make, definition):
        self.values = np.array([definition(mask) for mask in SETS], float)
        self.clients = self.values.shape[1]
        self.weights = RNG.dirichlet(np.ones(self.clients)).astype(np.float32)
        self.total_of_shares = RNG.uniform(0.5, 1, N).astype(np.float32)
        self.total_of_shares[2] = 0  # An item without value is ignored.
        compute_all = jax.jit(partial(self._compute_all, make))
        computed = compute_all(data, SETS, POINTS, self.weights, self.total_of_shares)
        self.computed = jax.tree.map(np.asarray, computed)

    def _compute_all(self, make, data, sets, points, weights, total_of_shares):
        problem = make(data)
        key, eye = jax.random.key(0), jnp.eye(self.clients)
        assert problem.num_clients == self.clients
        assert problem.size == N
        assert problem.exact

        def matrix(messages):
            """Returns one row per client, as sums of messages with a single positive weight."""
            return jax.vmap(lambda row: fed.secure_aggregate(messages(row), N))(eye)

        def at_point(x):
            values, gradients = problem.extensions(key, x)
            gradient = matrix(gradients.messages)
            bases = {name: gradients.bases(matroid) for name, matroid in MATROIDS.items()}
            votes = {name: (matrix(base.messages), base.utility) for name, base in bases.items()}
            mean = jnp.mean(gradient, axis=0)
            return {
                "extension": values,
                "gradient": gradient,
                "votes": votes,
                "spread": gradients.spread(mean),
                "spread_elsewhere": gradients.spread(mean + 2.0),
                "shares": gradients.shares(weights, total_of_shares),
            }

        def at_set(mask):
            return {
                "values": problem.values(mask),
                "value": problem.value(mask, weights),
                "gains": matrix(problem.gains(mask).messages),
            }

        def alone(client):
            """Computes a client's function from its data."""
            data, function = problem.client_data(client), problem.function
            x, mask = points[INSIDE], sets[13]
            return {
                "value": function.value(data, mask),
                "extension": function.extension(data, key, x),
                "gradient": function.gradient(data, key, x),
                "gains": function.gains(data, mask),
            }

        def total(mask):
            function = problem.total(weights)

            def add(memo, item):
                added = function.add(memo, item)
                return jax.tree.map(
                    lambda new, old: jnp.where(mask[item], new, old), added, memo
                ), None

            items = jnp.arange(N, dtype=jnp.int32)
            memo, _ = jax.lax.scan(add, function.init(), items)
            return {
                "value": function.value(mask),
                "gains": function.gains(memo),
                "gain": jax.vmap(lambda item: function.gain(memo, item))(items),
            }

        return {
            "points": jax.vmap(at_point)(points),
            "sets": jax.vmap(at_set)(sets),
            "alone": jax.vmap(alone)(jnp.arange(self.clients, dtype=jnp.int32)),
            "total": jax.lax.map(total, sets),
        }


@pytest.fixture(params=PROBLEMS, scope="module")
def case(request):
    return Case(*PROBLEMS[request.param])


def index_of(masks):
    return masks @ (2 ** np.arange(N)[::-1])


def by_definition(values, x):
    """Computes extensions and gradients of all clients in double precision."""

    def expected(x):
        return np.where(SETS, x, 1 - x).prod(axis=1) @ values

    gains = [expected(np.where(e, 1.0, x)) - expected(np.where(e, 0.0, x)) for e in UNIT]
    return expected(x), np.stack(gains, axis=1)


def test_values_equal_their_definition(case):
    values = case.computed["sets"]["values"]
    assert values.shape == (len(SETS), case.clients)
    np.testing.assert_allclose(values, case.values, atol=2e-6)
    weighted = case.computed["sets"]["value"]
    np.testing.assert_allclose(weighted, case.values @ case.weights, atol=2e-6)


def test_extensions_and_gradients_are_exact(case):
    points = case.computed["points"]
    for x, extension, gradient in zip(POINTS, points["extension"], points["gradient"], strict=True):
        true_extension, true_gradient = by_definition(case.values, x.astype(float))
        np.testing.assert_allclose(extension, true_extension, atol=5e-6)
        np.testing.assert_allclose(gradient, true_gradient, atol=5e-6)


def test_gains_are_differences_of_values(case):
    more = case.values[index_of(SETS[:, None] | UNIT)]
    less = case.values[index_of(SETS[:, None] & ~UNIT)]
    expected = (more - less).transpose(0, 2, 1)
    np.testing.assert_allclose(case.computed["sets"]["gains"], expected, atol=5e-6)


def test_one_client_computes_the_same_as_all_clients(case):
    alone, points, sets = (case.computed[name] for name in ("alone", "points", "sets"))
    np.testing.assert_allclose(alone["value"], sets["values"][13], atol=1e-6)
    np.testing.assert_allclose(alone["extension"], points["extension"][INSIDE], atol=1e-6)
    np.testing.assert_allclose(alone["gradient"], points["gradient"][INSIDE], atol=1e-6)
    np.testing.assert_allclose(alone["gains"], sets["gains"][13], atol=1e-6)


def test_the_total_is_the_weighted_sum(case):
    total, expected = case.computed["total"], case.values @ case.weights
    np.testing.assert_allclose(total["value"], expected, atol=5e-6)
    gains = expected[index_of(SETS[:, None] | UNIT)] - expected[:, None]
    np.testing.assert_allclose(total["gains"][~SETS], gains[~SETS], atol=5e-6)
    np.testing.assert_allclose(total["gain"][~SETS], gains[~SETS], atol=5e-6)


def test_functions_are_monotone_and_submodular(case):
    values = case.values  # Computed from data in single precision.
    grown = np.array([values[index_of(SETS | e)] - values[index_of(SETS)] for e in UNIT])
    assert grown.min() >= -1e-6
    for e, gain in zip(UNIT, grown, strict=True):
        for other in UNIT:
            later = gain[index_of(SETS | other)]
            assert (later <= gain + 1e-6)[~(SETS & e).any(axis=1)].all()


@partial(jax.jit, static_argnames="name")
def heaviest_bases(gradients, name):
    return jax.vmap(jax.vmap(MATROIDS[name].max_weight_base))(gradients)


@pytest.mark.parametrize("name", MATROIDS)
def test_every_client_sends_its_heaviest_base(case, name):
    votes, utility = case.computed["points"]["votes"][name]
    gradients = case.computed["points"]["gradient"]
    # Ties go to the first items, also if all gains are 0.
    np.testing.assert_array_equal(votes, heaviest_bases(gradients, name))
    np.testing.assert_allclose(utility, (votes * gradients).sum(axis=2), atol=1e-6)


def test_spread_and_shares(case):
    points = case.computed["points"]
    mean = points["gradient"].mean(axis=1, keepdims=True)
    close = {"rtol": 1e-5, "atol": 1e-6}
    for name, center in (("spread", mean), ("spread_elsewhere", mean + 2)):
        expected = np.abs(points["gradient"] - center).max(axis=(1, 2))
        np.testing.assert_allclose(points[name], expected, **close)
    total = case.total_of_shares
    shares = np.where(total > 0, points["gradient"] / np.where(total > 0, total, 1), 0)
    np.testing.assert_allclose(points["shares"], case.weights * shares.max(axis=2), rtol=1e-5)


def test_cached_gains_are_recomputed_if_most_clients_change():
    """Differences of large sums would be off by several units."""
    scores = np.zeros((50, 3), np.float32)
    scores[:, 0] = 1e6  # The added item is the best of all clients.
    scores[:, 1] = 1e6 + np.random.default_rng(0).integers(0, 20, 50) / 16
    scores[:12, 2] = 2e6

    @jax.jit
    def gains(sparse):
        total = fed.facility_location(sparse).total(jnp.ones(50))
        return total.gains(total.add(total.init(), 0))

    expected = np.maximum(scores.astype(float) - 1e6, 0).sum(axis=0)
    np.testing.assert_allclose(gains(listed(scores)), expected, rtol=1e-6)


def test_sparse_bases_equal_dense_bases(monkeypatch):
    """With many ties, and clients that score none to all of the items, in one batch or several."""
    module = importlib.import_module("fedjax_fair.submodular.federated.sparse_scores")
    rng = np.random.default_rng(1)
    lengths = rng.choice([0, 1, 3, 6, 20], (40, 1))
    scored = np.argsort(rng.random((40, 20))) < lengths
    matrix = (rng.integers(1, 4, (40, 20)) * scored).astype(np.float32)
    points = np.stack([np.zeros(20), rng.choice([0, 0.5, 1], 20)]).astype(np.float32)

    @partial(jax.jit, static_argnames="batch_entries")
    def votes(scores, points, weights, batch_entries=2**22):
        monkeypatch.setattr(module, "_BATCH_ENTRIES", batch_entries)
        problem = fed.facility_location(scores)

        def vote(x):
            gradients = problem.extensions(jax.random.key(0), x).gradients
            bases = [gradients.bases(matroids.Uniform(k, 20)) for k in (1, 7, 20)]
            return [fed.secure_aggregate(base.messages(weights), 20) for base in bases]

        return jax.lax.map(vote, points)

    weights = rng.random(40).astype(np.float32)
    dense, sparse = votes(matrix, points, weights), listed(matrix)
    for batch_entries in (8, 2**22):
        of_lists = votes(sparse, points, weights, batch_entries)
        for one, other in zip(dense, of_lists, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)


def test_an_estimated_problem_is_near_the_exact_one():
    rates = RNG.gamma(1.0, size=(CLIENTS, N)).astype(np.float32)
    rates[1] = rates[0]
    estimated = fed.custom(square_root, rates, size=N, samples=4000)
    assert not estimated.exact

    @jax.jit
    def solve(key, x, corner, weights):
        def rows(gains):
            return jax.vmap(lambda row: fed.secure_aggregate(gains.messages(row), N))(weights)

        extensions = estimated.extensions(key, x)
        return extensions.values, rows(extensions.gradients), rows(estimated.gains(corner))

    x, corner = POINTS[INSIDE], SETS[37]
    values, gradients, gains = solve(jax.random.key(0), x, corner, np.eye(CLIENTS, dtype=x.dtype))
    exact = np.array([np.sqrt(np.where(mask, rates, 0).sum(axis=1)) for mask in SETS])
    true_values, true_gradients = by_definition(exact, x.astype(float))
    # Standard deviations are at most 0.6, so the tolerance is six standard errors.
    np.testing.assert_allclose(values, true_values, atol=0.05)
    assert values[0] != values[1]  # The functions are equal, the random sets are not.
    np.testing.assert_allclose(gradients, true_gradients, atol=0.05)
    more, less = exact[index_of(corner | UNIT)], exact[index_of(corner & ~UNIT)]
    np.testing.assert_allclose(gains, (more - less).T, atol=1e-5)


def test_many_features_use_a_sample_of_the_model():
    """Compares values from all configurations and from a sample."""
    wide = [RNG.integers(0, 3, (40, 8)) for _ in range(2)]
    labels = [rows[:, 0] // 2 for rows in wide]
    padded = [np.concatenate([rows, np.zeros((40, 4), int)], axis=1) for rows in wide]
    few = fed.feature_selection([rows[:, :6] for rows in wide], labels, num_values=3)
    sampled = fed.feature_selection(padded, labels, num_values=3, num_examples=20_000)
    assert not sampled.exact

    @jax.jit
    def solve(masks):
        def at(mask):
            padded_mask = jnp.concatenate([mask, jnp.zeros(6, bool)])
            larger = padded_mask.at[6].set(True)
            messages = sampled.gains(padded_mask).messages(jnp.array([1.0, 0.0]))
            row = fed.secure_aggregate(messages, 12)
            return few.values(mask), sampled.values(padded_mask), sampled.values(larger), row

        return jax.lax.map(at, masks)

    exact, estimate, more, row = map(np.asarray, solve(SETS[[1, 32, 36, 48]]))
    np.testing.assert_allclose(estimate, exact, atol=0.02)
    np.testing.assert_allclose(row[:, 6], (more - estimate)[:, 0], atol=1e-5)


def test_negative_scores_are_clipped_with_a_warning():
    with pytest.warns(UserWarning, match="negative"):
        problem = fed.facility_location([[1.0, -1.0], [-2.0, 3.0]])
    assert problem.values(jnp.array([False, True])).tolist() == [0.0, 3.0]
    with pytest.warns(UserWarning, match="negative"):
        sparse = fed.sparse_scores([0, 0], [0, 1], [1.0, -1.0], num_clients=1, size=2)
    assert sparse.scores.tolist() == [1.0]


def lists(clients=(0, 1), items=(0, 1), scores=None):
    return lambda: fed.sparse_scores(list(clients), list(items), scores, num_clients=2, size=3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fed.facility_location([1.0, 2.0]), r"\[clients, n\]"),
        (lambda: fed.facility_location([[1.0, np.nan]]), "finite"),
        (lambda: fed.max_coverage(np.ones(3)), r"\[clients, groups\]"),
        (lambda: fed.max_coverage(listed(RATINGS)), "all 1"),
        (lists(items=[0, 3]), "items:"),
        (lists(items=[0, -1]), "got -1"),
        (lists(clients=[0, 2]), "clients:"),
        (lists(clients=[1, 1], items=[2, 2]), "got two of client 1 for item 2"),
        (lists(scores=[0.0, 0.0]), "no positive score"),
        (lists(scores=[np.inf, 0.0]), "finite"),
        (lists(scores=[1.0]), r"\(2,\), \(2,\), \(1,\)"),
        (lambda: fed.combinatorial_public_projects(np.ones((2, 2))), "clients, needs"),
        (lambda: fed.combinatorial_public_projects(-np.ones((1, 1, 2))), ">= 0"),
        (lambda: fed.custom(lambda mask, row: jnp.sum(mask), np.ones(2), 11), "samples=None"),
        (lambda: fed.custom(lambda mask, row: 1.0, np.ones(2), 3), "0 at the empty set.*client 0"),
        (
            lambda: fed.custom(lambda m, row: jnp.where(m[1], -2.0, 0.0), np.ones(2), 3),
            r"monotone function, but in the set \[\] client 0 .* gains \[0.0, -2.0, 0.0\]",
        ),
        (
            lambda: fed.custom(
                lambda m, row: jnp.where(m[:4].all(), 0.0, jnp.sum(m).astype(float)),
                np.ones(2),
                20,
                samples=9,
                check_sets=200,
            ),
            "monotone",
        ),
        (
            lambda: fed.custom(lambda m, row: jnp.sum(m, dtype=float) ** 2, np.ones(2), 3),
            r"submodular.*gains \[1.0, 1.0, 1.0\], and \[1.0, 3.0, 3.0\] after item 0",
        ),
        (
            lambda: fed.custom(
                lambda m, row: jnp.sum(m, dtype=float) ** 2,
                np.ones(2),
                20,
                samples=9,
                check_sets=5,
            ),
            "submodular",
        ),
        (
            lambda: fed.custom(lambda m, row: jnp.where(m[1], row, 0.0), np.array([1, np.nan]), 3),
            "expected finite values, but .* client 1 ",
        ),
        (lambda: fed.max_coverage([[1, 0.2]]), r"membership\["),
        (lambda: fed.max_coverage([[1, np.nan]]), r"membership\["),
        (lambda: fed.max_coverage([[5, -1]]), r"membership\["),
        (
            lambda: fed.feature_selection([np.full((1, 2), 0.5)], [np.ones(1, int)]),
            r"features\[0\]:",
        ),
        (
            lambda: fed.feature_selection([np.ones((1, 2))], [np.array([np.nan])]),
            r"labels\[0\]:",
        ),
        (
            lambda: jax.eval_shape(
                lambda: fed.facility_location(SCORES).value(jnp.ones(N, bool), np.ones(CLIENTS))
            ),
            "got a sum of 5",
        ),
        (lambda: fed.feature_selection([np.ones((3, 2), int)], []), "got 1 and 0"),
        (lambda: fed.feature_selection([np.ones((3, 2), int)], [np.ones(2, int)]), "client 0"),
        (
            lambda: fed.feature_selection([np.full((1, 2), 2)], [np.ones(1, int)]),
            "got 2, expected integers",
        ),
        (lambda: fed.feature_selection(EXAMPLES, LABELS, smoothing=0.0), "smoothing=0.0"),
        (lambda: fed.facility_location(SCORES).value(np.ones(N + 1, bool)), r"\(6,\)"),
        (
            lambda: fed.facility_location(SCORES).value(np.ones(N, bool), np.ones(CLIENTS)),
            "sum of 5",
        ),
        (lambda: fed.facility_location(SCORES).value(np.ones(N, bool), [1.0]), r"\(5,\)"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_constants_are_checked_during_tracing():
    def covered(mask, row):
        return jnp.where(mask, row, 0).max()

    scores, masks = jnp.asarray(SCORES), jnp.asarray(SETS)
    plain = fed.custom(covered, scores, N)
    traced = jax.jit(jax.vmap(lambda mask: fed.custom(covered, scores, N).value(mask)))(masks)
    np.testing.assert_allclose(traced, jax.vmap(plain.value)(masks), rtol=1e-6)
    with pytest.raises(ValueError, match="monotone"):
        jax.eval_shape(lambda: fed.custom(lambda mask, row: -covered(mask, row), SCORES, N))
    with pytest.raises(ValueError, match="monotone"):
        jax.eval_shape(lambda: fed.custom(lambda mask, row: -covered(mask, row), scores, N))
