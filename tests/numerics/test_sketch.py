"""CountSketch: linearity, unbiasedness, and the quality of selections."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_fair as ff
from fedjax_fair.evaluation.client_gradients import client_gradients
from fedjax_fair.numerics.distances import pairwise_distances
from fedjax_fair.numerics.sketch import CountSketch
from fedjax_fair.submodular import facility_location_from_distances, greedy

RNG = np.random.default_rng(0)


def tree(vector):
    return {"head": {"bias": vector[:7], "kernel": vector[7:].reshape(31, -1)}}


def test_sketch_is_a_signed_sum_by_position():
    project = CountSketch(10, seed=3)
    vector = RNG.normal(size=7 + 31 * 4)
    sketch = jax.jit(lambda row: project(tree(row)))
    images = np.asarray(jax.vmap(sketch)(np.eye(len(vector))))
    assert (np.abs(images).sum(axis=1) == 1).all()
    assert (np.abs(images).argmax(axis=1) == np.arange(len(vector)) % 10).all()
    assert 0.3 < (images > 0).sum() / len(vector) < 0.7
    np.testing.assert_allclose(sketch(vector), vector @ images, rtol=1e-5, atol=1e-5)
    other = CountSketch(10, seed=4)
    assert (sketch(vector) != jax.jit(lambda row: other(tree(row)))(vector)).any()


def test_inner_products_are_unbiased():
    first, second = RNG.normal(size=(2, 7 + 31 * 4)) + 0.5

    def product(seed):
        project = CountSketch(16, seed)
        return project(tree(jnp.asarray(first))) @ project(tree(jnp.asarray(second)))

    products = np.array([product(seed) for seed in range(200)])
    error = products.std() / np.sqrt(products.size)
    assert abs(products.mean() - first @ second) < 4 * error
    # The variance of a CountSketch of this length is at most this.
    bound = (np.dot(first, first) * np.dot(second, second) + np.dot(first, second) ** 2) / 16
    assert products.var() < 1.3 * bound


def test_selection_by_sketches_is_nearly_as_good():
    data = ff.data.load("digits")
    model = ff.models.mlp(data.num_classes)
    project = CountSketch(256)

    @jax.jit
    def select(key):
        start = model.init(key, data.train.features[:1])
        gradients = client_gradients(model, start, data.train).gradient
        sketches = jax.lax.map(project, gradients)
        assert sketches.shape[1] == 256 < gradients.shape[1] / 100
        exact, sketched = (
            facility_location_from_distances(pairwise_distances(rows))
            for rows in (gradients, sketches)
        )
        best, chosen = greedy(exact, 10), greedy(sketched, 10)
        reached = exact.value(jnp.zeros(50, bool).at[chosen.items].set(True))
        return best.value, reached, exact.value(jnp.arange(50) < 10)

    best, reached, some = select(jax.random.key(0))
    assert 0.97 < reached / best <= 1.0001
    assert reached > some


def test_invalid_sizes_are_rejected():
    with pytest.raises(ValueError, match="size=0"):
        CountSketch(0)
