"""Clients with flipped training labels."""

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
