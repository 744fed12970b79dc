"""The memory layout of examples on an accelerator."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_fair import aggregators, data, models, selectors, solvers
from fedjax_fair.data.device_layout import FlatImages, flatten_images
from fedjax_fair.evaluation.clients import client_performance
from fedjax_fair.numerics import target
from fedjax_fair.parallel.mesh import client_mesh, over_mesh, shard_data
from fedjax_fair.rounds.round import Round, run
from fedjax_fair.training.fit import fit

IMAGES = np.random.default_rng(0).integers(0, 256, (40, 5, 4, 3), dtype=np.uint8)


def make_data(validation_fraction=0.0):
    labels = np.random.default_rng(1).integers(0, 3, 40)
    client_indices = np.array_split(np.arange(40), 4)
    return data.from_arrays(
        IMAGES,
        labels,
        client_indices,
        test_fraction=0.2,
        validation_fraction=validation_fraction,
        name="images",
    )


@pytest.mark.parametrize(
    "ids", [7, slice(None, 2), np.array([3, 1, 3]), np.array([[0, 1], [2, 3]])]
)
def test_flat_images_index_as_an_array_of_images(ids):
    flat = FlatImages(IMAGES.reshape(40, -1), IMAGES.shape[1:])
    assert (flat.shape, flat.ndim, flat.dtype, len(flat)) == (IMAGES.shape, 4, np.uint8, 40)
    np.testing.assert_array_equal(flat[ids], IMAGES[ids])
    np.testing.assert_array_equal(jax.jit(lambda flat: flat[ids])(flat), IMAGES[ids])
    np.testing.assert_array_equal(jnp.asarray(flat), IMAGES)


def test_flat_images_reject_indices_within_examples():
    flat = FlatImages(IMAGES.reshape(40, -1), IMAGES.shape[1:])
    with pytest.raises(IndexError, match="index"):
        flat[0, 1]


@pytest.mark.parametrize(("platform", "flat"), [("cpu", False), ("gpu", True), ("tpu", True)])
def test_images_are_flattened_on_an_accelerator_and_vectors_are_not(platform, flat):
    vectors = np.zeros((6, 3))
    with target.tracing_for(platform):
        assert isinstance(flatten_images(IMAGES), FlatImages) == flat
        assert flatten_images(vectors) is vectors
        assert flatten_images(None) is None


def test_training_and_validation_share_flat_images():
    with target.tracing_for("tpu"):
        moved = data.on_device(make_data(validation_fraction=0.3))
    assert moved.train.features is moved.validation.features
    assert moved.train.features.values.shape == (len(moved.train.labels), 60)
    assert isinstance(moved.test.features, FlatImages)


ROUND = Round(
    models.logistic(3),
    selectors.Uniform(2),
    solvers.SGD(0.1, 3, steps=2),
    aggregators.Mean(),
    clients_per_batch=2,
)


initial = jax.jit(ROUND.init)


@jax.jit
def after_rounds(state, data):
    return run(ROUND, state, data, 2)[0].variables


def test_rounds_on_flat_images_equal_rounds_on_images():
    images = make_data()
    with target.tracing_for("tpu"):
        flat = data.on_device(images)
    state = initial(jax.random.key(0), images)
    jax.tree.map(
        np.testing.assert_array_equal,
        after_rounds(state, flat),
        after_rounds(state, images),
    )


def test_a_mesh_of_devices_has_flat_images():
    images, mesh = make_data(), client_mesh(1)
    state = initial(jax.random.key(0), images)
    with target.tracing_for("gpu"):
        sharded = shard_data(images, mesh)
    assert isinstance(sharded.train.features, FlatImages)
    jax.tree.map(
        lambda ours, expected: np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6),
        jax.jit(over_mesh(after_rounds, mesh))(state, sharded),
        after_rounds(state, images),
    )


performance = jax.jit(partial(client_performance, ROUND.model))


@pytest.mark.filterwarnings("ignore:.*the prediction is class")  # Two rounds are few.
@pytest.mark.parametrize("runs", [None, 1], ids=["one device", "a group of one"])
def test_fit_flattens_images_on_an_accelerator(runs, monkeypatch):
    indexed = []
    getitem = FlatImages.__getitem__
    monkeypatch.setattr(
        FlatImages, "__getitem__", lambda *args: indexed.append(1) or getitem(*args)
    )
    images = make_data()
    with target.tracing_for("tpu"):
        mesh = None if runs is None else client_mesh(1, runs=runs)
        fitted = fit(ROUND, images, rounds=2, eval_every=2, mesh=mesh, train_loss=False).dataset
    assert indexed
    state = initial(jax.random.key(0), images)
    variables = after_rounds(state, images)
    expected = performance(variables, images.test)
    np.testing.assert_allclose(fitted.test_loss[0, -1], expected.loss, rtol=1e-5)
