"""Models with custom losses: regression and several labels per example."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import own

import fedjax_fair as ff
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.roles import Aggregation, Cohort, Model, Selector, Variables

RATE = 0.2


def linear(outputs) -> Model:
    def init(key, x):
        kernel = 0.1 * jax.random.normal(key, (x.shape[-1], outputs))
        return Variables({"kernel": kernel}, {})

    def apply(params, state, x, *, train, key):
        return x @ params["kernel"], state

    return Model.from_functions(init, apply, lambda params, state, x: x)


def federation(targets) -> FederatedData:
    """Six clients; targets are a function of the features, ``[total, outputs]``."""
    rng = np.random.default_rng(0)
    owners = np.repeat(np.arange(6), 5)
    features = rng.normal(size=(30, 4)).astype(np.float32)
    labels = targets(features @ rng.normal(size=(4, 3))).astype(np.float32)
    examples = own(features, labels, owners, 6)
    return FederatedData(examples, examples, None, 3, "targets")


REGRESSION = (ff.models.as_regression(linear(3)), federation(lambda scores: scores))
ABSOLUTE = (ff.models.as_regression(linear(3), "absolute"), REGRESSION[1])
LABELS = (ff.models.as_multi_label(linear(3)), federation(lambda scores: scores > 0))


def gradient_of(model, kernel, x, y):
    """Returns the gradient of the mean loss with respect to the kernel."""
    outputs = x @ kernel
    if model is REGRESSION[0]:
        return 2 * x.T @ (outputs - y) / y.size
    if model is ABSOLUTE[0]:
        return x.T @ np.sign(outputs - y) / y.size
    return x.T @ (1 / (1 + np.exp(-outputs)) - y) / y.size


@pytest.mark.parametrize(
    ("model", "data"), [REGRESSION, ABSOLUTE, LABELS], ids=["squared", "absolute", "labels"]
)
def test_models_train_with_custom_losses(model, data):
    round = ff.Round(
        model, ff.selectors.Full(), ff.solvers.SGD(RATE, 5, steps=1), ff.aggregators.Mean()
    )
    start = round.init(jax.random.key(0), data)
    after, _ = jax.jit(round.step)(start, data)
    kernel = np.asarray(start.variables.params["kernel"], np.float64)
    x, y = data.train.features, data.train.labels
    expected = kernel - RATE * np.mean(
        [gradient_of(model, kernel, x[rows], y[rows]) for rows in np.split(data.train.order, 6)],
        axis=0,
    )
    np.testing.assert_allclose(after.variables.params["kernel"], expected, rtol=1e-4, atol=1e-6)

    errors = [ff.metrics.predictions.mean_absolute_error()]
    fitted = ff.fit(round, data, rounds=60, eval_every=60, metrics=errors)
    run = fitted.dataset
    losses = run.test_loss.isel(seed=0).mean("client").values
    assert losses[-1] < 0.6 * losses[0]
    if model is LABELS[0]:
        assert run.accuracy_mean_clients.values[0, -1] > 0.9
        right = (fitted.predict(x)[0] == (y > 0.5)).mean()
        np.testing.assert_allclose(run.accuracy_mean_examples[0, -1], right, rtol=1e-5)
        np.testing.assert_array_equal(fitted.predict_proba(x) > 0.5, fitted.predict(x))
    else:
        assert not any("accuracy" in str(name) for name in run)
        error = np.abs(fitted.predict(x)[0] - y).mean()
        np.testing.assert_allclose(run.test_mean_absolute_error[0, -1].mean(), error, rtol=1e-4)
        with pytest.raises(ValueError, match="probabilities"):
            fitted.predict_proba(x)
    assert run.train_examples.values.sum() == 30


def test_labels_that_do_not_fit_the_loss_are_refused_before_compilation():
    def method(model):
        return ff.Round(
            model, ff.selectors.Full(), ff.solvers.SGD(RATE, 5, steps=1), ff.aggregators.Mean()
        )

    narrow = ff.models.as_regression(linear(1))
    for model, message in (
        (narrow, r"model with outputs \[1\]: expected the labels' shape, \[3\]"),
        (linear(3), r"model: expected a loss for targets.*models\.as_regression"),
    ):
        with pytest.raises(ValueError, match=message):
            ff.fit(method(model), REGRESSION[1], rounds=1)


@pytest.mark.parametrize(
    ("selector", "aggregator"),
    [
        (ff.selectors.DivFL(3), ff.aggregators.GIFAIR(0.5)),
        (
            ff.selectors.PowerOfChoice(3, variant="cpow"),
            ff.aggregators.QFedAvg(1.0, learning_rate=RATE),
        ),
        (ff.selectors.Uniform(3), ff.aggregators.Equitable(2)),
    ],
    ids=lambda role: type(role).__name__,
)
def test_roles_that_measure_clients_use_the_loss_of_the_model(selector, aggregator):
    model, data = REGRESSION
    data = data._replace(groups=np.array([0, 1, 0, 1, 0, 1], np.int32))
    round = ff.Round(model, selector, ff.solvers.SGD(RATE, 5, steps=1), aggregator)
    state, info = jax.jit(ff.run, static_argnums=(0, 3))(
        round, round.init(jax.random.key(0), data), data, 3
    )
    assert info.finite.all()
    assert np.isfinite(state.variables.params["kernel"]).all()


class DroppingSGD(ff.Solver):
    """Sends NaN, and a report of it, where an instruction says so."""

    def solve(self, key, variables, client):
        result = ff.solvers.SGD(RATE, 5, steps=1).solve(key, variables, client)
        is_sent = ~client.instructions["drop"]
        update = jax.tree.map(lambda leaf: jnp.where(is_sent, leaf, jnp.nan), result.update)
        return result._replace(update=update, reports={"is_sent": is_sent})


class MeanOfSent(ff.Aggregator):
    """Averages the updates whose report says that they were sent."""

    def aggregate(self, state, cohort, results, context):
        is_sent = results.reports["is_sent"].astype(jnp.float32)
        weights = is_sent / jnp.sum(is_sent)
        update = context.weighted_sum(weights, jax.tree.map(jnp.nan_to_num, results.update))
        return update, state, Aggregation(weights, {"num_sent": jnp.sum(is_sent)})


def test_instructions_reach_solvers_and_reports_reach_aggregators():
    model, data = REGRESSION

    def select(key, state, context):
        clients = jnp.arange(6, dtype=jnp.int32)
        drop = {"drop": clients % 2 == 0}
        return Cohort(clients, jnp.full(6, 1 / 6), drop), state, {}

    faulty = ff.Round(model, Selector.from_functions(select), DroppingSGD(), MeanOfSent())
    start = faulty.init(jax.random.key(0), data)
    after, info = jax.jit(faulty.step)(start, data)
    assert info.finite
    assert info.aggregator["num_sent"] == 3
    np.testing.assert_allclose(info.weights, [0, 1 / 3, 0, 1 / 3, 0, 1 / 3], rtol=1e-6)
    kernel = np.asarray(start.variables.params["kernel"], np.float64)
    x, y = data.train.features, data.train.labels
    rows = np.split(data.train.order, 6)[1::2]
    expected = kernel - RATE * np.mean(
        [gradient_of(model, kernel, x[r], y[r]) for r in rows], axis=0
    )
    np.testing.assert_allclose(after.variables.params["kernel"], expected, rtol=1e-4, atol=1e-6)
