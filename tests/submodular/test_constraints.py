"""Greedy under matroids and budgets: bounds by brute force, and unused slots."""

import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from locations import mask_of, random_location, value_of, values_of

from fedjax_fair import submodular as sm
from fedjax_fair.submodular import matroids

N = 7
SETS = np.array(list(itertools.product([False, True], repeat=N)))
MATROIDS = {
    "uniform": matroids.Uniform(3, N),
    "partition": matroids.Partition([1, 0, 1, 0, 1, 0, 2], [1, 2, 0]),
    "laminar": matroids.Laminar([[1, 0, 1, 0, 0, 0, 0], [1, 0, 1, 1, 0, 1, 1]], [1, 2]),
    "graphic": matroids.Graphic([[0, 1], [1, 2], [2, 0], [2, 3], [3, 0], [1, 3], [3, 3]]),
}


def all_candidates(function, k=None, **settings):
    return sm.stochastic_greedy(jax.random.key(0), function, k, function.size, **settings)


MAXIMIZERS = {"greedy": sm.greedy, "lazy": sm.lazy_greedy, "stochastic": all_candidates}


def selected(chosen):
    """Returns the items, and checks that all later slots are unused."""
    items, gains = np.asarray(chosen.items), np.asarray(chosen.gains)
    count = int((items >= 0).sum())
    assert (items[count:] == -1).all()
    assert (gains[count:] == 0).all()
    assert len(set(items[:count].tolist())) == count
    return items[:count].tolist()


def reference(similarity, k, allowed, score, min_gain=None):
    """Greedy in NumPy under ``allowed(mask)`` by ``score(gain, item)``."""
    items, num_evaluations = [], 0
    for _ in range(k):
        base = value_of(similarity, items)
        joins = [j for j in range(N) if j not in items and allowed(mask_of([*items, j]))]
        num_evaluations += len(joins)
        gains = {j: value_of(similarity, [*items, j]) - base for j in joins}
        gains = {j: gain for j, gain in gains.items() if min_gain is None or gain > min_gain}
        if not gains:
            break
        items.append(max(gains, key=lambda j: (score(gains[j], j), -j)))
    return items, num_evaluations


@partial(jax.jit, static_argnames=("name", "matroid"))
def constrained(similarity, name, matroid):
    function = sm.FacilityLocation(similarity)
    return MAXIMIZERS[name](function, matroid=MATROIDS[matroid])


@pytest.mark.parametrize(
    ("name", "matroid"),
    [
        *(("greedy", matroid) for matroid in MATROIDS),
        ("lazy", "partition"),
        ("lazy", "graphic"),
        ("stochastic", "laminar"),
        ("stochastic", "graphic"),
    ],
)
def test_greedy_under_a_matroid_reaches_half_of_the_optimum(name, matroid):
    constraint = MATROIDS[matroid]
    independent = np.asarray(jax.jit(jax.vmap(constraint.independent))(SETS))
    allowed = {tuple(mask) for mask in SETS[independent]}
    for seed in range(15):
        similarity = random_location(seed)
        chosen = constrained(similarity, name, matroid)
        items, num_evaluations = reference(
            similarity, constraint.rank, lambda mask: tuple(mask) in allowed, lambda gain, _: gain
        )
        assert chosen.items.tolist() == items
        assert chosen.value == value_of(similarity, items)
        assert chosen.value >= values_of(similarity, SETS[independent]).max() / 2
        assert (
            chosen.num_evaluations == num_evaluations
            if name != "lazy"
            else chosen.num_evaluations <= num_evaluations
        )


@partial(jax.jit, static_argnames="matroid")
def swapped(similarity, start, matroid):
    function = sm.FacilityLocation(similarity)
    return sm.best_swap(function, start, matroid=MATROIDS[matroid])


@pytest.mark.parametrize("matroid", MATROIDS)
def test_swaps_end_at_an_independent_local_optimum(matroid):
    independent = np.asarray(jax.jit(jax.vmap(MATROIDS[matroid].independent))(SETS))
    allowed = {tuple(mask) for mask in SETS[independent]}
    bases = SETS[independent & (SETS.sum(axis=1) == MATROIDS[matroid].rank)]
    improved = bound = 0
    for seed in range(15):
        similarity = random_location(seed)
        start = np.flatnonzero(bases[seed % len(bases)])
        chosen = swapped(similarity, start, matroid)
        items = selected(chosen)
        assert tuple(mask_of(items)) in allowed
        assert chosen.value == value_of(similarity, items)
        assert chosen.value >= values_of(similarity, SETS[independent]).max() / 2
        for place, other in itertools.product(range(len(items)), set(range(N)) - set(items)):
            others = [*np.delete(items, place), other]
            if tuple(mask_of(others)) in allowed:
                assert value_of(similarity, others) <= chosen.value
            else:
                bound += value_of(similarity, others) > float(chosen.value)
        improved += float(chosen.value) > value_of(similarity, start)
    assert improved
    assert bound or matroid == "uniform"


@partial(jax.jit, static_argnames=("name", "k"))
def within_budget(similarity, costs, budget, name, k=None):
    function = sm.FacilityLocation(similarity)
    return MAXIMIZERS[name](function, k, costs=costs, budget=budget)


def dear_and_cheap(seed):
    """Random similarities and costs for which either order may be better."""
    rng = np.random.default_rng(seed)
    costs = rng.integers(0, 9, N).astype(np.float32)
    similarity = rng.integers(1, 9, (9, N)) * (rng.random((9, N)) < 0.3)
    return costs, similarity.astype(np.float32)


@pytest.mark.parametrize("name", MAXIMIZERS)
def test_greedy_under_a_budget_is_the_better_of_two_orders(name):
    better = []
    for seed in range(30):
        costs, similarity = dear_and_cheap(seed)
        budget = np.float32(12)
        chosen = within_budget(similarity, costs, budget, name)

        def pays(mask, costs=costs, budget=budget):
            return costs[mask].sum() <= budget

        def ratio(gain, item, costs=costs):
            return gain / max(costs[item], 1e-20)

        both = [reference(similarity, N, pays, score)[0] for score in (lambda g, _: g, ratio)]
        values = [value_of(similarity, items) for items in both]
        items = selected(chosen)
        assert costs[items].sum() <= budget
        np.testing.assert_allclose(chosen.value, max(values), rtol=1e-5)
        np.testing.assert_allclose(chosen.value, value_of(similarity, items), rtol=1e-5)
        best = values_of(similarity, SETS[SETS @ costs <= budget]).max()
        assert chosen.value >= (1 - 1 / math.e) / 2 * best - 1e-3
        better.append(np.sign(values[1] - values[0]))
    assert {-1, 1} <= set(better)


def test_the_budget_has_a_tolerance_of_a_millionth():
    """By rounding, seven costs of 0.1 exceed 0.7."""
    assert np.full(N, 0.1, np.float32).cumsum()[-1] > np.float32(0.7)
    similarity = np.eye(N, dtype=np.float32)
    chosen = within_budget(similarity, np.full(N, 0.1, np.float32), np.float32(0.7), "greedy")
    assert selected(chosen) == [0, 1, 2, 3, 4, 5, 6]
    chosen = within_budget(similarity, np.full(N, 0.1, np.float32), np.float32(0.2999), "greedy")
    assert selected(chosen) == [0, 1]
    assert selected(within_budget(similarity, np.ones(N), np.float32(0.5), "lazy")) == []


def test_candidates_are_sampled_from_the_feasible_items():
    """With one candidate it is any item of the free blocks, then of the remaining ones."""
    blocks = np.array([0, 0, 0, 1, 1, 2, 3])
    constraint = matroids.Partition(blocks, [1, 1, 1, 0])

    @jax.jit
    @jax.vmap
    def solve(key):
        function = sm.Modular(np.ones(N, np.float32))
        return sm.stochastic_greedy(key, function, 2, 1, matroid=constraint)

    chosen = solve(jax.random.split(jax.random.key(0), 4000))
    first, second = np.asarray(chosen.items).T
    assert (blocks[first] != blocks[second]).all()
    assert (np.asarray(chosen.num_evaluations) == 2).all()
    for counts, expected in (
        (np.bincount(first, minlength=N), np.array([1, 1, 1, 1, 1, 1, 0]) / 6),
        (np.bincount(second[first == 5], minlength=N), np.array([1, 1, 1, 1, 1, 0, 0]) / 5),
        (np.bincount(second[first == 1], minlength=N), np.array([0, 0, 0, 1, 1, 1, 0]) / 3),
    ):
        total = counts.sum()
        error = np.sqrt(total * expected * (1 - expected))
        assert (np.abs(counts - total * expected) <= 4 * error).all()


@pytest.mark.parametrize("name", MAXIMIZERS)
def test_all_constraints_together_with_initial_items(name):
    """Initial items count in the matroid and the budget."""
    weights = np.array([9, 8, 7, 6, 5, 0, -1], np.float32)
    costs = np.array([1, 1, 1, 1, 3, 0, 0], np.float32)
    blocks = matroids.Partition([0, 0, 1, 1, 1, 2, 2], [1, 2, 2])

    @jax.jit
    def solve(min_gain, budget):
        settings = {"costs": costs, "budget": budget, "matroid": blocks, "initial_items": [0]}
        return MAXIMIZERS[name](sm.Modular(weights), 5, min_gain=min_gain, **settings)

    chosen = solve(-0.5, 3.0)
    assert sorted(selected(chosen)) == [2, 3, 5]
    assert chosen.value == 9 + 7 + 6
    assert selected(solve(0.0, 3.0)) == [2, 3]
    assert selected(solve(6.0, 3.0)) == [2]
    assert sorted(selected(solve(-2.0, 9.0))) == [2, 3, 5, 6]


@pytest.mark.parametrize("name", MAXIMIZERS)
def test_greedy_stops_at_the_minimum_gain(name):
    @jax.jit
    def solve(weights, available, min_gain):
        function = sm.Modular(weights)
        return MAXIMIZERS[name](function, min_gain=min_gain, candidate_mask=available)

    weights = np.array([3, np.nan, 2, 0, -1, 1, -np.inf], np.float32)
    every = np.ones(N, bool)
    chosen = solve(weights, every, 0.0)
    assert selected(chosen) == [0, 2, 5]
    assert (
        chosen.num_evaluations == 7 + 6 + 5 + 4 if name != "lazy" else chosen.num_evaluations < 22
    )
    assert selected(solve(weights, every, 1.0)) == [0, 2]
    assert selected(solve(weights, every, -2.0)) == [0, 2, 5, 3, 4]
    # The others come when no available one is left, but not because available ones gain little.
    some = np.array([0, 0, 0, 0, 0, 1, 0], bool)
    assert selected(solve(weights, some, 0.0)) == [5, 0, 2]
    some[4] = True
    assert selected(solve(weights, some, 0.0)) == [5]


@partial(jax.jit, static_argnames="seed_size")
def enumerated(similarity, costs, budget, seed_size=3):
    function = sm.FacilityLocation(similarity)
    return sm.partial_enumeration(function, costs, budget, seed_size=seed_size)


def test_partial_enumeration_keeps_its_bound():
    budget, better = np.float32(8), 0
    for seed in range(40, 55):
        costs, similarity = dear_and_cheap(seed)
        chosen = enumerated(similarity, costs, budget)
        few = enumerated(similarity, costs, budget, 2)
        items = selected(chosen)
        assert costs[items].sum() <= budget
        assert chosen.value == value_of(similarity, items)
        assert chosen.gains.sum() == chosen.value
        paid = SETS[SETS @ costs <= budget]
        values = values_of(similarity, paid)
        assert chosen.value >= (1 - 1 / math.e) * values.max()
        # Nothing is left out that could still be paid for, so that all small sets are best.
        assert chosen.value >= values[paid.sum(axis=1) <= 3].max()
        assert few.value >= values[paid.sum(axis=1) <= 2].max()
        better += float(chosen.value) > float(few.value)
    assert better
    everything = enumerated(similarity, np.zeros(N, np.float32), np.float32(0))
    # For every seed its own items, and what is left at every step after it.
    runs = [(j + sum(range(N - j + 1))) * math.comb(N, j) for j in range(4)]
    assert everything.num_evaluations == sum(runs)


def test_constraints_that_do_not_bind_change_nothing():
    @jax.jit
    def solve(similarity):
        function = sm.FacilityLocation(similarity)
        return sm.greedy(function, 4), sm.greedy(function, 4, matroid=matroids.Uniform(4, N))

    free, constrained = solve(random_location(3))
    for one, other in zip(free, constrained, strict=True):
        np.testing.assert_array_equal(one, other)


def test_budgets_are_mapped():
    """A mapped conditional computes both branches."""
    costs, similarity = dear_and_cheap(1)
    budgets = np.arange(0, 20, 2, dtype=np.float32)
    together = jax.jit(jax.vmap(lambda b: within_budget(similarity, costs, b, "greedy")))(budgets)
    for place, budget in enumerate(budgets):
        alone = within_budget(similarity, costs, budget, "greedy")
        np.testing.assert_array_equal(together.items[place], alone.items)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "k=None"),
        ({"matroid": MATROIDS["uniform"]}, "matroid:"),
        ({"costs": [1, 1, 1]}, "budget=None"),
        ({"budget": 1.0}, "costs=None"),
        ({"costs": [1, 1], "budget": 1.0}, "costs:"),
        ({"costs": [1, -1, 1], "budget": 1.0}, r"costs\[1\]=-1.0"),
        ({"costs": [1, 1, 1], "budget": -1.0}, "budget=-1.0"),
        ({"min_gain": math.nan}, "min_gain=nan"),
        ({"k": 4, "min_gain": 0.0}, "k=4"),
        (
            {"matroid": matroids.Uniform(1, 3), "initial_items": [0, 1]},
            "initial_items=",
        ),
        (
            {"costs": [2, 1, 1], "budget": 1.0, "initial_items": [0]},
            "initial_items=",
        ),
    ],
)
def test_bad_input_is_named(settings, message):
    for maximize in MAXIMIZERS.values():
        with pytest.raises(ValueError, match=message):
            maximize(sm.Modular(jnp.arange(3.0)), **settings)


def test_matroids_of_swaps_are_checked():
    with pytest.raises(ValueError, match="matroid:"):
        sm.best_swap(sm.Modular(jnp.arange(3.0)), [0], matroid=MATROIDS["uniform"])
    with pytest.raises(ValueError, match="items="):
        sm.best_swap(sm.Modular(jnp.arange(3.0)), [0, 1], matroid=matroids.Uniform(1, 3))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"costs": [1, 1], "budget": 1.0}, "costs:"),
        ({"costs": [1, 1, 1], "budget": -1.0}, "budget=-1.0"),
        ({"costs": [1, 1, 1], "budget": 1.0, "seed_size": 4}, "seed_size=4"),
    ],
)
def test_bad_input_of_partial_enumeration_is_named(settings, message):
    with pytest.raises(ValueError, match=message):
        sm.partial_enumeration(sm.Modular(jnp.arange(3.0)), **settings)
