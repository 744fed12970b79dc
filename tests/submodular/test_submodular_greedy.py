"""Maximizers: guarantees by brute force, and the cases in which others go wrong."""

import itertools
import math
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_fair import submodular as sm

RNG = np.random.default_rng(0)
LINE = np.array([0.0, 1.0, 10.0, 11.0])
LINE_DISTANCES = np.abs(LINE[:, None] - LINE)


def random_location(seed, points=9, items=7):
    # Whole numbers, so that sums are exact and ties are real.
    return np.random.default_rng(seed).integers(0, 20, (points, items)).astype(np.float32)


def best_value(value, size, k):
    return max(value(np.isin(np.arange(size), s)) for s in itertools.combinations(range(size), k))


def location_value(similarity, mask):
    return similarity[:, mask].max(axis=1, initial=0).sum()


@partial(jax.jit, static_argnames="k")
def located(similarity, k):
    function = sm.facility_location(similarity)
    return sm.greedy(function, k), sm.lazy_greedy(function, k)


def test_the_golden_line():
    chosen = sm.greedy(sm.facility_location_from_distances(LINE_DISTANCES), 2)
    assert chosen.items.tolist() == [1, 2]
    assert chosen.gains.tolist() == [22, 18]
    assert chosen.value == 40


def test_the_golden_line_with_penalties():
    represented = sm.facility_location_from_distances(LINE_DISTANCES)
    penalized = sm.sum_of(represented, sm.union_penalty([False, True, False, False], 3.0))
    assert sm.greedy(penalized, 2).items.tolist() == [2, 0]


@pytest.mark.parametrize("k", [1, 3, 5])
def test_greedy_and_lazy_greedy_keep_their_promise(k):
    for seed in range(20):
        similarity = random_location(seed)
        plain, lazy = located(similarity, k)
        value = partial(location_value, similarity)
        best = best_value(value, 7, k)
        assert plain.value == value(np.isin(np.arange(7), plain.items))
        assert plain.value >= (1 - 1 / math.e) * best
        chex.assert_trees_all_equal(lazy[:3], plain[:3])
        assert 7 <= lazy.calls <= plain.calls == sum(7 - i for i in range(k))


def test_stochastic_greedy_keeps_its_promise_on_average():
    similarity = RNG.uniform(size=(12, 12)) ** 4
    epsilon, k = 0.3, 4
    function = sm.facility_location(similarity)
    best = best_value(partial(location_value, similarity), 12, k)
    keys = jax.random.split(jax.random.key(0), 500)
    chosen = jax.vmap(lambda key: sm.stochastic_greedy(key, function, k, epsilon=epsilon))(keys)
    values = np.asarray(chosen.value)
    error = values.std() / np.sqrt(values.size)
    assert values.mean() - 3 * error >= (1 - 1 / math.e - epsilon) * best
    assert (chosen.calls == k * math.ceil(12 / k * math.log(1 / epsilon))).all()
    # It is neither greedy nor a random choice.
    assert values.std() > 0
    random = [
        location_value(similarity, np.isin(np.arange(12), RNG.choice(12, k, replace=False)))
        for _ in range(500)
    ]
    assert values.mean() > np.mean(random) + 3 * np.std(random) / np.sqrt(500)


def test_candidates_are_drawn_anew_at_every_step():
    # All weights differ, so that the best of two candidates never depends on ties.
    function = sm.modular(np.arange(5.0))
    keys = jax.random.split(jax.random.key(1), 6000)
    items = np.asarray(jax.vmap(lambda key: sm.stochastic_greedy(key, function, 2, 2).items)(keys))
    pairs = list(itertools.combinations(range(5), 2))
    first = np.bincount([max(pair) for pair in pairs], minlength=5) / len(pairs)
    error = np.sqrt(first * (1 - first) / 6000)
    seen = np.bincount(items[:, 0], minlength=5) / 6000
    assert (np.abs(seen - first) <= 4 * error).all()
    # After item 4, the best of a fresh pair from the other four.
    after = items[items[:, 0] == 4, 1]
    pairs = list(itertools.combinations(range(4), 2))
    second = np.bincount([max(pair) for pair in pairs], minlength=5) / len(pairs)
    error = np.sqrt(second * (1 - second) / after.size)
    assert (np.abs(np.bincount(after, minlength=5) / after.size - second) <= 4 * error).all()


def test_all_items_as_candidates_are_greedy():
    for seed in range(10):
        similarity = random_location(seed)
        function = sm.facility_location(similarity)
        stochastic = sm.stochastic_greedy(jax.random.key(seed), function, 5, 7)
        plain, _ = located(similarity, 5)
        chex.assert_trees_all_equal(stochastic, plain)


MAXIMISERS = {
    "greedy": sm.greedy,
    "lazy": sm.lazy_greedy,
    "stochastic": partial(sm.stochastic_greedy, jax.random.key(3), candidates=2),
    "stochastic, all": partial(sm.stochastic_greedy, jax.random.key(3), candidates=6),
}


@pytest.mark.parametrize("maximize", MAXIMISERS.values(), ids=MAXIMISERS)
@pytest.mark.parametrize("k", [1, 4, 6])
@pytest.mark.parametrize("weights", [[0] * 6, [1, 1, 1, 0, 0, 0], [-3, -1, -2, -1, -5, -1]])
def test_there_are_always_k_different_items(maximize, k, weights):
    function = sm.modular(np.array(weights, float))
    chosen = maximize(function, k=k)
    assert len(set(chosen.items.tolist())) == k
    np.testing.assert_allclose(chosen.value, np.sum(np.take(weights, chosen.items)))


@pytest.mark.parametrize("name", ["greedy", "lazy", "stochastic, all"])
def test_ties_go_to_the_smallest_index(name):
    chosen = MAXIMISERS[name](sm.modular(np.array([1.0, 2, 2, 1, 2, 1])), k=5)
    assert chosen.items.tolist() == [1, 2, 4, 0, 3]


@pytest.mark.parametrize("maximize", MAXIMISERS.values(), ids=MAXIMISERS)
def test_unavailable_items_come_last(maximize):
    available = np.array([True, False, False, True, True, False])
    function = sm.modular(np.array([1.0, 9.0, 8.0, 2.0, -4.0, 7.0]))
    assert set(maximize(function, k=3, available=available).items.tolist()) == {0, 3, 4}
    chosen = maximize(function, k=5, available=available)
    assert set(chosen.items[:3].tolist()) == {0, 3, 4}
    assert not available[np.asarray(chosen.items[3:])].any()


@pytest.mark.parametrize("maximize", MAXIMISERS.values(), ids=MAXIMISERS)
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_gains_that_are_no_numbers_come_last(maximize, bad):
    weights = jnp.array([1.0, bad, 2.0, bad, 0.5, -1.0])
    function = sm.SetFunction(
        size=6,
        value=lambda mask: jnp.sum(weights, where=mask),
        init=lambda: (),
        gains=lambda memo: weights,
        gain=lambda memo, item: weights[item],
        add=lambda memo, item: memo,
    )
    everything = maximize(function, k=6)
    assert sorted(everything.items.tolist()) == list(range(6))
    if maximize is not MAXIMISERS["stochastic"]:
        assert everything.items.tolist() == [2, 0, 4, 5, 1, 3]


@pytest.mark.parametrize("name", ["greedy", "lazy", "stochastic, all"])
def test_a_warm_start_goes_on_where_it_was(name):
    similarity = random_location(4, items=6)
    function = sm.facility_location(similarity)
    whole = MAXIMISERS[name](function, k=4)
    rest = MAXIMISERS[name](function, k=2, start=whole.items[:2])
    chex.assert_trees_all_equal(rest.items, whole.items[2:])
    chex.assert_trees_all_equal(rest.gains, whole.gains[2:])
    assert rest.value == whole.value


def test_many_picks_agree_with_double_precision():
    # Large enough for gains to be kept up to date rather than computed anew.
    points = RNG.normal(size=(400, 5))
    distances = np.linalg.norm(points[:, None] - points[None], axis=-1)
    function = sm.facility_location_from_distances(distances)
    chosen = jax.jit(lambda: sm.greedy(function, 60))()
    features = jax.jit(lambda: sm.greedy(sm.facility_location_from_features(points), 60))()
    nearest = distances.max(axis=1)
    total = 0.0
    for place, item in enumerate(np.asarray(chosen.items)):
        gains = np.maximum(0, nearest[:, None] - distances).sum(axis=0)
        assert gains[item] >= gains.max() - 1e-4
        np.testing.assert_allclose(chosen.gains[place], gains[item], rtol=1e-4, atol=1e-4)
        nearest, total = np.minimum(nearest, distances[:, item]), total + gains[item]
    np.testing.assert_allclose(chosen.value, total, rtol=1e-6)
    np.testing.assert_allclose(features.value, total, rtol=1e-4)


def test_new_values_do_not_retrace():
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def solve(similarity, bound):
        function = sm.sum_of(
            sm.facility_location(similarity), sm.truncated_modular(similarity[0], bound)
        )
        return sm.greedy(function, 3).items

    assert solve(random_location(0), 1.0).shape == (3,)
    assert solve(random_location(1), 2.0).shape == (3,)


def test_distorted_greedy_keeps_its_promise():
    k = 4
    for seed in range(30):
        rng = np.random.default_rng(seed)
        similarity, costs = random_location(seed), rng.uniform(0, 40, 7)
        chosen = sm.distorted_greedy(sm.facility_location(similarity), costs, k)
        items = np.asarray(chosen.items)
        picked = items[items >= 0]
        assert len(set(picked.tolist())) == len(picked)
        mask = np.isin(np.arange(7), picked)
        value = location_value(similarity, mask) - costs[mask].sum()
        np.testing.assert_allclose(chosen.value, value, rtol=1e-5, atol=1e-4)
        assert (chosen.gains[items < 0] == 0).all()
        for size in range(k + 1):
            for other in itertools.combinations(range(7), size):
                mask = np.isin(np.arange(7), other)
                bound = (1 - 1 / math.e) * location_value(similarity, mask) - costs[mask].sum()
                assert value >= bound - 1e-3


def test_distorted_greedy_without_costs_is_greedy():
    similarity = random_location(2)
    function = sm.facility_location(similarity)
    free = sm.distorted_greedy(function, np.zeros(7), 3)
    assert free.items.tolist() == sm.greedy(function, 3).items.tolist()


def test_swaps_end_where_no_swap_helps():
    improved = 0
    for seed in range(15):
        similarity = random_location(seed)
        function = sm.facility_location(similarity)
        value = partial(location_value, similarity)
        start = np.random.default_rng(seed).choice(7, 3, replace=False)
        before = value(np.isin(np.arange(7), start))
        better = sm.best_swap(function, start)
        after = value(np.isin(np.arange(7), better.items))
        assert len(set(better.items.tolist())) == 3
        assert better.value == after >= before
        improved += after > before
        for place, other in itertools.product(range(3), range(7)):
            swapped = np.asarray(better.items).copy()
            swapped[place] = other
            assert value(np.isin(np.arange(7), swapped)) <= after
        once = sm.best_swap(function, start, most=1)
        assert len(set(once.items.tolist()) - set(start.tolist())) <= 1
    assert improved > 5
    assert sorted(sm.best_swap(sm.modular(np.arange(3.0)), [2, 0, 1]).items.tolist()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: sm.greedy(f, 4), "k=4: expected an integer >= 1 and <= 3"),
        (lambda f: sm.greedy(f, 0), "k=0"),
        (lambda f: sm.greedy(f, 2, start=[0, 1]), "k=2: expected an integer >= 1 and <= 1"),
        (lambda f: sm.greedy(f, 1, start=[0, 3]), r"start=\[0, 3\]: expected items in \[0, 3\)"),
        (lambda f: sm.greedy(f, 1, start=[1, 1]), r"start=\[1, 1\]: expected different items"),
        (lambda f: sm.greedy(f, 1, available=[True]), r"available: expected shape \(3,\)"),
        (lambda f: sm.stochastic_greedy(jax.random.key(0), f, 1), "candidates=None, epsilon=None"),
        (lambda f: sm.stochastic_greedy(jax.random.key(0), f, 1, 4), "candidates=4: .* <= 3"),
        (lambda f: sm.stochastic_greedy(jax.random.key(0), f, 1, 0), "candidates=0"),
        (lambda f: sm.stochastic_greedy(jax.random.key(0), f, 1, epsilon=1.0), "epsilon=1.0"),
        (lambda f: sm.distorted_greedy(f, [1.0], 1), "costs: expected 3 items, got 1"),
        (lambda f: sm.distorted_greedy(f, [1.0, -1.0, 0.0], 1), r"costs\[1\]=-1.0"),
        (lambda f: sm.best_swap(f, [0, 0]), r"items=\[0, 0\]: expected different"),
        (lambda f: sm.best_swap(f, [0], most=0), "most=0"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(sm.modular(np.arange(3.0)))


class TestFacilityLocation:
    """For those who only want representatives."""

    def test_ranks_rows(self):
        points = RNG.normal(size=(30, 4))
        model = sm.FacilityLocation(5).fit(points)
        distances = np.linalg.norm(points[:, None] - points[None], axis=-1)
        chosen = sm.greedy(sm.facility_location_from_distances(distances), 5)
        assert model.ranking_.tolist() == chosen.items.tolist()
        np.testing.assert_allclose(model.gains_, chosen.gains, rtol=1e-5)
        np.testing.assert_array_equal(model.transform(points), points[model.ranking_])
        np.testing.assert_array_equal(model.fit_transform(points), points[model.ranking_])

    def test_takes_rectangular_similarities(self):
        similarity = random_location(0)
        model = sm.FacilityLocation(3, metric="precomputed").fit(similarity)
        assert model.ranking_.tolist() == located(similarity, 3)[0].items.tolist()

    def test_makes_no_matrix_of_many_rows(self, monkeypatch):
        from fedjax_fair.submodular import estimator

        points = RNG.normal(size=(31, 4))
        exact = sm.FacilityLocation(4).fit(points).ranking_
        monkeypatch.setattr(estimator, "_MATRIX", 30)
        estimator._rank.clear_cache()
        np.testing.assert_array_equal(sm.FacilityLocation(4).fit(points).ranking_, exact)
        estimator._rank.clear_cache()

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: sm.FacilityLocation(0), "k=0"),
            (lambda: sm.FacilityLocation(5).fit(np.zeros((4, 2))), "k=5: .* <= 4"),
            (lambda: sm.FacilityLocation(1).fit(np.zeros(4)), r"X: .* got shape \(4,\)"),
            (lambda: sm.FacilityLocation(1).fit([[np.nan]]), "X: expected finite numbers"),
            (
                lambda: sm.FacilityLocation(1, metric="precomputed").fit([[-1.0]]),
                "X: expected similarities >= 0",
            ),
        ],
    )
    def test_bad_input_is_named(self, make, message):
        with pytest.raises(ValueError, match=message):
            make()
