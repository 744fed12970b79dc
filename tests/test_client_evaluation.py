"""What evaluations measure of every client, alone and side by side."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_federation

from fedjax_fair import client_evaluation, models
from fedjax_fair.client_evaluation import client_gradients, client_performance, evaluate
from fedjax_fair.data.federated import ClientExamples


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


@pytest.mark.parametrize("shape", [(4,), (2, 2, 1)])
@pytest.mark.parametrize("owned", [49, 50, 51, 100, 249, 250, 251, 500, 777])
def test_chunks_of_the_evaluation_leave_nothing_out(owned, shape):
    """All sizes around the length of a chunk, with a client that owns no examples."""
    rng = np.random.default_rng(0)
    model, first = models.logistic(3), owned - 20
    sizes = np.array([0, first, 0, 20], np.int32)
    offsets = (np.cumsum(sizes) - sizes).astype(np.int32)
    features = jnp.asarray(rng.normal(size=(owned, *shape)), jnp.float32)
    labels = rng.integers(0, 3, owned).astype(np.int32)
    examples = ClientExamples(features, labels, np.arange(owned, dtype=np.int32), offsets, sizes)
    variables = model.init(jax.random.key(1), features[:1])
    means = jax.jit(lambda start: client_performance(model, start, examples))(variables)
    head = jax.tree.map(np.asarray, variables.params["head"])
    logits = np.asarray(features).reshape(owned, -1) @ head["kernel"] + head["bias"]
    correct = logits.argmax(axis=1) == labels
    assert np.isnan(means.accuracy[0])
    assert np.isnan(means.loss[2])
    np.testing.assert_allclose(means.accuracy[1], correct[:first].mean(), rtol=1e-6)
    np.testing.assert_allclose(means.accuracy[3], correct[first:].mean(), rtol=1e-6)


def test_training_loss_is_measured_on_request(model, federation):
    variables = model.init(jax.random.key(1), federation.train.features[:1])
    idle = jnp.zeros(6, jnp.int32)
    measured = evaluate(model, variables, federation, idle, idle[:2])
    silent = evaluate(model, variables, federation, idle, idle[:2], train_loss=False)
    assert np.isfinite(measured.train_loss).all()
    assert np.isnan(silent.train_loss).all()


SIZES = (3, 40, 5, 1, 0, 9, 1, 17)  # Three passes of the largest while the others wait.


UNEVEN = make_federation(sizes=SIZES)


def by_hand(variables, examples, client):
    """Mean loss and gradient of a softmax regression, bias first, in double precision."""
    indices = examples.order[examples.offsets[client] :][: examples.sizes[client]]
    x, labels = examples.features[indices].astype(np.float64), examples.labels[indices]
    kernel, bias = np.asarray(variables.params["kernel"]), np.asarray(variables.params["bias"])
    odds = np.exp(x @ kernel + bias)
    shares = odds / odds.sum(axis=1, keepdims=True)
    loss = -np.log(shares[np.arange(len(indices)), labels]).mean()
    shares[np.arange(len(indices)), labels] -= 1
    gradient = np.concatenate([shares.mean(axis=0), (x.T @ shares / len(indices)).ravel()])
    return loss, gradient


@pytest.mark.parametrize("side_by_side", [1, 3, 8, 100])
@pytest.mark.parametrize("ids", [None, [5, 1, 7, 1, 3]])
def test_clients_measure_alike_alone_and_side_by_side(monkeypatch, model, side_by_side, ids):
    monkeypatch.setattr(client_evaluation, "_side_by_side", lambda *measured: side_by_side)
    variables = model.init(jax.random.key(1), UNEVEN.train.features[:1])
    clients = None if ids is None else jnp.array(ids, jnp.int32)
    known = jax.jit(lambda: client_gradients(model, variables, UNEVEN.train, clients))()
    losses = jax.jit(lambda: client_performance(model, variables, UNEVEN.train, clients).loss)()
    for place, client in enumerate(range(8) if ids is None else ids):
        if SIZES[client]:
            loss, gradient = by_hand(variables, UNEVEN.train, client)
            np.testing.assert_allclose(known.loss[place], loss, rtol=1e-5)
            np.testing.assert_allclose(losses[place], loss, rtol=1e-5)
            np.testing.assert_allclose(known.gradient[place], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a rule for processors")
@pytest.mark.parametrize(("size", "most"), [(4, 250), (20, 50), (32, 31), (33, 1), (600, 1)])
def test_small_clients_make_a_thousand_examples(model, size, most):
    examples = make_federation(sizes=(size,) * 3).train

    def sums(width):
        return client_evaluation._side_by_side(
            lambda indices, mask: np.zeros(width, np.float32), examples
        )

    assert sums(15) == most
    assert sums(2**17) == 1  # As much as may stay in the cache, for one client alone.
