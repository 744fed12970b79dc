"""Losses, accuracies and gradients of clients, sequential and vmapped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_federation

from fedjax_fair import models, selectors
from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.evaluation import sums
from fedjax_fair.evaluation.client_gradients import client_gradients
from fedjax_fair.evaluation.clients import client_performance, evaluate
from fedjax_fair.numerics import target
from fedjax_fair.rounds.round_context import make_context


def test_means_of_every_client_equal_a_loop(model, federation):
    variables = model.init(jax.random.key(1), federation.train.features[:1])
    means = client_performance(model, variables, federation.test)
    test = federation.test
    for client in range(6):
        indices = test.order[test.offsets[client] :][: test.sizes[client]]
        logits = test.features[indices] @ np.asarray(variables.params["kernel"], np.float64)
        labels = test.labels[indices]
        loss = (np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(indices)), labels]).mean()
        np.testing.assert_allclose(means.loss[client], loss, rtol=1e-5)
        np.testing.assert_allclose(
            means.accuracy[client], (logits.argmax(axis=1) == labels).mean(), rtol=1e-6
        )


@pytest.mark.parametrize(
    ("shape", "owned"),
    [((4,), owned) for owned in (51, 249, 250, 251, 500, 777)]
    + [((2, 2, 1), owned) for owned in (49, 50, 51, 100, 777)],
)
def test_chunks_cover_all_examples(shape, owned):
    """Tries sizes around the length of a chunk, with clients without examples.

    It is 250 examples, or 50 images.
    """
    rng = np.random.default_rng(0)
    model, size = models.logistic(3), owned - 20
    sizes = np.array([0, size, 0, 20], np.int32)
    offsets = (np.cumsum(sizes) - sizes).astype(np.int32)
    features = jnp.asarray(rng.normal(size=(owned, *shape)), jnp.float32)
    labels = rng.integers(0, 3, owned).astype(np.int32)
    examples = ClientExamples(features, labels, np.arange(owned, dtype=np.int32), offsets, sizes)
    variables = model.init(jax.random.key(1), features[:1])
    means = jax.jit(client_performance, static_argnums=0)(model, variables, examples)
    head = jax.tree.map(np.asarray, variables.params["head"])
    logits = np.asarray(features).reshape(owned, -1) @ head["kernel"] + head["bias"]
    correct = logits.argmax(axis=1) == labels
    assert np.isnan(means.accuracy[0])
    assert np.isnan(means.loss[2])
    np.testing.assert_allclose(means.accuracy[1], correct[:size].mean(), rtol=1e-6)
    np.testing.assert_allclose(means.accuracy[3], correct[size:].mean(), rtol=1e-6)


@pytest.mark.parametrize("chunk", [32, 1])  # Vmapped and sequential clients.
def test_the_model_of_a_client_is_computed_once_for_all_its_examples(
    chunk, model, federation, monkeypatch
):
    monkeypatch.setattr(sums, "_MAX_CPU_CHUNK", chunk)
    data, calls = federation._replace(validation=make_federation(1).test), []
    shared = model.init(jax.random.key(1), data.train.features[:1])

    def personalized(client):
        jax.debug.callback(lambda client: calls.append(int(client)), client)
        return jax.tree.map(lambda leaf: leaf * (client + 1).astype(leaf.dtype), shared)

    zeros = jnp.zeros(6, jnp.int32)
    measured = jax.jit(
        lambda: evaluate(model, shared, data, zeros, zeros[:2], personalized=personalized)
    )()
    jax.effects_barrier()
    assert sorted(calls) == list(range(6))
    for client in range(6):
        own = jax.tree.map(lambda leaf, factor=client + 1.0: leaf * factor, shared)
        for name, part in (
            ("test", data.test),
            ("train", data.train),
            ("validation", data.validation),
        ):
            loss = getattr(measured.personalized, f"{name}_loss")[client]
            expected = client_performance(model, own, part).loss[client]
            np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_training_loss_is_measured_on_request(model, federation):
    variables = model.init(jax.random.key(1), federation.train.features[:1])
    zeros = jnp.zeros(6, jnp.int32)
    measured = evaluate(model, variables, federation, zeros, zeros[:2])
    skipped = evaluate(model, variables, federation, zeros, zeros[:2], train_loss=False)
    assert np.isfinite(measured.train_loss).all()
    assert np.isnan(skipped.train_loss).all()


SIZES = (3, 40, 5, 1, 0, 9, 1, 17)  # The largest takes three chunks, the others one.
UNEVEN = make_federation(sizes=SIZES)


def numpy_loss_and_gradient(variables, examples, client):
    """Returns loss and gradient of a softmax regression, bias first, in double precision."""
    indices = examples.order[examples.offsets[client] :][: examples.sizes[client]]
    x, labels = examples.features[indices].astype(np.float64), examples.labels[indices]
    kernel, bias = np.asarray(variables.params["kernel"]), np.asarray(variables.params["bias"])
    odds = np.exp(x @ kernel + bias)
    errors = odds / odds.sum(axis=1, keepdims=True)
    loss = -np.log(errors[np.arange(len(indices)), labels]).mean()
    errors[np.arange(len(indices)), labels] -= 1
    gradient = np.concatenate([errors.mean(axis=0), (x.T @ errors / len(indices)).ravel()])
    return loss, gradient


@pytest.mark.parametrize(
    ("batch_size", "ids"),
    [(1, None), (3, None), (8, None), (100, None), (3, [5, 1, 7, 1, 3])],
)
def test_batched_clients_equal_single_clients(monkeypatch, model, batch_size, ids):
    monkeypatch.setattr(sums, "_clients_per_batch", lambda *_: batch_size)
    variables = model.init(jax.random.key(1), UNEVEN.train.features[:1])
    clients = None if ids is None else jnp.array(ids, jnp.int32)
    measured, losses = jax.jit(
        lambda: (
            client_gradients(model, variables, UNEVEN.train, clients),
            client_performance(model, variables, UNEVEN.train, clients).loss,
        )
    )()
    for place, client in enumerate(range(8) if ids is None else ids):
        if SIZES[client]:
            loss, gradient = numpy_loss_and_gradient(variables, UNEVEN.train, client)
            np.testing.assert_allclose(measured.loss[place], loss, rtol=1e-5)
            np.testing.assert_allclose(losses[place], loss, rtol=1e-5)
            np.testing.assert_allclose(measured.gradient[place], gradient, rtol=1e-4, atol=1e-6)


def test_gradients_that_are_not_finite_are_masked(model):
    spoiled = UNEVEN.train._replace(features=np.array(UNEVEN.train.features))
    spoiled.features[spoiled.order[spoiled.offsets[1]]] = np.inf
    variables = model.init(jax.random.key(1), spoiled.features[:1])
    measured = client_gradients(model, variables, spoiled)
    nonfinite = np.isnan(measured.loss)
    assert np.flatnonzero(nonfinite).tolist() == [1, SIZES.index(0)]
    assert not measured.gradient[nonfinite].any()
    expected = client_gradients(model, variables, UNEVEN.train)
    np.testing.assert_array_equal(measured.gradient[~nonfinite], expected.gradient[~nonfinite])


@pytest.mark.parametrize("clients", [64, 100])  # A multiple of the clients of a batch, and not.
def test_gradients_of_all_clients_are_in_memory_once(clients):
    """Vmapped, as on an accelerator; a batch's gradients come in addition."""
    data, network = make_federation(sizes=(40,) * clients), models.mlp(2, hidden=(200, 200))
    variables = network.init(jax.random.key(1), data.train.features[:1])

    def select(variables, data):
        context = make_context(network, jnp.int32(0), variables, data)
        selector = selectors.DivFL(4)
        return selector.select(jax.random.key(0), selector.init(context), context)[0]

    with target.tracing_for("gpu"):
        traced = jax.jit(select).trace(variables, jax.tree.map(jnp.asarray, data))
    needed = traced.lower(lowering_platforms=("cpu",)).compile().memory_analysis()
    table = clients * 4 * sum(leaf.size for leaf in jax.tree.leaves(variables))
    assert table < needed.temp_size_in_bytes < 1.9 * table


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a rule for CPUs")
@pytest.mark.parametrize(("size", "expected"), [(4, 250), (20, 50), (32, 31), (33, 1), (600, 1)])
def test_batches_of_small_clients_have_a_thousand_examples(size, expected):
    examples = make_federation(sizes=(size,) * 3).train

    def clients_per_batch(width, client_bytes=0):
        def sum_fn(indices, mask):
            return jnp.zeros(width, jnp.float32)

        return sums._clients_per_batch(lambda _: [sum_fn], [examples], client_bytes)

    assert clients_per_batch(15) == expected
    assert clients_per_batch(2**17) == 1  # The sums of one client fill the cache,
    assert clients_per_batch(15, client_bytes=2**19) == 1  # and so does its model.
