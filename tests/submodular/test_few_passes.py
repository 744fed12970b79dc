"""Threshold, streaming and distributed maximizers: bounds by brute force."""

import importlib
import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_fair import submodular as sm
from fedjax_fair.numerics import target

# By its path, since the package calls a function by the name of the module.
sieve_module = importlib.import_module("fedjax_fair.submodular.sieve_streaming")
N = 8
SETS = np.array(list(itertools.product([False, True], repeat=N)))
KEYS = jax.random.split(jax.random.key(0), 400)


def random_location(seed):
    rng = np.random.default_rng(seed)
    return (rng.random((9, N)) ** 3 * (rng.random((9, N)) < 0.5)).astype(np.float32)


def value_of(similarity, items):
    chosen = similarity[:, [i for i in items if i >= 0]].astype(float)
    return chosen.max(axis=1, initial=0).sum()


def best_of(similarity, k):
    return max(value_of(similarity, items) for items in itertools.combinations(range(N), k))


def check(similarity, chosen):
    """Checks that items are distinct, unused slots come last, and the value is right."""
    items, gains = np.asarray(chosen.items), np.asarray(chosen.gains)
    count = int((items >= 0).sum())
    assert (items[count:] == -1).all()
    assert (gains[count:] == 0).all()
    assert len(set(items[:count].tolist())) == count
    so_far = [value_of(similarity, items[:i]) for i in range(len(items) + 1)]
    np.testing.assert_allclose(gains, np.diff(so_far), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(chosen.value, so_far[-1], rtol=1e-5)
    return items[:count].tolist()


@partial(jax.jit, static_argnames=("k", "epsilon"))
def thresholded(similarity, k, epsilon):
    return sm.threshold_greedy(sm.FacilityLocation(similarity), k, epsilon)


def threshold_reference(similarity, k, epsilon):
    """Visits the items one by one and evaluates each gain once in a pass."""
    singles = [value_of(similarity, [j]) for j in range(N)]
    items, num_evaluations, threshold = [], N, max(singles)
    while threshold >= epsilon / N * max(singles) and len(items) < k:
        for j in range(N):
            if j not in items and len(items) < k:
                num_evaluations += 1
                if value_of(similarity, [*items, j]) - value_of(similarity, items) >= threshold:
                    items.append(j)
        threshold *= 1 - epsilon
    return items, num_evaluations


@pytest.mark.parametrize(("k", "epsilon"), [(3, 0.1), (6, 0.4)])
def test_threshold_greedy_equals_a_loop_over_items(k, epsilon):
    for seed in range(20):
        similarity = random_location(seed)
        chosen = thresholded(similarity, k, epsilon)
        items, num_evaluations = threshold_reference(similarity, k, epsilon)
        # The first threshold is the largest gain itself, which rounding may miss.
        np.testing.assert_allclose(chosen.value, value_of(similarity, items), rtol=0.02)
        if check(similarity, chosen) == items:
            assert chosen.num_evaluations == num_evaluations
        assert chosen.value >= (1 - 1 / math.e - epsilon) * best_of(similarity, k)


def test_threshold_greedy_by_hand():
    @jax.jit
    def solve(weights):
        return sm.threshold_greedy(sm.Modular(weights), 4, 0.5)

    chosen = solve(jnp.array([3.0, 8.0, 4.0, 5.0, 0.125]))
    # Of 8: 1; of 4: 2 and 3; of 2: 0.
    assert chosen.items.tolist() == [1, 2, 3, 0]
    # Five to begin with, five at 8, four at 4, the first at 2.
    assert chosen.num_evaluations == 5 + 5 + 4 + 1
    # Its gain is below 0.5 / 5 of the largest.
    assert solve(jnp.array([0.0, 0.0, 8.0, 0.0, 0.125])).items.tolist() == [2, -1, -1, -1]
    assert solve(jnp.full(5, -1.0)).items.tolist() == [-1] * 4
    assert solve(jnp.zeros(5)).items.tolist() == [-1] * 4


@partial(jax.jit, static_argnames=("k", "epsilon"))
def sifted(similarity, order, k, epsilon):
    return sm.sieve_streaming(sm.FacilityLocation(similarity), k, epsilon, order=order)


def sieve_reference(similarity, order, k, epsilon):
    """Keeps a set for every power in the window."""
    sieves, largest, num_evaluations = {}, 0.0, 0
    for item in order:
        num_evaluations += 1
        largest = max(largest, value_of(similarity, [item]))
        if largest == 0:
            continue
        first = math.ceil(math.log(largest) / math.log1p(epsilon))
        count = math.ceil(math.log(2 * k) / math.log1p(epsilon)) + 1
        sieves = {power: sieves.get(power, []) for power in range(first, first + count)}
        for power, items in sieves.items():
            if len(items) < k:
                num_evaluations += 1
                value = value_of(similarity, items)
                missing = ((1 + epsilon) ** power / 2 - value) / (k - len(items))
                if value_of(similarity, [*items, item]) - value >= missing:
                    items.append(item)
    return max(value_of(similarity, items) for items in sieves.values()), num_evaluations


@pytest.mark.parametrize(("k", "epsilon"), [(3, 0.1), (1, 0.5), (6, 0.3)])
def test_sieve_streaming_keeps_its_bound_in_any_order(k, epsilon):
    for seed in range(20):
        similarity = random_location(seed)
        order = np.random.default_rng(seed).permutation(N).astype(np.int32)
        # The window has to move far, and must leave sets behind.
        similarity = similarity * np.float32(1000) ** (np.argsort(order) / N).astype(np.float32)
        chosen = sifted(similarity, order, k, epsilon)
        places = np.argsort(order)[check(similarity, chosen)]
        assert (np.diff(places) > 0).all()
        value, num_evaluations = sieve_reference(similarity, order.tolist(), k, epsilon)
        np.testing.assert_allclose(chosen.value, value, rtol=1e-5)
        assert chosen.num_evaluations == num_evaluations
        assert chosen.value >= (1 / 2 - epsilon) * best_of(similarity, k)


def test_memory_does_not_grow_with_the_stream():
    def shapes(size):
        def solve(weights):
            return sm.sieve_streaming(sm.Modular(weights), 3, 0.2)

        (call,) = jax.make_jaxpr(solve)(jnp.zeros(size)).eqns
        (scan,) = [e for e in call.params["jaxpr"].eqns if e.primitive.name == "scan"]
        carried = scan.params["num_carry"]
        return [v.aval.shape for v in scan.outvars[:carried]]

    sets = math.ceil(math.log(6) / math.log(1.2)) + 1
    assert shapes(10) == shapes(1000)
    assert (sets, 3) in shapes(10)


def location_of_batch(rows):
    return sm.FacilityLocation(rows.T)


@pytest.mark.parametrize(("k", "epsilon", "sizes"), [(3, 0.1, (3, 3, 2)), (2, 0.4, (8,))])
def test_batches_equal_one_stream(k, epsilon, sizes):
    """A smaller last batch does not recompile."""
    order = np.arange(N, dtype=np.int32)
    for seed in range(5):
        similarity = random_location(seed)
        batches = np.split(similarity.T, np.cumsum(sizes)[:-1])
        chosen = sm.sieve_batches(location_of_batch, iter(batches), k, epsilon)
        one_stream = sifted(similarity, order, k, epsilon)
        np.testing.assert_array_equal(chosen.items, one_stream.items)
        np.testing.assert_allclose(chosen.gains, one_stream.gains, rtol=1e-6)
        assert chosen.num_evaluations == one_stream.num_evaluations
    compiled = sieve_module._next._cache_size()
    sm.sieve_batches(location_of_batch, batches, k, epsilon)
    assert sieve_module._next._cache_size() == compiled


def test_batches_of_functions_with_cached_gains(monkeypatch):
    """Cached gains are of the items of one batch and must not enter another."""
    module = importlib.import_module("fedjax_fair.submodular.facility_location")
    monkeypatch.setattr(module, "_SMALL", 0)
    similarity = random_location(3)
    with target.tracing_for("cpu"):
        one_stream = sifted(similarity, np.arange(N, dtype=np.int32), 3, 0.1)
        batches = np.split(similarity.T, 2)
        chosen = sm.sieve_batches(lambda rows: sm.FacilityLocation(rows.T), batches, 3, 0.1)
    np.testing.assert_array_equal(chosen.items, one_stream.items)


def test_streams_of_some_items_and_without_gains():
    chosen = sifted(random_location(0), np.array([5, 2]), 3, 0.1)
    assert set(check(random_location(0), chosen)) <= {2, 5}
    nothing = sifted(np.zeros((9, N), np.float32), np.arange(N, dtype=np.int32), 3, 0.1)
    assert nothing.items.tolist() == [-1] * 3
    assert nothing.num_evaluations == N


@partial(jax.jit, static_argnames=("k", "parts"))
def distributed(similarity, k, parts):
    function = sm.FacilityLocation(similarity)
    return sm.greedi(function, k, parts), sm.greedy(function, k)


def greedy_among(similarity, k, some):
    items, num_evaluations = [], 0
    for _ in range(min(k, len(some))):
        left = [j for j in some if j not in items]
        num_evaluations += len(left)
        items.append(max(left, key=lambda j: (value_of(similarity, [*items, j]), -j)))
    return items, num_evaluations


@pytest.mark.parametrize(("k", "parts"), [(2, 2), (3, 4), (2, 8), (4, 1)])
def test_greedi_is_the_best_of_the_parts_and_their_union(k, parts):
    from_part = 0  # How often a part is better than what all chose, which is rare.
    for seed in range(70, 90):
        similarity = random_location(seed)
        chosen, central = distributed(similarity, k, parts)
        of_parts = [greedy_among(similarity, k, range(part, N, parts)) for part in range(parts)]
        union = sorted(set().union(*(items for items, _ in of_parts)))
        merged, num_evaluations = greedy_among(similarity, k, union)
        values = [value_of(similarity, items) for items, _ in of_parts]
        value = value_of(similarity, merged)
        check(similarity, chosen)
        np.testing.assert_allclose(chosen.value, max(*values, value), rtol=1e-5)
        assert chosen.num_evaluations == num_evaluations + sum(count for _, count in of_parts)
        assert chosen.value >= (1 - 1 / math.e) / min(parts, k) * best_of(similarity, k) - 1e-5
        if parts == 1:
            assert chosen.items.tolist() == central.items.tolist()
        from_part += max(values) > value + 1e-6
    assert from_part or parts != 2


def test_greedi_with_random_parts_keeps_its_expected_bound():
    @jax.jit
    def solve(similarity):
        function = sm.FacilityLocation(similarity)
        return jax.vmap(lambda key: sm.greedi(function, 3, 3, key=key))(KEYS)

    draw = jax.jit(jax.vmap(lambda key: jax.random.randint(key, (N,), 0, 3)))
    for seed in range(5):
        similarity = random_location(seed)
        result = solve(similarity)
        values = np.asarray(result.value)
        error = values.std() / np.sqrt(len(values))
        assert values.mean() + 3 * error >= (1 - 1 / math.e) / 2 * best_of(similarity, 3)
    # Parts may be of any size, and empty.
    for place, owners in enumerate(np.asarray(draw(KEYS))[:60]):
        parts = [np.flatnonzero(owners == part).tolist() for part in range(3)]
        of_parts = [greedy_among(similarity, 3, part) for part in parts]
        union = sorted(set().union(*(items for items, _ in of_parts)))
        merged, num_evaluations = greedy_among(similarity, 3, union)
        best = max(
            value_of(similarity, items) for items in (merged, *(items for items, _ in of_parts))
        )
        np.testing.assert_allclose(values[place], best, rtol=1e-5)
        assert result.num_evaluations[place] == num_evaluations + sum(
            number for _, number in of_parts
        )


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: sm.threshold_greedy(f, 4, 0.1), "k=4"),
        (lambda f: sm.threshold_greedy(f, 1, 0.0), "epsilon=0.0"),
        (lambda f: sm.threshold_greedy(f, 1, 1.0), "epsilon=1.0"),
        (lambda f: sm.sieve_streaming(f, 0, 0.1), "k=0"),
        (lambda f: sm.sieve_streaming(f, 1, 1.5), "epsilon=1.5"),
        (lambda f: sm.sieve_streaming(f, 1, 0.1, order=[0, 3]), "order="),
        (lambda f: sm.sieve_batches(sm.Modular, [], 1, 0.1), "batches:"),
        (lambda f: sm.sieve_batches(sm.Modular, [[]], 1, 0.1), "from 1 to 1 rows, .* got 0"),
        (lambda f: sm.sieve_batches(sm.Modular, [3.0], 1, 0.1), "from 1 to 1 rows, .* got 0"),
        (
            lambda f: sm.sieve_batches(sm.Modular, [[1.0], [1.0, 2.0]], 1, 0.1),
            "from 1 to 1 rows, as in the first, got 2",
        ),
        (lambda f: sm.sieve_batches(sm.Modular, [[1.0]], 1, 0.0), "epsilon=0.0"),
        (lambda f: sm.sieve_batches(sm.Modular, [[1.0]], 0, 0.1), "k=0"),
        (lambda f: sm.greedi(f, 1, 4), "parts=4"),
        (lambda f: sm.greedi(f, 4, 1), "k=4"),
        (lambda f: sm.greedi(f, 1, 1, mesh=2), "mesh"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(sm.Modular(jnp.arange(3.0)))
