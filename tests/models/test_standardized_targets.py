"""Regressions that standardize their labels, in any unit."""

import pickle

import numpy as np
import pytest

import fedjax_fair as ff
from fedjax_fair.metrics import predictions

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(80, 3)).astype(np.float32)
LABELS = (FEATURES @ [[2.0, 0.5], [1.0, -1.0], [0.0, 3.0]] + RNG.normal(size=(80, 2))).astype(
    np.float32
)
METRICS = [
    predictions.mean_absolute_error(),
    predictions.root_mean_squared_error(),
    predictions.r2(),
]


def federation(labels):
    return ff.data.from_arrays(FEATURES, labels, clients=np.arange(80) % 4)


def fitted(labels, network=None, **settings):
    data = federation(labels)
    model = ff.models.as_regression(network or ff.models.logistic(labels.shape[1]), **settings)
    roles = (ff.selectors.Uniform(4), ff.solvers.SGD(0.1, 10, epochs=1), ff.aggregators.Mean())
    result = ff.fit(ff.Round(model, *roles), data, rounds=5, metrics=METRICS)
    return data, result


def standardized(labels, **settings):
    return fitted(labels, standardize=federation(labels).train.labels, **settings)


@pytest.mark.parametrize("unit", [1.0, 50_000.0, 1e-4])
@pytest.mark.parametrize("offset", [0.0, 20.0])
def test_metrics_are_in_the_unit_of_the_label(unit, offset):
    labels = (unit * (LABELS + offset)).astype(np.float32)
    data, result = standardized(labels)
    last, test = result.dataset.isel(seed=0, round=-1), data.test
    outputs = np.asarray(result.predict(test.features)[0], np.float64)
    for client in range(4):
        rows = np.asarray(test.order)[test.offsets[client] :][: test.sizes[client]]
        right = np.asarray(test.labels, np.float64)[rows]
        errors = outputs[rows] - right
        values = [last[f"test_{metric.name}"][client] for metric in METRICS]
        np.testing.assert_allclose(values[0], np.abs(errors).mean(), rtol=1e-4)
        np.testing.assert_allclose(values[1], np.sqrt((errors**2).mean()), rtol=1e-4)
        spread = ((right - right.mean(axis=0)) ** 2).sum(axis=0)
        r2 = (1 - (errors**2).sum(axis=0) / spread).mean()
        np.testing.assert_allclose(values[2], r2, rtol=1e-3, atol=1e-4)
    assert np.abs(outputs - test.labels).mean() < 2 * unit


@pytest.mark.parametrize("unit", [50_000.0, 1e-3])
def test_training_does_not_depend_on_the_unit(unit):
    _, one = standardized(LABELS)
    _, other = standardized((unit * LABELS).astype(np.float32))
    for name in ("test_loss", "test_r2"):
        np.testing.assert_allclose(other.dataset[name], one.dataset[name], rtol=1e-3, atol=1e-4)
    predicted = [each.predict(FEATURES) for each in (one, other)]
    np.testing.assert_allclose(predicted[1] / unit, predicted[0], rtol=1e-3, atol=1e-4)


def test_labels_that_are_standardized_train_as_without():
    data = federation(LABELS)
    scaled = (LABELS - data.train.labels.mean(axis=0)) / data.train.labels.std(axis=0)
    for loss in ("squared", "absolute"):
        results = [fitted(scaled, loss=loss)[1], standardized(scaled, loss=loss)[1]]
        values = [each.dataset.test_loss for each in results]
        np.testing.assert_allclose(values[1], values[0], rtol=1e-4, atol=1e-5)


def test_models_keep_the_unit_when_they_are_copied():
    network = ff.models.in_bfloat16(ff.models.logistic(2))
    _, result = standardized(50_000 * LABELS, network=network)
    model = pickle.loads(pickle.dumps(result.model))
    assert model == result.model
    copy = result._replace(model=model)
    np.testing.assert_array_equal(copy.predict(FEATURES), result.predict(FEATURES))


def test_a_constant_label_has_the_scale_one():
    for constant in (0.0, 50_000.0, 0.1):
        labels = np.full((80, 1), constant, np.float32)
        _, result = standardized(labels)
        assert np.isfinite(result.dataset.test_loss).all()


@pytest.mark.parametrize("labels", [[1.0, 2.0], [[1, 2]], np.zeros((0, 2)), "labels"])
def test_other_arguments_are_refused(labels):
    with pytest.raises(ValueError, match="standardize of"):
        ff.models.as_regression(ff.models.logistic(2), standardize=labels)


def test_large_labels_are_a_warning_before_training():
    with pytest.warns(UserWarning, match=r"deviation of .*standardize=data\.train\.labels"):
        fitted(200 * LABELS)
    fitted(20 * LABELS)
