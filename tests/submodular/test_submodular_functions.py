"""Every set function, on every subset of a few items: the oracle agrees with the definition."""

import importlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_fair import submodular as sm

N = 6
RNG = np.random.default_rng(0)


def symmetric(low=0.0):
    matrix = RNG.uniform(low, 2.0, (N, N))
    return (matrix + matrix.T) / 2


SIMILARITY = RNG.uniform(0, 2, (4, N))
SQUARE = symmetric()
FEATURES = RNG.gamma(1.0, size=(N, 3))
POINTS = RNG.normal(size=(N, 3))
DISTANCES = np.linalg.norm(POINTS[:, None] - POINTS[None], axis=-1)
MEMBERSHIP = RNG.random((N, 5)) < 0.4
WEIGHTS = RNG.gamma(1.0, size=5)
MIXED = RNG.normal(size=N)
KEEP = np.array([True, False, True, True, False, True])
KERNEL = POINTS @ POINTS.T + 0.1 * np.eye(N)
HISTORY = RNG.random((3, N)) < 0.3
# Nine points, six of which may be chosen and seven count.
MORE_POINTS = RNG.normal(size=(9, 3))
SOME = np.array([7, 2, 0, 5, 8, 3])
COUNTED = np.array([True, True, False, True, True, True, True, False, True])
TO_SOME = np.linalg.norm(MORE_POINTS[:, None] - MORE_POINTS[SOME], axis=-1)


def cut(similarity, tradeoff, mask):
    inside = similarity[mask][:, mask].sum()
    return tradeoff * similarity[mask].sum() - inside


# name: (function, the same by definition in NumPy, whether it is monotone)
FUNCTIONS = {
    "facility_location": (
        lambda: sm.facility_location(SIMILARITY),
        lambda mask: SIMILARITY[:, mask].max(axis=1, initial=0).sum(),
        True,
    ),
    "facility_location_from_distances": (
        lambda: sm.facility_location_from_distances(DISTANCES),
        lambda mask: np.sum(
            DISTANCES.max(axis=1)
            - np.minimum(DISTANCES[:, mask].min(axis=1, initial=np.inf), DISTANCES.max(axis=1))
        ),
        True,
    ),
    "modular": (lambda: sm.modular(MIXED), lambda mask: MIXED[mask].sum(), False),
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
        lambda: sm.coverage(MEMBERSHIP, WEIGHTS),
        lambda mask: WEIGHTS[MEMBERSHIP[mask].any(axis=0)].sum(),
        True,
    ),
    "saturated_coverage": (
        lambda: sm.saturated_coverage(SIMILARITY, 0.3),
        lambda mask: np.sum(
            np.minimum(SIMILARITY[:, mask].sum(axis=1), 0.3 * SIMILARITY.sum(axis=1))
        ),
        True,
    ),
    "feature_based sqrt": (
        lambda: sm.feature_based(FEATURES),
        lambda mask: np.sqrt(FEATURES[mask].sum(axis=0)).sum(),
        True,
    ),
    "feature_based log1p": (
        lambda: sm.feature_based(FEATURES, "log1p", WEIGHTS[:3]),
        lambda mask: np.log1p(FEATURES[mask].sum(axis=0)) @ WEIGHTS[:3],
        True,
    ),
    "feature_based own": (
        lambda: sm.feature_based(FEATURES, lambda x: 1 - jnp.exp(-x - 1)),
        lambda mask: np.sum(np.exp(-1) - np.exp(-FEATURES[mask].sum(axis=0) - 1)),
        True,
    ),
    "graph_cut": (lambda: sm.graph_cut(SQUARE), lambda mask: cut(SQUARE, 1, mask), False),
    "graph_cut monotone": (
        lambda: sm.graph_cut(SQUARE, 2.0),
        lambda mask: cut(SQUARE, 2, mask),
        True,
    ),
    "log_det": (
        lambda: sm.log_det(KERNEL),
        lambda mask: np.linalg.slogdet(np.eye(mask.sum()) + KERNEL[mask][:, mask])[1],
        True,
    ),
    "sum_of": (
        lambda: sm.sum_of(
            sm.coverage(MEMBERSHIP), sm.modular(MIXED), sm.facility_location(SIMILARITY)
        ),
        lambda mask: (
            MEMBERSHIP[mask].any(axis=0).sum()
            + MIXED[mask].sum()
            + SIMILARITY[:, mask].max(axis=1, initial=0).sum()
        ),
        False,
    ),
    "scaled": (
        lambda: sm.scaled(sm.coverage(MEMBERSHIP), 2.5),
        lambda mask: 2.5 * MEMBERSHIP[mask].any(axis=0).sum(),
        True,
    ),
    "truncated": (
        lambda: sm.truncated(sm.facility_location(SIMILARITY), 4.0),
        lambda mask: min(4.0, SIMILARITY[:, mask].max(axis=1, initial=0).sum()),
        True,
    ),
    "restricted": (
        lambda: sm.restricted(sm.facility_location(SIMILARITY), KEEP),
        lambda mask: SIMILARITY[:, mask & KEEP].max(axis=1, initial=0).sum(),
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
        lambda mask: np.sum(
            TO_SOME[COUNTED].max(axis=1)
            - np.where(mask, TO_SOME[COUNTED], np.inf).min(axis=1, initial=9.0)
            if mask.any()
            else 0.0
        ),
        True,
    ),
}
ALL = FUNCTIONS | FROM_FEATURES
LOCATIONS = [name for name in ALL if name.startswith("facility_location")]


@pytest.fixture(params=[False, True])
def keeps_gains(request, monkeypatch):
    """Facility location in both of its forms, whatever the size."""
    if request.param:
        # By its path, since the package calls a function by the name of the module.
        module = importlib.import_module("fedjax_fair.submodular.facility_location")
        monkeypatch.setattr(module, "_SMALL", 0)
        monkeypatch.setattr(module, "_ROWS", 4)
        monkeypatch.setattr(module, "_POINTS", 4)
        monkeypatch.setattr(module, "_KEEPS_GAINS", {jax.default_backend(): True})


def subsets(size):
    return itertools.product([False, True], repeat=size)


@pytest.mark.usefixtures("keeps_gains")
@pytest.mark.parametrize("name", ALL)
def test_the_oracle_agrees_with_the_definition_on_every_subset(name):
    factory, definition, _ = ALL[name]
    function = factory()
    values = jax.jit(jax.vmap(function.value))
    masks = np.array(list(subsets(N)))
    truth = np.array([definition(mask) for mask in masks])
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(values(masks), truth, **close)
    assert truth[0] == 0

    def grown(mask):
        """The gains over a set that is grown item by item."""

        def add(memo, item):
            added = function.add(memo, item)
            return jax.tree.map(lambda new, old: jnp.where(mask[item], new, old), added, memo), None

        memo, _ = jax.lax.scan(add, function.init(), jnp.arange(N))
        return function.gains(memo), jax.vmap(lambda item: function.gain(memo, item))(jnp.arange(N))

    gains, single = (np.asarray(part) for part in jax.jit(jax.vmap(grown))(masks))
    place = masks @ (1 << np.arange(N)[::-1])
    for row, mask in enumerate(masks):
        for item in np.flatnonzero(~mask):
            larger = truth[np.flatnonzero(place == place[row] + (1 << (N - 1 - item)))[0]]
            np.testing.assert_allclose(gains[row, item], larger - truth[row], **close)
            np.testing.assert_allclose(single[row, item], larger - truth[row], **close)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_is_submodular_and_monotone_where_it_says_so(name):
    _, definition, monotone = FUNCTIONS[name]
    value = {mask: definition(np.array(mask)) for mask in subsets(N)}

    def with_item(mask, item):
        return (*mask[:item], True, *mask[item + 1 :])

    decreasing = False
    for mask in value:
        outside = [item for item in range(N) if not mask[item]]
        for item in outside:
            gain = value[with_item(mask, item)] - value[mask]
            decreasing |= gain < -1e-9
            for other in outside:
                if other != item:
                    larger = with_item(mask, other)
                    later = value[with_item(larger, item)] - value[larger]
                    assert later <= gain + 1e-9
    assert decreasing != monotone


@pytest.mark.usefixtures("keeps_gains")
@pytest.mark.parametrize("name", LOCATIONS)
def test_facility_location_batches(name):
    function = ALL[name][0]()

    def gains(item):
        return function.gains(function.add(function.init(), item))

    items = jnp.arange(N)
    np.testing.assert_allclose(
        jax.vmap(gains)(items), jnp.stack([gains(item) for item in items]), rtol=1e-6, atol=1e-6
    )


def test_settings_are_traced():
    masks = jnp.array([True, True, False, False, True, True])

    def all_at_once(number):
        functions = (
            sm.truncated_modular(FEATURES[:, 0], number, number),
            sm.union_penalty(HISTORY, number),
            sm.saturated_coverage(SIMILARITY, number),
            sm.graph_cut(SQUARE, number),
            sm.scaled(sm.coverage(MEMBERSHIP), number),
            sm.truncated(sm.coverage(MEMBERSHIP), number),
        )
        return jnp.stack([function.value(masks) for function in functions])

    numbers = jnp.array([0.0, 0.5, 2.0])
    together = jax.vmap(all_at_once)(numbers)
    for row, number in zip(together, numbers, strict=True):
        np.testing.assert_allclose(row, all_at_once(float(number)), rtol=1e-5)


ASYMMETRIC = np.where(np.eye(3)[::-1], 1.0, 0.0) + np.array([[0, 5, 0], [0, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sm.facility_location([[1, -2.0]]), r"similarity\[0, 1\]=-2.0: expected finite"),
        (lambda: sm.facility_location([1.0]), r"similarity: expected shape \[points, items\]"),
        (lambda: sm.facility_location_from_distances(SIMILARITY), "square matrix, got shape"),
        (lambda: sm.facility_location_from_distances(ASYMMETRIC), r"distances\[0, 1\]=5.0 and"),
        (lambda: sm.facility_location_from_distances(-SQUARE), r"distances\[0, 0\]=-.*>= 0"),
        (
            lambda: sm.facility_location_from_distances(np.full((2, 2), np.nan)),
            r"distances\[0, 0\]=nan",
        ),
        (lambda: sm.facility_location_from_features([[0.0], [np.inf]]), r"features\[1, 0\]=inf"),
        (lambda: sm.facility_location_from_features(POINTS, [0, 6]), r"items=\[0, 6\]: .*\[0, 6\)"),
        (lambda: sm.facility_location_from_features(POINTS, [1, 1]), "expected different items"),
        (lambda: sm.facility_location_from_features(POINTS, []), r"items: .* got shape \(0,\)"),
        (lambda: sm.facility_location_from_features(POINTS, None, [True]), r"counted: .*\(6,\)"),
        (lambda: sm.modular([1.0, np.nan]), r"weights\[1\]=nan: expected finite"),
        (lambda: sm.truncated_modular([1.0, -1.0], 1.0), r"weights\[1\]=-1.0"),
        (lambda: sm.truncated_modular([1.0], -1.0), "bound=-1.0"),
        (lambda: sm.truncated_modular([1.0], 1.0, -0.5), "scale=-0.5"),
        (lambda: sm.union_penalty(HISTORY, -1.0), "mu=-1.0"),
        (lambda: sm.union_penalty(np.zeros((0, 4), bool), 1.0), r"history: .* got \(0, 4\)"),
        (lambda: sm.coverage(MEMBERSHIP, WEIGHTS[:2]), "expected 5 topics, got 2"),
        (lambda: sm.coverage([True]), r"expected shape \[items, topics\]"),
        (lambda: sm.saturated_coverage(SIMILARITY, -0.1), "saturation=-0.1"),
        (lambda: sm.feature_based(FEATURES, "cube"), "concave='cube'"),
        (lambda: sm.feature_based(-FEATURES), r"features\[0, 0\]=-"),
        (lambda: sm.graph_cut(SQUARE, -1.0), "tradeoff=-1.0"),
        (lambda: sm.log_det(SIMILARITY), "kernel: expected a square"),
        (lambda: sm.sum_of(), "got no function"),
        (lambda: sm.sum_of(sm.modular([1.0]), sm.modular([1.0, 2.0])), r"got \[1, 2\]"),
        (lambda: sm.scaled(sm.modular([1.0]), -1.0), "factor=-1.0"),
        (lambda: sm.truncated(sm.modular([1.0]), np.nan), "bound=nan"),
        (lambda: sm.restricted(sm.modular([1.0]), [True, False]), r"mask: expected shape \(1,\)"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
