"""Images stored as rows: what is taken out of them is what an array of images gives."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_fair import aggregators, data, models, selectors, solvers
from fedjax_fair.client_evaluation import client_performance
from fedjax_fair.data.device_layout import Rows, flatten_images
from fedjax_fair.numerics import target
from fedjax_fair.parallel.mesh import client_mesh, over_mesh, shard_federation
from fedjax_fair.simulate import Round, run
from fedjax_fair.training.fit import fit

IMAGES = np.random.default_rng(0).integers(0, 256, (40, 5, 4, 3), dtype=np.uint8)


def federation(validation_fraction=0.0):
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
def test_rows_give_what_the_array_gives(ids):
    rows = Rows(IMAGES.reshape(40, -1), IMAGES.shape[1:])
    assert (rows.shape, rows.ndim, rows.dtype, len(rows)) == (IMAGES.shape, 4, np.uint8, 40)
    np.testing.assert_array_equal(rows[ids], IMAGES[ids])
    np.testing.assert_array_equal(jax.jit(lambda rows: rows[ids])(rows), IMAGES[ids])
    np.testing.assert_array_equal(jnp.asarray(rows), IMAGES)


def test_rows_refuse_to_index_within_examples():
    rows = Rows(IMAGES.reshape(40, -1), IMAGES.shape[1:])
    with pytest.raises(IndexError, match="one index"):
        rows[0, 1]


@pytest.mark.parametrize(("platform", "flat"), [("cpu", False), ("gpu", True), ("tpu", True)])
def test_an_accelerator_stores_images_as_rows_and_vectors_as_they_are(platform, flat):
    vectors = np.zeros((6, 3))
    with target.tracing_for(platform):
        assert isinstance(flatten_images(IMAGES), Rows) == flat
        assert flatten_images(vectors) is vectors
        assert flatten_images(None) is None


def test_training_and_validation_share_their_rows():
    with target.tracing_for("tpu"):
        there = data.on_device(federation(validation_fraction=0.3))
    assert there.train.features is there.validation.features
    assert there.train.features.values.shape == (len(there.train.labels), 60)
    assert isinstance(there.test.features, Rows)


ROUND = Round(
    models.logistic(3),
    selectors.Uniform(2),
    solvers.SGD(0.1, 3, steps=2),
    aggregators.Mean(),
    clients_per_batch=2,
)


def after_rounds(state, data):
    return run(ROUND, state, data, 2)[0].variables


def test_a_run_on_rows_is_the_run_on_images_bit_for_bit():
    images = federation()
    with target.tracing_for("tpu"):
        rows = data.on_device(images)
    state = jax.jit(ROUND.init)(jax.random.key(0), images)
    jax.tree.map(
        np.testing.assert_array_equal,
        jax.jit(after_rounds)(state, rows),
        jax.jit(after_rounds)(state, images),
    )


def test_devices_that_share_the_clients_store_rows_as_well():
    images, mesh = federation(), client_mesh(1)
    state = jax.jit(ROUND.init)(jax.random.key(0), images)
    with target.tracing_for("gpu"):
        sharded = shard_federation(images, mesh)
    assert isinstance(sharded.train.features, Rows)
    jax.tree.map(
        lambda ours, expected: np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6),
        jax.jit(over_mesh(after_rounds, mesh))(state, sharded),
        jax.jit(after_rounds)(state, images),
    )


@pytest.mark.parametrize("alone", [True, False], ids=["one device", "a group of one"])
def test_fit_stores_rows_on_an_accelerator_and_measures_the_same(alone, monkeypatch):
    taken = []
    take = Rows.__getitem__
    monkeypatch.setattr(Rows, "__getitem__", lambda *args: taken.append(1) or take(*args))
    images = federation()
    with target.tracing_for("tpu"):
        mesh = None if alone else client_mesh(1, runs=1)
        fitted = fit(ROUND, images, rounds=2, eval_every=2, mesh=mesh)
    assert taken
    state = jax.jit(ROUND.init)(jax.random.key(0), images)
    variables = jax.jit(after_rounds)(state, images)
    expected = jax.jit(partial(client_performance, ROUND.model))(variables, images.test)
    np.testing.assert_allclose(fitted.test_loss[0, -1], expected.loss, rtol=1e-5)
