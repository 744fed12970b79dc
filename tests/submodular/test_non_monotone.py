"""Expected values of random maximizers against the best of all sets, for cuts of small graphs."""

import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_fair import submodular as sm

N, K = 6, 2
SETS = np.array(list(itertools.product([False, True], repeat=N)))
KEYS = jax.random.split(jax.random.key(0), 2000)


def random_graph(seed):
    """Integer weights, so that values are exact; many edges are missing."""
    rng = np.random.default_rng(seed)
    weights = np.triu(rng.integers(1, 9, (N, N)) * (rng.random((N, N)) < 0.5), 1)
    return (weights + weights.T).astype(np.float32)


def cuts(graph, tradeoff, masks=SETS):
    inside = masks.astype(float)
    return tradeoff * (inside @ graph).sum(axis=1) - np.einsum("si,ij,sj->s", inside, graph, inside)


def masks_of(items):
    return (np.asarray(items)[..., None] == np.arange(N)).any(axis=-2)


@jax.jit
def halved(graph, tradeoff):
    return jax.vmap(lambda key: sm.double_greedy(key, sm.GraphCut(graph, tradeoff)))(KEYS)


@partial(jax.jit, static_argnames="k")
def drawn(graph, tradeoff, k):
    return jax.vmap(lambda key: sm.random_greedy(key, sm.GraphCut(graph, tradeoff), k))(KEYS)


def values_of(results, graph, tradeoff):
    """Returns the values of all sets, checked against their items."""
    values = cuts(graph, tradeoff, masks_of(results.items))
    np.testing.assert_allclose(results.value, values, atol=1e-3)
    np.testing.assert_allclose(results.gains.sum(axis=1), values, atol=1e-3)
    assert (np.asarray(results.gains)[np.asarray(results.items) < 0] == 0).all()
    return values


@pytest.mark.parametrize("tradeoff", [0.5, 1.0, 1.5, 2.0])
def test_double_greedy_expects_half_of_the_optimum(tradeoff):
    spread = 0
    for seed in range(6):
        graph = random_graph(seed)
        values = values_of(halved(graph, np.float32(tradeoff)), graph, tradeoff)
        error = values.std() / np.sqrt(len(values))
        every = cuts(graph, tradeoff)
        assert values.mean() + 3 * error >= every.max() / 2 + every[-1] / 4
        spread += values.std() > 0
    assert spread or tradeoff >= 2


def test_double_greedy_decides_in_proportion_to_gains():
    """The first end of an edge is added or removed by 1 : 1, at 1.5 by 3 : 1."""
    graph = np.zeros((N, N), np.float32)
    graph[0, 1] = graph[1, 0] = 4
    for tradeoff, share in ((1.0, 1 / 2), (1.5, 3 / 4)):
        items = np.asarray(halved(graph, np.float32(tradeoff)).items)
        error = np.sqrt(share * (1 - share) / len(items))
        assert abs((items[:, 0] == 0).mean() - share) <= 4 * error


def test_double_greedy_depends_on_earlier_decisions_and_new_draws():
    """Two disjoint edges; of each the optimum has one end."""
    graph = np.zeros((N, N), np.float32)
    graph[[0, 1, 2, 3], [1, 0, 3, 2]] = 4
    results = halved(graph, np.float32(1.0))
    assert (results.value == 8).all()
    both = (np.asarray(results.items)[:, [0, 2]] >= 0).all(axis=1)
    assert abs(both.mean() - 1 / 4) <= 4 * np.sqrt(3 / 16 / len(both))


def test_double_greedy_of_a_monotone_function_takes_everything():
    graph = random_graph(0)
    assert (np.asarray(halved(graph, np.float32(2.5)).items) == np.arange(N)).all()
    assert (halved(graph, np.float32(2.5)).num_evaluations == 2 * N).all()


@pytest.mark.parametrize("tradeoff", [1.0, 1.5, 2.0])
def test_random_greedy_keeps_its_expected_bound(tradeoff):
    share = 1 - 1 / math.e if tradeoff >= 2 else 1 / math.e
    for seed in range(6):
        graph = random_graph(seed)
        values = values_of(drawn(graph, np.float32(tradeoff), K), graph, tradeoff)
        error = values.std() / np.sqrt(len(values))
        best = cuts(graph, tradeoff, SETS[SETS.sum(axis=1) <= K]).max()
        assert values.mean() + 3 * error >= share * best


def test_random_greedy_samples_the_largest_gains_uniformly():
    weights = jnp.array([5.0, 1.0, -1.0, 4.0, 3.0, 2.0])
    solve = jax.jit(jax.vmap(lambda key: sm.random_greedy(key, sm.Modular(weights), 3)))
    results = solve(KEYS)
    items = np.asarray(results.items)
    # Of the first three, and after each of the three that are then largest.
    first = np.bincount(items[:, 0], minlength=N) / len(items)
    error = 4 * np.sqrt(2 / 9 / len(items))
    np.testing.assert_allclose(first, np.isin(np.arange(N), [0, 3, 4]) / 3, atol=error)
    second = items[items[:, 0] == 0, 1]
    shares = np.bincount(second, minlength=N) / len(second)
    error = 4 * np.sqrt(2 / 9 / len(second))
    np.testing.assert_allclose(shares, np.isin(np.arange(N), [3, 4, 5]) / 3, atol=error)
    assert (results.num_evaluations == 6 + 5 + 4).all()


def test_random_greedy_adds_no_item_without_a_gain():
    weights = jnp.array([-1.0, 0.0, 2.0, -3.0])
    items = jax.jit(jax.vmap(lambda key: sm.random_greedy(key, sm.Modular(weights), 4).items))(KEYS)
    assert set(np.unique(items).tolist()) == {-1, 2}
    assert ((np.asarray(items) == 2).sum(axis=1) <= 1).all()


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="k=4"):
        sm.random_greedy(KEYS[0], sm.Modular(jnp.arange(3.0)), 4)
