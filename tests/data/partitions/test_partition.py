"""Properties of all partitioners, and of each."""

import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedjax_fair import data
from fedjax_fair.data.partitions.class_partition import _draw_slots
from fedjax_fair.data.partitions.partitioner import equal_parts

LABELS = np.random.default_rng(0).integers(0, 10, 2000)
WRITERS = np.random.default_rng(1).permutation(np.repeat(np.arange(40), 50))
PARTITIONERS = [
    data.iid(30),
    data.quantity_skew(30, "power", skew=1.2, min_partition_size=2),
    data.quantity_skew(30, "lognormal", skew=2.0),
    data.dirichlet(10, 0.5),
    data.shards(30, 2),
    data.by_column("writer"),
    data.from_indices([[5, 1], [0], range(100, 200)]),
    data.classes_per_client(50, 3),
    data.classes_per_client(7, 9),
    data.planted_clusters("mnist"),
]
RANDOM = [p for p in PARTITIONERS if not p.name.startswith(("by_column", "from_indices"))]


def named(partitioner):
    return partitioner.name


def split(partitioner, seed=0, labels=LABELS):
    return partitioner.split(labels, seed, writer=WRITERS)


@pytest.mark.parametrize("partitioner", PARTITIONERS, ids=named)
def test_every_example_is_assigned_once_or_unassigned(partitioner):
    partition = split(partitioner)
    everything = np.concatenate([partition.order, partition.unassigned])
    np.testing.assert_array_equal(np.sort(everything), np.arange(len(LABELS)))
    assert partition.sizes.min() >= 1
    assert partition.sizes.sum() == len(partition.order)
    assert {a.dtype for a in (partition.order, partition.sizes, partition.unassigned)} == {
        np.dtype("i4")
    }
    assert [len(indices) for indices in partition.client_indices] == partition.sizes.tolist()


@pytest.mark.parametrize("partitioner", RANDOM, ids=named)
def test_partition_depends_on_seed_only(partitioner):
    assert split(partitioner).order.tolist() == split(partitioner).order.tolist()
    assert split(partitioner).order.tolist() != split(partitioner, seed=1).order.tolist()


@pytest.mark.parametrize("partitioner", PARTITIONERS, ids=named)
def test_split_test_follows_the_training_distribution(partitioner):
    partition = split(partitioner)
    test_labels = np.random.default_rng(2).integers(0, 10, 613)
    test = data.split_test(partition, LABELS, test_labels, seed=0)
    assert len(np.unique(np.concatenate([test.order, test.unassigned]))) == len(test_labels)
    for label in range(10):
        train = np.array([(LABELS[i] == label).sum() for i in partition.client_indices])
        given = np.array([(test_labels[i] == label).sum() for i in test.client_indices])
        total = (test_labels == label).sum()
        assert given.sum() == (total if train.sum() else 0)
        assert (abs(given - train / max(train.sum(), 1) * total) < 1).all()


def test_split_test_breaks_ties_at_random():
    labels = np.zeros(40, int)
    train = data.iid(4).split(labels, 0)
    lucky = {
        tuple(data.split_test(train, labels, np.zeros(6, int), seed).sizes.tolist())
        for seed in range(40)
    }
    assert lucky == {s for s in np.ndindex(3, 3, 3, 3) if sorted(s) == [1, 1, 2, 2]}


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_slots_are_distinct_and_classes_equally_frequent(clients, classes, each, seed):
    assume(each <= classes)
    uses = equal_parts(clients * each, classes)
    slots = _draw_slots(clients, uses, np.random.default_rng(seed))
    assert slots.shape == (clients, each)
    assert all(len(set(row)) == each for row in slots.tolist())
    np.testing.assert_array_equal(np.bincount(slots.ravel(), minlength=classes), uses)


def test_classes_per_client_by_hand():
    labels = np.repeat(np.arange(10), [61, 60, 60, 75, 60, 60, 89, 60, 60, 60])
    partition = data.classes_per_client(20, 3).split(labels, 3)
    held = [Counter(labels[indices].tolist()) for indices in partition.client_indices]
    assert all(len(counts) == 3 for counts in held)
    # 60 slots, each class in 6 of them, each shard a sixth of its class rounded down.
    assert Counter(label for counts in held for label in counts) == dict.fromkeys(range(10), 6)
    shard = np.bincount(labels) // 6
    assert all(n == shard[label] for counts in held for label, n in counts.items())
    unassigned = np.bincount(labels[partition.unassigned], minlength=10)
    assert unassigned.tolist() == [1, 0, 0, 3, 0, 0, 5, 0, 0, 0]


def test_slots_of_many_clients_with_all_classes():
    slots = _draw_slots(3000, np.full(10, 3000), np.random.default_rng(0))
    assert (np.sort(slots, axis=1) == np.arange(10)).all()


def test_class_frequencies_differ_by_at_most_one():
    held = data.classes_per_client(7, 3).split(LABELS, 0).client_indices
    uses = Counter(label for indices in held for label in set(LABELS[indices].tolist()))
    assert sorted(uses.values()) == [2] * 9 + [3]


@pytest.mark.parametrize("case", range(4))
def test_dirichlet_equals_flwr_datasets(case):
    golden = np.load(Path(__file__).parent / "golden" / "dirichlet_flwr_0_6_1.npz")
    num_clients, min_partition_size, seed = golden[f"settings_{case}"].tolist()
    partitioner = data.dirichlet(num_clients, golden[f"alpha_{case}"], min_partition_size)
    partition = partitioner.split(golden[f"labels_{case}"], seed)
    np.testing.assert_array_equal(partition.order, golden[f"order_{case}"])
    np.testing.assert_array_equal(partition.sizes, golden[f"sizes_{case}"])


def test_dirichlet_alpha_is_a_concentration():
    def classes_held(alpha):
        indices = data.dirichlet(10, alpha, 1).split(LABELS, 0).client_indices
        return np.mean([len(np.unique(LABELS[i])) for i in indices])

    assert classes_held(0.1) < 7 < classes_held(100.0) == 10


@pytest.mark.filterwarnings("ignore:.*to reach the minimum size")
@pytest.mark.parametrize("alpha", [0.1, 1e-3])
def test_dirichlet_fills_up_small_clients_after_all_attempts(alpha):
    labels = np.arange(1442) % 10
    drawn = data.dirichlet(50, alpha, 10).split(labels, 0)
    assert drawn.sizes.min() == 10
    rng = np.random.default_rng(0)  # The last of eleven draws.
    for _ in range(11):
        shares = np.stack([rng.dirichlet(np.full(50, alpha)) for _ in range(10)])
    of_class = np.bincount(labels)
    before = np.diff(np.floor(np.cumsum(shares, axis=1) * of_class[:, None]), prepend=0)
    before[:, -1] += of_class - before.sum(axis=1)
    sizes = before.sum(axis=0)
    assert sizes.min() < 10
    assert drawn.num_filled == (sizes < 10).sum()
    beyond = np.maximum(sizes - 10, 0)
    kept = beyond * (1 - np.maximum(10 - sizes, 0).sum() / beyond.sum())
    assert (abs(drawn.sizes - 10 - kept) < 1).all()
    # Only clients below the minimum received examples.
    held = np.stack(
        [np.bincount(labels[own], minlength=10) for own in drawn.client_indices], axis=1
    )
    assert (held <= before)[:, sizes >= 10].all()
    assert (held >= before)[:, sizes < 10].all()
    np.testing.assert_array_equal(held.sum(axis=1), of_class)
    # Examples are assigned class by class, so that few clients receive several classes.
    assert (held > before).sum() <= (sizes < 10).sum() + 10 - 1


@pytest.mark.filterwarnings("ignore:.*to reach the minimum size")
def test_dirichlet_fills_up_to_equal_sizes():
    assert data.dirichlet(6, 1e-3, 2).split(np.arange(12) % 3, 0).sizes.tolist() == [2] * 6


@pytest.mark.parametrize(
    ("partitioner", "filled", "warns"),
    [
        (data.dirichlet(100, 0.05), 61, True),
        (data.dirichlet(20, 5.0), 0, False),
        (data.dirichlet(50, 0.3), 3, False),
        (data.quantity_skew(40, "power", skew=5.0, min_partition_size=10), 36, True),
        (data.quantity_skew(40, min_partition_size=10), 0, False),
        (data.iid(100), 0, False),
    ],
)
def test_filled_clients_are_counted_and_many_are_a_warning(partitioner, filled, warns):
    labels = np.arange(1442) % 10
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        partition = partitioner.split(labels, 0)
        loaded = data.load("digits", partitioner)
    assert partition.num_filled == filled
    assert bool(caught) == warns
    if warns:
        message = f"{filled} of {len(partition.sizes)} clients got examples only to reach the min"
        assert message in str(caught[0].message)
        assert f"; {loaded.num_filled} filled up to the minimum size" in str(loaded)
        assert str(data.stack([loaded, loaded])).count("filled up") == 1
    elif not filled:
        assert "filled" not in str(loaded)


def test_owners_that_are_integers_ascend_as_numbers():
    for owners, names in {
        ("10", "2", "1"): ("1", "2", "10"),
        ("-1", "+3", "2"): ("-1", "2", "+3"),
        ("01", "1", "0"): ("0", "01", "1"),
        ("10", "2", "a"): ("10", "2", "a"),
        ("1e3", "1000", "2"): ("1000", "1e3", "2"),
        ("9" * 30, "8", "1" * 31): ("8", "9" * 30, "1" * 31),
        ("10", "2.0", "1"): ("1", "10", "2.0"),
    }.items():
        for kind in (str, np.bytes_):
            made = data.by_column("id").split(np.zeros(3, int), 0, id=np.array(owners, kind))
            assert made.client_names == names
            assert [owners[place] for place in made.order] == list(names)


def test_from_indices_by_name_equals_a_list():
    by_name = data.from_indices({"b": [5, 1], "a": np.array([0])})
    in_a_list = data.from_indices([[5, 1], [0]])
    named, unnamed = (each.split(LABELS, 0) for each in (by_name, in_a_list))
    assert (named.client_names, unnamed.client_names) == (("b", "a"), None)
    for one, other in zip(named[:4], unnamed[:4], strict=True):
        np.testing.assert_array_equal(one, other)
    data.load("digits", by_name)


@pytest.mark.parametrize(
    ("setting", "labels", "clients", "classes", "sizes"),
    [
        ("mnist", np.repeat(np.arange(10), 5421), (4, 6), (4, 6), (3200, 4800)),
        ("cifar10", np.repeat(np.arange(10), 5000), (4, 6), (4, 6), (3200, 4800)),
        ("cifar100", np.repeat(np.arange(100), 500), (2, 3, 5), (20, 30, 50), (4400, 4800, 5000)),
        (
            "femnist",
            np.repeat(np.arange(62), 1896),
            (8, 36, 16, 18, 12),
            (2, 8, 15, 20, 17),
            (474, 416, 1770, 2100, 2686),
        ),
    ],
)
def test_planted_cluster_settings(setting, labels, clients, classes, sizes):
    partition = data.planted_clusters(setting).split(labels, 0)
    assert partition.groups is not None
    assert np.bincount(partition.groups).tolist() == list(clients)
    np.testing.assert_array_equal(partition.sizes, np.array(sizes)[partition.groups])
    held = [set(labels[indices].tolist()) for indices in partition.client_indices]
    assert [len(h) for h in held] == np.array(classes)[partition.groups].tolist()
    for group in range(len(clients)):
        assert (
            len({frozenset(h) for h, g in zip(held, partition.groups, strict=True) if g == group})
            == 1
        )


def test_clusters_may_share_a_class():
    shared = [data.Cluster(1, [0, 1], 2), data.Cluster(2, [1], 9)]
    partition = data.planted_clusters(shared).split(np.repeat([0, 1], 9), 0)
    assert partition.sizes.tolist() == [4, 3, 3]


def test_shards_have_few_classes():
    partition = data.shards(20, 2).split(np.repeat(np.arange(10), 100), 0)
    assert (partition.sizes == 50).all()
    labels = np.repeat(np.arange(10), 100)
    assert max(len(np.unique(labels[i])) for i in partition.client_indices) == 2
    # 29 examples make ten shards of two with nine left over, which must not always be the last.
    labels = np.arange(29) // 10
    lost = {
        labels[i] for seed in range(30) for i in data.shards(5, 2).split(labels, seed).unassigned
    }
    assert lost == {0, 1, 2}


def test_quantity_skew_distributions():
    power = data.quantity_skew(50, "power", skew=1.0).split(LABELS, 0).sizes
    exact = 1 + 1950 / np.arange(1, 51) / (1 / np.arange(1, 51)).sum()
    assert abs(power - exact).max() < 1
    equal = data.quantity_skew(50, "lognormal", skew=0.0).split(LABELS, 0).sizes
    assert set(equal.tolist()) == {40}
    logarithms = np.log(data.quantity_skew(20_000, skew=0.7).split(np.zeros(10**7), 0).sizes - 1)
    assert abs(np.std(logarithms) - 0.7) < 0.02  # three standard errors are 0.011


def test_by_column_and_assign_by_owner():
    partition = split(data.by_column("writer"))
    for writer, indices in enumerate(partition.client_indices):
        assert indices.tolist() == [i for i, owner in enumerate(WRITERS) if owner == writer]
    test = data.assign_by_owner(WRITERS, np.array([3, 99, 0, 3]))
    assert test.sizes[[0, 3]].tolist() == [1, 2]
    assert test.unassigned.tolist() == [1]


FEW = np.arange(12) % 3
MANY = data.Cluster(10**9, [0], 5)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: data.iid(0), "num_clients=0"),
        (lambda: data.iid(13).split(FEW, 0), "12 examples for num_clients=13"),
        (lambda: data.shards(5, 3).split(FEW, 0), "expected at least 15"),
        (lambda: data.quantity_skew(5, min_partition_size=3).split(FEW, 0), "expected at least 15"),
        (lambda: data.quantity_skew(5, "zipf"), "distribution='zipf'"),
        (lambda: data.quantity_skew(5, skew=-1.0), "skew=-1.0"),
        (lambda: data.dirichlet(3, 0.0), "alpha=0.0"),
        (lambda: data.dirichlet(3, [1.0, 2.0]), "alpha"),
        (lambda: data.dirichlet(3, 1.0, 5).split(FEW, 0), "expected at least 15"),
        (lambda: data.classes_per_client(2, 4).split(FEW, 0), "classes=4"),
        (
            lambda: data.classes_per_client(5, 2).split(np.arange(12) // 5, 0),
            "class 2 has 2 examples: expected at least 3",
        ),
        # More clients than memory could hold are counted before they are made.
        (lambda: data.classes_per_client(2**30, 2).split(FEW, 0), "12 examples for num_clients="),
        (lambda: data.planted_clusters([MANY]).split(FEW, 0), "12 examples for num_clients="),
        (lambda: data.dirichlet(10**9).split(FEW, 0), "12 examples for num_clients="),
        (lambda: data.planted_clusters("svhn"), "clusters='svhn'"),
        (lambda: data.planted_clusters([data.Cluster(2, [1, 1], 5)]), "classes="),
        (lambda: data.planted_clusters([]), r"clusters=\[\]"),
        (lambda: data.planted_clusters([data.Cluster(2, 5, 5)]), "classes=5"),
        (lambda: data.stack([7]), r"datasets\["),
        (lambda: data.load(3), "name"),
        (lambda: data.planted_clusters([data.Cluster(2, [7], 5)]).split(FEW, 0), "class 7 has 0"),
        (
            lambda: data.by_column("writer").split(FEW, 0, author=FEW),
            r"one of the columns \['author'\]",
        ),
        (lambda: data.by_column("writer").split(FEW, 0, writer=FEW[1:]), "12 examples"),
        (lambda: data.from_indices({}), "0 of 0 clients have no examples"),
        (lambda: data.from_indices([[0], []]), r"1 of 2 clients have no examples, first \[1\]"),
        (
            lambda: data.from_indices([[0], [12]]).split(FEW, 0),
            "indices",
        ),
        (
            lambda: data.from_indices([[0], [-1]]).split(FEW, 0),
            "indices",
        ),
        (lambda: data.from_indices([[0, 5], [5]]).split(FEW, 0), "two clients, first 5"),
        (lambda: data.from_indices([[0.5]]).split(FEW, 0), "integers"),
    ],
)
def test_invalid_settings_and_data_are_rejected(attempt, message):
    with pytest.raises(ValueError, match=message):
        attempt()


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    "make",
    [
        lambda skew: data.quantity_skew(5, "power", skew=skew),
        lambda skew: data.quantity_skew(5, "lognormal", skew=skew),
    ],
)
@pytest.mark.parametrize("skew", [1e308, 1001, 1e-320, np.inf, np.nan, -1e-9, True, "1", None])
def test_skews_without_meaning_are_rejected(make, skew):
    with pytest.raises(ValueError, match="skew="):
        make(skew)


@pytest.mark.filterwarnings("ignore:.*to reach the minimum size")
@pytest.mark.parametrize("distribution", ["power", "lognormal"])
def test_the_largest_skew_gives_one_client_the_rest(distribution):
    partition = data.quantity_skew(5, distribution, skew=1000).split(LABELS, 0)
    assert sorted(partition.sizes.tolist()) == [1, 1, 1, 1, 1996]
    assert (
        data.quantity_skew(5, distribution, skew=1e-37).split(LABELS, 0).sizes.tolist() == [400] * 5
    )


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    "alpha",
    [0, 1e-400, 1e-320, 1e39, 1e308, np.inf, np.nan, -1, True, "1", [1.0, 1e308], [[1.0]] * 2],
)
def test_concentrations_without_meaning_are_rejected(alpha):
    with pytest.raises(ValueError, match="alpha"):
        data.dirichlet(2, alpha)


@pytest.mark.filterwarnings("ignore:.*to reach the minimum size")
@pytest.mark.parametrize("alpha", [1e9, 1e-37, [1e-37, 1e9]])
def test_extreme_concentrations_assign_all_examples(alpha):
    sizes = data.dirichlet(2, alpha, 3).split(LABELS, 0).sizes
    assert sizes.sum() == len(LABELS)
    assert sizes.min() >= 3
    if alpha == 1e9:
        assert abs(sizes - 1000).max() <= 10  # Every class is rounded once.


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("shape", [(12, 3), (12, 1)])
def test_partitions_by_class_refuse_labels_that_are_sequences(shape):
    sequences, classes = np.zeros(shape, int), np.zeros(12, int)
    partitioners = {
        "dirichlet": data.dirichlet(2, min_partition_size=1),
        "classes_per_client": data.classes_per_client(2, 1),
        "planted_clusters": data.planted_clusters([data.Cluster(2, [0], 9)]),
        "shards": data.shards(2, 1),
    }
    train = data.iid(2).split(sequences, 0)  # Reads no labels.
    expected = rf"of shape \({shape[0]}, {shape[1]}\): expected one class for each example"
    for name, partitioner in partitioners.items():
        with pytest.raises(ValueError, match=rf"^labels of {name}.* {expected}"):
            partitioner.split(sequences, 0)
    with pytest.raises(ValueError, match=f"^train_labels {expected}"):
        data.split_test(train, sequences, classes, 0)
    with pytest.raises(ValueError, match=f"^test_labels {expected}"):
        data.split_test(train, classes, sequences, 0)
