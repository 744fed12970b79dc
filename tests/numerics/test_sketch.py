"""CountSketch: linearity, unbiasedness, and the quality of selections."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_fair as ff
from fedjax_fair.client_evaluation import client_gradients
from fedjax_fair.numerics.distances import pairwise_distances
from fedjax_fair.numerics.sketch import CountSketch, ravel
from fedjax_fair.submodular import facility_location_from_distances, greedy

RNG = np.random.default_rng(0)


def tree(vector):
    return {"head": {"bias": vector[:7], "kernel": vector[7:].reshape(31, -1)}}


def test_sketch_is_a_signed_sum_by_position():
    project = CountSketch(10, seed=3)
    vector = RNG.normal(size=7 + 31 * 4)
    images = np.asarray(jax.jit(jax.vmap(lambda row: project(tree(row))))(np.eye(len(vector))))
    assert (np.abs(images).sum(axis=1) == 1).all()
    assert (np.abs(images).argmax(axis=1) == np.arange(len(vector)) % 10).all()
    assert 0.3 < (images > 0).sum() / len(vector) < 0.7
    np.testing.assert_allclose(
        project(tree(jnp.asarray(vector))), vector @ images, rtol=1e-5, atol=1e-5
    )
    assert (
        project(tree(jnp.asarray(vector))) != CountSketch(10, seed=4)(tree(jnp.asarray(vector)))
    ).any()


def test_inner_products_are_unbiased():
    first, second = RNG.normal(size=(2, 7 + 31 * 4)) + 0.5

    def product(seed):
        project = CountSketch(16, seed)
        return project(tree(jnp.asarray(first))) @ project(tree(jnp.asarray(second)))

    products = np.array([product(seed) for seed in range(400)])
    error = products.std() / np.sqrt(products.size)
    assert abs(products.mean() - first @ second) < 4 * error
    # The variance of a CountSketch of this length is at most this.
    bound = (np.dot(first, first) * np.dot(second, second) + np.dot(first, second) ** 2) / 16
    assert products.var() < 1.3 * bound


def test_selection_by_sketches_is_nearly_as_good():
    data = ff.data.load("digits")
    model = ff.models.mlp(data.num_classes)
    start = model.init(jax.random.key(0), jnp.asarray(data.train.features[:1]))

    def distances(**options):
        def measure(start):
            known = client_gradients(model, start, data.train, **options)
            return pairwise_distances(known.gradient)

        projected = jax.eval_shape(options.get("project", ravel), start.params)
        return projected.size, jax.jit(measure)(start)

    width, exact = distances()
    short, sketched = distances(project=CountSketch(256))
    assert short == 256 < width / 100
    function = facility_location_from_distances(exact)
    best = greedy(function, 10)
    chosen = greedy(facility_location_from_distances(sketched), 10)
    value = jax.jit(function.value)
    reached = value(np.isin(np.arange(50), chosen.items))
    assert 0.97 < reached / best.value <= 1.0001
    some = value(np.arange(50) < 10)
    assert reached > some


def test_invalid_sizes_are_rejected():
    with pytest.raises(ValueError, match="size=0"):
        CountSketch(0)
