"""The summary that ``print`` shows of a federated dataset."""

import io
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_federation

from fedjax_fair import data, results
from fedjax_fair.app.cli import main
from fedjax_fair.data.federated import label_distance
from fedjax_fair.numerics.inequality import gini
from fedjax_fair.report import plots


def summary(dataset):
    title, *lines = str(dataset).splitlines()
    return title, {line[:17].strip(): line[19:] for line in lines}


def test_summary_of_digits():
    title, lines = summary(data.load("digits"))
    assert (title, len(lines)) == ("digits", 9)
    assert lines["clients"] == "50"
    assert lines["training examples"] == "1,350; 27 to 27 per client, median 27"
    assert lines["unassigned"] == "92 of 1,442 training examples, 0 of 355 test examples"
    assert lines["classes"] == "10; 3 to 3 per client, median 3"
    assert lines["features"] == "8 x 8 x 1, uint8"
    assert lines["partitions"] == "one for all runs"
    assert max(map(len, str(data.load("digits")).splitlines())) <= 80


def test_unassigned_examples_are_counted_after_holding_out():
    labels = np.arange(20) % 2
    partition = data.from_indices({"a": range(5), "b": range(5, 15)}).split(labels, 0)
    train = (np.eye(20), labels, partition)
    dataset = data.federate(train, None, num_classes=2, name="\x1bown")
    title, lines = summary(dataset)
    assert title == "\\x1bown"
    assert lines["training examples"] == "12; 4 to 8 per client, median 6"
    assert lines["unassigned"] == "5 of 17 training examples, 0 of 3 test examples"
    assert str(jax.tree.map(lambda leaf: leaf, dataset)) == str(dataset)


def test_summary_of_groups_partitions_and_targets():
    planted = data.planted_clusters("digits")
    _, lines = summary(data.load("digits", planted, seed=(3, 4)))
    assert lines["clients"] == "10 in 2 groups of 4, 6"
    assert lines["partitions"] == "2, one per run; above the first"
    _, first = summary(data.load("digits", planted, seed=3))
    assert lines["training examples"] == first["training examples"]
    dataset = make_federation()
    labels = np.zeros((32, 2), np.float32)
    targets = dataset._replace(
        train=dataset.train._replace(labels=labels), test=dataset.test._replace(labels=labels)
    )
    _, lines = summary(targets)
    assert lines["classes"] == "none: targets of shape (2,), float32"
    assert lines["label skew"].startswith("nan")


def test_traced_and_abstract_arrays_have_no_summary():
    dataset = make_federation()
    texts = []
    jax.eval_shape(lambda traced: texts.append(str(traced)), dataset)
    texts.append(str(jax.eval_shape(lambda data: data, dataset)))
    assert all(text.startswith("FederatedData(train=") for text in texts)
    assert str(jax.tree.map(jax.numpy.asarray, dataset)) == str(dataset)


def test_summary_of_invalid_data_is_the_error():
    dataset = make_federation()
    shifted = dataset.train._replace(labels=dataset.train.labels + 1)
    assert str(dataset._replace(train=shifted)).startswith(
        "small, an invalid federated dataset: train.labels span [1, 3]: expected [0, 2]"
    )


def test_skews_by_brute_force():
    counts = np.random.default_rng(0).integers(0, 9, (5, 4))
    counts[2] = 0
    overall = [sum(column) / counts.sum() for column in counts.T]
    distances = [
        max(
            abs(sum(row[c] / row.sum() - overall[c] for c in event))
            for size in range(5)
            for event in itertools.combinations(range(4), size)
        )
        for row in counts[counts.sum(axis=1) > 0]
    ]
    np.testing.assert_allclose(label_distance(counts), np.mean(distances))
    sizes = counts.sum(axis=1)
    gaps = [abs(one - other) for one in sizes for other in sizes]
    np.testing.assert_allclose(
        gini(jnp.asarray(sizes, jnp.float32)), np.mean(gaps) / 2 / sizes.mean(), rtol=1e-6
    )


@pytest.mark.parametrize("seed", [0, (0, 1)], ids=["one partition", "one partition per run"])
def test_plot_of_data_equals_plot_of_results(seed):
    dataset = data.load("digits", data.planted_clusters("digits"), seed=seed)
    figure, expected = (
        plots.partition(plotted) for plotted in (dataset, results.partition_dataset(dataset))
    )
    for one, other in zip(figure.axes, expected.axes, strict=True):
        np.testing.assert_array_equal(
            one.collections[0].get_offsets(), other.collections[0].get_offsets()
        )
        np.testing.assert_array_equal(
            one.collections[0].get_widths(), other.collections[0].get_widths()
        )
    first = dataset.partition(0).train
    owner, label = (
        np.repeat(np.arange(10), first.sizes),
        first.labels[first.order[: first.sizes.sum()]],
    )
    assert len(figure.axes[0].collections[0].get_offsets()) == len(
        set(zip(owner, label, strict=True))
    )
    figure.savefig(io.BytesIO(), dpi=40)


@pytest.mark.filterwarnings("ignore:.*to reach the minimum size")
def test_data_show_prints_and_plots_the_data(tmp_path, capsys):
    picture = tmp_path / "partition.png"
    split = ["--data.partition", "dirichlet", "--data.alpha", "0.1"]
    assert main(["data", "show", *split, "-o", str(picture)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(str(data.load("digits", data.dirichlet(50, 0.1))) + "\n")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["data", "show", "--data.alpha", "0.1"]) == 2
    message = "--data.alpha has no effect: data.partition='classes_per_client'"
    assert message in capsys.readouterr().err
    assert main(["data", "show", "-o", str(tmp_path / "no" / "p.png")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
