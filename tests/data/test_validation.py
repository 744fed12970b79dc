"""Validation: a random part of each client's training examples, and nothing else changes."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_fair import data
from fedjax_fair.data.federated import map_arrays


def owned_by(examples, client):
    return examples.order[examples.offsets[client] :][: examples.sizes[client]].tolist()


def check_split(whole, held, fraction):
    """That each client's training examples are parted, and all else is as it was."""
    for client, size in enumerate(whole.train.sizes):
        kept, chosen = owned_by(held.train, client), owned_by(held.validation, client)
        assert sorted([*kept, *chosen]) == sorted(owned_by(whole.train, client))
        assert len(chosen) == int(size * fraction)
        assert kept
    assert held.validation.features is held.train.features
    for name in ("features", "labels"):
        np.testing.assert_array_equal(getattr(held.train, name), getattr(whole.train, name))
    jax.tree.map(
        np.testing.assert_array_equal, (held.test, held.groups), (whole.test, whole.groups)
    )
    assert held.label_skew_only == whole.label_skew_only
    data.validate(held)


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.floats(0.5, 1, exclude_max=True),
    st.integers(0, 99),
)
@settings(max_examples=50, deadline=None)
def test_every_client_parts_with_its_share(sizes, fraction, seed):
    total = sum(sizes) + 2
    indices = np.split(np.random.default_rng(seed).permutation(total)[2:], np.cumsum(sizes)[:-1])
    whole = data.from_arrays(
        np.arange(total)[:, None], np.arange(total) % 3, indices, test_fraction=0.0, seed=seed,
        groups=np.arange(len(sizes)) % 2, num_classes=3,
    )  # fmt: skip
    if max(sizes) * fraction < 1:
        with pytest.raises(ValueError, match=r"validation_fraction=.*expected a larger part"):
            data.hold_out(whole, fraction, seed)
    else:
        check_split(whole, data.hold_out(whole, fraction, seed), fraction)


@pytest.mark.parametrize(
    "partition",
    [
        data.iid(20),
        data.classes_per_client(20),
        data.shards(20),
        data.dirichlet(20, 0.5),
        data.quantity_skew(20, min_partition_size=10),
        data.planted_clusters("digits"),
    ],
    ids=lambda partition: partition.name.partition("(")[0],
)
def test_every_partition_supports_it(partition):
    held = data.load("digits", partition, seed=3, validation_fraction=0.2)
    check_split(data.load("digits", partition, seed=3), held, 0.2)


def test_partitions_of_several_runs_stay_apart():
    whole, held = (
        data.load("digits", data.iid(7), (0, 1), validation_fraction=v) for v in (0.0, 0.1)
    )
    for run in range(2):
        mine, validation = whole.partition(run), held.partition(run)
        check_split(mine, validation._replace(train=validation.train), 0.1)
        alone = data.load("digits", data.iid(7), run, validation_fraction=0.1)
        np.testing.assert_array_equal(validation.validation.order, alone.validation.order)


def parts(federation):
    return [set(federation.train.order.tolist()), set(federation.validation.order.tolist())]


def test_it_is_drawn_by_the_seed_alone():
    whole = data.load("digits", data.iid(7))
    drawn = [parts(data.hold_out(whole, 0.3, seed)) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_files_and_arrays_hold_out_the_same(tmp_path):
    client = np.arange(40) % 4
    arrays = {"features": np.arange(80.0).reshape(40, 2), "labels": np.arange(40) % 3}
    np.savez(tmp_path / "own.npz", **arrays, client=client)
    indices = [np.flatnonzero(client == i) for i in range(4)]
    made = [
        data.from_npz(tmp_path / "own.npz", validation_fraction=0.25, seed=5),
        data.from_arrays(
            **arrays, client_indices=indices, name="own", validation_fraction=0.25, seed=5
        ),
    ]
    jax.tree.map(np.testing.assert_array_equal, *made)
    # Of ten examples two are for testing, and a quarter of the other eight for validation.
    for name, size in {"train": 6, "validation": 2, "test": 2}.items():
        assert getattr(made[0], name).sizes.tolist() == [size] * 4


def test_without_it_nothing_changes():
    plain = data.load("digits", seed=2)
    assert plain.validation is None
    jax.tree.map(
        np.testing.assert_array_equal, plain, data.load("digits", seed=2, validation_fraction=0.0)
    )


def test_what_can_not_be_held_out_is_refused():
    whole = data.load("digits", data.iid(7))
    for fraction in (1.0, -0.1, float("nan")):
        with pytest.raises(
            ValueError, match=r"validation_fraction=.*expected a number in \[0, 1\)"
        ):
            data.hold_out(whole, fraction)
    with pytest.raises(ValueError, match=r"validation_fraction=0: expected a larger part"):
        data.hold_out(whole, 0)
    held = data.hold_out(whole, 0.1)
    with pytest.raises(ValueError, match="expected a federation without validation examples"):
        data.hold_out(held, 0.1)
    with pytest.raises(ValueError, match=r"federations\[1\].validation: expected it in all"):
        data.stack([held, whole])
    other = held._replace(validation=held.validation._replace(sizes=held.validation.sizes[:3]))
    with pytest.raises(ValueError, match=r"validation\.(sizes|offsets) of shape"):
        data.validate(other)


def test_shared_examples_are_moved_once():
    held = data.hold_out(data.load("digits", data.iid(7)), 0.1)
    there = map_arrays(held, jax.device_put)
    jax.tree.map(np.testing.assert_array_equal, there, held)
    assert there.validation.features is there.train.features
    flipped = data.flip_labels(held, [0])  # Whose training labels are others.
    there = map_arrays(flipped, jax.device_put)
    np.testing.assert_array_equal(there.validation.labels, held.validation.labels)
    assert (np.asarray(there.train.labels) != held.train.labels).any()
