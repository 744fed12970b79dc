"""Thresholds of groups against fairlearn, brute force and a model that is unfair without them."""

import re

import fairlearn.postprocessing as fairlearn
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import fedjax_fair as ff
from fedjax_fair.metrics import group_fairness
from fedjax_fair.metrics.thresholds import count_scores, fit_thresholds

CONSTRAINTS = ("demographic_parity", "equal_opportunity")


def draw(seed, total=300, num_groups=2):
    """Scores on a grid that bins of 1/4096 separate; they depend on label and group."""
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, num_groups, total)
    labels = (rng.random(total) < 0.25 + 0.4 * groups / num_groups).astype(int)
    scores = 1 / (1 + np.exp(-rng.normal(1.5 * labels + 0.8 * groups - 1.2, 1)))
    return (np.floor(scores * 4096) + 0.5) / 4096, labels, groups


def rate_of(probability, labels, chosen, constraint):
    if constraint == "equal_opportunity":
        chosen = chosen & (labels == 1)
    return probability[chosen].mean()


@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("seed", range(6))
def test_equals_fairlearn(constraint, seed):
    scores, labels, groups = draw(seed, num_groups=2 + seed % 2)

    class Scores(LogisticRegression):
        """A fitted model whose score is its feature."""

        def predict_proba(self, features):
            first = np.asarray(features)[:, 0]
            return np.stack([1 - first, first], axis=1)

    features = scores[:, None]
    theirs = fairlearn.ThresholdOptimizer(
        estimator=Scores().fit(features, labels),
        constraints="demographic_parity" if "parity" in constraint else "true_positive_rate_parity",
        objective="accuracy_score",
        prefit=True,
        predict_method="predict_proba",
    )
    theirs.fit(features, labels, sensitive_features=groups)
    expected = theirs._pmf_predict(features, sensitive_features=groups)[:, 1]
    counts = count_scores(scores, labels, groups, groups.max() + 1, bins=4096)
    fitted = fit_thresholds(counts, constraint)
    found = fitted.probabilities(scores, groups)

    def accuracy(probability):
        return np.where(labels == 1, probability, 1 - probability).mean()

    assert accuracy(found) == pytest.approx(accuracy(expected), abs=1e-9)
    for probability in (found, expected):
        rates = [
            rate_of(probability, labels, groups == group, constraint)
            for group in range(groups.max() + 1)
        ]
        np.testing.assert_allclose(rates, rates[0], atol=1e-9)
    assert rates[0] == pytest.approx(fitted.rate, abs=2e-3)


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_no_pair_of_thresholds_is_better(constraint):
    """Of all mixtures of two thresholds, at the rates of the grid."""
    scores, labels, groups = draw(7, total=60)
    counts = count_scores(scores, labels, groups, 2, bins=12)
    fitted = fit_thresholds(counts, constraint, grid=20)
    bins = (scores * 12).astype(int)
    best = 0.0
    for rate in np.linspace(0, 1, 21):
        total = 0.0
        for group in range(2):
            chosen = groups == group
            options = []
            for first in range(13):
                for second in range(13):
                    rates = [
                        rate_of((bins >= each).astype(float), labels, chosen, constraint)
                        for each in (first, second)
                    ]
                    right = [((bins >= each) == labels)[chosen].sum() for each in (first, second)]
                    if rates[0] == rates[1] == rate:
                        options.append(right[0])
                    elif rates[0] <= rate <= rates[1] and rates[0] < rates[1]:
                        share = (rate - rates[0]) / (rates[1] - rates[0])
                        options.append((1 - share) * right[0] + share * right[1])
            total += max(options)
        best = max(best, total)
    probability = fitted.probabilities(scores, groups)
    found = np.where(labels == 1, probability, 1 - probability).sum()
    assert found == pytest.approx(best, rel=1e-9)


def test_counts_of_clients_add_up():
    scores, labels, groups = draw(1)
    parts = np.array_split(np.arange(300), 7)
    counts = [count_scores(scores[rows], labels[rows], groups[rows], 2) for rows in parts]
    np.testing.assert_array_equal(sum(counts), count_scores(scores, labels, groups, 2))
    expected = np.zeros((2, 2, 1000), int)
    for score, label, group in zip(scores, labels, groups, strict=True):
        expected[group, label, min(int(score * 1000), 999)] += 1
    np.testing.assert_array_equal(sum(counts), expected)


def test_predictions_are_drawn_with_their_probabilities():
    scores, labels, groups = draw(2, total=4000)
    fitted = fit_thresholds(count_scores(scores, labels, groups, 2, bins=10), grid=37)
    probability = fitted.probabilities(scores, groups)
    is_random = (probability > 0) & (probability < 1)
    assert is_random.any()
    draws = np.array([fitted.predict(scores, groups, seed) for seed in range(200)])
    np.testing.assert_allclose(draws.mean(axis=0), probability, atol=0.2)
    np.testing.assert_allclose(draws.mean(), probability.mean(), atol=0.005)
    np.testing.assert_array_equal(fitted.predict(scores, groups), fitted.predict(scores, groups))
    extremes = fitted.probabilities([1.0, 0.0], [1, 1])
    assert extremes.tolist() == [1, 0]


def adult_like(seed=0, total=6000):
    """Salaries that depend on sex, with features that reveal it."""
    rng = np.random.default_rng(seed)
    sex = rng.integers(0, 2, total)
    hours, age = rng.normal(38 + 5 * sex, 8), rng.normal(40, 12, total)
    scale = 0.1 * (hours - 42) + 0.04 * (age - 40) + 1.2 * sex - 1.2
    salary = (rng.random(total) < 1 / (1 + np.exp(-scale))).astype(int)
    columns = {"hours": hours, "age": age, "sex": np.array(["F", "M"])[sex]}
    columns["job"] = rng.choice(["clerk", "cook", "nurse"], total)
    return pd.DataFrame(columns | {"salary": salary})


@pytest.fixture(scope="module")
def trained():
    data = ff.data.from_table(
        adult_like(), label="salary", client="job", sensitive_features=["sex"], test=0.4,
        validation_fraction=0.4,
    )  # fmt: skip
    method = ff.Round(
        ff.models.logistic(2),
        ff.selectors.Full(),
        ff.solvers.SGD(0.1, batch_size=50, epochs=2),
        ff.aggregators.Mean(),
    )
    return data, ff.fit(method, data, rounds=5)


def scored(result, part):
    rows = part.order
    scores = result.predict_proba(part.features[rows])[0, :, 1]
    return scores, part.labels[rows], part.sensitive_features[rows, 0]


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_gaps_of_a_trained_model_become_small(trained, constraint):
    data, result = trained
    fitted = fit_thresholds(count_scores(*scored(result, data.validation), 2), constraint)
    scores, labels, groups = scored(result, data.test)

    def gap(predicted):
        counts = group_fairness.count_groups(
            *(jnp.asarray(values, jnp.int32) for values in (groups, labels, predicted)), 2
        )
        return float(group_fairness.difference(constraint, counts))

    before, after = gap(scores >= 0.5), gap(fitted.predict(scores, groups))
    assert before == pytest.approx(float(result.dataset[f"{constraint}_difference"][0, -1]))
    assert before > 0.3
    assert after < 0.1
    accuracies = [
        (predicted == labels).mean()
        for predicted in (scores >= 0.5, fitted.predict(scores, groups))
    ]
    assert accuracies[0] - 0.12 < accuracies[1] < accuracies[0]


def test_thresholds_use_validation_examples_only(trained):
    """Other labels and features of training and test examples change nothing."""
    data, result = trained
    validation = data.validation
    assert not set(validation.order) & set(data.train.order)
    features, labels = np.array(validation.features), np.array(validation.labels)
    others = np.setdiff1d(np.arange(len(labels)), validation.order)
    features[others], labels[others] = 0, 1 - labels[others]
    changed = validation._replace(features=features, labels=labels)
    counts = [count_scores(*scored(result, part), 2) for part in (validation, changed)]
    np.testing.assert_array_equal(*counts)
    assert counts[0].sum() == validation.sizes.sum()


SCORES = {"scores": [0.5, 0.2], "labels": [0, 1], "groups": [0, 1], "num_groups": 2}
WRONG = {
    "logits": ({"scores": [3.0, 0.2]}, "scores of shape (2,): expected a probability of class 1"),
    "nan": ({"scores": [np.nan, 0.2]}, "scores of shape (2,): expected a probability"),
    "both classes": ({"scores": [[0.5, 0.5]] * 2}, "scores of shape (2, 2): expected"),
    "labels": ({"labels": [1, 2]}, "labels of int64 and shape (2,): expected an integer in [0, 1]"),
    "groups": ({"groups": ["F", "M"]}, "groups of <U1 and shape (2,): expected an integer"),
    "lengths": ({"labels": [1]}, "scores, labels and groups of 2, 1 and 2 examples"),
    "bins": ({"bins": 0}, "bins=0"),
    "no groups": ({"num_groups": 0}, "num_groups=0"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG)
def test_mistakes_of_counts_are_explained(changes, message, as_users_call):
    with pytest.raises(ValueError, match=re.escape(message)):
        count_scores(**SCORES | changes)


def test_mistakes_of_fits_are_explained(as_users_call):
    counts = count_scores(**SCORES)
    fitted = fit_thresholds(counts)
    with pytest.raises(ValueError, match=r"1 groups have no people with label 1, first \[0\]"):
        fit_thresholds(counts, "equal_opportunity")
    with pytest.raises(ValueError, match=r"1 groups have no people, first \[2\]"):
        fit_thresholds(count_scores(**SCORES | {"num_groups": 3}))
    with pytest.raises(ValueError, match="constraint='equalized_odds'"):
        fit_thresholds(counts, "equalized_odds")
    with pytest.raises(ValueError, match=r"counts of shape \(2,\): expected \[groups, 2, bins\]"):
        fit_thresholds([1, 2])
    with pytest.raises(ValueError, match="grid=0"):
        fit_thresholds(counts, grid=0)
    with pytest.raises(ValueError, match=r"groups of int64 and shape \(1,\)"):
        fitted.probabilities([0.5], [2])
