"""Calls with new objects of equal shapes do not recompile; set functions are pytrees."""

import pickle
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilations import compilations
from jax.tree_util import Partial
from scipy.sparse import csr_array

from fedjax_fair import submodular as sm
from fedjax_fair.numerics import spectral_clustering
from fedjax_fair.submodular import matroids, multilinear, rounding

N, K = 8, 3
KEY = jax.random.key(0)
MAPS = Path("/proc/self/maps")


def numbers(seed, *shape):
    return np.random.default_rng(seed).random(shape).astype(np.float32)


def symmetric(seed):
    matrix = numbers(seed, N, N)
    return matrix + matrix.T


def sparse(seed):
    return csr_array(np.where(np.eye(N) + np.eye(N, k=1) + np.eye(N, k=-1), symmetric(seed), 0))


def volume(seed):
    points = numbers(seed, N, 3)
    return points @ points.T


def power(exponent, sums):
    return sums**exponent


def weight(weights, mask):
    return jnp.sum(weights, where=mask)


def at_most(size, mask):
    return jnp.sum(mask) <= size


# Every set function, from different numbers of equal shapes.
FUNCTIONS = {
    "facility_location": lambda seed: sm.FacilityLocation(numbers(seed, 5, N)),
    "weighted": lambda seed: sm.facility_location(numbers(seed, 5, N), numbers(seed, 5)),
    "cached": lambda seed: sm.FacilityLocation(numbers(seed, 400, 300)),
    "from_distances": lambda seed: sm.facility_location_from_distances(symmetric(seed)),
    "from_features": lambda seed: sm.facility_location_from_features(numbers(seed, N, 2)),
    "modular": lambda seed: sm.Modular(numbers(seed, N)),
    "truncated_modular": lambda seed: sm.truncated_modular(
        numbers(seed, N), 1.5 + seed, 2.0 + seed
    ),
    "union_penalty": lambda seed: sm.union_penalty(numbers(seed, 3, N) > 0.8, 0.5 + seed),
    "sum": lambda seed: sm.Sum(
        (sm.Modular(numbers(seed, N)), sm.Coverage(numbers(seed, N, 5) > 0.5))
    ),
    "restricted": lambda seed: sm.Restricted(sm.Modular(numbers(seed, N)), numbers(seed, N) > 0.3),
    "coverage": lambda seed: sm.Coverage(numbers(seed, N, 5) > 0.5, numbers(seed, 5)),
    "probabilistic_coverage": lambda seed: sm.ProbabilisticCoverage(numbers(seed, N, 5)),
    "saturated_coverage": lambda seed: sm.SaturatedCoverage(numbers(seed, 5, N), 0.3 + seed),
    "feature_based": lambda seed: sm.FeatureBased(numbers(seed, N, 5)),
    "concave": lambda seed: sm.FeatureBased(numbers(seed, N, 5), Partial(power, 0.5 / (1 + seed))),
    "graph_cut": lambda seed: sm.GraphCut(symmetric(seed), 2.0 + seed),
    "log_det": lambda seed: sm.LogDet(volume(seed)),
    "disparity_sum": lambda seed: sm.DisparitySum(symmetric(seed)),
    "disparity_min": lambda seed: sm.DisparityMin(symmetric(seed)),
    "conditional_gain": lambda seed: sm.ConditionalGain(sm.Modular(numbers(seed, N)), [seed]),
    "mutual_information": lambda seed: sm.MutualInformation(sm.GraphCut(symmetric(seed)), [seed]),
    "conditional_mutual_information": lambda seed: sm.ConditionalMutualInformation(
        sm.GraphCut(symmetric(seed)), [seed], [4]
    ),
    "sparse facility_location": lambda seed: sm.facility_location(sparse(seed)),
    "sparse graph_cut": lambda seed: sm.graph_cut(sparse(seed), 1.5 + seed),
    "sparse saturated_coverage": lambda seed: sm.saturated_coverage(sparse(seed), 0.5 + seed),
}
MATROIDS = {
    "uniform": lambda seed: matroids.Uniform(3, N),
    "partition": lambda seed: matroids.Partition(np.roll(np.arange(N) % 2, seed), [1, 2]),
    "allocation": lambda seed: matroids.allocation(N // 2, 2),
    "laminar": lambda seed: matroids.Laminar([np.roll(np.arange(N) < 4, seed), np.ones(N)], [1, 3]),
    "graphic": lambda seed: matroids.Graphic(
        np.roll([[0, 1], [1, 2], [2, 0], [2, 3], [3, 4], [4, 0], [1, 3], [0, 3]], seed, axis=0)
    ),
    "oracle": lambda seed: matroids.Oracle(Partial(at_most, 3), N),
}
EITHER = {**FUNCTIONS, **MATROIDS}


def location(seed):
    return FUNCTIONS["facility_location"](seed)


def a_key(seed):
    return jax.random.key(seed)


def a_point(seed):
    """A point in every polytope; decompositions differ in size."""
    return np.float32(0.25) * np.roll(np.array([1, 1, 1, 1, 0.5, 0.25, 1, 1]), seed) / (1 + seed)


LIMITS = {
    "initial_items": [3],
    "candidate_mask": np.arange(N) < 5,
    "min_gain": 0.01,
    "costs": np.ones(N),
    "budget": 3.5,
}
CALLS = {
    "greedy": lambda seed: sm.greedy(location(seed), 3),
    "greedy under constraints": lambda seed: sm.greedy(
        location(seed), matroid=MATROIDS["partition"](seed), **LIMITS
    ),
    "lazy_greedy": lambda seed: sm.lazy_greedy(location(seed), 3, **LIMITS),
    "stochastic_greedy": lambda seed: sm.stochastic_greedy(a_key(seed), location(seed), 3, 4),
    "threshold_greedy": lambda seed: sm.threshold_greedy(location(seed), 3, 0.1 + 0.1 * seed),
    "sieve_streaming": lambda seed: sm.sieve_streaming(location(seed), 3, 0.2),
    "sieve_batches": lambda seed: sm.sieve_batches(
        lambda rows: sm.FeatureBased(rows), [numbers(seed, 4, 3), numbers(seed, 3, 3)], 2, 0.2
    ),
    "partial_enumeration": lambda seed: sm.partial_enumeration(
        location(seed), np.full(N, 1.0 + seed), 3.0 + seed, seed_size=2
    ),
    "best_swap": lambda seed: sm.best_swap(location(seed), [seed, 3], max_swaps=1 + seed),
    "distorted_greedy": lambda seed: sm.distorted_greedy(location(seed), numbers(seed, N), 3),
    "random_greedy": lambda seed: sm.random_greedy(a_key(seed), location(seed), 3),
    "double_greedy": lambda seed: sm.double_greedy(a_key(seed), location(seed)),
    "greedi": lambda seed: sm.greedi(location(seed), 3, 2, key=a_key(seed)),
    "pipage": lambda seed: rounding.pipage(a_key(seed), MATROIDS["partition"](seed), a_point(seed)),
    "deterministic_pipage": lambda seed: rounding.deterministic_pipage(
        MATROIDS["partition"](seed), a_point(seed), Partial(jnp.dot, numbers(seed, N))
    ),
    "rounding.greedy": lambda seed: rounding.greedy(MATROIDS["laminar"](seed), a_point(seed)),
    "facility_location_gradient": lambda seed: multilinear.facility_location_gradient(
        multilinear.ranked(jnp.asarray(numbers(seed, N))), jnp.asarray(numbers(seed, N))
    ),
    "sampled_mean": lambda seed: multilinear.sampled_mean(
        a_key(seed), Partial(weight, numbers(seed, N)), jnp.asarray(numbers(seed, N)), 5
    ),
    "kmeans": lambda seed: spectral_clustering.kmeans(
        a_key(seed), jnp.asarray(numbers(seed, 9, 2)), 3
    ),
    "spectral_embedding": lambda seed: spectral_clustering.spectral_embedding(
        jnp.asarray(symmetric(seed)), 2
    ),
    "eigengap": lambda seed: spectral_clustering.eigengap(jnp.asarray(volume(seed)), 3),
    "cluster_weights": lambda seed: spectral_clustering.cluster_weights(
        jnp.arange(4) % (2 + seed), 3
    ),
    **{
        f"{name} of {matroid}": lambda seed, name=name, matroid=matroid: (
            rounding.decompose(MATROIDS[matroid](seed), a_point(seed))
            if name == "decompose"
            else rounding.swap(a_key(seed), MATROIDS[matroid](seed), a_point(seed))
        )
        for name in ("decompose", "swap")
        for matroid in MATROIDS
        if matroid != "allocation"  # A partition.
    },
    **{
        f"greedy of {name}": lambda seed, make=make: sm.greedy(make(seed), K)
        for name, make in FUNCTIONS.items()
    },
}


@pytest.mark.parametrize("name", CALLS)
def test_a_second_call_compiles_nothing(name):
    jax.block_until_ready(CALLS[name](0))
    jax.block_until_ready(CALLS[name](1))  # Points may decompose into twice as many bases.
    with compilations() as compiled:
        for seed in (1, 0):
            jax.block_until_ready(CALLS[name](seed))
    assert not compiled


@pytest.mark.parametrize("name", ["greedy of feature_based", "greedy under constraints", "kmeans"])
def test_the_second_object_compiles_nothing(name):
    jax.block_until_ready(CALLS[name](0))
    with compilations() as compiled:
        jax.block_until_ready(CALLS[name](1))
    assert not compiled


def test_another_size_is_compiled():
    with compilations() as compiled:
        sm.greedy(sm.Modular(numbers(0, 13)), 2)
    assert compiled


def test_a_plain_function_is_compiled_by_its_identity():
    features = numbers(0, N, 4)
    sm.greedy(sm.FeatureBased(features, jnp.tanh), 2)
    with compilations() as compiled:
        sm.greedy(sm.FeatureBased(2 * features, jnp.tanh), 2)
    assert not compiled
    with compilations() as compiled:
        sm.greedy(sm.FeatureBased(features, lambda sums: jnp.tanh(sums)), 2)
    assert compiled


@jax.jit
@jax.vmap
def first_gains(function, item):
    """Gains at the empty set, and with one item."""
    memo = function.init()
    return function.gains(memo), function.gains(function.add(memo, item))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_stacked_functions_are_mapped(name):
    functions = [FUNCTIONS[name](seed) for seed in range(3)]
    together = jax.tree.map(
        lambda *leaves: np.stack(leaves, dtype=jnp.result_type(leaves[0])), *functions
    )
    alone = [sm.greedy(function, K) for function in functions]  # Compiled by the tests above.
    first, second = np.transpose([chosen.items[:2] for chosen in alone])
    for item, gains, place in zip(
        (first, second), first_gains(together, first), (0, 1), strict=True
    ):
        expected = [chosen.gains[place] for chosen in alone]
        np.testing.assert_allclose(np.array(gains)[range(3), item], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", EITHER)
def test_set_functions_and_matroids_are_pytrees(name):
    one, equal, other = EITHER[name](0), EITHER[name](0), EITHER[name](1)
    leaves, structure = jax.tree.flatten(one)
    rebuilt = jax.tree.unflatten(structure, leaves)
    assert rebuilt == one == equal
    assert hash(rebuilt) == hash(one) == hash(equal)
    assert jax.tree.structure(other) == structure
    assert (one == other) == (name in ("uniform", "allocation", "oracle"))
    assert pickle.loads(pickle.dumps(one)) == one
    assert one.replace() == one
    assert type(one).__name__ in repr(one)
    # JAX rebuilds with whatever it needs, which no constructor may check.
    assert jax.tree.map(lambda _: None, one) is not None
    assert jax.eval_shape(lambda tree: tree, one).size == one.size


@pytest.mark.parametrize("name", ["facility_location", "modular", "coverage", "graph_cut"])
def test_constructors_are_mapped(name):
    """Traced values are not checked."""
    make = {
        "facility_location": sm.FacilityLocation,
        "modular": sm.Modular,
        "coverage": sm.Coverage,
        "graph_cut": sm.GraphCut,
    }[name]
    arrays = np.stack([symmetric(seed) for seed in range(3)])
    arrays = arrays[:, 0] if name == "modular" else arrays > 1 if name == "coverage" else arrays
    mapped = jax.vmap(make)(arrays)
    for place in range(3):
        assert jax.tree.map(lambda leaf, place=place: leaf[place], mapped) == make(arrays[place])


@pytest.mark.skipif(not MAPS.exists(), reason="the system does not list mappings of memory")
def test_repeated_calls_take_no_more_memory():
    """Each compiled function takes several of the 65,530 memory maps of a process."""

    def calls(seed):
        sm.greedy(location(seed), 3)
        rounding.pipage(KEY, MATROIDS["partition"](seed % 2), a_point(seed % 2))
        rounding.swap(KEY, MATROIDS["partition"](seed % 2), a_point(seed % 2))

    for seed in range(10):
        calls(seed)
    before = len(MAPS.read_text().splitlines())
    for seed in range(100):
        calls(seed)
    assert len(MAPS.read_text().splitlines()) < before + 50
