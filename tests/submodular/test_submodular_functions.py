"""Set functions on all subsets of six items: incremental gains agree with the definition."""

import importlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse import coo_array, csr_array

from fedjax_fair import submodular as sm
from fedjax_fair.numerics import target

N = 6
RNG = np.random.default_rng(0)


def symmetric(low=0.0):
    matrix = RNG.uniform(low, 2.0, (N, N))
    return (matrix + matrix.T) / 2


SIMILARITY = RNG.uniform(0, 2, (4, N))
SQUARE = symmetric()
FEW = np.where(SIMILARITY > 1, SIMILARITY, 0.0)
FEW_SQUARE = np.where(SQUARE > 1, SQUARE, 0.0)
FEATURES = RNG.gamma(1.0, size=(N, 3))
POINTS = RNG.normal(size=(N, 3))
DISTANCES = np.linalg.norm(POINTS[:, None] - POINTS[None], axis=-1)
MEMBERSHIP = RNG.random((N, 5)) < 0.4
WEIGHTS = RNG.gamma(1.0, size=5)
MIXED = RNG.normal(size=N)
INCLUDED = np.array([True, False, True, True, False, True])
KERNEL = POINTS @ POINTS.T + 0.1 * np.eye(N)
HISTORY = RNG.random((3, N)) < 0.3
# Nine points, six of which may be chosen and seven count.
MORE_POINTS = RNG.normal(size=(9, 3))
SOME = np.array([7, 2, 0, 5, 8, 3])
COUNTED = np.array([True, True, False, True, True, True, True, False, True])
PROBABILITIES = np.where(MEMBERSHIP, np.random.default_rng(2).random((N, 5)), 0.0)
PROBABILITIES[0, 0] = 1.0
MORE_WEIGHTS = np.random.default_rng(1).gamma(1.0, size=9)
POINT_WEIGHTS = MORE_WEIGHTS[:N]
TO_SOME = np.linalg.norm(MORE_POINTS[:, None] - MORE_POINTS[SOME], axis=-1)


def reduction(distances, mask, to_phantom_items=None):
    """Distance of each point to the phantom, as far as the farthest item, minus that to the set."""
    farthest = (distances if to_phantom_items is None else to_phantom_items).max(axis=1)
    return farthest - np.minimum(distances[:, mask].min(axis=1, initial=np.inf), farthest)


def cut(similarity, tradeoff, mask):
    inside = similarity[mask][:, mask].sum()
    return tradeoff * similarity[mask].sum() - inside


def pairs(matrix, mask):
    """Entries of all pairs of the set."""
    return [matrix[i, j] for i, j in itertools.combinations(np.flatnonzero(mask), 2)]


# name: (function, the same by definition in NumPy, whether it is monotone)
FUNCTIONS = {
    "facility_location": (
        lambda: sm.FacilityLocation(SIMILARITY),
        lambda mask: SIMILARITY[:, mask].max(axis=1, initial=0).sum(),
        True,
    ),
    "facility_location_from_distances": (
        lambda: sm.facility_location_from_distances(DISTANCES),
        lambda mask: reduction(DISTANCES, mask).sum(),
        True,
    ),
    "facility_location_from_distances, of some": (
        lambda: sm.facility_location_from_distances(DISTANCES, POINT_WEIGHTS, INCLUDED),
        lambda mask: (
            POINT_WEIGHTS[INCLUDED]
            @ reduction(DISTANCES[INCLUDED], mask & INCLUDED, DISTANCES[INCLUDED][:, INCLUDED])
        ),
        True,
    ),
    "facility_location weighted": (
        lambda: sm.facility_location(SIMILARITY, WEIGHTS[:4]),
        lambda mask: SIMILARITY[:, mask].max(axis=1, initial=0) @ WEIGHTS[:4],
        True,
    ),
    "facility_location_from_distances weighted": (
        lambda: sm.facility_location_from_distances(DISTANCES, POINT_WEIGHTS),
        lambda mask: POINT_WEIGHTS @ reduction(DISTANCES, mask),
        True,
    ),
    "sparse facility_location": (
        lambda: sm.facility_location(csr_array(FEW), WEIGHTS[:4]),
        lambda mask: FEW[:, mask].max(axis=1, initial=0) @ WEIGHTS[:4],
        True,
    ),
    "sparse saturated_coverage": (
        lambda: sm.saturated_coverage(csr_array(FEW), 0.3),
        lambda mask: np.sum(np.minimum(FEW[:, mask].sum(axis=1), 0.3 * FEW.sum(axis=1))),
        True,
    ),
    "sparse graph_cut": (
        lambda: sm.graph_cut(coo_array(FEW_SQUARE), 1.5),
        lambda mask: cut(FEW_SQUARE, 1.5, mask),
        False,
    ),
    "modular": (lambda: sm.Modular(MIXED), lambda mask: MIXED[mask].sum(), False),
    "truncated_modular": (
        lambda: sm.truncated_modular(FEATURES[:, 0], 1.5, 0.7),
        lambda mask: 0.7 * min(1.5, FEATURES[mask, 0].sum()),
        True,
    ),
    "union_penalty": (
        lambda: sm.union_penalty(HISTORY, 0.3),
        lambda mask: -0.3 * (HISTORY.any(axis=0) & mask).sum(),
        False,
    ),
    "coverage": (
        lambda: sm.Coverage(MEMBERSHIP, WEIGHTS),
        lambda mask: WEIGHTS[MEMBERSHIP[mask].any(axis=0)].sum(),
        True,
    ),
    "probabilistic_coverage": (
        lambda: sm.ProbabilisticCoverage(PROBABILITIES, WEIGHTS),
        lambda mask: WEIGHTS @ (1 - np.prod(1 - PROBABILITIES[mask], axis=0)),
        True,
    ),
    "saturated_coverage": (
        lambda: sm.SaturatedCoverage(SIMILARITY, 0.3),
        lambda mask: np.sum(
            np.minimum(SIMILARITY[:, mask].sum(axis=1), 0.3 * SIMILARITY.sum(axis=1))
        ),
        True,
    ),
    "feature_based sqrt": (
        lambda: sm.FeatureBased(FEATURES),
        lambda mask: np.sqrt(FEATURES[mask].sum(axis=0)).sum(),
        True,
    ),
    "feature_based log1p": (
        lambda: sm.FeatureBased(FEATURES, "log1p", WEIGHTS[:3]),
        lambda mask: np.log1p(FEATURES[mask].sum(axis=0)) @ WEIGHTS[:3],
        True,
    ),
    "feature_based own": (
        lambda: sm.FeatureBased(FEATURES, lambda x: 1 - jnp.exp(-x - 1)),
        lambda mask: np.sum(np.exp(-1) - np.exp(-FEATURES[mask].sum(axis=0) - 1)),
        True,
    ),
    "graph_cut": (lambda: sm.GraphCut(SQUARE), lambda mask: cut(SQUARE, 1, mask), False),
    "graph_cut monotone": (
        lambda: sm.GraphCut(SQUARE, 2.0),
        lambda mask: cut(SQUARE, 2, mask),
        True,
    ),
    "log_det": (
        lambda: sm.LogDet(KERNEL),
        lambda mask: np.linalg.slogdet(np.eye(mask.sum()) + KERNEL[mask][:, mask])[1],
        True,
    ),
    "sum_of": (
        lambda: sm.Sum(
            (sm.Coverage(MEMBERSHIP), sm.Modular(MIXED), sm.FacilityLocation(SIMILARITY))
        ),
        lambda mask: (
            MEMBERSHIP[mask].any(axis=0).sum()
            + MIXED[mask].sum()
            + SIMILARITY[:, mask].max(axis=1, initial=0).sum()
        ),
        False,
    ),
    "scaled": (
        lambda: sm.Scaled(sm.Coverage(MEMBERSHIP), 2.5),
        lambda mask: 2.5 * MEMBERSHIP[mask].any(axis=0).sum(),
        True,
    ),
    "truncated": (
        lambda: sm.Truncated(sm.FacilityLocation(SIMILARITY), 4.0),
        lambda mask: min(4.0, SIMILARITY[:, mask].max(axis=1, initial=0).sum()),
        True,
    ),
    "restricted": (
        lambda: sm.Restricted(sm.FacilityLocation(SIMILARITY), INCLUDED),
        lambda mask: SIMILARITY[:, mask & INCLUDED].max(axis=1, initial=0).sum(),
        True,
    ),
}
FROM_FEATURES = {
    "facility_location_from_features": (
        lambda: sm.facility_location_from_features(POINTS),
        *FUNCTIONS["facility_location_from_distances"][1:],
    ),
    "facility_location_from_features, of some": (
        lambda: sm.facility_location_from_features(MORE_POINTS, SOME, COUNTED),
        lambda mask: reduction(TO_SOME[COUNTED], mask).sum(),
        True,
    ),
    "facility_location_from_features, weighted": (
        lambda: sm.facility_location_from_features(
            MORE_POINTS, SOME, COUNTED, weights=MORE_WEIGHTS
        ),
        lambda mask: MORE_WEIGHTS[COUNTED] @ reduction(TO_SOME[COUNTED], mask),
        True,
    ),
    "facility_location_from_features, valid items": (
        lambda: sm.facility_location_from_features(MORE_POINTS, SOME, valid_items=INCLUDED),
        lambda mask: reduction(TO_SOME, mask & INCLUDED, TO_SOME[:, INCLUDED]).sum(),
        True,
    ),
}
# Not submodular. The diagonals of the matrices, which are not 0, do not count.
DISPARITIES = {
    "disparity_sum": (
        lambda: sm.DisparitySum(SQUARE),
        lambda mask: sum(pairs(SQUARE, mask)),
        True,
    ),
    "disparity_min": (
        lambda: sm.DisparityMin(SQUARE),
        lambda mask: min(pairs(SQUARE, mask), default=0.0),
        False,
    ),
}
MEASURED = {
    "facility_location": FUNCTIONS["facility_location"],
    "graph_cut": FUNCTIONS["graph_cut"],
    "log_det": FUNCTIONS["log_det"],
}
QUERY, PRIVATE = [4, 1], [2, 4]
IN_QUERY, IN_PRIVATE = np.isin(np.arange(N), QUERY), np.isin(np.arange(N), PRIVATE)


def informed(make, value, measure):
    """An information measure of a function, and its definition."""
    known = IN_PRIVATE if measure != "mutual_information" else np.zeros(N, bool)
    if measure == "conditional_gain":
        return (
            lambda: sm.ConditionalGain(make(), PRIVATE),
            lambda mask: value(mask | known) - value(known),
        )
    return (
        lambda: (
            sm.ConditionalMutualInformation(make(), QUERY, PRIVATE)
            if known.any()
            else sm.MutualInformation(make(), QUERY)
        ),
        lambda mask: (
            value(mask | known)
            + value(IN_QUERY | known)
            - value(mask | IN_QUERY | known)
            - value(known)
        ),
    )


# Query and private items overlap, and a set may contain some of either.
INFORMATION = {
    f"{measure} of {name}": (
        *informed(make, value, measure),
        monotone,
    )
    for measure in ("conditional_gain", "mutual_information", "conditional_mutual_information")
    for name, (make, value, monotone) in MEASURED.items()
}
ALL = FUNCTIONS | INFORMATION | DISPARITIES | FROM_FEATURES
# Facility location, alone or within another function, has two forms.
LOCATIONS = [name for name in ALL if name.startswith("facility_location")]
# An information measure reads a function by its interface, so that one of each measure is enough.
COMPILED = FUNCTIONS | DISPARITIES | FROM_FEATURES
CASES = [
    *((name, False) for name in COMPILED),
    ("conditional_gain of log_det", False),
    ("mutual_information of graph_cut", False),
    ("conditional_mutual_information of facility_location", False),
    # Weights of a matrix are multiplied before.
    *((name, True) for name in (*LOCATIONS, "restricted") if name != "facility_location weighted"),
]

MASKS = np.array(list(itertools.product([False, True], repeat=N)))
PLACE_VALUES = 1 << np.arange(N)[::-1]


@pytest.fixture
def caches_gains(monkeypatch):
    """Makes facility location cache gains at any size, in partly filled blocks."""
    # By their paths, since the package has functions with the names of the modules.
    matrix, features = (
        importlib.import_module(f"fedjax_fair.submodular.facility_location{name}")
        for name in ("", "_from_features")
    )
    monkeypatch.setattr(matrix, "_SMALL", 0)
    monkeypatch.setattr(matrix, "_ROWS", 4)
    monkeypatch.setattr(features, "_POINTS", 4)
    features._of_features.clear_cache()  # It may be compiled for other blocks.
    with target.tracing_for("cpu"):
        yield


def truth_of(name):
    """The values of all subsets by definition, and the gains of all items; NaN for members."""
    values = np.array([ALL[name][1](mask) for mask in MASKS])
    gains = values[(MASKS[:, None] | np.eye(N, dtype=bool)) @ PLACE_VALUES] - values[:, None]
    return values, np.where(MASKS, np.nan, gains)


@pytest.mark.parametrize(
    ("name", "cached"), CASES, ids=[name + ", cached" * cached for name, cached in CASES]
)
def test_the_oracle_agrees_with_the_definition_on_every_subset(name, cached, request):
    if cached:
        request.getfixturevalue("caches_gains")

    @jax.jit
    def oracle(masks):
        function = ALL[name][0]()

        def grown(mask):
            """All gains, and one by one, over a set that is grown item by item."""

            def add(memo, item):
                added = function.add(memo, item)
                larger = jax.tree.map(lambda new, old: jnp.where(mask[item], new, old), added, memo)
                return larger, None

            items = jnp.arange(N)
            memo, _ = jax.lax.scan(add, function.init(), items)
            return function.gains(memo), jax.vmap(lambda item: function.gain(memo, item))(items)

        # Loops and branches of cached gains compile differently when they are mapped.
        has_loops = name in LOCATIONS and (cached or name in FROM_FEATURES)
        alone = jax.lax.map(grown, masks) if has_loops else ()
        return jax.vmap(function.value)(masks), jax.vmap(grown)(masks), alone

    values, together, alone = oracle(MASKS)
    true_values, true_gains = truth_of(name)
    assert true_values[0] == 0
    np.testing.assert_allclose(values, true_values, rtol=1e-5, atol=1e-5)
    for gains in (*together, *alone):
        defined = np.where(MASKS, np.nan, gains)  # Entries of members are meaningless.
        np.testing.assert_allclose(defined, true_gains, rtol=1e-5, atol=1e-5)
    for one, other in zip(together, alone or together, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "name", [*FUNCTIONS, *(name for name in INFORMATION if "mutual_information of log" not in name)]
)
def test_functions_are_submodular_and_monotone_as_documented(name):
    _, gains = truth_of(name)
    for item in range(N):
        later = gains[(MASKS | (np.arange(N) == item)) @ PLACE_VALUES]
        outside = ~MASKS & ~MASKS[:, [item]] & (np.arange(N) != item)
        assert (later <= gains + 1e-9)[outside].all()
    assert (np.nanmin(gains) >= -1e-9) == ALL[name][2]


@pytest.mark.parametrize("name", [name for name in INFORMATION if "information of log" in name])
def test_information_of_log_determinants_is_monotone(name):
    _, gains = truth_of(name)
    assert np.nanmin(gains) >= -1e-9


def test_information_has_closed_forms():
    """Closed forms for facility location and cuts."""
    queried, known = SIMILARITY[:, QUERY].max(axis=1), SIMILARITY[:, PRIVATE].max(axis=1)

    @jax.jit
    @jax.vmap
    def both(mask):
        location, cut = sm.FacilityLocation(SIMILARITY), sm.GraphCut(SQUARE)
        capped = jnp.minimum(jnp.asarray(SIMILARITY, jnp.float32), queried[:, None])
        measured = (
            sm.MutualInformation(location, QUERY),
            sm.MutualInformation(cut, QUERY),
            sm.ConditionalMutualInformation(location, QUERY, PRIVATE),
        )
        return [f.value(mask) for f in measured], sm.FacilityLocation(capped).value(mask)

    values, capped = both(MASKS)
    apart = ~(MASKS & (IN_QUERY | IN_PRIVATE)).any(axis=1)
    best = np.where(MASKS[:, None], SIMILARITY, 0).max(axis=2)
    np.testing.assert_allclose(values[0], capped, rtol=1e-4, atol=1e-5)
    between = 2 * MASKS[apart] @ SQUARE[:, QUERY].sum(axis=1)
    np.testing.assert_allclose(np.asarray(values[1])[apart], between, rtol=1e-4, atol=1e-5)
    beyond = np.maximum(np.minimum(best, np.maximum(queried, known)) - known, 0).sum(axis=1)
    np.testing.assert_allclose(values[2], beyond, rtol=1e-4, atol=1e-5)


def test_items_near_a_query_and_far_from_private_items_are_selected():
    """Of three groups, the query's is selected, since no private item is similar."""
    centers = np.repeat([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]], 4, axis=0)
    points = centers + np.random.default_rng(0).normal(size=(12, 2))
    near = np.exp(-np.linalg.norm(points[:, None] - points[None], axis=-1) / 2)
    others = np.ones(12, bool)
    others[[0, 4, 5]] = False

    @jax.jit
    def solve(near):
        location = sm.FacilityLocation(near)
        asked = sm.ConditionalMutualInformation(location, query=[0, 4], private=[5])
        avoiding = sm.ConditionalGain(location, private=[0, 4])
        results = (
            sm.greedy(asked, 1, candidate_mask=others),
            sm.greedy(avoiding, 1, candidate_mask=others),
        )
        return [chosen.items[0] for chosen in results]

    asked, avoiding = solve(near)
    assert asked in (1, 2, 3)
    assert avoiding >= 8


@pytest.mark.parametrize("name", DISPARITIES)
def test_disparities_are_not_submodular(name):
    """The sum is supermodular, the minimum is neither and not monotone."""
    _, gains = truth_of(name)
    changes = []
    for item in range(N):
        later = gains[(MASKS | (np.arange(N) == item)) @ PLACE_VALUES]
        outside = ~MASKS & ~MASKS[:, [item]] & (np.arange(N) != item)
        changes.append((later - gains)[outside])
    assert np.max(changes) > 0.1
    assert (np.min(changes) > -1e-9) == (name == "disparity_sum")
    assert (np.nanmin(gains) >= 0) == DISPARITIES[name][2]


@pytest.mark.parametrize("name", DISPARITIES)
def test_greedy_reaches_half_of_the_best_disparity_of_a_metric(name):
    disparity, evaluate = {
        "disparity_sum": (sm.DisparitySum, sum),
        "disparity_min": (sm.DisparityMin, min),
    }[name]
    greedily = jax.jit(lambda distances: sm.greedy(disparity(distances), 4))
    suboptimal = 0
    for seed in range(30):
        points = np.random.default_rng(seed).normal(size=(8, 2)) ** 3
        distances = np.linalg.norm(points[:, None] - points[None], axis=-1)
        chosen = greedily(distances)
        value = evaluate(pairs(distances, np.isin(np.arange(8), chosen.items)))
        sets = (np.isin(np.arange(8), items) for items in itertools.combinations(range(8), 4))
        best = max(evaluate(pairs(distances, mask)) for mask in sets)
        np.testing.assert_allclose(chosen.value, value, rtol=1e-4)
        assert value >= best / 2
        suboptimal += value < 0.99 * best
    assert suboptimal


def test_greedy_on_the_smallest_distance_is_farthest_first():
    chosen = jax.jit(lambda distances: sm.greedy(sm.DisparityMin(distances), 5))(DISTANCES)
    items = [0]
    while len(items) < 5:
        items.append(int(DISTANCES[:, items].min(axis=1).argmax()))
    assert chosen.items.tolist() == items


@pytest.mark.usefixtures("caches_gains")
def test_cached_gains_are_recomputed_where_most_points_change():
    """Differences of large sums would have errors of several units."""
    points = 50
    rng = np.random.default_rng(0)
    similarity = np.zeros((points, 3), np.float32)
    similarity[:, 0] = 1e6  # The item that is added is the best of all points.
    similarity[:, 1] = 1e6 + rng.integers(0, 16, points) / 16
    similarity[: points // 4, 2] = 2e6
    gains = jax.jit(lambda s: _gains_after_first(sm.FacilityLocation(s)))(similarity)
    expected = np.maximum(similarity.astype(float) - 1e6, 0).sum(axis=0)
    np.testing.assert_allclose(gains, expected, rtol=1e-6)


def _gains_after_first(function):
    return function.gains(function.add(function.init(), 0))


def test_settings_are_traced():
    mask = jnp.array([True, True, False, False, True, True])

    def all_at_once(number):
        functions = (
            sm.truncated_modular(FEATURES[:, 0], number, number),
            sm.union_penalty(HISTORY, number),
            sm.SaturatedCoverage(SIMILARITY, number),
            sm.GraphCut(SQUARE, number),
            sm.Scaled(sm.Coverage(MEMBERSHIP), number),
            sm.Truncated(sm.Coverage(MEMBERSHIP), number),
        )
        return jnp.stack([function.value(mask) for function in functions])

    numbers = (0.0, 0.5, 2.0)
    traced = jax.jit(jax.vmap(all_at_once))(jnp.array(numbers))
    static = jax.jit(lambda: jnp.stack([all_at_once(number) for number in numbers]))()
    np.testing.assert_allclose(traced, static, rtol=1e-5)
