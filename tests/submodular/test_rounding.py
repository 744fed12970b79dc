"""Rounding keeps marginals, and the expected value is at least that of the point."""

import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_fair.submodular import federated as fed
from fedjax_fair.submodular import matroids, rounding

N = 6
SETS = np.array(list(itertools.product([False, True], repeat=N)))
KEYS = jax.random.split(jax.random.key(0), 20_000)
# Four standard errors of a share.
NEAR = 4 * 0.5 / np.sqrt(len(KEYS))

MATROIDS = {
    "uniform": matroids.Uniform(3, N),
    "partition": matroids.Partition([1, 0, 1, 0, 1, 0], [1, 2]),
    "laminar": matroids.Laminar([[1, 0, 1, 0, 0, 0], [1, 0, 1, 1, 0, 1]], [1, 2]),
    "graphic": matroids.Graphic([[0, 1], [1, 2], [2, 0], [2, 3], [3, 0], [1, 3]]),
    "from_oracle": matroids.Oracle(lambda mask: jnp.sum(mask) <= 2, N),
}
BLOCKS = ["uniform", "partition"]  # What pipage is for.
ROUNDED = [*BLOCKS, "graphic"]  # Exchanges are in blocks, or of any other matroid.


@cache
def independent_sets_of(name):
    return SETS[np.asarray(jax.jit(jax.vmap(MATROIDS[name].independent))(SETS))]


@cache
def bases_of(name):
    sets = independent_sets_of(name)
    return sets[sets.sum(axis=1) == MATROIDS[name].rank]


def are_bases(name, masks):
    distinct = {tuple(mask) for mask in np.unique(np.asarray(masks), axis=0)}
    return distinct <= {tuple(base) for base in bases_of(name)}


def a_point(name, seed=0, full=True):
    """Mean of random bases, or of random independent sets, which are short of a base."""
    rng = np.random.default_rng(seed)
    sets = bases_of(name) if full else independent_sets_of(name)
    return rng.dirichlet(np.ones(4)) @ sets[rng.choice(len(sets), 4)]


def expected(scores, x):
    """The multilinear extension of the mean of facility locations, by definition."""
    return np.where(SETS, x, 1 - x).prod(axis=1) @ values_of(scores, SETS)


def values_of(scores, masks):
    return np.where(np.asarray(masks)[:, None], scores, 0).max(axis=2).mean(axis=1)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("name", MATROIDS)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_bases_have_the_point_as_their_mean(name, full, seed):
    """A point short of a base is below the mean; full constraints stay as they are."""
    x = a_point(name, seed, full)
    bases, weights = map(np.asarray, rounding.decompose(MATROIDS[name], x))
    assert are_bases(name, bases)
    assert (weights > 0).all()
    np.testing.assert_allclose(weights.sum(), 1, rtol=1e-5)
    mean = weights @ bases
    assert (mean >= x - 5e-5).all()
    if full:
        np.testing.assert_allclose(mean, x, atol=5e-5)


@pytest.mark.parametrize("name", MATROIDS)
def test_zeros_are_a_point_of_every_polytope(name):
    assert are_bases(name, rounding.decompose(MATROIDS[name], np.zeros(N)).bases)


def test_points_that_fill_blocks_unevenly():
    """Small points, by hand."""
    two = matroids.Uniform(2, 3)
    for x in ([1, 0, 0], [0.9, 0.3, 0.3]):
        bases, weights = map(np.asarray, rounding.decompose(two, x))
        assert (weights @ bases >= np.array(x) - 1e-5).all()
    x, halves = np.array([0.5, 0.4, 0, 0]), matroids.Partition([4, 4, 1, 1], [0, 1, 0, 0, 1])
    x_two, weights = np.array([0.9, 0.3, 0.3]), np.array([0.0, 5.0, 0.0, 0.0], np.float32)

    @jax.jit
    def solve(keys):
        best = rounding.deterministic_pipage(halves, x, lambda y: weights @ y)
        chosen = jax.vmap(lambda key: rounding.pipage(key, halves, x))(keys)
        return best, chosen, jax.vmap(lambda key: rounding.pipage(key, two, x_two))(keys)

    best, chosen, chosen_two = map(np.asarray, solve(KEYS))
    # What is short is added to the larger of two, so that the other is as likely as before.
    np.testing.assert_allclose(chosen.mean(axis=0), [0.6, 0.4, 1, 0], atol=NEAR)
    # No item becomes more than certain.
    np.testing.assert_allclose(chosen_two.mean(axis=0), [1, 0.7, 0.3], atol=NEAR)
    assert weights[best].sum() >= weights @ x


def test_a_point_with_rounding_errors_is_decomposed():
    """Sums in single precision, all with rounding errors."""
    scores = np.random.default_rng(0).gamma(0.2, size=(50, 200)).astype(np.float32)
    blocks, capacities = np.arange(200) % 7, np.array([1, 2, 3, 1, 2, 1, 4])
    matroid = matroids.Partition(blocks, capacities)

    @jax.jit
    def solve(key, scores):
        return fed.fedcg(key, fed.facility_location(scores), matroid, 37).x

    x = solve(jax.random.key(0), scores)
    bases, weights = map(np.asarray, rounding.decompose(matroid, x))
    assert (bases @ np.eye(7, dtype=int)[blocks] == capacities).all()
    np.testing.assert_allclose(weights @ bases, x, atol=5e-5)


@cache
def rounders(name):
    """Rounding functions, compiled once for each matroid: ``round(x) -> [keys, N]``."""
    matroid, count = MATROIDS[name], 12
    swap = jax.jit(
        jax.vmap(lambda key, decomposition: rounding.swap(key, matroid, decomposition), (0, None))
    )
    pipage = jax.jit(jax.vmap(lambda key, x: rounding.pipage(key, matroid, x), (0, None)))

    def by_swaps(x):
        # As many bases for any point: the last one several times, with its share of the weight.
        bases, weights = map(np.asarray, rounding.decompose(matroid, x))
        times = np.append(np.ones(len(weights) - 1, int), count + 1 - len(weights))
        bases, weights = np.repeat(bases, times, axis=0), np.repeat(weights / times, times)
        return swap(KEYS, rounding.Decomposition(bases, weights.astype(np.float32)))

    def by_pipage(x):
        return pipage(KEYS, np.asarray(x, np.float32))

    return (by_swaps, by_pipage) if name in BLOCKS else (by_swaps,)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("name", ROUNDED)
def test_marginals_are_kept_and_nothing_is_lost_on_average(name, full):
    """Items of a point short of a base are selected more often, never less."""
    scores = np.random.default_rng(1).gamma(0.3, size=(5, N)).astype(np.float32)
    x = a_point(name, 3, full)
    for rounder in rounders(name):
        chosen = np.asarray(rounder(x))
        assert are_bases(name, chosen)
        marginals = chosen.mean(axis=0)
        assert (marginals >= x - NEAR).all()
        if full:
            np.testing.assert_allclose(marginals, x, atol=NEAR)
        values = values_of(scores, chosen)
        error = values.std() / np.sqrt(len(KEYS))
        assert values.mean() >= expected(scores, x) - 4 * error


def test_items_are_negatively_correlated():
    """Systematic sampling would keep the marginals but violate this."""
    for rounder in rounders("uniform"):
        chosen = np.asarray(rounder(np.full(N, 0.5)), float)
        together = chosen.T @ chosen / len(KEYS)
        assert (together[~np.eye(N, dtype=bool)] <= 0.25 + NEAR).all()


@pytest.mark.parametrize("name", ROUNDED)
def test_sets_are_rounded_to_themselves(name):
    base = bases_of(name)[1]
    for rounder in rounders(name):
        assert (np.asarray(rounder(base.astype(float))) == base).all()
    np.testing.assert_array_equal(rounding.greedy(MATROIDS[name], base), base)


@pytest.mark.parametrize("name", BLOCKS)
def test_deterministic_pipage_keeps_the_value(name):
    matroid, rng = MATROIDS[name], np.random.default_rng(4)

    @jax.jit
    @jax.vmap
    def chosen(scores, x):
        problem = fed.facility_location(scores)

        def extension(x):
            return jnp.mean(problem.extensions(KEYS[0], x).values)

        return rounding.deterministic_pipage(matroid, x, extension)

    scores = rng.gamma(0.3, size=(40, 3, N)).astype(np.float32)
    points = [a_point(name, seed, full=seed % 2 == 0) for seed in range(40)]
    points = np.stack(points).astype(np.float32)
    rounded = np.asarray(chosen(scores, points))
    assert are_bases(name, rounded)
    for client_scores, mask, x in zip(scores, rounded, points, strict=True):
        assert (
            values_of(client_scores, mask[None])[0]
            >= expected(client_scores, x.astype(float)) - 1e-5
        )


def test_a_run_is_rounded_without_its_clients():
    scores = np.random.default_rng(1).gamma(0.3, size=(9, N)).astype(np.float32)
    matroid = MATROIDS["laminar"]

    @jax.jit
    def solve(key):
        run = fed.fedcg(key, fed.facility_location(scores), matroid, 10)
        return run.x, run.rounded, rounding.greedy(matroid, run.x)

    x, rounded, base = solve(jax.random.key(0))
    np.testing.assert_allclose(values_of(scores, base[None])[0], rounded[-1], rtol=1e-6)
    # From the point itself, which is decomposed on the host.
    assert are_bases("laminar", rounding.swap(jax.random.key(1), matroid, x)[None])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rounding.decompose(MATROIDS["uniform"], np.ones(5)), r"\(6,\)"),
        (lambda: rounding.decompose(MATROIDS["uniform"], np.full(N, 1.5)), "1.5"),
        (lambda: rounding.decompose(MATROIDS["partition"], [1, 0, 1, 0, 1, 0]), "polytope"),
        (lambda: rounding.swap(KEYS[0], MATROIDS["graphic"], [1, 1, 1, 0, 0, 0]), "polytope"),
        (lambda: rounding.decompose(matroids.Uniform(2, 3), np.ones(3)), "polytope"),
        (lambda: rounding.decompose(MATROIDS["laminar"], [0, 0, 0.9, 1, 0, 0.9]), "polytope"),
        (lambda: rounding.decompose(MATROIDS["from_oracle"], np.full(N, 0.4)), "polytope"),
        (lambda: rounding.decompose(MATROIDS["uniform"], np.full(N, np.nan)), "nan"),
        (
            lambda: jax.eval_shape(
                lambda: rounding.pipage(KEYS[0], MATROIDS["uniform"], np.ones(N))
            ),
            "block 0 sums to 3 ",
        ),
        (lambda: rounding.pipage(KEYS[0], MATROIDS["uniform"], np.ones(N)), "block 0 sums to 3 "),
        (
            lambda: rounding.pipage(KEYS[0], MATROIDS["partition"], [0, 0.9, 0, 0, 0, 0.9]),
            "polytope",
        ),
        (lambda: rounding.pipage(KEYS[0], MATROIDS["laminar"], np.zeros(N)), "got Laminar"),
        (lambda: rounding.pipage(KEYS[0], MATROIDS["uniform"], -np.ones(N)), "-1.0"),
        (lambda: rounding.greedy(MATROIDS["uniform"], np.ones(5)), r"\(6,\)"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
