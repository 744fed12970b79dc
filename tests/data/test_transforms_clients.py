"""Clients that are held out of training."""

import jax
import numpy as np
import pytest

import fedjax_fair as ff
from fedjax_fair import data
from fedjax_fair.data.federated import PARTS
from fedjax_fair.data.transforms import select_clients


def make_data(num_clients=10, groups=None, **settings):
    """Clients of different sizes with names, groups and a sensitive feature."""
    sizes = np.arange(num_clients) + 8
    total = int(sizes.sum())
    indices = np.split(np.random.default_rng(0).permutation(total), np.cumsum(sizes)[:-1])
    names = tuple(f"ward {client}" for client in range(num_clients))
    arguments = {
        "test_fraction": 0.3,
        "validation_fraction": 0.2,
        "groups": np.arange(num_clients) % 2 if groups is None else groups,
        "sensitive_features": {"sex": np.where(np.arange(total) % 3, "F", "M")},
        "num_classes": 3,
    }
    features = np.arange(total, dtype=np.float32)[:, None]
    made = data.from_arrays(features, np.arange(total) % 3, indices, **arguments | settings)
    return made._replace(client_names=names)


def examples_of(federated, client):
    """Features, labels and sensitive features of a client in each part."""
    found = []
    for name in PARTS:
        part = getattr(federated, name)
        owned = part.order[part.offsets[client] :][: part.sizes[client]]
        found += [part.features[owned], part.labels[owned], part.sensitive_features[owned]]
    return found


def test_each_client_is_in_one_part_with_all_of_its_data():
    whole = make_data()
    parts = data.hold_out_clients(whole, 0.3, seed=1)
    assert [part.num_clients for part in parts] == [7, 3]
    for part in parts:
        data.validate(part)
        ids = [whole.client_names.index(name) for name in part.client_names]
        assert ids == sorted(ids)
        for place, client in enumerate(ids):
            assert part.groups[place] == whole.groups[client]
            jax.tree.map(
                np.testing.assert_array_equal, examples_of(part, place), examples_of(whole, client)
            )
        assert part.sensitive_names == whole.sensitive_names
        assert part.train.features is whole.train.features
    names = [name for part in parts for name in part.client_names]
    assert sorted(names) == sorted(whole.client_names)


def test_the_seed_determines_the_clients():
    def names(seed):
        return data.hold_out_clients(make_data(), 0.3, seed)[1].client_names

    assert names(1) == names(1)
    assert len({names(seed) for seed in range(9)}) > 1


@pytest.mark.parametrize(
    ("fraction", "number"), [(0.01, 1), (0.14, 1), (0.16, 2), (0.5, 5), (0.94, 9)]
)
def test_the_fraction_is_rounded_to_one_or_more(fraction, number):
    assert data.hold_out_clients(make_data(), fraction)[1].num_clients == number


def test_all_partitions_have_the_same_unseen_clients():
    both = data.load("digits", data.dirichlet(12, 0.5), (0, 1), validation_fraction=0.1)
    parts = data.hold_out_clients(both, 0.25, seed=5)
    for run in range(2):
        alone = data.hold_out_clients(both.partition(run), 0.25, seed=5)
        for part, expected in zip(parts, alone, strict=True):
            assert part.num_partitions == 2
            mine = part.partition(run).map_parts(data.ClientExamples.without_padding)
            jax.tree.map(np.testing.assert_array_equal, mine, expected)
    data.validate(parts[0])


def test_groups_stay_below_the_number_of_clients():
    """Otherwise a part would not be valid."""
    whole = make_data(4, groups=np.array([3, 3, 3, 3]))
    seen, unseen = data.hold_out_clients(whole, 0.25)
    assert seen.groups.tolist() == [0, 0, 0]
    assert unseen.groups.tolist() == [0]
    assert seen.groups.dtype == whole.groups.dtype
    seen, _ = data.hold_out_clients(make_data(8, groups=np.array([3] * 8)), 0.25)
    assert seen.groups.tolist() == [3] * 6


def test_training_does_not_depend_on_examples_of_unseen_clients():
    whole = make_data(sensitive_features=None)
    seen, unseen = data.hold_out_clients(whole, 0.3)

    def changed(name):
        part, features = getattr(whole, name), np.array(getattr(whole, name).features)
        features[getattr(unseen, name).order] = -1000
        assert (features != part.features).any()
        return getattr(seen, name)._replace(features=features)

    other = seen._replace(**{name: changed(name) for name in PARTS})
    sgd = ff.solvers.SGD(0.01, 4, epochs=1)
    model = ff.models.logistic(3)
    federated = ff.Round(model, ff.selectors.Uniform(3), sgd, ff.aggregators.Mean())
    for method in (federated, ff.Centralized(model, sgd)):
        one, two = (ff.fit(method, each, rounds=2) for each in (seen, other))
        jax.tree.map(np.testing.assert_array_equal, one.variables, two.variables)
        assert one.dataset.identical(two.dataset)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fraction": 0.0}, "fraction=0.0"),
        ({"fraction": 1.0}, "fraction=1.0"),
        ({"fraction": -0.1}, "fraction=-0.1"),
        ({"fraction": 0.96}, "fraction="),
        ({"fraction": 0.2, "seed": -1}, "seed=-1"),
        ({"data": "digits", "fraction": 0.2}, "data"),
    ],
)
def test_bad_arguments(as_users_call, settings, message):
    with pytest.raises(ValueError, match=message):
        data.hold_out_clients(**{"data": make_data()} | settings)


@pytest.mark.parametrize("part", ["training", "unseen"])
def test_both_parts_need_test_examples(part):
    whole = make_data(4)
    unseen = [whole.client_names.index(data.hold_out_clients(whole, 0.25)[1].client_names[0])]
    tested = unseen if part == "training" else [i for i in range(4) if i not in unseen]
    only = select_clients(whole, np.array(tested)).test
    sizes = np.zeros(4, np.int32)
    sizes[tested] = only.sizes
    offsets = (np.cumsum(sizes) - sizes).astype(np.int32)
    test = only._replace(sizes=sizes, offsets=offsets)
    with pytest.raises(ValueError, match=f"none of . {part} clients has test examples"):
        data.hold_out_clients(whole._replace(test=test), 0.25)
