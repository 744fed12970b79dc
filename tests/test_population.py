"""Asking whole clients: the same answers however many of them share a pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_federation

from fedjax_fair import client_evaluation
from fedjax_fair.client_evaluation import client_gradients, client_means

SIZES = (3, 40, 5, 1, 0, 9, 1, 17)  # Three passes of the largest while the others wait.


@pytest.fixture
def federation():
    return make_federation(sizes=SIZES)


def by_hand(variables, examples, client):
    """Mean loss and gradient of a softmax regression, bias first, in double precision."""
    rows = examples.order[examples.offsets[client] :][: examples.sizes[client]]
    x, labels = examples.features[rows].astype(np.float64), examples.labels[rows]
    kernel, bias = np.asarray(variables.params["kernel"]), np.asarray(variables.params["bias"])
    odds = np.exp(x @ kernel + bias)
    shares = odds / odds.sum(axis=1, keepdims=True)
    loss = -np.log(shares[np.arange(len(rows)), labels]).mean()
    shares[np.arange(len(rows)), labels] -= 1
    gradient = np.concatenate([shares.mean(axis=0), (x.T @ shares / len(rows)).ravel()])
    return loss, gradient


@pytest.mark.parametrize("side_by_side", [1, 3, 8, 100])
@pytest.mark.parametrize("asked", [None, [5, 1, 7, 1, 3]])
def test_clients_answer_alike_alone_and_side_by_side(
    monkeypatch, model, federation, side_by_side, asked
):
    monkeypatch.setattr(client_evaluation, "_side_by_side", lambda *measured: side_by_side)
    variables = model.init(jax.random.key(1), federation.train.features[:1])
    clients = None if asked is None else jnp.array(asked, jnp.int32)
    known = jax.jit(lambda: client_gradients(model, variables, federation.train, clients))()
    losses = jax.jit(lambda: client_means(model, variables, federation.train, clients).loss)()
    for place, client in enumerate(range(8) if asked is None else asked):
        if SIZES[client]:
            loss, gradient = by_hand(variables, federation.train, client)
            np.testing.assert_allclose(known.loss[place], loss, rtol=1e-5)
            np.testing.assert_allclose(losses[place], loss, rtol=1e-5)
            np.testing.assert_allclose(known.gradient[place], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a rule for processors")
@pytest.mark.parametrize(("size", "most"), [(4, 250), (20, 50), (32, 31), (33, 1), (600, 1)])
def test_small_clients_make_a_thousand_examples(model, size, most):
    examples = make_federation(sizes=(size,) * 3).train

    def sums(width):
        return client_evaluation._side_by_side(
            lambda rows, mask: np.zeros(width, np.float32), examples
        )

    assert sums(15) == most
    assert sums(2**17) == 1  # As much as may stay in the cache, for one client alone.
