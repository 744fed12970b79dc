"""The noise of finite test sets, against all test sets that there can be."""

import itertools

import numpy as np
import pytest
from scipy import stats

from fedjax_fair.metrics import noise

P = 0.7


def exactly(sizes, summary):
    """The mean of a summary over all outcomes, and its standard deviation."""
    outcomes = list(itertools.product(*(range(size + 1) for size in sizes)))
    chances = np.array([stats.binom.pmf(outcome, sizes, P).prod() for outcome in outcomes])
    values = np.array([summary(np.array(outcome) / sizes) for outcome in outcomes])
    mean = chances @ values
    return mean, np.sqrt(chances @ (values - mean) ** 2)


def close(found, expected, draws):
    mean, deviation = expected
    return abs(found - mean) < 4 * deviation / np.sqrt(draws)


def test_floor_is_the_mean_over_all_test_sets():
    sizes = np.array([3, 8, 5])
    names = ("client_dissimilarity", "accuracy_minimum", "group_accuracy_gap")
    examples, groups = np.stack([sizes - 2, np.full(3, 2)], axis=1), np.array([0, 0, 1])
    found = noise.expected(names, P, examples, groups, draws=4000)

    def dissimilarity(values):
        return np.mean([abs(a - b) for a, b in itertools.combinations(values, 2)])

    def gap(values):
        return abs((values[0] + values[1]) / 2 - values[2])

    for name, summary in zip(names, (dissimilarity, np.min, gap), strict=True):
        assert close(found[name], exactly(sizes, summary), 4000), name


def test_a_floor_class_based_of_labels_has_the_noise_of_classes():
    examples = np.array([[3, 0], [1, 2], [0, 5]])
    shares = examples / examples.sum(axis=1, keepdims=True)
    name = "accuracy_standard_deviation_class_based"
    found = noise.expected([name], P, examples, draws=4000)[name]
    expected = exactly(examples.sum(axis=0), lambda classes: np.std(shares @ classes))
    assert close(found, expected, 4000)


def test_clients_without_test_examples_and_sure_models_add_nothing():
    names = ["accuracy_standard_deviation", "accuracy_worst_10pct"]
    examples = np.array([[4], [9], [0]])
    some = noise.expected(names, P, examples, draws=2000)["accuracy_standard_deviation"]
    assert close(some, exactly(examples[:2, 0], np.std), 2000)
    assert list(noise.expected(names, 1.0, examples).values()) == [0.0, 1.0]


def test_metrics_without_floor_raise():
    with pytest.raises(
        ValueError, match="name='test_loss_mean_clients': expected one of 'accuracy"
    ):
        noise.expected(["test_loss_mean_clients"], P, np.ones((2, 1), int))
    with pytest.raises(ValueError, match=r"accuracy=1\.5: expected a probability"):
        noise.expected([], 1.5, np.ones((2, 1), int))
    with pytest.raises(
        ValueError, match="groups=None: expected a group of each client, for 'group_"
    ):
        noise.expected(["group_accuracy_gap"], P, np.ones((2, 1), int))
    with pytest.raises(ValueError, match="draws=0: expected an integer >= 1"):
        noise.expected([], P, np.ones((2, 1), int), draws=0)
    for examples in (np.ones((0, 1), int), np.ones((2, 1)), -np.ones((2, 1), int), np.ones(2, int)):
        with pytest.raises(
            ValueError, match=r"examples: expected integers >= 0 of shape \[clients"
        ):
            noise.expected([], P, examples)
