"""What evaluations measure of every client."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_fair import models
from fedjax_fair.client_evaluation import client_means, evaluate
from fedjax_fair.data.federated import ClientExamples


def test_means_of_every_client_equal_a_loop(model, federation):
    variables = model.init(jax.random.key(1), federation.train.features[:1])
    means = client_means(model, variables, federation.test)
    test = federation.test
    for client in range(6):
        rows = test.order[test.offsets[client] :][: test.sizes[client]]
        logits = test.features[rows] @ np.asarray(variables.params["kernel"], np.float64)
        labels = test.labels[rows]
        loss = (np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(rows)), labels]).mean()
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
    means = client_means(model, variables, examples)
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
    asked = evaluate(model, variables, federation, idle, idle[:2])
    silent = evaluate(model, variables, federation, idle, idle[:2], train_loss=False)
    assert np.isfinite(asked.train_loss).all()
    assert np.isnan(silent.train_loss).all()
