"""Examples with sequences of labels, such as text, and integer tokens as features."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from flax import nnx
from optax import softmax_cross_entropy_with_integer_labels

import fedjax_fair as ff
from fedjax_fair.data.federated import validate
from fedjax_fair.evaluation.client_gradients import client_gradients
from fedjax_fair.evaluation.clients import client_performance
from fedjax_fair.numerics.labels import mean_over_labels, sum_labels

VOCABULARY = 7


class NextToken(nn.Module):
    """Predicts every next token from the token before, ``[batch, length, vocabulary]``."""

    @nn.compact
    def __call__(self, x):
        assert x.dtype == jnp.int32
        return nn.Dense(VOCABULARY)(nn.Embed(VOCABULARY, 4)(x))

    def features(self, x):
        return self(x).mean(axis=1)


class NextTokenNNX(nnx.Module):
    """The same network in NNX."""

    def __init__(self, rngs):
        self.embedding = nnx.Embed(VOCABULARY, 4, rngs=rngs)
        self.head = nnx.Linear(4, VOCABULARY, rngs=rngs)

    def __call__(self, x):
        assert x.dtype == jnp.int32
        return self.head(self.embedding(x))


LINEN = ff.models.from_flax(NextToken())
NNX = ff.models.from_flax(NextTokenNNX)
BIGRAM = ff.models.from_flax(nn.Embed(VOCABULARY, VOCABULARY))


def texts(padding=0, num_examples=30, length=6, seed=0):
    """Windows of random lengths: the next token is usually the token plus one."""
    rng = np.random.default_rng(seed)
    start = rng.integers(VOCABULARY, size=(num_examples, 1))
    jumps = rng.random((num_examples, length + 1)) < 0.1
    tokens = (start + np.arange(length + 1) + np.cumsum(jumps, axis=1)) % VOCABULARY
    features, labels = tokens[:, :-1], tokens[:, 1:].copy()
    labels[np.arange(length) >= rng.integers(1, length + 1, size=(num_examples, 1))] = -1
    pad = partial(np.pad, pad_width=((0, 0), (0, padding)))
    return pad(features), pad(labels, constant_values=-1)


def federation(padding=0, **settings):
    clients = np.repeat(np.arange(4), [3, 5, 10, 12])
    arguments: dict[str, Any] = {"test_fraction": 0.3, "validation_fraction": 0.2} | settings
    return ff.data.from_arrays(*texts(padding), clients=clients, **arguments)


def method(model=LINEN, selector=None, aggregator=None, solver=None):
    return ff.Round(
        model=model,
        selector=selector or ff.selectors.Uniform(3),
        solver=solver or ff.solvers.SGD(0.5, batch_size=4, epochs=2),
        aggregator=aggregator or ff.aggregators.Mean(),
    )


CLIENT_PARITY = ff.aggregators.FedFBMean(0.5, "client_parity")
WEIGHTED = ff.solvers.CellWeighted(ff.solvers.SGD(0.5, batch_size=4, epochs=2))


def start(model=LINEN):
    return model.init(jax.random.key(3), jnp.zeros((1, 2), jnp.int32))


def reference(variables, part, client):
    """Loss and accuracy over all labels of a client, and its number of labels, in float64."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables.params)
    rows = part.order[part.offsets[client] : part.offsets[client] + part.sizes[client]]
    losses, right = [], []
    for row in rows:
        for token, label in zip(part.features[row], part.labels[row], strict=True):
            if label >= 0:
                hidden = params["Embed_0"]["embedding"][token]
                logits = hidden @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"]
                losses.append(np.log(np.exp(logits).sum()) - logits[label])
                right.append(logits.argmax() == label)
    return np.mean(losses), np.mean(right), len(losses)


def test_metrics_are_means_over_the_labels_of_a_client():
    data = federation()
    fitted = ff.fit(method(), data, rounds=3, seeds=(5,))
    variables, run = fitted.variables_for(seed=5), fitted.dataset.isel(seed=0, round=-1)
    pooled = []
    assert np.isnan(run.test_loss[0])  # Without test examples.
    for client in (1, 2, 3):
        loss, accuracy, count = reference(variables, data.test, client)
        np.testing.assert_allclose(run.test_loss[client], loss, rtol=1e-5)
        np.testing.assert_allclose(run.test_accuracy[client], accuracy, rtol=1e-6)
        assert run.test_examples[client].sum() == count
        pooled.append((accuracy * count, loss * count, count))
    correct, total_loss, count = np.sum(pooled, axis=0)
    np.testing.assert_allclose(run.accuracy_mean_examples, correct / count, rtol=1e-6)
    np.testing.assert_allclose(run.test_loss_mean_examples, total_loss / count, rtol=1e-5)
    expected = [reference(variables, data.train, client)[0] for client in range(4)]
    np.testing.assert_allclose(run.train_loss, expected, rtol=1e-5)
    expected = reference(variables, data.validation, 3)[1]
    np.testing.assert_allclose(run.validation_accuracy[3], expected, rtol=1e-6)


def test_class_accuracies_count_every_label_once():
    data = federation()
    fitted = ff.fit(method(), data, rounds=2)
    predicted = fitted.predict(data.test.features)[0]
    assert predicted.shape == data.test.labels.shape
    for label in range(VOCABULARY):
        right = predicted[data.test.labels == label] == label
        measured = fitted.dataset.class_accuracy.isel(seed=0, round=-1)[label]
        np.testing.assert_allclose(measured, right.mean() if right.size else np.nan, rtol=1e-6)


def test_measures_of_some_clients_equal_those_of_all_and_of_the_reference():
    data, variables = federation(), start()
    every = client_performance(LINEN, variables, data.train)
    some = client_performance(LINEN, variables, data.train, jnp.array([2, 0]))
    gradients = client_gradients(LINEN, variables, data.train)
    np.testing.assert_allclose(some.loss, every.loss[jnp.array([2, 0])], rtol=1e-6)
    np.testing.assert_allclose(some.accuracy, every.accuracy[jnp.array([2, 0])], rtol=1e-6)
    np.testing.assert_allclose(gradients.loss, every.loss, rtol=1e-6)
    expected = [reference(variables, data.train, client)[0] for client in range(4)]
    np.testing.assert_allclose(gradients.loss, expected, rtol=1e-5)

    def loss(params, client):
        rows = data.train.order[data.train.offsets[client] :][: data.train.sizes[client]]
        outputs, _ = LINEN.apply(params, {}, data.train.features[rows], train=False, key=None)
        labels = data.train.labels[rows]
        losses = softmax_cross_entropy_with_integer_labels(outputs, jnp.maximum(labels, 0))
        return jnp.mean(losses, where=labels >= 0)

    expected = jax.flatten_util.ravel_pytree(jax.grad(loss)(variables.params, 3))[0]
    np.testing.assert_allclose(gradients.gradient[3], expected, rtol=1e-4, atol=1e-6)


def test_local_loss_of_one_step_is_the_mean_over_labels():
    data = federation(test_fraction=0.0, validation_fraction=0.0)
    data = data._replace(test=data.train)
    solver = ff.solvers.SGD(0.0, batch_size=100, steps=1)
    fitted = ff.fit(method(solver=solver, selector=ff.selectors.Full()), data, rounds=1)
    variables = fitted.variables_for(seed=0)
    expected = [reference(variables, data.train, client)[0] for client in range(4)]
    clients = fitted.dataset.cohort_clients.values[0, 0]
    np.testing.assert_allclose(
        fitted.dataset.cohort_loss.values[0, 0], np.take(expected, clients), rtol=1e-5
    )


@pytest.mark.parametrize("padding", [1, 27])
def test_padding_changes_no_bit_of_updates(padding):
    """The gradient of a table of logits is a sum over tokens in order, which padding ends."""
    plain, padded = (
        ff.fit(
            method(BIGRAM),
            federation(columns),
            rounds=4,
            metrics=[ff.metrics.predictions.macro_f1(VOCABULARY)],
        )
        for columns in (0, padding)
    )
    jax.tree.map(np.testing.assert_array_equal, plain.variables, padded.variables)
    for name in ("cohort_loss", "test_accuracy", "class_accuracy", "test_macro_f1"):
        np.testing.assert_array_equal(plain.dataset[name], padded.dataset[name])
    # The loss of a label may be compiled differently for another shape.
    xr.testing.assert_allclose(plain.dataset, padded.dataset, rtol=1e-6)
    assert {"test_macro_f1", "cohort_loss", "train_loss"} <= set(plain.dataset)


@pytest.mark.parametrize(
    ("model", "padding"), [(LINEN, 1), (LINEN, 27), (NNX, 2)], ids=["linen-1", "linen-27", "nnx-2"]
)
def test_padding_changes_a_network_by_rounding_of_its_matrix_products(model, padding):
    fitted, other = (
        ff.fit(method(model), federation(columns), rounds=2) for columns in (0, padding)
    )
    for name in ("test_loss", "train_loss", "test_accuracy", "class_accuracy", "cohort_loss"):
        np.testing.assert_allclose(fitted.dataset[name], other.dataset[name], rtol=1e-5)
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), fitted.variables, other.variables
    )


@pytest.mark.parametrize("length", [1, 2, 3, 8, 13])
def test_sums_do_not_depend_on_masked_places_at_the_end(length):
    values = jax.random.uniform(jax.random.key(length), (50, length)) ** 8
    labels = jnp.zeros((50, length), jnp.int32)
    sums = sum_labels(values, labels)
    np.testing.assert_allclose(sums, values.sum(axis=1), rtol=1e-6)
    for padding in (1, 2, 50):
        pad = ((0, 0), (0, padding))
        padded = jnp.pad(values, pad, constant_values=9.0)
        masked = jnp.pad(labels, pad, constant_values=-1)
        np.testing.assert_array_equal(sum_labels(padded, masked), sums)
        mean, slope = jax.value_and_grad(mean_over_labels)(padded, masked, jnp.arange(50) < 40)
        np.testing.assert_allclose(mean, values[:40].mean(), rtol=1e-6)
        np.testing.assert_allclose(slope[:40, :length], 1 / (40 * length), rtol=1e-6)
        assert not slope[:, length:].any()
        assert not slope[40:].any()


def test_fit_learns_the_next_token():
    run = ff.fit(method(), federation(), rounds=30).dataset
    assert run.accuracy_mean_examples[0, 0] < 0.5 < 0.7 < run.accuracy_mean_examples[0, -1]


def test_sequences_of_one_label_equal_ordinary_labels():
    rng = np.random.default_rng(1)
    tokens, labels = rng.integers(VOCABULARY, size=(2, 40))
    clients = np.arange(40) % 4
    model = ff.models.from_flax(nn.Sequential([nn.Embed(VOCABULARY, 4), nn.Dense(VOCABULARY)]))
    metrics = [
        ff.metrics.predictions.macro_f1(VOCABULARY),
        ff.metrics.predictions.auc(VOCABULARY),
        ff.metrics.predictions.calibration_error(),
    ]
    one, sequence = (
        ff.fit(
            method(model),
            ff.data.from_arrays(tokens[index], labels[index], clients=clients),
            rounds=3,
            metrics=metrics,
        ).dataset
        for index in (np.index_exp[:], np.index_exp[:, None])
    )
    for name in one.data_vars:
        np.testing.assert_allclose(one[name], sequence[name], rtol=2e-5, atol=1e-7, err_msg=name)


@pytest.mark.parametrize(
    "roles",
    [
        {
            "selector": ff.selectors.PowerOfChoice(2, 4),
            "aggregator": ff.aggregators.QFedAvg(1.0, learning_rate=0.5),
        },
        {
            "selector": ff.selectors.PowerOfChoice(2, 4, variant="cpow", loss_examples=2),
            "aggregator": ff.aggregators.Tilted(1.0),
        },
        {"selector": ff.selectors.DivFL(2), "aggregator": ff.aggregators.FairFed(1.0)},
        {"aggregator": ff.aggregators.GIFAIR(0.5)},
        {"aggregator": ff.aggregators.Equitable(2)},
        {"aggregator": ff.aggregators.FedFA(0.5)},
        {"aggregator": CLIENT_PARITY, "solver": WEIGHTED},
    ],
    ids=lambda roles: type(roles["aggregator"]).__name__,
)
def test_methods_that_measure_clients_are_unchanged_by_padding(roles):
    plain, padded = (
        ff.fit(method(**roles), federation(columns, groups=[0, 0, 1, 1]), rounds=2).dataset
        for columns in (0, 2)
    )
    np.testing.assert_allclose(plain.test_loss, padded.test_loss, rtol=1e-5)
    np.testing.assert_array_equal(plain.cohort_clients, padded.cohort_clients)


def test_fedfa_measures_the_accuracy_over_labels():
    """At a step size of zero all trained models are the first one."""
    data = federation()
    roles = method(
        selector=ff.selectors.Full(),
        solver=ff.solvers.SGD(0.0, 4, steps=1),
        aggregator=ff.aggregators.FedFA(0.5),
    )
    fitted = ff.fit(roles, data, rounds=1)
    variables = fitted.variables_for(seed=0)
    expected = [reference(variables, data.train, client)[1] for client in range(4)]
    clients = fitted.dataset.cohort_clients.values[0, 0]
    measured = fitted.dataset.aggregation_trained_accuracy.values[0, 0]
    np.testing.assert_allclose(measured, np.take(expected, clients), rtol=1e-5)


def test_client_parity_without_a_step_is_fedavg():
    parity = method(aggregator=CLIENT_PARITY.replace(alpha=0.0), solver=WEIGHTED)
    mean = method(aggregator=ff.aggregators.Mean("num_examples"))
    fitted, fedavg = (ff.fit(roles, federation(), rounds=2) for roles in (parity, mean))
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6),
        fitted.variables,
        fedavg.variables,
    )


class CellWeights(ff.aggregators.Mean):
    """Broadcasts weights of two groups."""

    def broadcast(self, state, context):
        return {"cell_weights": jnp.ones((2, 2)), "group_strides": jnp.ones(1, jnp.int32)}


@pytest.mark.parametrize(
    ("aggregator", "solver", "message"),
    [
        (ff.aggregators.FedFBMean(0.5), WEIGHTED, "people are counted by group and label"),
        (ff.aggregators.FedMinMaxMean(), WEIGHTED, "people are counted by group and label"),
        (ff.aggregators.ReweighingMean(), WEIGHTED, "people are counted by group and label"),
        (ff.aggregators.FairFed(), None, "people are counted by group and label"),
        (CellWeights(), WEIGHTED, "CellWeighted has weights of 2 groups and two labels"),
        (None, ff.solvers.GroupPenalty(WEIGHTED.solver), "GroupPenalty compares scores of class 1"),
    ],
    ids=["fedfb", "fedminmax", "reweighing", "fairfed", "cell_weighted", "group_penalty"],
)
def test_sequences_of_people_are_refused(aggregator, solver, message):
    data = federation(sensitive_features={"sex": np.arange(30) % 2})
    with pytest.raises(ValueError, match=rf"labels \[6\] of an example.*{message}") as error:
        ff.fit(method(aggregator=aggregator, solver=solver), data, rounds=1)
    assert "\n" not in str(error.value)


def test_flipped_labels_keep_their_mask():
    data = federation()
    flipped = ff.data.flip_labels(data, [0, 1, 2, 3]).train.labels
    used, masked = data.train.order, data.train.labels == -1
    np.testing.assert_array_equal(flipped[masked], -1)
    np.testing.assert_array_equal(
        flipped[used][~masked[used]], VOCABULARY - 1 - data.train.labels[used][~masked[used]]
    )


def test_printed_data_and_results_count_labels():
    data = federation()
    count = sum(reference(start(), data.train, client)[2] for client in range(4))
    assert f"; 6 labels per example, {count} not masked" in str(data)
    fitted = ff.fit(method(), data, rounds=1)
    test_count = sum(
        reference(start(), data.test, client)[2]
        for client in (0, 1, 2, 3)
        if data.test.sizes[client]
    )
    assert f"4 clients, {count} + {test_count} labels" in repr(fitted)
    assert fitted.dataset.train_examples.units == "labels"


def refuse(message, *arguments, **settings):
    with pytest.raises(ValueError, match=message) as error:
        ff.data.from_arrays(*arguments, **settings)
    assert "\n" not in str(error.value)


def test_invalid_labels_and_features_are_refused():
    features, labels = texts()
    settings = {"clients": np.repeat(np.arange(3), 10)}
    above, below, empty = labels.copy(), labels.copy(), labels.copy()
    above[2, 0], below[2, 0], empty[20:] = 7, -2, -1
    refuse(
        r"train.labels span \[-1, 7\]: expected \[0, 6\]",
        features,
        above,
        **settings,
        num_classes=7,
    )
    refuse(r"train.labels span \[-2, 6\]: expected \[0, 6\]", features, below, **settings)
    refuse("all labels of 8 examples are masked", features, empty, **settings)
    refuse("at most two axes; flatten to", features, labels[..., None], **settings)
    refuse("labels of int64 and shape .*sequence", features, labels[:, :0], **settings)
    refuse("labels of bool and shape", features, labels > 0, **settings)
    refuse(
        "features is a dict of tokens, length: expected one",
        {"tokens": features, "length": labels},
        labels,
        **settings,
    )
    refuse("features", (features, features), labels, **settings)
    data = federation()
    for field in (labels[None].astype(np.int32), np.zeros((len(data.train.labels), 2, 2), int)):
        broken = data._replace(train=data.train._replace(labels=field))
        with pytest.raises(ValueError, match="labels"):
            validate(broken)
    shorter = data.test._replace(labels=data.test.labels[:, :3])
    with pytest.raises(ValueError, match=r"test\.labels"):
        validate(data._replace(test=shorter))


def mean_loss(outputs, labels):
    return softmax_cross_entropy_with_integer_labels(outputs, jnp.maximum(labels, 0)).mean(axis=1)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (ff.models.logistic(VOCABULARY), r"outputs \[7\] of an example: expected \[6, 7\]"),
        (ff.models.from_flax(nn.Embed(VOCABULARY, 3)), "model with 3 outputs: expected at least 7"),
        (LINEN.replace(loss=mean_loss), r"Model.loss returns \[\] for an example: expected \[6\]"),
    ],
)
def test_models_of_other_shapes_are_refused(model, message):
    with pytest.raises(ValueError, match=message) as error:
        ff.fit(method(model), federation(), rounds=1)
    assert "\n" not in str(error.value)


def test_activations_of_every_position_are_refused():
    roles = method(aggregator=ff.aggregators.Equitable(2, layer="logits"))
    with pytest.raises(ValueError, match="layer='logits'"):
        ff.fit(roles, federation(), rounds=1)
