"""Rounding: every item as often as the point says, and nothing lost on average."""

import itertools

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
    "uniform": matroids.uniform(3, N),
    "partition": matroids.partition([1, 0, 1, 0, 1, 0], [1, 2]),
    "laminar": matroids.laminar([[1, 0, 1, 0, 0, 0], [1, 0, 1, 1, 0, 1]], [1, 2]),
    "graphic": matroids.graphic([[0, 1], [1, 2], [2, 0], [2, 3], [3, 0], [1, 3]]),
    "from_oracle": matroids.from_oracle(lambda mask: jnp.sum(mask) <= 2, N),
}


def a_point(matroid, seed=0, total=1.0):
    """A mean of random bases."""
    rng = np.random.default_rng(seed)
    bases = jax.jit(jax.vmap(matroid.max_weight_base))(
        jnp.asarray(rng.random((4, matroid.size)), jnp.float32)
    )
    return total * rng.dirichlet(np.ones(4)) @ np.asarray(bases)


@pytest.mark.parametrize("matroid", MATROIDS.values(), ids=MATROIDS)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_bases_have_the_point_as_their_mean(matroid, seed):
    x = a_point(matroid, seed)
    bases, weights = rounding.decompose(matroid, x)
    assert (np.asarray(bases).sum(axis=1) == matroid.rank).all()
    assert jax.vmap(matroid.independent)(bases).all()
    assert (weights > 0).all()
    np.testing.assert_allclose(weights.sum(), 1, rtol=1e-5)
    np.testing.assert_allclose(weights @ bases.astype(jnp.float32), x, atol=5e-5)


def test_a_point_after_many_uneven_steps_is_decomposed():
    """Sums in single precision, of which none is quite what it should be."""
    rng = np.random.default_rng(0)
    scores = rng.gamma(0.2, size=(50, 200)).astype(np.float32)
    matroid = matroids.partition(np.arange(200) % 7, [1, 2, 3, 1, 2, 1, 4])
    run = fed.fedcg(jax.random.key(0), fed.facility_location(scores), matroid, 37)
    bases, weights = rounding.decompose(matroid, run.x)
    assert jax.vmap(matroid.independent)(bases).all()
    np.testing.assert_allclose(weights @ bases.astype(jnp.float32), run.x, atol=5e-5)


def roundings(matroid, x):
    found = rounding.decompose(matroid, x)
    yield jax.jit(jax.vmap(lambda key: rounding.swap(key, matroid, found)))(KEYS)
    if matroid.blocks is not None:
        yield jax.jit(jax.vmap(lambda key: rounding.pipage(key, matroid, x)))(KEYS)


@pytest.mark.parametrize("matroid", MATROIDS.values(), ids=MATROIDS)
def test_marginals_are_kept_and_nothing_is_lost_on_average(matroid):
    scores = np.random.default_rng(1).gamma(0.3, size=(5, N)).astype(np.float32)
    problem = fed.facility_location(scores)
    x = a_point(matroid, 3)
    worth = np.mean(problem.extensions(KEYS[0], jnp.asarray(x, jnp.float32)).values)
    for chosen in roundings(matroid, x):
        assert (chosen.sum(axis=1) == matroid.rank).all()
        assert jax.vmap(matroid.independent)(chosen).all()
        np.testing.assert_allclose(chosen.mean(axis=0), x, atol=NEAR)
        values = np.asarray(jax.vmap(problem.values)(chosen)).mean(axis=1)
        assert values.mean() >= worth - 4 * values.std() / np.sqrt(len(KEYS))


def test_items_are_not_drawn_together_more_often_than_apart():
    """What a comb laid on the line at random would do, and keep the marginals at that."""
    matroid, x = matroids.uniform(2, 4), np.full(4, 0.5)
    for chosen in roundings(matroid, x):
        together = np.einsum("ki,kj->ij", *[np.asarray(chosen, float)] * 2) / len(KEYS)
        assert (together[~np.eye(4, dtype=bool)] <= 0.25 + NEAR).all()


def test_points_short_of_a_base_are_filled():
    for name in ("uniform", "partition", "graphic"):
        matroid = MATROIDS[name]
        x = a_point(matroid, 5, total=0.6)
        for chosen in roundings(matroid, x):
            assert (chosen.sum(axis=1) == matroid.rank).all()
            assert (np.asarray(chosen).mean(axis=0) >= x - NEAR).all()


def test_sets_stay_what_they_are():
    for matroid in MATROIDS.values():
        base = matroid.max_weight_base(jnp.arange(N, dtype=jnp.float32) % 4)
        x = base.astype(jnp.float32)
        np.testing.assert_array_equal(rounding.swap(KEYS[0], matroid, x), base)
        np.testing.assert_array_equal(rounding.greedy(matroid, x), base)
        if matroid.blocks is not None:
            np.testing.assert_array_equal(rounding.pipage(KEYS[0], matroid, x), base)


@pytest.mark.parametrize("name", ["uniform", "partition"])
def test_deterministic_pipage_is_worth_the_point(name):
    matroid, rng = MATROIDS[name], np.random.default_rng(4)

    @jax.jit
    def both(scores, x):
        problem = fed.facility_location(scores)

        def extension(x):
            return jnp.mean(problem.extensions(KEYS[0], x).values)

        chosen = rounding.deterministic_pipage(matroid, x, extension)
        return chosen, jnp.mean(problem.values(chosen)), extension(x)

    for seed in range(40):
        scores = jnp.asarray(rng.gamma(0.3, size=(3, N)), jnp.float32)
        chosen, value, worth = both(scores, jnp.asarray(a_point(matroid, seed), jnp.float32))
        assert matroid.independent(chosen)
        assert int(chosen.sum()) == matroid.rank
        assert float(value) >= float(worth) - 1e-5


def test_a_run_is_rounded_by_what_the_server_knows():
    scores = np.random.default_rng(1).gamma(0.3, size=(9, N)).astype(np.float32)
    problem, matroid = fed.facility_location(scores), MATROIDS["laminar"]
    run = fed.fedcg(jax.random.key(0), problem, matroid, 10)
    chosen = rounding.swap(jax.random.key(1), matroid, run.x)
    assert matroid.independent(chosen)
    np.testing.assert_allclose(problem.value(rounding.greedy(matroid, run.x)), run.rounded[-1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rounding.decompose(MATROIDS["uniform"], np.ones(5)), r"\(6,\)"),
        (lambda: rounding.decompose(MATROIDS["uniform"], np.full(N, 1.5)), "1.5"),
        (lambda: rounding.decompose(MATROIDS["partition"], [1, 0, 1, 0, 1, 0]), "polytope"),
        (lambda: rounding.swap(KEYS[0], MATROIDS["graphic"], [1, 1, 1, 0, 0, 0]), "polytope"),
        (lambda: rounding.pipage(KEYS[0], MATROIDS["laminar"], np.zeros(N)), "got laminar"),
        (lambda: rounding.pipage(KEYS[0], MATROIDS["uniform"], -np.ones(N)), "-1.0"),
        (lambda: rounding.greedy(MATROIDS["uniform"], np.ones(5)), r"\(6,\)"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
