"""Clients whose labels are flipped, and those who keep theirs."""

import numpy as np
import pytest

from fedjax_fair import data


def test_only_the_training_labels_of_the_liars_are_flipped():
    honest = data.load("digits", data.classes_per_client(10, 3))
    flipped = data.flip_labels(honest, [2, 7])
    train = honest.train
    for client in range(10):
        start, size = train.offsets[client], train.sizes[client]
        rows = np.asarray(train.order[start : start + size])
        own = train.labels[rows]
        expected = 9 - own if client in (2, 7) else own
        np.testing.assert_array_equal(flipped.train.labels[rows], expected)
    np.testing.assert_array_equal(flipped.test.labels, honest.test.labels)
    again = data.flip_labels(flipped, [7, 2])
    np.testing.assert_array_equal(again.train.labels, train.labels)
    assert (honest.label_skew_only, flipped.label_skew_only) == (True, False)
    data.validate(flipped)


@pytest.mark.parametrize(
    ("clients", "message"),
    [([3], r"clients=\[3\]: expected items in \[0, 3\)"), ([0.5], "expected integers")],
)
def test_clients_have_to_exist(clients, message, as_users_call):
    own = data.from_arrays(np.eye(6), [0, 1, 2, 0, 1, 2], [[0, 1], [2, 3], [4, 5]])
    with pytest.raises(ValueError, match=message):
        data.flip_labels(own, clients)


def test_what_has_no_classes_or_many_partitions_is_refused():
    own = data.from_arrays(np.eye(6), [0, 1, 2, 0, 1, 2], [[0, 1], [2, 3], [4, 5]])
    with pytest.raises(ValueError, match="expected one partition"):
        data.flip_labels(data.stack([own, own]), [0])
    targets = own._replace(train=own.train._replace(labels=np.zeros(6, np.float32)))
    with pytest.raises(ValueError, match="expected classes as labels, got float32"):
        data.flip_labels(targets, [0])
