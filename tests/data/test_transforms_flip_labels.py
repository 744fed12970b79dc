"""Clients with changed training labels."""

import numpy as np
import pytest

from fedjax_fair import data


def test_only_training_labels_of_the_chosen_clients_are_flipped():
    original = data.load("digits", data.classes_per_client(10, 3))
    flipped = data.flip_labels(original, [2, 7])
    train = original.train
    for client in range(10):
        indices = train.order[train.offsets[client] :][: train.sizes[client]]
        labels = train.labels[indices]
        expected = 9 - labels if client in (2, 7) else labels
        np.testing.assert_array_equal(flipped.train.labels[indices], expected)
    np.testing.assert_array_equal(flipped.test.labels, original.test.labels)
    again = data.flip_labels(flipped, [7, 2])
    np.testing.assert_array_equal(again.train.labels, train.labels)
    assert (original.label_skew_only, flipped.label_skew_only) == (True, False)
    data.validate(flipped)


def test_invalid_clients_and_data_are_rejected(as_users_call):
    small = data.from_arrays(np.eye(6), [0, 1, 2, 0, 1, 2], [[0, 1], [2, 3], [4, 5]])
    targets = small._replace(train=small.train._replace(labels=np.zeros(6, np.float32)))
    for invalid, clients, message in (
        (small, [3], r"clients=\[3\]: expected items in \[0, 3\)"),
        (small, [0.5], "expected integers"),
        (data.stack([small, small]), [0], "data has 2 partitions: expected one"),
        (targets, [0], "data has labels of float32: expected classes"),
    ):
        with pytest.raises(ValueError, match=message):
            data.flip_labels(invalid, clients)


def people(total=1000, num_positive=400):
    """One client; the women are the first people."""
    labels = np.zeros(2 * total, int)
    labels[:num_positive] = labels[total : total + num_positive] = 1
    sex = np.repeat(["F", "M"], total)
    clients = np.concatenate([np.tile([0, 1], total)])
    features = np.arange(2 * total, dtype=np.float32)[:, None]
    return data.from_arrays(
        features, labels, clients=clients, sensitive_features={"sex": sex},
        test_fraction=0.2, validation_fraction=0.2,
    )  # fmt: skip


@pytest.mark.parametrize(("target", "rate"), [(0.3, 0.25), (0.2, 0.5), (0.1, 0.75)])
def test_label_bias_lowers_one_base_rate(target, rate):
    """By 1 - q / p; of 1000 women with 400 positives, 100, 200 and 300 labels change."""
    assert rate == pytest.approx(1 - target / 0.4)
    sex = np.repeat(["F", "M"], 1000)
    labels = (np.arange(2000) % 1000 < 400).astype(int)
    original = data.from_arrays(
        np.zeros((2000, 1), np.float32), labels, [range(2000)],
        sensitive_features={"sex": sex}, test_fraction=0.0,
    )  # fmt: skip
    biased = data.inject_label_bias(original, [0], "sex", "F", rate)
    women = biased.train.sensitive_features[:, 0] == 0
    assert biased.train.labels[women].mean() == pytest.approx(target)
    assert biased.train.labels[~women].mean() == 0.4
    other = data.inject_label_bias(original, [0], "sex", "F", rate, seed=1)
    assert (other.train.labels != biased.train.labels).any()


def test_label_bias_is_of_training_labels_of_the_chosen_clients():
    original = people()
    biased = data.inject_label_bias(original, [1], "sex", "M", 0.5)
    for client in range(2):
        part = original.train
        own = part.order[part.offsets[client] :][: part.sizes[client]]
        before, after = original.train.labels[own], biased.train.labels[own]
        men = part.sensitive_features[own, 0] == 1
        num_changed = round(0.5 * before[men].sum()) if client else 0
        assert (before != after).sum() == num_changed
        assert ((before != after) <= (men & (before == 1))).all()
    for name in ("test", "validation"):
        one, other = getattr(original, name), getattr(biased, name)
        np.testing.assert_array_equal(one.labels[one.order], other.labels[other.order])
    data.validate(biased)


def test_mistakes_in_label_bias_are_explained(as_users_call):
    original = people(20, 8)
    digits = data.load("digits")
    for arguments, message in (
        ((original, [0], "age", "F", 0.5), r"feature='age': expected one of .*\['sex'\]"),
        ((original, [0], "sex", "X", 0.5), r"value='X': expected a value of sex, .*'F', 'M'"),
        ((original, [0], "sex", "F", 1.5), r"rate=1.5: expected a number in \[0, 1\]"),
        ((original, [2], "sex", "F", 0.5), r"clients=\[2\]: expected items in \[0, 2\)"),
        ((original._replace(num_classes=3), [0], "sex", "F", 0.5), "data with 3 classes"),
        ((digits, [0], "sex", "F", 0.5), r"feature='sex': expected one of .* \[\]"),
    ):
        with pytest.raises(ValueError, match=message):
            data.inject_label_bias(*arguments)
