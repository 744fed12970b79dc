"""`compare` names the settings that runs differ in, and its rows agree."""

import numpy as np
import pytest
import xarray as xr

from fedjax_fair import results
from fedjax_fair.app.cli import main
from fedjax_fair.results.comparison import comparison_table

pytestmark = pytest.mark.usefixtures("without_figures")

SMALL = ["run", "digits", "--data.clients=6", "--selector.cohort-size=2", "--solver.steps=1"]
SMALL += ["--model.name=logistic", "--training.eval-every=1"]
SHORT = ["--methods=fedavg", "--training.rounds=1"]
SEEDS = ["--training.seeds", "0", "1", "2"]
ACCURACY = "accuracy_mean_clients"


def run(folder, *options):
    assert main([*SMALL, *options, f"--output={folder}"]) == 0
    (path,) = folder.iterdir()
    return str(path)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return run(tmp_path_factory.mktemp("first"), *SHORT, *SEEDS)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--training.rounds=2"], "training.rounds: 1 (A), 2 (B)"),
        (["--solver.learning-rate=0.02"], "solver.learning_rate: "),
        (["--data.partition=iid"], "data.partition: "),
        (["--training.seeds", "0", "1"], None),
        (["--methods=fedprox"], None),
    ],
    ids=["rounds", "a setting of a role", "a name", "seeds", "methods"],
)
def test_settings_that_differ_are_named(options, said, first, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    seeds = [] if "--training.seeds" in options else SEEDS
    other = run(tmp_path, *SHORT, *options, *seeds)
    capsys.readouterr()
    if options[-1] == "--data.partition=iid":  # Other partitions cannot be compared by seed.
        assert main(["compare", first, other]) == 2
        return
    assert main(["compare", first, other, "--metrics", ACCURACY]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    if said is None:
        assert "The runs differ" not in shown
    else:
        assert said in shown
        assert f"A: {first}; B: {other}" in shown


def accuracy_of(**runs):
    values = {name: np.array(each, float)[:, None] for name, each in runs.items()}
    data = {ACCURACY: (("algorithm", "seed", "round"), np.stack(list(values.values())))}
    coords = {"algorithm": list(values), "seed": [3, 4, 5, 6], "round": [1]}
    return xr.Dataset(data, coords)


NAN = float("nan")


@pytest.mark.parametrize(
    ("runs", "seeds", "left_out"),
    [
        ({"a": [1, 2, 3, 9], "b": [2, 4, 6, NAN]}, [0, 1, 2], "6"),
        ({"a": [1, NAN, 3, 9], "b": [2, 4, 6, NAN]}, [0, 2], "4, 6"),
        ({"a": [1, 2, 3, 9], "b": [2, 4, 6, 1], "c": [NAN, 1, 2, 3]}, [1, 2, 3], "3"),
        ({"a": [1, 2, 3, 9], "b": [2, 4, 6, 1]}, [0, 1, 2, 3], ""),
        ({"a": [1, 2, NAN, NAN], "b": [2, 4, 1, 1], "c": [NAN] * 4}, [0, 1], "5, 6"),
    ],
)
def test_means_and_differences_are_over_the_same_seeds(runs, seeds, left_out):
    compared = results.compare(accuracy_of(**runs), ACCURACY)
    assert compared.seeds_left_out == left_out
    baseline = np.mean([runs["a"][seed] for seed in seeds])
    assert compared.baseline_mean.item() == pytest.approx(baseline)
    for name in compared.algorithm.values:
        own = compared.sel(algorithm=name)
        if np.isnan(own["mean"]):
            continue
        assert own["mean"].item() == pytest.approx(np.mean([runs[name][seed] for seed in seeds]))
        assert own.difference.item() == pytest.approx(own["mean"].item() - baseline)
    note = comparison_table(compared, 1).note
    assert ("without seed" in note) == bool(left_out)


def test_a_baseline_without_runs_leaves_all_seeds():
    compared = results.compare(accuracy_of(a=[NAN] * 4, b=[2, 4, 6, 1]), ACCURACY)
    assert compared.seeds_left_out == ""
    assert compared["mean"].values.tolist() == [3.25]
    assert np.isnan(compared.difference.values).all()
