"""The same trainings here and in other libraries: what they start from, and the page of results."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.benchmarks.peers import accuracy, environment, trainings
from experiments.benchmarks.peers.programs.shared.trainings import (
    Settings,
    split_by_client,
)
from fedjax_fair.benchmark.federations import FEDERATIONS

PAGE = Path(accuracy.FILE).with_suffix(".md")
ALL = Settings(batch_size=10**6, steps=3, learning_rate=0.2, prox=0.0, seed=0)
SEED = 5
"""With it no hidden unit is within 1e-5 of zero, where rounding would switch its gradient."""


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    file = tmp_path_factory.mktemp("peers") / "synthetic.npz"
    trainings.write("synthetic", SEED, file)
    return dict(np.load(file))


@pytest.fixture(scope="module")
def runs():
    return pd.read_csv(accuracy.FILE, dtype={"minibatch": str})


def numpy_gradient(layers, x, y):
    hidden = x @ layers["layer00.kernel"] + layers["layer00.bias"]
    active = np.maximum(hidden, 0)
    logits = active @ layers["layer01.kernel"] + layers["layer01.bias"]
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    slope = (odds / odds.sum(axis=1, keepdims=True) - np.eye(10)[y]) / len(y)
    below = (slope @ layers["layer01.kernel"].T) * (hidden > 0)
    return {
        "layer00.bias": below.sum(axis=0),
        "layer00.kernel": x.T @ below,
        "layer01.bias": slope.sum(axis=0),
        "layer01.kernel": active.T @ slope,
    }


@pytest.mark.parametrize("prox", [0.0, 2.0])
def test_trainings_here_equal_numpy(prox, arrays):
    some = arrays | {"cohorts": arrays["cohorts"][:4]}
    trained = trainings.train(some, ALL._replace(prox=prox))
    layers = {name: np.float64(arrays[name]) for name in trained}
    clients = split_by_client(arrays)
    for cohort in some["cohorts"]:
        local = []
        for x, y in (clients[client] for client in cohort):
            own = layers
            for _ in range(ALL.steps):
                slope = numpy_gradient(own, np.float64(x), y)
                own = {
                    name: w - 0.2 * (slope[name] + prox * (w - layers[name]))
                    for name, w in own.items()
                }
            local.append(own)
        sizes = arrays["sizes"][cohort]
        layers = {
            name: np.average([own[name] for own in local], axis=0, weights=sizes) for name in layers
        }
    for name, values in layers.items():
        np.testing.assert_allclose(trained[name], values, atol=1e-5)
        assert abs(trained[name] - arrays[name]).max() > 1e-2


def test_files_have_the_partition_of_the_benchmark(arrays):
    data = FEDERATIONS["synthetic"].load(None, (SEED,)).seen
    for prefix, part in {"": data.train, "test_": data.test}.items():
        np.testing.assert_array_equal(arrays[f"{prefix}sizes"], part.sizes[0])
    owned = [set(arrays[f"{prefix}rows"].tolist()) for prefix in ("", "test_")]
    assert not owned[0] & owned[1]
    assert [len(rows) for rows in owned] == [arrays["sizes"].sum(), arrays["test_sizes"].sum()]
    assert len({tuple(cohort) for cohort in arrays["cohorts"].tolist()}) > 1
    assert all(len(set(cohort)) == 6 for cohort in arrays["cohorts"].tolist())


def test_accuracies_are_those_of_the_test_examples_of_each_client(arrays):
    layers = {name: values for name, values in arrays.items() if name.startswith("layer")}
    parts = np.split(arrays["test_rows"], np.cumsum(arrays["test_sizes"])[:-1])
    expected = []
    for rows in parts:
        hidden = arrays["features"][rows] @ layers["layer00.kernel"] + layers["layer00.bias"]
        logits = np.maximum(hidden, 0) @ layers["layer01.kernel"] + layers["layer01.bias"]
        expected.append((logits.argmax(axis=1) == arrays["labels"][rows]).mean())
    np.testing.assert_allclose(trainings.client_accuracies(arrays, layers), expected, atol=1e-6)


def test_comparisons_are_paired_by_seed_with_the_mean_of_the_trainings_here(runs):
    table = accuracy.compare(runs).set_index(["federation", "method", "library"])
    for (federation, method), own in runs[runs["minibatch"] != "all"].groupby(
        ["federation", "method"]
    ):
        here = own[own["library"] == accuracy.HERE]
        assert len(here) == accuracy.DRAWS * len(accuracy.SEEDS)
        pfl = own[own["library"] == "pfl"]
        assert pfl["seed"].tolist() == list(accuracy.SEEDS)
        means = [here.loc[here["seed"] == seed, "accuracy"].mean() for seed in accuracy.SEEDS]
        test = stats.ttest_1samp(100 * (pfl["accuracy"].to_numpy() - means), 0)
        row = table.loc[(federation, method, "pfl")]
        ends = row[["accuracy_low", "accuracy_high"]].to_numpy(float)
        np.testing.assert_allclose(ends, test.confidence_interval(0.95), rtol=1e-6)


def test_the_page_has_the_table_and_the_numbers_of_the_file(runs):
    page, table = re.sub(r"\s+", " ", PAGE.read_text("utf8")), accuracy.compare(runs)
    assert accuracy.markdown(table) in PAGE.read_text("utf8")
    libraries = table[table["library"].isin(["fedjax", "pfl", "flower"])]
    assert f"at most {np.ceil(1e6 * libraries['rounding'].max()):.0f}e-06 of" in page
    ends = [
        libraries[[f"{name}_low", f"{name}_high"]] for name in ("accuracy", "standard_deviation")
    ]
    assert all((each.iloc[:, 0] <= 0).all() and (each.iloc[:, 1] >= 0).all() for each in ends)
    assert f"all {2 * len(libraries)} intervals" in page
    assert f"ends {max(each.abs().max().max() for each in ends):.1f} points from 0" in page
    example = table[table["library"] == accuracy.EXAMPLE].set_index("federation")
    less = -example.loc["digits", ["accuracy_difference", "accuracy_high", "accuracy_low"]]
    assert "{:.1f} points less accurate on digits (95% CI {:.1f} to {:.1f})".format(*less) in page
    assert f"by up to {100 * example['rounding'].max():.0f}% of" in page
    full = runs[(runs["minibatch"] == "all") & (runs["library"] != accuracy.EXAMPLE)]
    assert (full.groupby(["federation", "method"])["accuracy"].nunique() == 1).all()


def test_the_page_names_the_versions_and_tests_that_exist():
    page = PAGE.read_text("utf8")
    for name, (peer, package) in {
        "FedJAX": ("fedjax", "fedjax"),
        "pfl": ("pfl", r"pfl\[pytorch\]"),
        "Flower": ("flower", r"flwr\[simulation\]"),
    }.items():
        pinned = (environment.PROGRAMS / f"{peer}_peer.txt").read_text()
        (version,) = re.findall(rf"^{package}==(.*)$", pinned, re.M)
        assert f"{name} {version}" in page
    root = PAGE.parents[2]
    named = re.findall(r"`(test_\w+)`", page)
    files = "".join((root / file).read_text("utf8") for file in re.findall(r"`(tests/\S*)`", page))
    assert len(named) == 4
    assert all(f"def {name}(" in files for name in named)
