"""Matroids: the axioms on all subsets of six items, and the heaviest base among all bases."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_fair.submodular import matroids

N = 6
SETS = np.array(list(itertools.product([False, True], repeat=N)))
SIZES = SETS.sum(axis=1)
FAMILY = np.array([[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 1, 0]], bool)
EDGES = np.array([[0, 1], [1, 2], [2, 0], [2, 3], [2, 3], [3, 3]])
VECTORS = np.array([[1, 0, 1, 2, 0, 1], [0, 1, 1, 0, 0, 2]])  # A loop and parallel vectors.


def acyclic(mask):
    incidence = np.zeros((4, N))
    for edge, (a, b) in enumerate(EDGES):
        incidence[a, edge] += 1
        incidence[b, edge] -= 1
    return np.linalg.matrix_rank(incidence[:, mask]) == mask.sum() if mask.any() else True


def spans(mask):
    """Linear independence of vectors in the plane, in JAX."""
    size, chosen = jnp.sum(mask), jnp.where(mask[None], VECTORS, 0).astype(jnp.float32)
    rank = jnp.linalg.matrix_rank(chosen)
    return size == rank


# name: (matroid, independence by definition)
MATROIDS = {
    "uniform": (lambda: matroids.Uniform(3, N), lambda mask: mask.sum() <= 3),
    "free": (lambda: matroids.Uniform(N, N), lambda mask: True),
    "partition": (
        lambda: matroids.Partition([1, 0, 1, 2, 1, 0], [1, 2, 0]),
        lambda mask: mask[[1, 5]].sum() <= 1 and mask[[0, 2, 4]].sum() <= 2 and not mask[3],
    ),
    "allocation": (
        lambda: matroids.allocation(3, 2),
        lambda mask: max(mask[:2].sum(), mask[2:4].sum(), mask[4:].sum()) <= 1,
    ),
    "laminar": (
        lambda: matroids.Laminar(FAMILY, [1, 2, 0]),
        lambda mask: mask[:2].sum() <= 1 and mask[:4].sum() <= 2 and not mask[4],
    ),
    "graphic": (lambda: matroids.Graphic(EDGES), acyclic),
    "from_oracle": (
        lambda: matroids.Oracle(spans, N),
        lambda mask: mask.sum() == np.linalg.matrix_rank(np.where(mask, VECTORS, 0)),
    ),
}


# Few different numbers, some negative, so that there are ties.
WEIGHTS = np.random.default_rng(0).integers(-2, 4, (200, N)).astype(np.float32)
UNIT = np.eye(N, dtype=bool)


def number(masks):
    """Positions of masks in ``SETS``."""
    return masks @ (2 ** np.arange(N)[::-1])


@pytest.fixture(params=MATROIDS, scope="module")
def case(request):
    """A matroid, the independent sets by definition, and its bases."""
    make, definition = MATROIDS[request.param]
    independent = np.array([definition(mask) for mask in SETS], bool)
    bases = SETS[independent & (SIZES[independent].max() == SIZES)]
    return make(), independent, bases


def test_the_reference_obeys_the_axioms(case):
    _, independent, _ = case
    assert independent[0]
    chosen = SETS[independent]
    smaller = chosen[:, None] & ~UNIT
    assert independent[number(smaller)].all()
    joins = independent[number(chosen[:, None] | UNIT)]  # Of every set and item.
    for large in chosen:
        exchanged = (joins & large & ~chosen).any(axis=1)
        assert exchanged[chosen.sum(axis=1) < large.sum()].all()


def test_independence_agrees_with_the_definition(case):
    matroid, independent, bases = case
    assert matroid.size == N
    assert matroid.rank == bases[0].sum()
    assert (np.asarray(jax.jit(jax.vmap(matroid.independent))(SETS)) == independent).all()


def test_feasible_items_keep_a_set_independent(case):
    matroid, independent, _ = case
    feasible = np.asarray(jax.jit(jax.vmap(matroid.feasible_items))(SETS))
    expected = independent[number(SETS[:, None] | UNIT)] & ~SETS
    np.testing.assert_array_equal(feasible[independent], expected[independent])


def test_the_heaviest_base_has_the_largest_weight(case):
    matroid, _, bases = case
    heaviest = np.asarray(jax.jit(jax.vmap(matroid.max_weight_base))(WEIGHTS))
    for weights, base in zip(WEIGHTS, heaviest, strict=True):
        assert weights[base].sum() == (bases @ weights).max()
        best = bases[bases @ weights == (bases @ weights).max()]
        first = min((sorted(np.flatnonzero(mask)) for mask in best), key=by_rank(weights))
        assert np.flatnonzero(base).tolist() == first


def by_rank(weights):
    """Sort key that prefers the base of greedy among bases of equal weight."""
    place = np.argsort(np.argsort(-weights, kind="stable"))
    return lambda items: sorted(place[list(items)])


def test_exchanges_are_symmetric_and_always_exist(case):
    matroid, independent, bases = case
    cases = [
        (base, other, item)
        for base, other in itertools.product(bases, repeat=2)
        for item in np.flatnonzero(base & ~other)[:2]
    ]
    if not cases:  # The free matroid has one base.
        assert len(bases) == 1
        return
    base, other, item = (np.array(column) for column in zip(*cases, strict=True))
    exchangeable = np.asarray(
        jax.jit(jax.vmap(matroid.exchangeable))(base, other, item.astype(np.int32))
    )
    assert exchangeable.any(axis=1).all()
    out = UNIT[item][:, None]  # What leaves the base, and joins the other for each item.
    valid = independent[number((base[:, None] & ~out) | UNIT)]
    valid &= independent[number((other[:, None] & ~UNIT) | out)]
    np.testing.assert_array_equal(exchangeable, valid & other & ~base)


def test_constraints_are_on_consecutive_items_of_the_order():
    matroid = matroids.Laminar(FAMILY[:, [4, 0, 2, 5, 1, 3]], [1, 2, 0])
    for members in FAMILY[:, [4, 0, 2, 5, 1, 3]][:, matroid.order]:
        places = np.flatnonzero(members)
        assert np.ptp(places) == places.size - 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: matroids.Uniform(0, 3), "k=0"),
        (lambda: matroids.Uniform(4, 3), "k=4"),
        (lambda: matroids.Partition([0, 0, 1], [1, 2]), r"capacities\[1\]="),
        (lambda: matroids.Partition([0, 2], [1, 1]), r"blocks.*\[0, 2\).*from 0 to 2"),
        (lambda: matroids.Partition([0, -1], [1, 1]), "from -1 to 0"),
        (lambda: matroids.Partition([0, 0], [0]), "rank=0"),
        (lambda: matroids.allocation(2, 0), "num_agents=0"),
        (lambda: matroids.Laminar([[1, 1, 0], [0, 1, 1]], [1, 1]), "sets 0 and 1.*cross"),
        (lambda: matroids.Laminar([[1, 0.5]], [1]), "sets:"),
        (lambda: matroids.Laminar([[1, 1]], [-1]), r"capacities=\[-1\]"),
        (lambda: matroids.Laminar([[1, 1]], [0]), "rank=0"),
        (lambda: matroids.Laminar([[1, 1]], [1, 1]), r"expected shape \[2, n\]"),
        (lambda: matroids.Graphic([[0, 0]]), "rank=0"),
        (lambda: matroids.Graphic([[0, -1]]), "got -1"),
        (lambda: matroids.Graphic([[0, 1, 2]]), r"shape \[n, 2\]"),
        (lambda: matroids.Oracle(lambda mask: ~mask.any(), 3), "rank=0"),
        (lambda: matroids.Oracle(lambda mask: mask.any(), 3), "empty set"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()
