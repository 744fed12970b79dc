"""Concatenation of federated datasets."""

import jax
import numpy as np
import pytest

from fedjax_fair import data

RNG = np.random.default_rng(0)


def make(names, total=30, classes=3, **settings):
    labels = np.concatenate([np.arange(classes), RNG.integers(0, classes, total - classes)])
    return data.from_arrays(
        RNG.normal(size=(total, 4)),
        labels,
        clients=np.array(names)[np.arange(total) % len(names)],
        sensitive_features={"sex": np.array(["F", "M"])[np.arange(total) % 7 % 2]},
        validation_fraction=0.3,
        **settings,
    )


def examples_of(dataset, part, client):
    arrays = getattr(dataset, part)
    start = arrays.offsets[client]
    rows = arrays.order[start : start + arrays.sizes[client]]
    return [arrays.features[rows], arrays.labels[rows], arrays.sensitive_features[rows]]


def test_clients_keep_their_examples():
    one, two = make(["a", "b"], groups=[0, 1]), make(["c", "d", "e"], groups=[1, 0, 1])
    both = data.concatenate([one, two])
    assert both.client_names == ("a", "b", "c", "d", "e")
    assert both.groups.tolist() == [0, 1, 1, 0, 1]
    for part in ("train", "test", "validation"):
        clients = [(one, 0), (one, 1), (two, 0), (two, 1), (two, 2)]
        for client, (source, own) in enumerate(clients):
            expected = examples_of(source, part, own)
            for values, other in zip(examples_of(both, part, client), expected, strict=True):
                np.testing.assert_array_equal(values, other)
    assert both.validation.features is both.train.features
    assert both.name == "custom+custom"


def test_one_dataset_is_unchanged():
    one = make(["a", "b"])
    same = data.concatenate([one], name=one.name)
    assert jax.tree.structure(same) == jax.tree.structure(one)
    for leaf, other in zip(jax.tree.leaves(same), jax.tree.leaves(one), strict=True):
        np.testing.assert_array_equal(leaf, other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda two: make(["a", "d"]), "several clients are named"),
        (lambda two: make(["c", "d"], classes=4), r"datasets\[1\].num_classes"),
        (lambda two: make(["c", "d"], groups=[0, 0]), r"datasets\[1\].groups:"),
        (lambda two: two._replace(client_names=None), r"datasets\[1\].client_names"),
        (lambda two: two._replace(validation=None), r"datasets\[1\].validation"),
        (lambda two: data.stack([two, two]), "has 2 partitions"),
        (
            lambda two: two.map_parts(lambda part: part._replace(features=part.features[:, :3])),
            r"datasets\[",
        ),
        (
            lambda two: two._replace(sensitive_names=(("sex", ("F", "X")),)),
            r"datasets\[1\].sensitive_names",
        ),
        (lambda two: "digits", r"datasets\[1\]"),
    ],
)
def test_datasets_that_do_not_fit_are_errors(change, message, as_users_call):
    with pytest.raises(ValueError, match=message):
        data.concatenate([make(["a", "b"]), change(make(["c", "d"]))])


def test_an_empty_list_is_an_error():
    with pytest.raises(ValueError, match="datasets="):
        data.concatenate([])
