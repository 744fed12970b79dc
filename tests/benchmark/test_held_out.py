"""The test pool and unseen clients of the benchmark, which do not depend on seeds."""

import numpy as np
import pytest
from partition_checks import SEEDS, by_client, check_nothing_is_shared, examples_of

from fedjax_fair import data
from fedjax_fair.benchmark import held_out
from fedjax_fair.benchmark.held_out import HOLD_OUT, MadeClients, split_strata
from fedjax_fair.benchmark.populations import Pool, partition_pool
from fedjax_fair.data import from_indices
from fedjax_fair.data.partitions.partitioner import generator


def numbers(total=1000, num_strata=10):
    return np.arange(total) % num_strata


def dirichlet_pool(strata=None, num_clients=8, num_unseen=2, num_fresh=0, name="numbers"):
    strata = numbers() if strata is None else strata
    split = data.dirichlet(num_clients, 1.0, 20).split
    features = np.arange(2 * len(strata), dtype=np.float32).reshape(-1, 2)
    clients = MadeClients(lambda ids, seed: split(strata[ids], seed), strata, num_unseen)
    return Pool(name, features, strata, int(strata.max()) + 1, clients, num_fresh)


def test_the_test_digest_changes_with_held_out_examples_only():
    pool = dirichlet_pool()
    made = partition_pool(pool, (0,))
    held = {
        "seen": examples_of(made.seen, "train", "validation"),
        "test": examples_of(made.seen, "test"),
        "unseen": examples_of(made.unseen, "train", "validation"),
    }
    for part, examples in held.items():
        features = np.array(pool.features)
        features[examples[0]] += 1
        changed = partition_pool(pool._replace(features=features), (0,))
        assert (changed.test_digest == made.test_digest) == (part == "seen")
        assert changed.data_digest != made.data_digest


def test_strata_have_equal_shares_in_all_parts():
    rng = np.random.default_rng(0)
    for fractions in ([0.64, 0.16], [0.8, 0.0], [0.5]):
        strata = rng.choice(7, 900, p=rng.dirichlet(np.ones(7)))
        parts = split_strata(strata, fractions)
        assert sorted(np.concatenate(parts)) == list(range(900))
        counts = np.bincount(strata, minlength=7)
        for part, fraction in zip(parts, [*fractions, 1 - sum(fractions)], strict=True):
            found = np.bincount(strata[part], minlength=7)
            assert (np.abs(found - fraction * counts) <= 1).all()
            assert (np.diff(part) > 0).all()


def test_one_client_per_stratum_is_split_as_a_client_of_the_data():
    sizes = np.array([100, 200, 300, 400, 500])
    strata = np.repeat(np.arange(5), sizes)

    def split(ids, seed):
        return from_indices([np.flatnonzero(strata[ids] == k) for k in range(5)]).split(ids, seed)

    made = held_out.made_clients("one", MadeClients(split, strata, 2)).split(3)
    # Of the data are the examples without the fifth of which unseen clients are made.
    sizes = sizes * 4 // 5
    parts = np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1])
    clients = from_indices(parts).split(np.zeros(sizes.sum(), int), 0)
    natural = held_out.natural_clients("one", clients).split(3)
    seen = np.setdiff1d(np.arange(5), natural.unseen_ids)
    for one, other in zip(made.seen, natural.seen, strict=True):
        np.testing.assert_array_equal(one.sizes[seen], other.sizes)


@pytest.mark.parametrize("num_fresh", [0, 300])
def test_test_examples_have_the_shares_of_the_client(num_fresh):
    """They are as many as the pool allows, at most 100, and different ones of the pool."""
    strata = np.random.default_rng(0).choice(6, 1500, p=[0.4, 0.3, 0.1, 0.1, 0.07, 0.03])
    made = partition_pool(dirichlet_pool(strata, num_fresh=num_fresh), (5,))
    seen, test, _ = split_strata(
        strata[: 1500 - num_fresh], [0.8, 0.0] if num_fresh else [0.64, 0.16]
    )
    test = np.arange(1500 - num_fresh, 1500) if num_fresh else test
    room = np.bincount(strata[test], minlength=6)
    assert set(examples_of(made.seen, "train", "validation")) == set(seen)
    used = []
    for federated in (made.seen, made.unseen):
        others = (by_client(part) for part in (federated.train, federated.validation))
        for own, *rest in zip(by_client(federated.test), *others, strict=True):
            shares = np.bincount(strata[np.concatenate(rest)], minlength=6)
            shares = shares / shares.sum()
            found = np.bincount(strata[own], minlength=6)
            assert 0 < len(set(own)) == len(own) <= 100
            assert np.isin(own, test).all()
            assert (np.abs(found - len(own) * shares) < 1).all()
            # A larger number fits under no rounding of its shares.
            for number in range(len(own) + 1, 101):
                assert (np.ceil(number * shares) > room).any()
            used.append(own)
    assert len(np.unique(np.concatenate(used))) < sum(map(len, used))


def test_unseen_clients_are_like_seen_ones_shrunk_by_one_factor():
    """Two of the four seen clients have nearly all examples of a stratum, so that it runs out."""
    strata = numbers(4000, 4)

    def split(ids, seed):
        of = [np.flatnonzero(strata[ids] == k) for k in range(4)]
        parts = [[of[0][:300], of[1][:30]], [of[0][300:600], of[1][30:60]]]
        parts += [[of[2][:200], of[3][:100]], [of[2][200:400], of[3][100:200]]]
        return from_indices([np.concatenate(part) for part in parts]).split(ids, seed)

    shares = set()
    for seed in range(6):
        made = held_out.made_clients("four", MadeClients(split, strata, 2)).split(seed)
        counts = np.stack(
            [
                np.bincount(strata[np.concatenate(own)], minlength=4)
                for own in zip(*(part.client_indices for part in made.unseen[:2]), strict=True)
            ]
        )
        theirs = np.array([[300, 30, 0, 0] if row[0] else [0, 0, 200, 100] for row in counts])
        factor = min(1, np.min(200 / np.maximum(theirs.sum(axis=0), 1)))
        # The factor is found up to one percent, and numbers are rounded.
        assert (np.abs(counts - factor * theirs) <= 1 + 0.01 * factor * theirs).all()
        assert (counts.sum(axis=0) <= 200).all()
        shares.add(round(factor, 3))
    assert len(shares) > 1  # One of the clients with 300 examples, or both.


def test_unseen_clients_are_of_another_partition():
    pool, seeds = dirichlet_pool(), []

    def split(ids, seed):
        seeds.append(seed)
        return pool.clients.split(ids, seed)

    partition_pool(pool._replace(clients=pool.clients._replace(split=split)), (0, 1, 2))
    assert seeds[::2] == [0, 1, 2]
    assert len(set(seeds)) == 6


def test_fresh_examples_of_clients_of_the_data_are_their_test_examples():
    owners = np.random.default_rng(0).integers(6, size=900)
    clients = data.by_column("owner").split(owners, 0, owner=owners)
    pool = Pool("six", np.zeros((900, 1)), numbers(900), 10, clients, num_fresh=300)
    made = partition_pool(pool, SEEDS)
    check_nothing_is_shared(made)
    assert (examples_of(made.seen, "test") >= 600).all()
    assert (examples_of(made.seen, "train", "validation") < 600).all()
    for federated, ids in (
        (made.seen, np.setdiff1d(np.arange(6), made.unseen_ids)),
        (made.unseen, made.unseen_ids[0]),
    ):
        for own, client in zip(by_client(federated.test, 2), ids, strict=True):
            assert set(own) == set(600 + np.flatnonzero(owners[600:] == client))


def test_clients_of_the_data_have_the_same_test_examples_for_all_seeds():
    owners = numbers(1000, 10)
    clients = data.by_column("owner").split(owners, 0, owner=owners)
    pool = Pool("ten", np.zeros((1000, 1)), numbers(), 10, clients)
    made = partition_pool(pool, SEEDS)
    for federated in (made.seen, made.unseen):
        for run in range(1, len(SEEDS)):
            np.testing.assert_array_equal(federated.test.order[run], federated.test.order[0])
    assert (made.unseen_ids == made.unseen_ids[0]).all()


def test_no_run_has_the_seed_of_held_out_examples():
    with pytest.raises(ValueError, match=r"seeds=.*2\*\*32"):
        partition_pool(dirichlet_pool(), (HOLD_OUT,))
    draws = [generator(seed, 10).random() for seed in (HOLD_OUT, 0, 1, HOLD_OUT - 1)]
    assert len(set(draws)) == 4


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        (dirichlet_pool(num_unseen=9), "num_unseen=9 of numbers: expected 1 to 8, as many as seen"),
        (dirichlet_pool(num_unseen=0), "num_unseen=0 of numbers: expected 1 to 8"),
        (dirichlet_pool(num_fresh=1000), "num_fresh=1000: expected an integer >= 0 and <= 999"),
        (dirichlet_pool(num_fresh=-1), "num_fresh=-1: expected an integer >= 0"),
        (
            dirichlet_pool()._replace(clients=dirichlet_pool(numbers(20)).clients),
            r"strata of numbers of shape \(20,\): expected one for each of 1000 examples",
        ),
        (
            # Each of two examples is in the seen part or in the test pool.
            dirichlet_pool(numbers(1000, 500)),
            "numbers: the unseen part has too few examples of a stratum for 2 unseen clients",
        ),
        (
            dirichlet_pool(np.repeat([0, 1], [900, 100]), num_fresh=100),
            r"numbers: the test pool has \[0\] examples of the strata of client 0: expected one",
        ),
    ],
)
def test_clients_that_do_not_fit_the_examples_are_refused(pool, message):
    with pytest.raises(ValueError, match=message):
        partition_pool(pool, (0,))
