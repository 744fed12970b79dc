"""Every problem against its definition, on all subsets of a few items."""

import importlib
import itertools

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
RATINGS[3] = 0  # A client without a rating, which votes all the same.
SCORES = np.where(RATINGS > 0, RNG.random((CLIENTS, N)), 0).astype(np.float32)
MEMBERSHIP = RATINGS > 1
NEEDS = RNG.gamma(1.0, size=(CLIENTS, 2, N)).astype(np.float32)
AGENTS = 2
VALUES = RNG.gamma(1.0, size=(AGENTS, 1, N // AGENTS)).astype(np.float32)
EXAMPLES = [RNG.integers(0, 2, (count, N)) for count in (30, 12, 50, 7, 20)]
LABELS = [(own[:, 0] + own[:, 3] * own[:, 1] + RNG.integers(0, 2, len(own))) % 3
          for own in EXAMPLES]  # fmt: skip


def listed(matrix, **sizes):
    clients, items = np.nonzero(matrix)
    shuffled = RNG.permutation(clients.size)
    clients, items = clients[shuffled], items[shuffled]
    sizes = {"num_clients": matrix.shape[0], "size": matrix.shape[1], **sizes}
    return fed.sparse_scores(clients, items, matrix[clients, items], **sizes)


def best(scores):
    return lambda mask: np.where(mask, scores, 0).max(axis=-1)


def information(mask):
    """Mutual information of the chosen features and the label, from the whole joint table."""
    return [_information(own, classes, mask) for own, classes in zip(EXAMPLES, LABELS, strict=True)]


def _information(own, classes, mask):
    prior = np.array([(classes == c).sum() + 1 for c in range(3)]) / (len(classes) + 3)
    joint = np.zeros((2,) * N + (3,))
    for c in range(3):
        ones = (own[classes == c].sum(axis=0) + 1) / ((classes == c).sum() + 2)
        for x in itertools.product([0, 1], repeat=N):
            joint[(*x, c)] = prior[c] * np.where(x, ones, 1 - ones).prod()
    seen = joint.sum(axis=tuple(np.flatnonzero(~mask)))
    told = seen.sum(axis=-1, keepdims=True) * prior
    return (seen * np.log(seen / told)).sum()


# name: (problem, values of all clients by definition)
PROBLEMS = {
    "facility_location": (lambda: fed.facility_location(SCORES), best(SCORES)),
    "facility_location levels": (lambda: fed.facility_location(listed(RATINGS)), best(RATINGS)),
    "facility_location ranks": (
        lambda: fed.facility_location(_without_levels(SCORES)),
        best(SCORES),
    ),
    "max_coverage": (lambda: fed.max_coverage(MEMBERSHIP), best(MEMBERSHIP * 1.0)),
    "max_coverage sparse": (
        lambda: fed.max_coverage(listed(MEMBERSHIP.astype(int))),
        best(MEMBERSHIP * 1.0),
    ),
    "combinatorial_public_projects": (
        lambda: fed.combinatorial_public_projects(NEEDS),
        lambda mask: best(NEEDS)(mask).sum(axis=-1),
    ),
    "welfare": (
        lambda: fed.welfare(fed.combinatorial_public_projects(VALUES)),
        lambda mask: [
            best(own)(mask.reshape(-1, AGENTS)[:, i]).sum() for i, own in enumerate(VALUES)
        ],
    ),
    "feature_selection": (lambda: fed.feature_selection(EXAMPLES, LABELS), information),
    "custom": (
        lambda: fed.custom(lambda mask, own: jnp.sqrt(jnp.sum(own, where=mask)), SCORES, size=N),
        lambda mask: np.sqrt(SCORES[:, mask].sum(axis=1)),
    ),
}


def _without_levels(scores):
    """As for scores that take many values."""
    module = importlib.import_module("fedjax_fair.submodular.federated.sparse")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MOST_LEVELS", 0)
        return listed(scores)


@pytest.fixture(params=PROBLEMS, scope="module")
def case(request):
    make, definition = PROBLEMS[request.param]
    problem = make()
    return problem, np.array([definition(mask) for mask in SETS])


def matrix_of(gains, clients):
    """One row a client, as messages of which all but one count nothing."""

    def row(weights):
        return fed.secure_aggregate(gains.messages(weights), N)

    return np.asarray(jax.vmap(row)(jnp.eye(clients)))


def number(masks):
    return masks @ (2 ** np.arange(N)[::-1])


def by_definition(values, x):
    """Extensions and gradients of all clients in double precision."""

    def expected(x):
        return np.where(SETS, x, 1 - x).prod(axis=1) @ values

    unit = np.eye(N, dtype=bool)
    gains = [expected(np.where(e, 1.0, x)) - expected(np.where(e, 0.0, x)) for e in unit]
    return expected(x), np.stack(gains, axis=1)


POINTS = np.concatenate(
    [np.zeros((1, N)), np.ones((1, N)), RNG.choice([0, 0.25, 0.5, 1], (6, N)), RNG.random((4, N))]
).astype(np.float32)


def test_values_are_those_of_the_definition(case):
    problem, values = case
    found = jax.jit(jax.vmap(problem.values))(SETS)
    assert found.shape == (len(SETS), problem.num_clients)
    np.testing.assert_allclose(found, values, atol=2e-6)
    weights = RNG.dirichlet(np.ones(problem.num_clients))
    np.testing.assert_allclose(
        problem.value(jnp.asarray(SETS[21]), weights), values[21] @ weights, atol=2e-6
    )


def test_extensions_and_gradients_are_exact_at_corners_too(case):
    problem, values = case
    key = jax.random.key(0)
    assert problem.exact

    @jax.jit
    def ask(x):
        gains = problem.extensions(key, x).gradients
        clients = jnp.eye(problem.num_clients)
        matrix = jax.vmap(lambda w: fed.secure_aggregate(gains.messages(w), N))(clients)
        return problem.extensions(key, x).values, matrix

    for x in POINTS:
        value, gradient = by_definition(values, x.astype(float))
        found = ask(x)
        np.testing.assert_allclose(found[0], value, atol=5e-6)
        np.testing.assert_allclose(found[1], gradient, atol=5e-6)


def test_gains_are_differences_of_values(case):
    problem, values = case
    gains = jax.jit(lambda mask: matrix(problem, mask))

    def matrix(problem, mask):
        answer = problem.gains(mask)
        clients = jnp.eye(problem.num_clients)
        return jax.vmap(lambda w: fed.secure_aggregate(answer.messages(w), N))(clients)

    for mask in SETS[::5]:
        more = [values[number(mask | (np.arange(N) == e))] for e in range(N)]
        less = [values[number(mask & (np.arange(N) != e))] for e in range(N)]
        np.testing.assert_allclose(gains(mask), np.subtract(more, less).T, atol=5e-6)


def test_one_client_says_the_same_as_all_together(case):
    problem, _ = case
    key, x, mask = jax.random.key(0), jnp.asarray(POINTS[9]), jnp.asarray(SETS[13])
    own = jax.vmap(problem.own)(jnp.arange(problem.num_clients))
    ask = problem.function
    alone = jax.vmap(lambda own: ask.value(own, mask))(own)
    np.testing.assert_allclose(alone, problem.values(mask), atol=1e-6)
    alone = jax.vmap(lambda own: ask.extension(own, key, x))(own)
    np.testing.assert_allclose(alone, problem.extensions(key, x).values, atol=1e-6)
    alone = jax.vmap(lambda own: ask.gradient(own, key, x))(own)
    together = matrix_of(problem.extensions(key, x).gradients, problem.num_clients)
    np.testing.assert_allclose(alone, together, atol=1e-6)
    alone = jax.vmap(lambda own: ask.gains(own, mask))(own)
    together = matrix_of(problem.gains(mask), problem.num_clients)
    np.testing.assert_allclose(alone, together, atol=1e-6)


def test_what_somebody_sees_who_sees_all(case):
    problem, values = case
    weights = RNG.dirichlet(np.ones(problem.num_clients)).astype(np.float32)
    total = problem.total(jnp.asarray(weights))
    for mask in SETS[::9]:
        memo = total.init()
        for item in np.flatnonzero(mask):
            memo = total.add(memo, jnp.int32(item))
        outside = np.flatnonzero(~mask)
        now = values[number(mask)] @ weights
        np.testing.assert_allclose(total.value(jnp.asarray(mask)), now, atol=5e-6)
        gains = np.asarray(total.gains(memo))
        for e in outside:
            grown = values[number(mask | (np.arange(N) == e))] @ weights
            np.testing.assert_allclose(gains[e], grown - now, atol=5e-6)
            np.testing.assert_allclose(total.gain(memo, jnp.int32(e)), gains[e], atol=5e-6)


def test_functions_are_monotone_and_submodular(case):
    _, values = case  # In single precision where the data are.
    unit = np.eye(N, dtype=bool)
    grown = np.array([values[number(SETS | e)] - values[number(SETS)] for e in unit])
    assert grown.min() >= -1e-6
    for e, gain in zip(unit, grown, strict=True):
        for other in unit:
            later = gain[number(SETS | other)]
            assert (later <= gain + 1e-6)[~(SETS & e).any(axis=1)].all()


MATROIDS = {
    "uniform": matroids.uniform(3, N),
    "partition": matroids.partition([0, 0, 1, 1, 1, 2], [1, 2, 1]),
    "graphic": matroids.graphic([[0, 1], [1, 2], [2, 0], [2, 3], [3, 0], [1, 3]]),
}


@pytest.mark.parametrize("matroid", MATROIDS.values(), ids=MATROIDS)
def test_every_client_votes_for_its_heaviest_base(case, matroid):
    problem, _ = case
    key = jax.random.key(0)
    clients = problem.num_clients

    @jax.jit
    def ask(x):
        bases = problem.extensions(key, x).gradients.bases(matroid)
        rows = jax.vmap(lambda w: fed.secure_aggregate(bases.messages(w), N))(jnp.eye(clients))
        gains = problem.extensions(key, x).gradients
        eye = jnp.eye(clients)
        return rows, bases.worth, jax.vmap(
            lambda w: fed.secure_aggregate(gains.messages(w), N)
        )(eye)  # fmt: skip

    for x in POINTS[[0, 1, 3, 9]]:
        votes, worth, gradient = map(np.asarray, ask(x))
        expected = np.asarray(jax.vmap(matroid.max_weight_base)(gradient))
        # Of equal gains the first: the same base even where a client has nothing left to gain.
        np.testing.assert_array_equal(votes, expected)
        np.testing.assert_allclose(worth, (votes * gradient).sum(axis=1), atol=1e-6)


def test_spread_and_shares(case):
    problem, _ = case
    gains = problem.extensions(jax.random.key(0), jnp.asarray(POINTS[9])).gradients
    matrix = matrix_of(gains, problem.num_clients)
    mean = matrix.mean(axis=0)
    np.testing.assert_allclose(gains.spread(jnp.asarray(mean)), np.abs(matrix - mean).max())
    weights = np.linspace(0.5, 1, problem.num_clients).astype(np.float32)
    total = weights @ matrix
    total[2] = 0  # Nobody gains by it; it is left out.
    shares = np.divide(matrix, total, out=np.zeros_like(matrix), where=total > 0)
    found = gains.shares(jnp.asarray(weights), jnp.asarray(total))
    np.testing.assert_allclose(found, weights * shares.max(axis=1), rtol=1e-5)


@pytest.mark.parametrize("together", [8, 2**22])
def test_many_long_and_short_runs_vote_as_rows_do(together, monkeypatch):
    """Ties throughout, and runs from none to all of the items."""
    module = importlib.import_module("fedjax_fair.submodular.federated.sparse")
    monkeypatch.setattr(module, "_TOGETHER", together)
    rng = np.random.default_rng(1)
    kept = rng.random((60, 40)) < rng.random((60, 1))
    matrix = (rng.integers(1, 4, (60, 40)) * kept).astype(np.float32)
    dense, sparse = fed.facility_location(matrix), fed.facility_location(listed(matrix))
    weights = jnp.asarray(rng.random(60), jnp.float32)
    for k in (1, 7, 40):
        for x in (np.zeros(40), rng.choice([0, 0.5, 1], 40)):
            votes = [
                fed.secure_aggregate(
                    problem.extensions(jax.random.key(0), jnp.asarray(x, jnp.float32))
                    .gradients.bases(matroids.uniform(k, 40))
                    .messages(weights),
                    40,
                )
                for problem in (dense, sparse)
            ]
            np.testing.assert_allclose(*votes, rtol=1e-5)


def test_an_estimated_problem_is_near_the_exact_one():
    rates = RNG.gamma(1.0, size=(CLIENTS, N)).astype(np.float32)

    def value(mask, own):
        return jnp.sqrt(jnp.sum(own, where=mask))

    exact = fed.custom(value, rates, size=N)
    estimated = fed.custom(value, rates, size=N, samples=4000)
    assert not estimated.exact
    key, x = jax.random.key(0), jnp.asarray(POINTS[9])
    near = {"atol": 0.05}  # Standard deviations of at most 0.6, so six errors of the mean.
    np.testing.assert_allclose(
        estimated.extensions(key, x).values, exact.extensions(key, x).values, **near
    )
    found = matrix_of(estimated.extensions(key, x).gradients, CLIENTS)
    np.testing.assert_allclose(
        found, matrix_of(exact.extensions(key, x).gradients, CLIENTS), **near
    )
    corner = jnp.asarray(SETS[37])
    np.testing.assert_allclose(
        matrix_of(estimated.gains(corner), CLIENTS), matrix_of(exact.gains(corner), CLIENTS),
        atol=1e-5,
    )  # fmt: skip


def test_many_features_are_drawn_from_the_model():
    """Features told by all configurations of them, and by examples that the model makes up."""
    wide = [RNG.integers(0, 3, (40, 8)) for _ in range(2)]
    labels = [own[:, 0] // 2 for own in wide]
    padded = [np.concatenate([own, np.zeros((40, 4), int)], axis=1) for own in wide]
    few = fed.feature_selection([own[:, :6] for own in wide], labels, num_values=3)
    drawn = fed.feature_selection(padded, labels, num_values=3, drawn=20_000)
    assert not drawn.exact
    for mask in SETS[[1, 32, 36, 48]]:
        whole = np.concatenate([mask, np.zeros(6, bool)])
        found = np.asarray(drawn.values(jnp.asarray(whole)))
        np.testing.assert_allclose(found, few.values(jnp.asarray(mask)), atol=0.02)
        gains = drawn.gains(jnp.asarray(whole))
        row = fed.secure_aggregate(gains.messages(jnp.array([1.0, 0.0])), 12)
        more = drawn.values(jnp.asarray(whole).at[6].set(True))[0]
        np.testing.assert_allclose(row[6], more - found[0], atol=1e-5)


def test_negative_scores_are_clipped_with_a_count():
    with pytest.warns(UserWarning, match="2 of 4 are negative"):
        problem = fed.facility_location([[1.0, -1.0], [-2.0, 3.0]])
    assert problem.values(jnp.array([False, True])).tolist() == [0.0, 3.0]
    with pytest.warns(UserWarning, match="1 of 2 are negative"):
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
        (lists(items=[0, 3]), r"items.*\[0, 3\), got 3"),
        (lists(items=[0, -1]), "got -1"),
        (lists(clients=[0, 2]), r"clients.*\[0, 2\), got 2"),
        (lists(clients=[1, 1], items=[2, 2]), "client 1 for item 2, got two"),
        (lists(scores=[0.0, 0.0]), "at least one positive"),
        (lists(scores=[np.inf, 0.0]), "finite"),
        (lists(scores=[1.0]), r"\(2,\), \(2,\), \(1,\)"),
        (lambda: fed.combinatorial_public_projects(np.ones((2, 2))), "clients, needs"),
        (lambda: fed.combinatorial_public_projects(-np.ones((1, 1, 2))), ">= 0"),
        (lambda: fed.custom(lambda mask, own: jnp.sum(mask), np.ones(2), 11), "samples=None"),
        (lambda: fed.custom(lambda mask, own: 1.0, np.ones(2), 3), "0 at the empty set.*client 0"),
        (
            lambda: fed.custom(lambda m, own: jnp.where(m[1], -2.0, 0.0), np.ones(2), 3),
            r"item 1 in the set \[\] changes the value of client 0 by -2",
        ),
        (
            lambda: fed.custom(
                lambda m, own: jnp.where(m[:4].all(), 0.0, jnp.sum(m).astype(float)),
                np.ones(2),
                20,
                samples=9,
                check_sets=200,
            ),
            "monotone",
        ),
        (lambda: fed.feature_selection([np.ones((3, 2), int)], []), "got 1 and 0"),
        (lambda: fed.feature_selection([np.ones((3, 2), int)], [np.ones(2, int)]), "client 0"),
        (lambda: fed.feature_selection([np.full((1, 2), 2)], [np.ones(1, int)]), "got 2 to 2"),
        (lambda: fed.feature_selection(EXAMPLES, LABELS, smoothing=0.0), "smoothing=0.0"),
        (lambda: fed.facility_location(SCORES).value(np.ones(N + 1, bool)), r"\(6,\)"),
        (lambda: fed.facility_location(SCORES).value(np.ones(N, bool), np.ones(CLIENTS)), "got 5"),
        (lambda: fed.facility_location(SCORES).value(np.ones(N, bool), [1.0]), r"\(5,\)"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()
