"""Bad arguments of set functions, matroids and maximizers raise one line before compilation.

Values that only look bad have a documented result.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse

from fedjax_fair import submodular as sm
from fedjax_fair.submodular import estimators, matroids, multilinear, rounding
from fedjax_fair.submodular import federated as fed

KEY = jax.random.key(0)
EYE = np.eye(3)
THREE = sm.Modular([1.0, 2.0, 3.0])
ONE_OF_3 = matroids.Uniform(1, 3)
PROBLEM = fed.facility_location(np.ones((2, 3), np.float32))


def masked(values, *masked_places):
    array = np.ma.masked_array(np.array(values))
    for place in masked_places:
        array[place] = np.ma.masked
    return array


HOLE = masked(EYE, (0, 1))
UNKNOWN = "is traced: expected values that are known"
CASES = {
    # Masked arrays, whose masked elements would count.
    "masked weights": (lambda: sm.Modular(masked([1.0, 2.0], 0)), "weights: expected no masked"),
    "masked list": (lambda: sm.FacilityLocation([masked([1.0, 2.0], 0)]), "similarity: .* masked"),
    "masked matrix": (lambda: sm.GraphCut(HOLE), "similarity: expected no masked elements; fill"),
    "masked mask": (lambda: sm.Coverage(HOLE), "membership: expected no masked"),
    "masked items": (
        lambda: sm.greedy(THREE, 1, initial_items=masked([0, 1], 1)),
        "initial_items: expected no masked",
    ),
    "masked costs": (
        lambda: sm.greedy(THREE, costs=masked([1.0, 1.0, 1.0], 2), budget=1.0),
        "costs: expected no masked",
    ),
    "masked blocks": (lambda: matroids.Partition(masked([0, 0], 1), [1]), "blocks: .* masked"),
    "masked sets": (lambda: matroids.Laminar(HOLE, [1, 1, 1]), "sets: .* masked"),
    "masked edges": (lambda: matroids.Graphic(masked([[0, 1]], (0, 0))), "edges: .* masked"),
    "masked point": (lambda: rounding.decompose(ONE_OF_3, HOLE[0]), "x: .* masked"),
    "masked rows": (lambda: estimators.FacilityLocation(1).fit(HOLE), "X: .* masked"),
    "masked batch": (lambda: sm.sieve_batches(sm.Modular, [HOLE[0]], 1, 0.1), "batches: .* masked"),
    "masked scores": (lambda: fed.facility_location(HOLE), "scores: .* masked"),
    "masked client weights": (
        lambda: PROBLEM.value(np.ones(3, bool), masked([0.5, 0.5], 0)),
        "client_weights: .* masked",
    ),
    "masked set": (lambda: PROBLEM.value(masked([True, False, True], 0)), "mask: .* masked"),
    "masked features": (
        lambda: fed.feature_selection([masked([[0, 1]], (0, 0))], [np.ones(1, int)]),
        r"features\[0\]: .* masked",
    ),
    # Values that are no real numbers.
    "complex": (lambda: sm.Modular([1j, 2.0]), r"weights: .* real numbers, got complex128\(2,\)"),
    "complex of JAX": (lambda: sm.Modular(jnp.ones(2, complex)), r"real .*, got complex64\(2,\)"),
    "complex mask": (lambda: sm.Coverage([[1 + 0j, 0]]), "membership: expected an array of real"),
    "complex point": (lambda: rounding.decompose(ONE_OF_3, [1j, 0, 0]), "x: .* real numbers"),
    "complex and sparse": (
        lambda: sm.facility_location(sparse.csr_array(np.eye(2) * 1j)),
        "similarity: expected real numbers, got complex128",
    ),
    "complex client weights": (
        lambda: PROBLEM.value(np.ones(3, bool), [0.5 + 0j, 0.5]),
        "client_weights: .* real numbers",
    ),
    "strings": (lambda: sm.Modular(["1", "2"]), r"weights: .* real numbers, got <U1\(2,\)"),
    "strings as sets": (lambda: matroids.Laminar([["1", "0"]], [1]), "sets: .* real numbers"),
    "strings as a point": (lambda: rounding.decompose(ONE_OF_3, ["1", "0", "0"]), "x: .* real"),
    "a string score": (
        lambda: fed.sparse_scores([0], [0], ["a"], num_clients=1, size=1),
        "scores: .* real numbers",
    ),
    "dates": (lambda: sm.Modular(np.array(["2020-01-01"], "datetime64[D]")), "real numbers, got"),
    "None": (lambda: sm.Coverage(None), r"membership: .* real numbers, got object\(\)"),
    "a dict": (lambda: sm.Modular({0: 1.0}), "weights: .* real numbers"),
    "random keys": (lambda: sm.Modular(jax.random.split(KEY, 3)), "real numbers, got key<fry>"),
    "ragged": (lambda: sm.Modular([[1.0], [1.0, 2.0]]), "weights: .* a list of different lengths"),
    "ragged items": (lambda: sm.best_swap(THREE, [[0], [0, 1]]), "items: .* different lengths"),
    "ragged edges": (lambda: matroids.Graphic([[0], [0, 1]]), "edges: .* different lengths"),
    "ragged batch": (
        lambda: sm.sieve_batches(sm.Modular, [[[1.0], [1.0, 2.0]]], 1, 0.1),
        "batches: .* different lengths",
    ),
    # Values that are infinite in single precision, alone or with others.
    "1e39": (lambda: sm.Modular([1e39]), r"weights\[0\]=1e\+39: .* in single precision"),
    "10**400": (lambda: sm.Modular([10**400]), r"weights: .* real numbers, got object\(1,\)"),
    "a sum": (lambda: sm.Modular([3e38, 3e38]), "weights: expected a finite sum in float32"),
    "a weighted similarity": (
        lambda: sm.facility_location([[1e30]], [1e30]),
        r"similarity \* weights\[0, 0\]=inf",
    ),
    "a weighted sparse similarity": (
        lambda: sm.facility_location(sparse.csr_array([[1e30]]), [1e30]),
        r"similarity \* weights\[0\]=inf",
    ),
    "a weighted distance": (
        lambda: sm.facility_location_from_distances([[0, 1e30], [1e30, 0]], [1e30, 1]),
        r"distances \* weights\[0\]=inf",
    ),
    "squares of features": (
        lambda: sm.facility_location_from_features([[1e30], [0.0], [-1e30]]),
        r"squared lengths of features\[0\]=inf",
    ),
    "sparse 1e39": (lambda: sm.facility_location(sparse.csr_array([[1e39]])), r"\[0, 0\]=inf"),
    "scores of 1e39": (
        lambda: fed.sparse_scores([0], [0], [1e39], num_clients=1, size=2),
        "scores: 1 elements are not finite",
    ),
    "rows that are far apart": (
        lambda: estimators.FacilityLocation(1).fit([[1e30], [0.0]]),
        r"X: expected differences of rows up to 1e\+17, got 1e\+30",
    ),
    "precomputed 1e39": (
        lambda: estimators.FacilityLocation(1, "precomputed").fit([[1e39]]),
        "Input X contains infinity",
    ),
    # Values that would need too much memory, or never end.
    "many sets": (lambda: sm.sieve_streaming(THREE, 1, 1e-9), "needs 693147182 sets in memory"),
    "constant threshold": (lambda: sm.threshold_greedy(THREE, 3, 1e-9), "expected at least 1e-06"),
    "many random sets": (lambda: multilinear.sample_size(1e-200, 0.1, size=3), "sigma=1e-200: "),
    "many items": (lambda: matroids.Uniform(1, 10**20), "num_items=.* <= 2147483647"),
    "many pairs": (lambda: matroids.allocation(10**6, 10**6), "num_agents=1000000: .* <= 2147"),
    "huge capacity": (lambda: matroids.Partition([0], [2**40]), "capacities: .* of 32 bits"),
    "huge unsigned item": (
        lambda: sm.best_swap(THREE, np.array([2**64 - 1], np.uint64)),
        r"items=\[18446744073709551615\]: expected items in",
    ),
    "many labels": (
        lambda: fed.feature_selection([np.ones((1, 2), int)], [np.array([10**9])]),
        r"labels\[0\]: got 1000000000",
    ),
    "many values": (
        lambda: fed.feature_selection([np.ones((1, 2), int)], [np.ones(1, int)], num_values=10**9),
        "num_values=1000000000: .* <= 65536",
    ),
    # Arguments of another kind.
    "an array as function": (lambda: sm.greedy(EYE, 1), "function is a ndarray: .* SetFunction"),
    "a class as function": (lambda: sm.lazy_greedy(sm.Modular, 1), "function is a .*SetFunction"),
    "swapped arguments": (lambda: sm.double_greedy(THREE, KEY), "key: .* got Modular"),
    "a number in a sum": (lambda: sm.Sum((THREE, 3)), r"functions\[1\] is a int"),
    "a number to scale": (lambda: sm.Scaled(3, 1.0), "function is a int: expected a SetFunction"),
    "an array to restrict": (lambda: sm.Restricted(EYE, [1, 1, 1]), "function is a ndarray"),
    "a number as matroid": (lambda: sm.greedy(THREE, matroid=1), "matroid is a int: .* Matroid"),
    "a matroid class": (lambda: rounding.pipage(KEY, matroids.Uniform, [1, 0, 0]), "matroid is a"),
    "an array as problem": (lambda: fed.fedcg(KEY, EYE, ONE_OF_3, 2), "problem is a ndarray"),
    "an array to value": (lambda: fed.Welfare(EYE), "valuations is a ndarray: .* Problem"),
    "a seed as key": (lambda: sm.random_greedy(0, THREE, 1), "key: .*random.key.0., got int"),
    "several keys": (lambda: fed.fedcg(KEY[None], PROBLEM, ONE_OF_3, 2), r"got key<fry>\(1,\)"),
    "a dense matrix": (lambda: sm.sparse_similarity(EYE), "expected a SciPy sparse matrix"),
    "batches as a number": (lambda: sm.sieve_batches(sm.Modular, 3, 1, 0.1), "batches is a int"),
    "no function of batches": (lambda: sm.sieve_batches(None, [EYE], 1, 0.1), "make=None"),
    "text for resample": (
        lambda: fed.discrete_greedy(KEY, PROBLEM, ONE_OF_3, kappa=1.0, resample="no"),
        "resample='no': expected True or False",
    ),
    "negative factors": (lambda: fed.kappa_for_responses([-1.0, 1.0], 1), "factors=.* >= 0"),
    # Functions of a user.
    "a raising oracle": (lambda: matroids.Oracle(lambda m: 1 / 0, 3), "raises ZeroDivisionError"),
    "an oracle of items": (lambda: matroids.Oracle(lambda m: m, 3), r"oracle: .* of shape \(\)"),
    "a constant concave": (lambda: sm.FeatureBased(EYE, lambda x: 1.0), r"concave: .* \(3,\)"),
    "a complex value": (
        lambda: fed.custom(lambda mask, row: jnp.sum(mask).astype(complex), np.ones(2), 3),
        r"value_fn: expected to return real numbers of shape \(\)",
    ),
    "clients of two counts": (
        lambda: fed.custom(lambda mask, row: 0.0, {"a": np.ones(2), "b": np.ones(3)}, 3),
        r"client_data: .* got shapes \[\(2,\), \(3,\)\]",
    ),
    "no clients": (lambda: fed.custom(lambda mask, row: 0.0, np.ones((0, 2)), 3), "client_data"),
    "no examples": (
        lambda: fed.feature_selection([np.ones((0, 2), int)], [np.ones(0, int)]),
        "client 0: got shapes",
    ),
    "all items chosen": (
        lambda: sm.greedy(THREE, initial_items=[0, 1, 2], min_gain=0.0),
        "initial_items: expected an item to remain",
    ),
    # Values that have to be known before compilation.
    "traced blocks": (
        lambda: jax.eval_shape(lambda x: matroids.Partition(x, [1]).rank, np.zeros(2, int)),
        f"blocks {UNKNOWN}",
    ),
    "traced edges": (
        lambda: jax.eval_shape(lambda x: matroids.Graphic(x).rank, np.zeros((1, 2), int)),
        f"edges {UNKNOWN}",
    ),
    "traced point": (
        lambda: jax.eval_shape(lambda x: rounding.swap(KEY, ONE_OF_3, x), EYE[0]),
        f"x {UNKNOWN}",
    ),
    "traced scores": (
        lambda: jax.eval_shape(
            lambda x: fed.sparse_scores([0], [0], x, num_clients=1, size=1).scores, np.ones(1)
        ),
        f"scores {UNKNOWN}",
    ),
    "traced epsilon": (
        lambda: jax.eval_shape(lambda e: sm.sieve_streaming(THREE, 1, e), 0.1),
        "epsilon is traced",
    ),
    "traced rows": (
        lambda: jax.eval_shape(lambda x: estimators.FacilityLocation(1).fit(x).gains_, EYE),
        f"X {UNKNOWN}",
    ),
}


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("name", CASES)
def test_bad_values_are_refused_in_one_line(name):
    make, message = CASES[name]
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def greedily(function, k=None, **settings):
    return sm.greedy(function, k, **settings).items.tolist()


@pytest.mark.parametrize(
    ("solve", "items"),
    [
        (lambda: greedily(THREE, costs=[1, 1, 1], budget=0), [-1, -1, -1]),
        (lambda: greedily(THREE, costs=[0, 1, 0], budget=0), [2, 0, -1]),
        (lambda: greedily(THREE, costs=[True, False, True], budget=1.0), [2, 1, -1]),
        (lambda: greedily(THREE, 1, candidate_mask=[0, 0, 0]), [2]),
        (lambda: greedily(THREE, 1, initial_items=[]), [2]),
        (lambda: greedily(THREE, 1, initial_items=np.array([2], np.uint8)), [1]),
        (lambda: greedily(THREE, matroid=ONE_OF_3, initial_items=[0]), [-1]),
        (lambda: greedily(sm.Modular([True, False, True]), 2), [0, 2]),
        (lambda: greedily(sm.Modular(masked([1.0, 2.0, 0.0])), 2), [1, 0]),
        (lambda: sm.Modular(np.array([1.0, 2.0], jnp.bfloat16)).weights.tolist(), [1, 2]),
        # Too small for single precision, which makes it 0.
        (lambda: greedily(sm.FacilityLocation([[1e-50, 0.0, 1e-30]]), 1), [2]),
        (
            lambda: sm.partial_enumeration(sm.Modular([1.0, 2.0]), [1, 1], 1.0).items.tolist(),
            [1, -1],
        ),
    ],
)
def test_values_that_only_look_bad_are_accepted(solve, items):
    assert solve() == items


def test_vertices_of_a_graph_may_have_gaps():
    """Two components; memory does not grow with the numbers of vertices."""
    graph = matroids.Graphic(np.array([[0, 2**40], [7, 9], [9, 7]]))
    assert graph.rank == 2
    assert matroids.heaviest_base(graph, np.ones(3, np.float32)).tolist() == [True, True, False]


def test_step_sizes_may_be_traced():
    run = jax.jit(lambda step: fed.fedcg(KEY, PROBLEM, ONE_OF_3, 2, step=step).x)
    np.testing.assert_allclose(run(0.25), [0.5, 0, 0])
