"""What ``print`` says of a federation, against counting by hand."""

import io
import itertools

import jax
import numpy as np
import pytest
from conftest import make_federation

from fedjax_fair import data, results
from fedjax_fair.app.cli import main
from fedjax_fair.data.summary import label_distance, size_gini
from fedjax_fair.report import plots


def rows(federation):
    title, *lines = str(federation).splitlines()
    return title, {line[:17].strip(): line[19:] for line in lines}


def test_ten_lines_say_what_is_there_and_what_is_dropped():
    title, said = rows(data.load("digits"))
    assert (title, len(said)) == ("digits", 9)
    assert said["clients"] == "50"
    assert said["training examples"] == "1,350; 27 to 27 a client, median 27"
    assert said["unassigned"] == "92 of 1,442 training examples, 0 of 355 test examples"
    assert said["classes"] == "10; 3 to 3 a client, median 3"
    assert said["features"] == "8 x 8 x 1, uint8"
    assert said["partitions"] == "one for all runs"
    assert max(map(len, str(data.load("digits")).splitlines())) <= 80


def test_examples_that_holding_out_leaves_behind_are_dropped_too():
    labels = np.arange(20) % 2
    partition = data.from_indices({"a": range(5), "b": range(5, 15)}).split(labels, 0)
    federation = data.federate((np.eye(20), labels, partition), None, num_classes=2, name="\x1bown")
    title, said = rows(federation)
    assert title == "\\x1bown"
    assert said["training examples"] == "12; 4 to 8 a client, median 6"
    assert said["unassigned"] == "5 of 17 training examples, 0 of 3 test examples"
    kept = jax.tree.map(lambda leaf: leaf, federation)
    assert str(kept) == str(federation)


def test_groups_partitions_and_targets_are_named():
    planted = data.planted_clusters("digits")
    _, said = rows(data.load("digits", planted, seed=(3, 4)))
    assert said["clients"] == "10 in 2 planted groups of 4, 6"
    assert said["partitions"] == "2, one a run; above the first"
    assert (
        said["training examples"]
        == rows(data.load("digits", planted, seed=3))[1]["training examples"]
    )
    federation = make_federation()
    labels = np.zeros((32, 2), np.float32)
    targets = federation._replace(
        train=federation.train._replace(labels=labels), test=federation.test._replace(labels=labels)
    )
    _, said = rows(targets)
    assert said["classes"] == "none: targets of shape (2,), float32"
    assert said["label skew"].startswith("nan")


def test_what_has_no_numbers_yet_is_shown_as_it_is():
    federation = make_federation()
    shown = []
    jax.eval_shape(lambda traced: shown.append(str(traced)), federation)
    shown.append(str(jax.eval_shape(lambda data: data, federation)))
    assert all(text.startswith("FederatedData(train=") for text in shown)
    assert str(jax.tree.map(jax.numpy.asarray, federation)) == str(federation)


def test_a_mistake_is_said_instead():
    federation = make_federation()
    shifted = federation.train._replace(labels=federation.train.labels + 1)
    said = str(federation._replace(train=shifted))
    assert said.startswith(
        "small, which is no federation: train.labels span [1, 3]: expected [0, 2]"
    )


def test_skews_are_mean_distances():
    counts = np.random.default_rng(0).integers(0, 9, (5, 4))
    counts[2] = 0
    some = counts[counts.sum(axis=1) > 0]
    mix = [sum(column) / counts.sum() for column in counts.T]
    distances = [
        max(
            abs(sum(row[c] / row.sum() - mix[c] for c in event))
            for size in range(5)
            for event in itertools.combinations(range(4), size)
        )
        for row in some
    ]
    np.testing.assert_allclose(label_distance(counts), np.mean(distances))
    sizes = counts.sum(axis=1)
    gaps = [abs(one - other) for one in sizes for other in sizes]
    np.testing.assert_allclose(size_gini(sizes), np.mean(gaps) / 2 / sizes.mean())


@pytest.mark.parametrize("seed", [0, (0, 1)], ids=["one partition", "a partition a run"])
def test_a_federation_is_drawn_as_results_on_it_are(seed):
    federation = data.load("digits", data.planted_clusters("digits"), seed=seed)
    drawn, expected = (
        plots.partition(shown) for shown in (federation, results.partition_dataset(federation))
    )
    for one, other in zip(drawn.axes, expected.axes, strict=True):
        np.testing.assert_array_equal(
            one.collections[0].get_offsets(), other.collections[0].get_offsets()
        )
        np.testing.assert_array_equal(
            one.collections[0].get_widths(), other.collections[0].get_widths()
        )
    first = federation.partition(0).train
    owner, label = (
        np.repeat(np.arange(10), first.sizes),
        first.labels[first.order[: first.sizes.sum()]],
    )
    assert len(drawn.axes[0].collections[0].get_offsets()) == len(
        set(zip(owner, label, strict=True))
    )
    drawn.savefig(io.BytesIO(), dpi=40)


def test_the_command_shows_a_federation_before_any_training(tmp_path, capsys):
    picture = tmp_path / "partition.png"
    split = ["--data.partition", "dirichlet", "--data.alpha", "0.1"]
    assert main(["data", "show", *split, "-o", str(picture)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(str(data.load("digits", data.dirichlet(50, 0.1))) + "\n")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["data", "show", "--data.alpha", "0.1"]) == 2
    assert "data.alpha=0.1: nothing in this run reads it" in capsys.readouterr().err
    assert main(["data", "show", "-o", str(tmp_path / "no" / "p.png")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
