"""Maximizers: bounds by brute force, and numerically hard cases."""

import itertools
import math
from functools import partial

import chex
import jax
import numpy as np
import pytest
from locations import mask_of, random_location, value_of, values_of

from fedjax_fair import submodular as sm

LINE = np.array([0.0, 1.0, 10.0, 11.0])
LINE_DISTANCES = np.abs(LINE[:, None] - LINE)
MASKS = np.array(list(itertools.product([False, True], repeat=7)))


@partial(jax.jit, static_argnames="k")
def located(similarity, k):
    """Results of greedy, lazy greedy, and stochastic greedy with all candidates."""
    function = sm.FacilityLocation(similarity)
    key = jax.random.key(0)
    return (
        sm.greedy(function, k),
        sm.lazy_greedy(function, k),
        sm.stochastic_greedy(key, function, k, 7),
    )


def test_the_golden_line():
    @jax.jit
    def solve(distances):
        represented = sm.facility_location_from_distances(distances)
        penalty = sm.union_penalty([False, True, False, False], 3.0)
        return sm.greedy(represented, 2), sm.greedy(sm.Sum((represented, penalty)), 2)

    chosen, penalized = solve(LINE_DISTANCES)
    assert chosen.items.tolist() == [1, 2]
    assert chosen.gains.tolist() == [22, 18]
    assert chosen.value == 40
    assert penalized.items.tolist() == [2, 0]


@pytest.mark.parametrize("k", [1, 5])
def test_greedy_keeps_its_bound_and_lazy_and_stochastic_greedy_agree(k):
    for seed in range(20):
        similarity = random_location(seed)
        plain, lazy, stochastic = located(similarity, k)
        values = values_of(similarity, MASKS)
        assert plain.value == value_of(similarity, plain.items)
        assert plain.value >= (1 - 1 / math.e) * values[MASKS.sum(axis=1) == k].max()
        chex.assert_trees_all_equal(lazy[:3], plain[:3])
        assert 7 <= lazy.num_evaluations <= plain.num_evaluations == sum(7 - i for i in range(k))
        chex.assert_trees_all_equal(stochastic, plain)


def test_stochastic_greedy_keeps_its_expected_bound():
    rng = np.random.default_rng(0)
    similarity = rng.uniform(size=(12, 12)) ** 4
    epsilon, k = 0.3, 4
    masks = np.array([mask_of(s, 12) for s in itertools.combinations(range(12), k)])
    all_values = values_of(similarity, masks)
    keys = jax.random.split(jax.random.key(0), 500)

    @jax.jit
    @jax.vmap
    def solve(key):
        return sm.stochastic_greedy(key, sm.FacilityLocation(similarity), k, epsilon=epsilon)

    chosen = solve(keys)
    values = np.asarray(chosen.value)
    error = values.std() / np.sqrt(values.size)
    assert values.mean() - 3 * error >= (1 - 1 / math.e - epsilon) * all_values.max()
    assert (chosen.num_evaluations == k * math.ceil(12 / k * math.log(1 / epsilon))).all()
    # It is neither greedy nor a random choice.
    assert values.std() > 0
    assert values.mean() > all_values.mean() + 3 * error


def test_candidates_are_sampled_at_every_step():
    keys = jax.random.split(jax.random.key(1), 6000)

    @jax.jit
    @jax.vmap
    def solve(key):
        # All weights differ, so that the best of two candidates never depends on ties.
        return sm.stochastic_greedy(key, sm.Modular(np.arange(5.0)), 2, 2).items

    items = np.asarray(solve(keys))
    pairs = list(itertools.combinations(range(5), 2))
    first = np.bincount([max(pair) for pair in pairs], minlength=5) / len(pairs)
    error = np.sqrt(first * (1 - first) / 6000)
    shares = np.bincount(items[:, 0], minlength=5) / 6000
    assert (np.abs(shares - first) <= 4 * error).all()
    # After item 4, the best of a fresh pair from the other four.
    after = items[items[:, 0] == 4, 1]
    pairs = list(itertools.combinations(range(4), 2))
    second = np.bincount([max(pair) for pair in pairs], minlength=5) / len(pairs)
    error = np.sqrt(second * (1 - second) / after.size)
    assert (np.abs(np.bincount(after, minlength=5) / after.size - second) <= 4 * error).all()


MAXIMIZERS = {
    "greedy": sm.greedy,
    "lazy": sm.lazy_greedy,
    "stochastic": partial(sm.stochastic_greedy, jax.random.key(3), candidates=2),
    "stochastic, all": partial(sm.stochastic_greedy, jax.random.key(3), candidates=6),
}
EXACT = ["greedy", "lazy", "stochastic, all"]


@partial(jax.jit, static_argnames=("name", "k"))
def maximized(name, weights, available, k):
    """Maximizes a sum of any weights, which are not checked when traced."""
    return MAXIMIZERS[name](sm.Modular(weights), k=k, candidate_mask=available)


def maximize(name, weights, k, available=(True,) * 6):
    return maximized(name, np.array(weights, np.float32), np.array(available), k)


@pytest.mark.parametrize("name", MAXIMIZERS)
@pytest.mark.parametrize("k", [1, 4, 6])
@pytest.mark.parametrize("weights", [[0] * 6, [1, 1, 1, 0, 0, 0], [-3, -1, -2, -1, -5, -1]])
def test_there_are_always_k_different_items(name, k, weights):
    chosen = maximize(name, weights, k)
    assert len(set(chosen.items.tolist())) == k
    np.testing.assert_allclose(chosen.value, np.sum(np.take(weights, chosen.items)))


@pytest.mark.parametrize("name", EXACT)
def test_ties_go_to_the_smallest_index(name):
    assert maximize(name, [1, 2, 2, 1, 2, 1], 6).items.tolist() == [1, 2, 4, 0, 3, 5]


@pytest.mark.parametrize("name", MAXIMIZERS)
def test_other_items_follow_the_candidates(name):
    available = np.array([True, False, False, True, True, False])
    weights = [1, 9, 8, 2, -4, 7]
    # After all available items, one other.
    chosen = maximize(name, weights, 4, available)
    assert set(chosen.items[:3].tolist()) == {0, 3, 4}
    assert not available[int(chosen.items[3])]
    everything = maximize(name, weights, 6, available)
    assert set(everything.items[:3].tolist()) == {0, 3, 4}
    assert sorted(everything.items.tolist()) == list(range(6))


@pytest.mark.parametrize("name", MAXIMIZERS)
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_nonfinite_gains_come_last(name, bad):
    everything = maximize(name, [1, bad, 2, bad, 0.5, -1], 6)
    assert sorted(everything.items.tolist()) == list(range(6))
    if name in EXACT:
        assert everything.items.tolist() == [2, 0, 4, 5, 1, 3]


@pytest.mark.parametrize("name", EXACT)
def test_initial_items_continue_a_selection(name):
    @jax.jit
    def solve(similarity):
        function = sm.FacilityLocation(similarity)
        complete = MAXIMIZERS[name](function, k=4)
        return complete, MAXIMIZERS[name](function, k=2, initial_items=complete.items[:2])

    complete, rest = solve(random_location(4, items=6))
    chex.assert_trees_all_equal(rest.items, complete.items[2:])
    chex.assert_trees_all_equal(rest.gains, complete.gains[2:])
    assert rest.value == complete.value


def test_many_selections_agree_with_double_precision():
    # Large enough for gains to be cached rather than recomputed.
    points = np.random.default_rng(0).normal(size=(400, 5))
    distances = np.linalg.norm(points[:, None] - points[None], axis=-1)

    @jax.jit
    def solve(distances, points):
        from_distances = sm.facility_location_from_distances(distances)
        from_features = sm.facility_location_from_features(points)
        return sm.greedy(from_distances, 60), sm.greedy(from_features, 60)

    chosen, features = solve(distances, points)
    nearest = distances.max(axis=1)
    total = 0.0
    for place, item in enumerate(np.asarray(chosen.items)):
        gains = np.maximum(0, nearest[:, None] - distances).sum(axis=0)
        assert gains[item] >= gains.max() - 1e-4
        np.testing.assert_allclose(chosen.gains[place], gains[item], rtol=1e-4, atol=1e-4)
        nearest, total = np.minimum(nearest, distances[:, item]), total + gains[item]
    np.testing.assert_allclose(chosen.value, total, rtol=1e-6)
    np.testing.assert_allclose(features.value, total, rtol=1e-4)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# name: (function of [items, features], which values of the sums count in double precision)
CONCAVE = {
    "saturated": (
        lambda amounts: sm.SaturatedCoverage(amounts.T, 0.2),
        lambda amounts: lambda sums: np.minimum(sums, 0.2 * amounts.sum(axis=0)),
    ),
    "sqrt": (sm.FeatureBased, lambda amounts: np.sqrt),
    "log1p": (lambda amounts: sm.FeatureBased(amounts, "log1p"), lambda amounts: np.log1p),
    "sigmoid": (lambda amounts: sm.FeatureBased(amounts, jax.nn.sigmoid), lambda amounts: sigmoid),
}


@partial(jax.jit, static_argnames="name")
def of_concave(amounts, name):
    return sm.greedy(CONCAVE[name][0](amounts), 100)


@pytest.mark.parametrize("identical", [False, True])
@pytest.mark.parametrize("name", CONCAVE)
def test_no_selection_is_worse_than_in_double_precision(name, identical):
    """Tolerates rounding errors of single terms; sums are much larger than gains."""
    concave = CONCAVE[name][1]
    amounts = np.random.default_rng(0).gamma(1.0, size=(110, 2000)).astype(np.float32)
    if identical:  # Rounding errors that are the same everywhere do not cancel.
        amounts[:] = amounts[:, :1]
    chosen = of_concave(amounts, name)
    evaluate, exact = concave(amounts.astype(float)), amounts.astype(float)
    sums, total, left = np.zeros(2000), 0.0, np.ones(110, bool)
    for item, gain in zip(np.asarray(chosen.items), np.asarray(chosen.gains), strict=True):
        gains = (evaluate(sums + exact) - evaluate(sums)).sum(axis=1)
        total = total + gains[item]
        assert gains[item] >= gains[left].max() - 2e-7 * total
        assert abs(gain - gains[item]) <= 2e-7 * total
        sums, left[item] = sums + exact[item], False


def test_new_values_do_not_retrace():
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def solve(similarity, bound):
        function = sm.Sum(
            (sm.FacilityLocation(similarity), sm.truncated_modular(similarity[0], bound))
        )
        return sm.greedy(function, 3).items

    assert solve(random_location(0), 1.0).shape == (3,)
    assert solve(random_location(1), 2.0).shape == (3,)


@jax.jit
def distorted(similarity, costs):
    return sm.distorted_greedy(sm.FacilityLocation(similarity), costs, 4)


def test_distorted_greedy_keeps_its_bound():
    small = MASKS[MASKS.sum(axis=1) <= 4]
    for seed in range(30):
        similarity = random_location(seed)
        costs = np.random.default_rng(seed).uniform(0, 40, 7).astype(np.float32)
        chosen = distorted(similarity, costs)
        items = np.asarray(chosen.items)
        selected = items[items >= 0]
        assert len(set(selected.tolist())) == len(selected)
        mask = mask_of(selected)
        value = values_of(similarity, mask[None])[0] - costs[mask].sum()
        np.testing.assert_allclose(chosen.value, value, rtol=1e-5, atol=1e-4)
        assert (np.asarray(chosen.gains)[items < 0] == 0).all()
        bounds = (1 - 1 / math.e) * values_of(similarity, small) - small @ costs
        assert value >= bounds.max() - 1e-3


def test_distorted_greedy_omits_a_costly_item_that_greedy_selects():
    """Item 0 has the value of all others together, and costs nearly as much."""
    similarity = np.concatenate([np.ones((4, 1)), np.eye(4)], axis=1)
    similarity = np.pad(similarity, ((0, 0), (0, 2))).astype(np.float32)
    costs = np.array([2.9, 0, 0, 0, 0, 1, 1], np.float32)
    chosen = distorted(similarity, costs)
    assert chosen.items.tolist() == [1, 2, 3, 4]
    assert chosen.value == 4  # Rather than 4 - 2.9 = 1.1, which is more than 1 in the first step.


def test_distorted_greedy_without_costs_is_greedy():
    similarity = random_location(2)
    free = distorted(similarity, np.zeros(7, np.float32))
    assert free.items.tolist() == located(similarity, 5)[0].items.tolist()[:4]


def test_swaps_end_where_no_swap_helps():
    @jax.jit
    def solve(similarity, start):
        function = sm.FacilityLocation(similarity)
        return sm.best_swap(function, start), sm.best_swap(function, start, max_swaps=1)

    improved = 0
    for seed in range(15):
        similarity = random_location(seed)
        start = np.random.default_rng(seed).choice(7, 3, replace=False)
        better, once = solve(similarity, start)
        items = np.asarray(better.items)
        before, after = values_of(similarity, np.stack([mask_of(start), mask_of(items)]))
        assert len(set(items.tolist())) == 3
        assert better.value == after >= before
        improved += after > before
        for place, other in itertools.product(range(3), range(7)):
            assert value_of(similarity, [*np.delete(items, place), other]) <= after
        assert len(set(once.items.tolist()) - set(start.tolist())) <= 1
        if after > before:  # The first exchange is the one that raises the value most.
            first = max(
                value_of(similarity, [*np.delete(start, place), other])
                for place, other in itertools.product(range(3), range(7))
            )
            assert once.value == first
    assert improved > 5


def test_evaluations_of_swaps_are_counted():
    """All swaps are evaluated once more after the last improvement."""
    swap = jax.jit(lambda weights: sm.best_swap(sm.Modular(weights), np.array([0, 1])))
    assert swap(np.arange(5.0)).num_evaluations == (2 + 1) * 2 * 3


def test_swaps_need_an_increase_above_rounding_errors():
    swap = jax.jit(lambda weights, items: sm.best_swap(sm.Modular(weights), items).items)
    for more, better in ((1e-2, True), (1e-3, True), (1e-5, True), (2.4e-7, False)):
        weights = np.array([1, 1 + more, 0.5], np.float32)
        assert weights[1] > weights[0]
        assert swap(weights, np.array([0])).tolist() == [int(better)]
    assert sorted(swap(np.arange(3.0), np.array([2, 0, 1])).tolist()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: sm.greedy(f, 4), "k=4"),
        (lambda f: sm.greedy(f, 0), "k=0"),
        (lambda f: sm.greedy(f, 2, initial_items=[0, 1]), "k=2"),
        (
            lambda f: sm.greedy(f, 1, initial_items=[0, 3]),
            "initial_items=",
        ),
        (
            lambda f: sm.greedy(f, 1, initial_items=[1, 1]),
            "initial_items=",
        ),
        (
            lambda f: sm.greedy(f, 1, candidate_mask=[True]),
            "candidate_mask:",
        ),
        (
            lambda f: sm.greedy(f, 1, candidate_mask=[0, 1, 2]),
            r"candidate_mask\[2\]=",
        ),
        (
            lambda f: sm.greedy(f, 1, initial_items=[0.7]),
            "initial_items=",
        ),
        (
            lambda f: sm.greedy(f, 1, initial_items=[True, False, False]),
            "initial_items=",
        ),
        (
            lambda f: sm.greedy(f, 1, initial_items=[[0]]),
            "initial_items:",
        ),
        (lambda f: sm.best_swap(f, [0.7]), "items="),
        (lambda f: sm.stochastic_greedy(jax.random.key(0), f, 1), "candidates="),
        (lambda f: sm.stochastic_greedy(jax.random.key(0), f, 1, 4), "candidates=4"),
        (lambda f: sm.stochastic_greedy(jax.random.key(0), f, 1, 0), "candidates=0"),
        (lambda f: sm.stochastic_greedy(jax.random.key(0), f, 1, epsilon=1.0), "epsilon=1.0"),
        (lambda f: sm.distorted_greedy(f, [1.0], 1), "costs:"),
        (lambda f: sm.distorted_greedy(f, [1.0, -1.0, 0.0], 1), r"costs\[1\]=-1.0"),
        (lambda f: sm.best_swap(f, [0, 0]), "items="),
        (lambda f: sm.best_swap(f, [0], max_swaps=0), "max_swaps=0"),
        (lambda f: sm.best_swap(f, []), "items="),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(sm.Modular(np.arange(3.0)))
