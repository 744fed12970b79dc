"""Moments, models and sizes of the synthetic data."""

import numpy as np
import pytest

from fedjax_fair import data
from fedjax_fair.data.sources import logistic


def owners(part):
    return np.repeat(np.arange(part.num_clients), part.sizes)


def test_inputs_have_the_moments_of_the_construction():
    dataset = data.synthetic(1.0, 4.0, 2000, mean_size=10)
    part = dataset.train
    means = np.stack([np.bincount(owners(part), column) for column in part.features.T], axis=1)
    means /= part.sizes[:, None]
    # A client's mean of a feature is B + N(0, 1) + N(0, j^-1.2 / size): B is common to features.
    within = np.var(means - means.mean(axis=1, keepdims=True), axis=0)
    noise = np.arange(1, 61) ** -1.2 / 8
    # Centering on 60 features takes a sixtieth; five standard errors of a variance are 0.16.
    assert abs(within / (1 + noise) - 59 / 60).max() < 0.16
    assert abs(np.var(means.mean(axis=1)) / (4 + 1 / 60) - 1) < 0.16
    deviations = np.var(part.features - means[owners(part)], axis=0) * 8 / 7
    # Again five standard errors, of a variance of 14,000 deviations.
    np.testing.assert_allclose(deviations, np.arange(1, 61) ** -1.2, rtol=0.06)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_independent_clients_share_one_linear_model():
    from sklearn.linear_model import LogisticRegression

    dataset = data.synthetic(1.0, 1.0, 100, mean_size=25, independent=True)
    model = LogisticRegression(C=10.0, max_iter=20)  # Accuracy 0.86, and 0.88 at the optimum.
    model.fit(dataset.train.features, dataset.train.labels)
    # With one model per client it would be below half, as in the next test.
    assert model.score(dataset.test.features, dataset.test.labels) > 0.8
    np.testing.assert_allclose(
        np.var(dataset.train.features, axis=0),
        np.arange(1, 61) ** -1.2,
        rtol=0.16,  # five standard errors
    )


def test_every_client_has_a_separate_model():
    from sklearn.linear_model import LogisticRegression

    part = data.synthetic(0.0, 0.0, 2, mean_size=900, test_fraction=0.0, seed=3).train
    first, second = np.split(np.arange(1800), 2)
    model = LogisticRegression(C=1000.0, max_iter=500)
    model.fit(part.features[first[:700]], part.labels[first[:700]])
    assert model.score(part.features[first[700:]], part.labels[first[700:]]) > 0.9
    assert model.score(part.features[second], part.labels[second]) < 0.5


@pytest.mark.parametrize("block", [1, 100])
def test_blocks_cover_every_client_once(monkeypatch, block):
    monkeypatch.setattr(logistic, "BLOCK", block)
    sizes = np.random.default_rng(0).integers(1, 150, 40)
    runs = list(logistic._blocks(sizes))
    assert [c for first, last in runs for c in range(first, last)] == list(range(40))
    assert all(last - first == 1 or sizes[first:last].sum() <= block for first, last in runs)


def test_sizes():
    equal = data.synthetic(1.0, 1.0, 5, mean_size=13, test_fraction=0.25)
    assert (equal.train.sizes.tolist(), equal.test.sizes.tolist()) == ([10] * 5, [3] * 5)
    skewed = data.synthetic(1.0, 1.0, 4000, mean_size=20, spread=1.0, max_size=150)
    totals = skewed.train.sizes + skewed.test.sizes
    assert (totals.min(), totals.max()) == (2, 150)
    # The mean of a lognormal cut off at 150, within three standard errors.
    assert abs(totals.mean() - 19.6) < 1.0
    assert abs(np.std(np.log(totals)) - 1) < 0.1


def test_data_depends_on_the_seed():
    first, same = (data.synthetic(1.0, 1.0, 3, seed=0).train.features for _ in range(2))
    np.testing.assert_array_equal(first, same)
    assert (data.synthetic(1.0, 1.0, 3, seed=1).train.features != first).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": -1.0}, "alpha=-1.0"),
        ({"beta": float("nan")}, "beta=nan"),
        ({"num_clients": 0}, "num_clients=0"),
        ({"mean_size": 2000}, "mean_size=2000"),
        ({"spread": -0.1}, "spread=-0.1"),
        ({"spread": 1e308}, "spread="),
        ({"alpha": 1e308}, "alpha="),
        ({"beta": 1e39}, "beta="),
        (
            {"num_clients": 10**9},
            "num_clients=",
        ),
        ({"num_clients": 2**70}, "num_clients="),
        ({"mean_size": 10**9, "max_size": 10**9, "num_clients": 3}, "expected fewer than"),
        ({"test_fraction": 1.0}, "test_fraction=1.0"),
    ],
)
def test_invalid_settings_are_rejected(arguments, message):
    with pytest.raises(ValueError, match=message):
        data.synthetic(**({"alpha": 1.0, "beta": 1.0, "num_clients": 2} | arguments))


def test_base_size_is_added_to_every_client():
    plain, larger = (
        data.synthetic(1.0, 1.0, 40, mean_size=60, spread=0.5, base_size=size, test_fraction=0.0)
        for size in (0, 50)
    )
    assert plain.train.sizes.min() > 2  # None is clipped.
    np.testing.assert_array_equal(larger.train.sizes, plain.train.sizes + 50)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("synthetic_iid", {"alpha": 0.0, "beta": 0.0, "independent": True}),
        ("synthetic_0.5_0.5", {"alpha": 0.5, "beta": 0.5}),
    ],
)
def test_devices_of_fedprox_are_the_clients_of_a_source(name, settings):
    loaded = data.load(name)
    expected = data.synthetic(
        **settings, num_clients=30, mean_size=403, spread=2.0, base_size=50, test_fraction=0.1
    )
    assert loaded.client_names == tuple(f"{device:02}" for device in range(30))
    sizes = loaded.train.sizes + loaded.test.sizes
    assert sizes.min() >= 50
    assert sizes.max() <= 1000
    for part in ("train", "test"):
        one, other = getattr(loaded, part), getattr(expected, part)
        np.testing.assert_array_equal(one.sizes, other.sizes)
        np.testing.assert_array_equal(one.features[one.order], other.features[other.order])
        np.testing.assert_array_equal(one.labels[one.order], other.labels[other.order])
