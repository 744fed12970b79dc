"""Validation examples: a random part of each client's training examples."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_fair import data
from fedjax_fair.data.federated import map_arrays


def indices_of(examples, client):
    return examples.order[examples.offsets[client] :][: examples.sizes[client]].tolist()


def check_split(original, split, fraction):
    """Checks that training examples are divided in two, and that nothing else changes."""
    for client, size in enumerate(original.train.sizes):
        train, validation = indices_of(split.train, client), indices_of(split.validation, client)
        assert sorted([*train, *validation]) == sorted(indices_of(original.train, client))
        assert len(validation) == int(size * fraction)
        assert train
    assert split.validation.features is split.train.features
    for name in ("features", "labels"):
        np.testing.assert_array_equal(getattr(split.train, name), getattr(original.train, name))
    jax.tree.map(
        np.testing.assert_array_equal, (split.test, split.groups), (original.test, original.groups)
    )
    assert split.label_skew_only == original.label_skew_only
    data.validate(split)


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.floats(0.5, 1, exclude_max=True, width=32, allow_subnormal=False),
    st.integers(0, 99),
)
@settings(max_examples=50, deadline=None)
def test_hold_out_takes_a_fraction_of_every_client(sizes, fraction, seed):
    total = sum(sizes) + 2
    indices = np.split(np.random.default_rng(seed).permutation(total)[2:], np.cumsum(sizes)[:-1])
    original = data.from_arrays(
        np.arange(total)[:, None], np.arange(total) % 3, indices, test_fraction=0.0, seed=seed,
        groups=np.arange(len(sizes)) % 2, num_classes=3,
    )  # fmt: skip
    if max(sizes) * fraction < 1:
        with pytest.raises(ValueError, match="validation_fraction="):
            data.hold_out(original, fraction, seed)
    else:
        check_split(original, data.hold_out(original, fraction, seed), fraction)


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
def test_hold_out_supports_every_partitioner(partition):
    split = data.load("digits", partition, seed=3, validation_fraction=0.2)
    check_split(data.load("digits", partition, seed=3), split, 0.2)


def test_hold_out_of_several_partitions():
    original, split = (
        data.load("digits", data.iid(7), (0, 1), validation_fraction=v) for v in (0.0, 0.1)
    )
    for run in range(2):
        mine, validation = original.partition(run), split.partition(run)
        check_split(mine, validation._replace(train=validation.train), 0.1)
        alone = data.load("digits", data.iid(7), run, validation_fraction=0.1)
        np.testing.assert_array_equal(validation.validation.order, alone.validation.order)


def parts(dataset):
    return [set(dataset.train.order.tolist()), set(dataset.validation.order.tolist())]


def test_hold_out_depends_on_seed_only():
    original = data.load("digits", data.iid(7))
    drawn = [parts(data.hold_out(original, 0.3, seed)) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_files_and_arrays_hold_out_the_same_examples(tmp_path):
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


def test_fraction_0_changes_nothing():
    plain = data.load("digits", seed=2)
    assert plain.validation is None
    jax.tree.map(
        np.testing.assert_array_equal, plain, data.load("digits", seed=2, validation_fraction=0.0)
    )


def test_invalid_fractions_and_data_are_rejected():
    original = data.load("digits", data.iid(7))
    for fraction in (1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match="validation_fraction="):
            data.hold_out(original, fraction)
    with pytest.raises(ValueError, match="validation_fraction="):
        data.hold_out(original, 0)
    split = data.hold_out(original, 0.1)
    with pytest.raises(ValueError, match="validation"):
        data.hold_out(split, 0.1)
    with pytest.raises(ValueError, match=r"datasets\[1\].validation:"):
        data.stack([split, original])
    other = split._replace(validation=split.validation._replace(sizes=split.validation.sizes[:3]))
    with pytest.raises(ValueError, match=r"validation\."):
        data.validate(other)


def test_map_arrays_maps_shared_arrays_once():
    split = data.hold_out(data.load("digits", data.iid(7)), 0.1)
    moved = map_arrays(split, jax.device_put)
    jax.tree.map(np.testing.assert_array_equal, moved, split)
    assert moved.validation.features is moved.train.features
    flipped = data.flip_labels(split, [0])  # Its training labels are not shared.
    moved = map_arrays(flipped, jax.device_put)
    np.testing.assert_array_equal(moved.validation.labels, split.validation.labels)
    assert (np.asarray(moved.train.labels) != split.train.labels).any()
