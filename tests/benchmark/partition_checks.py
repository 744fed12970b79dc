"""Checks of federated datasets with one partition per seed."""

import numpy as np

SEEDS = (1000, 1300, 1301, 1200, 1201)


def examples_of(federated, *parts):
    """Examples of some parts of all clients and seeds, without repetition."""
    runs = [federated.partition(run) for run in range(federated.num_partitions)]
    orders = [getattr(run, part).without_padding().order for run in runs for part in parts]
    return np.unique(np.concatenate(orders))


def by_client(part, run=0):
    """Examples of each client in one part, of one seed."""
    order, offsets, sizes = part.order[run], part.offsets[run], part.sizes[run]
    return [order[first : first + size] for first, size in zip(offsets, sizes, strict=True)]


def check_nothing_is_shared(made):
    """No seed trains on examples by which any seed is measured, or on those of unseen clients."""
    trained = examples_of(made.seen, "train", "validation")
    unseen = examples_of(made.unseen, "train", "validation")
    tested = np.union1d(examples_of(made.seen, "test"), examples_of(made.unseen, "test"))
    assert np.intersect1d(tested, trained).size == 0
    assert np.intersect1d(tested, unseen).size == 0
    assert np.intersect1d(unseen, trained).size == 0
    # Roles receive the arrays of these parts.
    for part in (made.seen.train, made.seen.validation):
        for name in ("features", "labels", "sensitive_features"):
            own, whole = getattr(part, name), getattr(made.seen.test, name)
            if whole is not None:
                assert not np.delete(own, trained, axis=0).any()
                np.testing.assert_array_equal(own[trained], whole[trained])
    for federated in (made.seen, made.unseen):
        for part in (federated.train, federated.validation, federated.test):
            for run in range(len(part.order)):
                assert all(len(set(own)) == len(own) for own in by_client(part, run))


def check_seeds_change_no_test_pool(federation, data_dir, made):
    """Other seeds and another order of them change neither what is held out nor a partition."""
    again = federation.load(data_dir, (1201, 7, 1000))
    assert again.test_digest == made.test_digest
    assert again.data_digest == made.data_digest
    first, _, last = again.partition_digests
    assert (last, first) == (made.partition_digests[0], made.partition_digests[-1])
    assert len(set(made.partition_digests)) == len(SEEDS)
