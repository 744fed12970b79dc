"""Metrics of predictions against scikit-learn and loops over the examples of each client."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import linear_model, make_federation
from sklearn.metrics import balanced_accuracy_score, f1_score, recall_score, roc_auc_score

from fedjax_fair import models
from fedjax_fair.evaluation.clients import evaluate
from fedjax_fair.metrics import predictions
from fedjax_fair.roles import ClientMetric, Predictions

CLASSES, SIZES = 4, (1, 30, 0, 12, 7, 40)


def softmax(outputs):
    exponentials = np.exp(outputs.astype(np.float64))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def recall(outputs, labels):
    present = np.unique(labels)
    return recall_score(labels, outputs.argmax(1), labels=present, average=None).min()


def balanced(outputs, labels):
    return balanced_accuracy_score(labels, outputs.argmax(1))


def f1(outputs, labels):
    return f1_score(labels, outputs.argmax(1), average="macro")


def calibration(outputs, labels, bins=5):
    confidence = softmax(outputs).max(axis=1)
    right = outputs.argmax(1) == labels
    gap = 0.0
    for low in range(bins):
        inside = (confidence > low / bins) & (confidence <= (low + 1) / bins)
        if inside.any():
            gap += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return gap


def area(outputs, labels):
    # Rounded as in single precision, so that ties are the same.
    scores = np.asarray(jax.nn.softmax(outputs))
    areas = [
        roc_auc_score(labels == own, scores[:, own])
        for own in range(CLASSES)
        if 0 < np.sum(labels == own) < labels.size
    ]
    return np.mean(areas) if areas else np.nan


EXPECTED = {
    "worst_class_recall": (predictions.worst_class_recall(CLASSES), recall),
    "balanced_accuracy": (predictions.balanced_accuracy(CLASSES), balanced),
    "macro_f1": (predictions.macro_f1(CLASSES), f1),
    "calibration_error": (predictions.calibration_error(5), calibration),
    "auc": (predictions.auc(CLASSES), area),
}


def drawn(seed, ties):
    """Outputs, labels and owners, followed by examples without an owner."""
    rng = np.random.default_rng(seed)
    owners = np.repeat(np.arange(len(SIZES) + 1), [*SIZES, 3]).astype(np.int32)
    labels = rng.integers(CLASSES, size=owners.size).astype(np.int32)
    labels[owners == 3] = 2  # A client with a single class.
    outputs = rng.normal(size=(owners.size, CLASSES)).astype(np.float32)
    outputs[np.arange(owners.size), labels] += 1
    outputs = rng.integers(3, size=outputs.shape).astype(np.float32) if ties else outputs
    return outputs, labels, owners


@partial(jax.jit, static_argnums=(0, 4))
def measure(metric, outputs, labels, owners, num_clients):
    return metric.function(Predictions(linear_model(), outputs, labels, owners, num_clients))


@pytest.mark.filterwarnings("ignore:.*single label:UserWarning", "ignore:y_pred contains")
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("name", EXPECTED)
def test_metrics_equal_loops_over_clients(name, ties):
    for seed in range(5):
        outputs, labels, owners = drawn(seed, ties)
        found = measure(EXPECTED[name][0], outputs, labels, owners, len(SIZES))
        for client, size in enumerate(SIZES):
            if size:
                own = owners == client
                expected = EXPECTED[name][1](outputs[own], labels[own])
                np.testing.assert_allclose(found[client], expected, rtol=1e-4, atol=1e-6)


def test_the_worst_group_by_balanced_accuracy_is_another_one():
    """People of three groups by label and prediction, by hand."""
    counts = np.array(
        [
            [[20, 5, 5], [4, 30, 6], [2, 3, 25]],
            [[10, 5, 5], [5, 10, 5], [10, 0, 45]],
            [[6, 2, 2], [1, 7, 2], [4, 4, 12]],
        ]
    )
    groups, labels, predicted = (
        np.repeat(each.ravel(), counts.ravel()).astype(np.int32)
        for each in np.indices(counts.shape)
    )
    outputs = np.eye(3, dtype=np.float32)[predicted]
    found = measure(predictions.balanced_accuracy(3), outputs, labels, groups, 3)
    np.testing.assert_allclose(found, [0.75, 0.606061, 0.633333], atol=1e-6)


def test_a_bin_holds_its_upper_end():
    outputs = np.array([[0.0, 0.0], [np.log(3.0), 0.0]], np.float32)  # Sure by 1/2 and 3/4.
    labels, owners = np.array([1, 0], np.int32), np.array([0, 0], np.int32)
    found = measure(predictions.calibration_error(2), outputs, labels, owners, 1)
    np.testing.assert_allclose(found, [(1 / 2 + 1 / 4) / 2], rtol=1e-6)


def test_uncounted_classes_do_not_affect_other_clients():
    outputs, labels, owners = drawn(0, ties=False)
    metric = predictions.worst_class_recall(CLASSES - 1)
    found = measure(metric, outputs, labels, owners, len(SIZES))
    for client in (1, 3, 4, 5):
        own = (owners == client) & (labels < CLASSES - 1)
        np.testing.assert_allclose(found[client], recall(outputs[own], labels[own]), rtol=1e-6)


def test_an_evaluation_measures_them_on_the_examples_of_each_client():
    data = make_federation()
    data = data._replace(test=data.test._replace(sizes=data.test.sizes - np.eye(6, dtype=int)[3]))
    order = np.delete(data.test.order, 16)  # The only example of client 3.
    offsets = (np.cumsum(data.test.sizes) - data.test.sizes).astype(np.int32)
    sizes = data.test.sizes.astype(np.int32)
    data = data._replace(
        test=data.test._replace(order=order, offsets=offsets, sizes=sizes), validation=data.train
    )
    model = linear_model()
    variables = jax.device_get(jax.jit(model.init)(jax.random.key(0), data.train.features[:1]))
    top = ClientMetric(
        "margin", "Mean largest output", "1", lambda p: p.mean(jnp.max(p.outputs, axis=1))
    )
    own = [top, predictions.macro_f1(3)]
    idle = np.zeros(6, np.int32)
    found = jax.jit(lambda: evaluate(model, variables, data, idle, idle[:0], custom=own).custom)()
    assert found.keys() == {
        f"{kind}_{name}" for kind in ("test", "validation") for name in ("margin", "macro_f1")
    }
    for kind, part in (("test", data.test), ("validation", data.train)):
        assert np.isnan(found[f"{kind}_margin"][3]) == (kind == "test")
        for client in np.flatnonzero(part.sizes):
            rows = part.order[part.offsets[client] :][: part.sizes[client]]
            outputs = part.features[rows] @ variables.params["kernel"] + variables.params["bias"]
            np.testing.assert_allclose(
                found[f"{kind}_margin"][client], outputs.max(axis=1).mean(), rtol=1e-5
            )
            np.testing.assert_allclose(
                found[f"{kind}_macro_f1"][client], f1(outputs, part.labels[rows]), rtol=1e-5
            )


@pytest.mark.parametrize("name", EXPECTED)
def test_predictions_without_a_value_are_nan(name):
    """No examples at all, a class that is not counted, and outputs of a diverged model."""
    metric = EXPECTED[name][0]
    none = np.zeros((0, CLASSES), np.float32), np.zeros(0, np.int32), np.zeros(0, np.int32)
    assert np.isnan(measure(metric, *none, 2)).all()
    outputs, labels, owners = (
        np.float32(np.eye(3, CLASSES)),
        np.arange(3, dtype=np.int32),
        [0, 0, 1],
    )
    owners = np.array(owners, np.int32)
    if name in ("worst_class_recall", "balanced_accuracy"):
        assert np.isnan(measure(metric, outputs, labels + CLASSES, owners, 2)).all()
    if name in ("auc", "calibration_error"):
        outputs[0, 1] = np.nan
        values = np.asarray(measure(metric, outputs, labels, owners, 2))
        assert np.isnan(values[0])


def test_more_classes_than_outputs_are_refused():
    metric = predictions.auc(CLASSES + 1)
    with pytest.raises(
        ValueError, match="num_classes=5: expected at most 4, the number of the mod"
    ):
        measure(metric, *drawn(0, ties=False), len(SIZES))


def test_errors_of_a_regression():
    rng = np.random.default_rng(0)
    outputs, targets = rng.normal(size=(2, 9, 2)).astype(np.float32)
    owners = np.repeat(np.arange(3), 3).astype(np.int32)
    predicted = Predictions(models.as_regression(linear_model()), outputs, targets, owners, 3)
    errors = (outputs - targets).reshape(3, -1)

    @jax.jit
    def measured():
        regression = predictions.mean_squared_error(), predictions.mean_absolute_error()
        return [metric.function(predicted) for metric in regression]

    squared, absolute = measured()
    np.testing.assert_allclose(squared, (errors**2).mean(axis=1), rtol=1e-5)
    np.testing.assert_allclose(absolute, np.abs(errors).mean(axis=1), rtol=1e-5)
    with pytest.raises(ValueError, match=r"Model.probabilities is None"):
        predictions.calibration_error().function(predicted)


@pytest.mark.parametrize(
    ("owners", "expected"),
    [
        ([0] * 8, {"mae": [0.6875], "rmse": [0.918559], "r2": [0.82], "bias": [0.3125]}),
        (
            [0] * 4 + [1] * 4,
            {"rmse": [0.433013, 1.224745], "r2": [0.85, 0.7], "bias": [0.125, 0.5]},
        ),
        (
            [0, 0, 1, 1] * 2,
            {
                "mae": [0.375, 1],
                "rmse": [0.559017, 1.172604],
                "r2": [0.736842, 0.627119],
                "bias": [0.375, 0.25],
            },
        ),
    ],
    ids=["all", "clients", "groups"],
)
def test_errors_by_hand(owners, expected):
    order, owners = np.argsort(owners, kind="stable"), np.sort(owners)
    targets = np.float32([[1], [2], [3], [4], [2], [4], [6], [8]])[order]
    outputs = np.float32([[1.5], [2], [2.5], [4.5], [3], [4], [5], [10]])[order]
    metrics = {
        "mae": predictions.mean_absolute_error(),
        "rmse": predictions.root_mean_squared_error(),
        "r2": predictions.r2(),
        "bias": predictions.bias(),
    }
    model = models.as_regression(linear_model())
    predicted = Predictions(model, outputs, targets, owners, owners.max() + 1)
    for name, values in expected.items():
        np.testing.assert_allclose(metrics[name].function(predicted), values, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_errors_of_classes_are_distances_of_their_indices(dtype):
    rng = np.random.default_rng(0)
    owners = np.sort(rng.integers(0, 4, 50))  # The last is padding.
    labels, outputs = rng.integers(0, 5, 50), rng.normal(size=(50, 5)).astype(np.float32)
    predicted = Predictions(
        linear_model(5), jnp.asarray(outputs), jnp.asarray(labels, dtype), jnp.asarray(owners), 3
    )
    for metric, error in (
        (predictions.mean_absolute_error(), abs),
        (predictions.mean_squared_error(), lambda gap: gap**2),
    ):
        expected = []
        for client in range(3):
            of_client = [
                error(int(outputs[row].argmax()) - int(labels[row]))
                for row in range(50)
                if owners[row] == client
            ]
            expected.append(sum(of_client) / len(of_client))
        found = jax.jit(lambda function=metric.function: function(predicted))()
        np.testing.assert_allclose(found, expected, rtol=1e-6)
