"""Partitions of the benchmark: clients that train and unseen clients, from seeds."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from partition_checks import (
    SEEDS,
    by_client,
    check_nothing_is_shared,
    check_seeds_change_no_test_pool,
    examples_of,
)

from fedjax_fair import data
from fedjax_fair.benchmark import group_synthetic
from fedjax_fair.benchmark.federations import FEDERATIONS
from fedjax_fair.benchmark.populations import Pool, partition_pool
from fedjax_fair.benchmark.protocol import TRACKS

EMBEDDED = TRACKS["embedded"].federations


def pool(labels=None, num_clients=10):
    labels = np.arange(1000) % 10 if labels is None else labels
    features = np.arange(2 * len(labels), dtype=np.float32).reshape(-1, 2)
    clients = data.dirichlet(num_clients, 1.0, 60).split(labels, 0)
    return Pool("numbers", features, labels, 10, clients)


def test_every_example_is_in_one_part_of_one_client():
    made, whole = partition_pool(pool(), seeds=(3, 4)), pool().clients
    for run in range(2):
        owners = np.empty(1000, int)
        owners[whole.order] = np.repeat(np.arange(10), whole.sizes)
        seen = np.setdiff1d(np.arange(10), made.unseen_ids[run])
        found = []
        for federated, clients in ((made.seen, seen), (made.unseen, made.unseen_ids[run])):
            parts = [federated.train, federated.validation, federated.test]
            for client, sizes in zip(
                clients, zip(*(p.sizes[run] for p in parts), strict=True), strict=True
            ):
                total = np.sum(owners == client)
                test = total // 5
                assert sizes == (total - test - (total - test) // 5, (total - test) // 5, test)
            for part in parts:
                for client, indices in zip(clients, by_client(part, run), strict=True):
                    assert (owners[indices] == client).all()
                    found.append(indices)
        assert sorted(np.concatenate(found)) == list(range(1000))


def test_partitions_follow_from_the_seed_alone():
    both, one = partition_pool(pool(), seeds=(3, 4)), partition_pool(pool(), seeds=(4,))
    assert both.partition_digests[1] == one.partition_digests[0]
    assert both.partition_digests[0] != both.partition_digests[1]
    assert both.data_digest == one.data_digest
    for part in ("train", "test", "validation"):
        alone = getattr(one.seen, part).order[0]
        np.testing.assert_array_equal(getattr(both.seen, part).order[1, : len(alone)], alone)
    second = both.of_runs([1])
    assert second.partition_digests == one.partition_digests
    np.testing.assert_array_equal(second.unseen_ids, one.unseen_ids)
    np.testing.assert_array_equal(second.seen.test.sizes, one.seen.test.sizes)


def test_digests_change_with_data_and_partition():
    changed = np.arange(1000) % 10
    changed[0] = 1
    assert (
        partition_pool(pool(changed), (0,)).data_digest != partition_pool(pool(), (0,)).data_digest
    )
    twenty = partition_pool(pool(num_clients=12), (0,))
    assert twenty.partition_digests != partition_pool(pool(), (0,)).partition_digests


def test_small_clients_are_left_out():
    labels = np.arange(200) % 10
    sizes = (100, 60, 40)
    fixed = data.Partition(
        np.arange(200, dtype=np.int32), np.array(sizes, np.int32), None, np.empty(0, np.int32)
    )
    made = partition_pool(Pool("three", np.zeros((200, 1)), labels, 10, fixed), (0,))
    sizes = made.seen.train.sizes.sum() + made.unseen.train.sizes.sum()
    assert made.seen.num_clients == made.unseen.num_clients == 1
    assert sizes == 64 + 39  # 100 - 20 - 16, and 60 - 12 - 9.
    with pytest.raises(ValueError, match=r"min_examples=70: .*three, \[60, 100\]"):
        partition_pool(Pool("three", np.zeros((200, 1)), labels, 10, fixed), (0,), 70)


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_datasets_have_equal_shapes_for_all_seeds(name):
    made = FEDERATIONS[name].load(None, (1300, 1301, 1200, 1201))
    first, second = made.of_runs([0, 1]), made.of_runs([2, 3])
    for one, other in ((first.seen, second.seen), (first.unseen, second.unseen)):
        for part in ("train", "test", "validation"):
            for field in ("order", "sizes", "features", "labels"):
                assert getattr(getattr(one, part), field).shape == (
                    getattr(getattr(other, part), field).shape
                )
            assert getattr(one, part).sizes.min() >= 1
            # An evaluation visits all positions of the order.
            sizes = np.concatenate([getattr(each, part).sizes for each in (one, other)])
            assert getattr(one, part).order.shape[1] == sizes.sum(axis=1).max()
        assert one.num_unassigned == other.num_unassigned
    assert first.data_digest == second.data_digest
    assert len({*first.partition_digests, *second.partition_digests}) == 4


def test_group_synthetic_has_the_stated_distribution():
    features, labels, groups = group_synthetic.make(200_000, seed=1)
    assert labels.mean() == pytest.approx(0.6, abs=0.01)
    for y, mean, covariance in (
        (0, (-2, -2), ((10, 1), (1, 3))),
        (1, (2, 2), ((5, 1), (1, 5))),
    ):
        own = features[labels == y]
        np.testing.assert_allclose(own.mean(axis=0), mean, atol=0.05)
        np.testing.assert_allclose(np.cov(own.T), covariance, atol=0.15)
    # Bayes' formula with densities of SciPy, in cells of the probability.
    from scipy.stats import multivariate_normal

    turned = features @ np.array([[1, 1], [-1, 1]]) / np.sqrt(2)
    first = multivariate_normal((-2, -2), ((10, 1), (1, 3))).pdf(turned)
    second = multivariate_normal((2, 2), ((5, 1), (1, 5))).pdf(turned)
    share = second / (first + second)
    for low in np.arange(0, 1, 0.1):
        chosen = (share >= low) & (share < low + 0.1)
        assert groups[chosen].mean() == pytest.approx(share[chosen].mean(), abs=0.02)


def test_populations_have_the_stated_shares_of_each_group():
    _, _, groups = group_synthetic.make(3000)
    partition = group_synthetic.split(groups, 10, seed=5)
    assert len(partition.sizes) == 30
    owners = np.empty(3000, int)
    owners[partition.order] = np.repeat(np.arange(30) // 10, partition.sizes)
    for z, shares in ((1, (0.5, 0.3, 0.2)), (0, (0.2, 0.4, 0.4))):
        counts = np.bincount(owners[groups == z], minlength=3)
        np.testing.assert_allclose(counts / counts.sum(), shares, atol=0.001)


DOCS = Path(__file__).parents[2] / "docs" / "benchmark"
FROM_FILES = {
    "adult": (10, 3),
    "mpls_stops": (45, 11),
    "mnist": (80, 20),
    "census_income": (18, 5),
    "mnist_cnn": (32, 8),
    "shakespeare": (33, 8),
    "cifar10_resnet18": (800, 200),
}


@pytest.fixture
def data_folder(tfds_folder, tmp_path):
    """A folder of links to all data sets of the tracks standard and large."""
    for part in (tfds_folder, tfds_folder.parent / "tables", tfds_folder.parent / "text"):
        for path in part.iterdir() if part.is_dir() else ():
            (tmp_path / path.name).symlink_to(path)
    return tmp_path


@pytest.mark.integration
@pytest.mark.parametrize("name", FROM_FILES)
def test_datasets_from_files_have_the_clients_of_the_protocol(name, data_folder):
    federation = FEDERATIONS[name]
    try:
        made = federation.load(str(data_folder), SEEDS)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert (made.seen.num_clients, made.unseen.num_clients) == FROM_FILES[name]
    check_nothing_is_shared(made)
    check_seeds_change_no_test_pool(federation, str(data_folder), made)
    feature = federation.sensitive_feature
    names = {each.name: each.values for each in made.seen.sensitive_names or ()}
    assert feature is None or "Unknown" not in names[feature]


@pytest.mark.parametrize("name", EMBEDDED)
def test_no_seed_trains_on_held_out_examples(name):
    made = FEDERATIONS[name].load(None, SEEDS)
    check_nothing_is_shared(made)
    check_seeds_change_no_test_pool(FEDERATIONS[name], None, made)


def write_adult(folder, ages):
    """Writes a table of six occupations with columns of `adult` that the source reads."""
    folder.mkdir()
    rng, total = np.random.default_rng(0), len(ages)
    columns = {
        "salary": rng.choice(["<=50K", ">50K"], total),
        "occupation": np.array(list("uvwxyz"))[np.arange(total) % 6],
        "sex": rng.choice(["F", "M"], total),
        "race": rng.choice(["a", "b", "c"], total),
        "age": ages,
    }
    pd.DataFrame(columns).to_csv(folder / "adult.csv", index=False)


def test_encodings_are_fitted_on_examples_of_seen_clients_only(tmp_path):
    ages = np.random.default_rng(1).normal(40, 10, 600)
    write_adult(tmp_path / "one", ages)
    made = FEDERATIONS["adult"].load(str(tmp_path / "one"), (0, 1))
    fitted = examples_of(made.seen, "train", "validation")
    features = made.seen.test.features
    # The column of ages, standardized on these rows; clients are no feature.
    place = np.argmax(np.abs(features).max(axis=0))
    expected = (ages - ages[fitted].mean()) / ages[fitted].std()
    np.testing.assert_allclose(features[:, place], expected, rtol=1e-4, atol=1e-5)
    assert features.shape == (600, 6)
    held_out = np.setdiff1d(np.arange(600), fitted)
    ages[held_out] += 1000
    write_adult(tmp_path / "other", ages)
    changed = FEDERATIONS["adult"].load(str(tmp_path / "other"), (0, 1)).seen.test.features
    np.testing.assert_array_equal(changed[fitted], features[fitted])
    assert (changed[held_out, place] > 10).all()


def test_all_datasets_have_sixteen_evaluations():
    for federation in FEDERATIONS.values():
        training = federation.config.training
        assert training.rounds == 16 * training.eval_every
    variants = {name for name, each in FEDERATIONS.items() if each.variant_of is not None}
    assert variants == {"adult_dropouts", "mpls_stops_dropouts", "mnist_dropouts"}


def test_the_protocol_states_these_datasets():
    tracks = TRACKS.values()
    names = {name for track in tracks for name in (*track.federations, *track.variants)}
    names = {FEDERATIONS[name].variant_of or name for name in names}
    page = (DOCS / "protocol.md").read_text()
    table = page[page.index("<!-- datasets -->") : page.index("<!-- end -->")]
    rows = {row.split("`")[1]: row for row in table.splitlines() if "`" in row}
    assert rows.keys() == names
    for name, row in rows.items():
        seen, unseen = FROM_FILES.get(name) or embedded_clients(name)
        config = FEDERATIONS[name].config
        numbers = config.training.rounds, config.selector.cohort_size
        numbers += config.solver.steps, config.solver.batch_size
        assert f" | {seen} + {unseen} | {', '.join(map(str, numbers))} |" in row
        hidden = config.model.hidden
        assert hidden is None or f"| MLP, {hidden[0]} hidden units |" in row
        assert row.endswith(f" | {100 * FEDERATIONS[name].target:.0f}% |")


def embedded_clients(name):
    made = FEDERATIONS[name].load(None, (1300,))
    return made.seen.num_clients, made.unseen.num_clients
