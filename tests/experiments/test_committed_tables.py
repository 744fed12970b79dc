"""Every table of the reproductions equals the one computed from its committed runs."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy import stats

from experiments.reproduction import (
    adapters_results,
    calibrate,
    counterfactual,
    cross,
    equitable,
    federated_maximization,
    groups,
    methods_results,
    selection,
    slow_devices_results,
    text,
)
from fedjax_fair.app.settings.paper_presets import PAPERS, SELECTION_TABLES

PAGES = Path(__file__).parents[2] / "docs" / "reproduction"
WRITERS = {
    "adapters": lambda file: (
        [shutil.copy(PAGES / f"adapters-{part}.csv", file.parent) for part in ("tuning", "costs")],
        adapters_results.write_tables(file),
    ),
    "calibration-cifar10": lambda file: calibrate.write_table("cifar10", file),
    "calibration-mnist": lambda file: calibrate.write_table("mnist", file),
    "counterfactual-mnist": counterfactual.write_table,
    "cross-digits": lambda file: cross.write_table("digits", file),
    "cross-mnist": lambda file: cross.write_table("mnist", file),
    "equitable-ablations-mnist": lambda file: equitable.write_ablations("mnist", file),
    "equitable-grid-cifar10": lambda file: equitable.write_grid(file),
    "equitable-grid-mnist": lambda file: equitable.write_grid(file),
    "equitable-table-cifar10": lambda file: equitable.write_table("cifar10", file),
    "equitable-table-mnist": lambda file: equitable.write_table("mnist", file),
    "federated-maximization": federated_maximization.write,
    "groups": groups.write_tables,
    "methods": lambda file: (
        shutil.copy(PAGES / "methods-tuning.csv", file.parent),
        methods_results.write_tables(file),
    ),
    "selection-cifar10": lambda file: [
        selection.write_table(name, SELECTION_TABLES["cifar10"][name], "cifar10", file)
        for name in ("table1-cifar10", "table2-cifar10", "table3-cifar10", "table4-cifar10")
    ],
    "selection-mnist": lambda file: [
        selection.write_table(name, SELECTION_TABLES["mnist"][name], "mnist", file)
        for name in ("table1", "table2", "table3", "table4", "sensitivity")
    ],
    "slow-devices": slow_devices_results.write_tables,
    "text-shakespeare": text.write_table,
}
"""Functions by file of runs, without ``-runs.csv``."""


def test_every_file_of_runs_has_a_table():
    runs = {path.name.removesuffix("-runs.csv") for path in PAGES.glob("*-runs.csv")}
    assert runs == set(WRITERS)


@pytest.mark.parametrize("name", WRITERS)
def test_tables_equal_those_of_their_runs(name, tmp_path, monkeypatch):
    monkeypatch.setattr(Figure, "savefig", lambda *arguments, **settings: None)  # Takes longest.
    file = shutil.copy(PAGES / f"{name}-runs.csv", tmp_path)
    WRITERS[name](Path(file))
    written = [path for path in tmp_path.iterdir() if path.suffix in (".csv", ".md")]
    assert len(written) > 1
    for path in written:
        assert path.read_text() == (PAGES / path.name).read_text(), path.name


COLUMNS = {
    "dissimilarity": "client_dissimilarity",
    "class_based": "client_dissimilarity_class_based",
    "accuracy": "accuracy_mean_clients",
}


@pytest.mark.parametrize("data", SELECTION_TABLES)
def test_adjusted_p_values_equal_an_independent_computation(data):
    """Pandas and SciPy only.

    The tables above are written by the functions that computed them, so that an error in these
    would be in both.
    """
    runs = pd.read_csv(PAGES / f"selection-{data}-runs.csv")
    compared = 0
    for name, config in SELECTION_TABLES[data].items():
        file = PAGES / f"{name if name.endswith(data) else f'{name}-{data}'}.csv"
        if not file.exists():
            continue
        table = pd.read_csv(file).set_index(["moment", "method"])
        rows = runs[runs["algorithm"].isin(config.methods)]
        shared = rows.groupby("seed")["algorithm"].nunique() == len(config.methods)
        rows = rows[rows["seed"].isin(shared.index[shared])]
        for moment, last in {"last": 1, "last 5": 5}.items():
            ends = rows[rows["round"] > rows["round"].max() - last]
            for column, variable in COLUMNS.items():
                values = ends.pivot_table(variable, "seed", "algorithm")
                for baseline in ("fedavg", "divfl"):
                    others = [method for method in config.methods if method != baseline]
                    raw = [_p_value(values[other] - values[baseline]) for other in others]
                    shown = table.loc[moment].loc[others, f"{column} less {baseline} p"]
                    expected = np.where(np.array(raw) == 1, np.nan, _holm(raw))
                    np.testing.assert_allclose(shown, expected, rtol=0, atol=6e-4)
                    compared += len(others)
    assert compared > 200


def _p_value(differences):
    equal = np.abs(differences).max() < 1e-9
    return 1.0 if equal else float(stats.ttest_1samp(differences, 0).pvalue)


def _holm(p_values):
    """Adjusts by the definition: the largest of (m - j) p_j over the smaller p values."""
    ordered = sorted(p_values)
    scaled = [min(1, (len(ordered) - j) * p) for j, p in enumerate(ordered)]
    return [max(scaled[: ordered.index(p) + 1]) for p in p_values]


def test_methods_with_more_seeds_have_a_second_table(tmp_path):
    runs = pd.read_csv(PAGES / "equitable-table-mnist-runs.csv")
    once = runs["algorithm"].str.startswith(("gifair", "fairfed"))
    file = tmp_path / "equitable-table-mnist-runs.csv"
    runs[~once | (runs["seed"] == 0)].to_csv(file, index=False)
    equitable.write_table("mnist", file)
    of_all = pd.read_csv(tmp_path / "equitable-table-mnist.csv")
    of_some = pd.read_csv(tmp_path / "equitable-table-mnist-several.csv")
    assert set(of_all["method"]) - set(of_some["method"]) == {"gifair", "fairfed"}
    assert of_all["sigma sd"].isna().all()
    assert (tmp_path / "equitable-table-mnist-several-sigma_acc.png").exists()
    committed = pd.read_csv(PAGES / "equitable-table-mnist.csv").set_index(["method", "moment"])
    means = of_some.set_index(["method", "moment"])["sigma"]
    pd.testing.assert_series_equal(means, committed.loc[means.index, "sigma"])


def test_presets_have_the_best_settings_of_the_grid():
    chosen = equitable.chosen(PAGES / "equitable-grid-mnist-runs.csv")
    assert chosen["fairfed"] == "prox=0.01,learning_rate=0.3,beta=0.0"  # This is FedProx.
    chosen["fairfed"] = "prox=0.01,learning_rate=0.3,beta=0.01"
    methods = PAPERS["equitable-mnist"].config.methods
    assert list(methods) == [
        f"{name.partition(':')[0]}:{chosen[name.partition(':')[0]]}" for name in methods
    ]
    # On CIFAR-10 the step size was chosen for FedProx.
    rate = equitable.chosen(PAGES / "equitable-grid-cifar10-runs.csv")["fedprox"].split("=")[-1]
    expected = [name.replace("learning_rate=0.3", f"learning_rate={rate}") for name in methods]
    assert list(PAPERS["equitable-cifar10"].config.methods) == expected


def test_presets_have_the_calibrated_rounds():
    runs = PAGES / "calibration-mnist-runs.csv"
    chosen = calibrate.choose(calibrate.summarize(runs), "mnist")
    for config in SELECTION_TABLES["mnist"].values():
        assert config.training.rounds == chosen


def test_tables_without_runs_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Figure, "savefig", lambda *arguments, **settings: None)
    runs = pd.read_csv(PAGES / "selection-cifar10-runs.csv")
    few = runs[runs["algorithm"].isin(SELECTION_TABLES["cifar10"]["table1-cifar10"].methods)]
    few.to_csv(tmp_path / "selection-cifar10-runs.csv", index=False)
    arguments = ["--data", "cifar10", "--only-write", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["selection", *arguments])
    selection.main()
    assert {path.name for path in tmp_path.glob("*.md")} == {"table1-cifar10.md"}
    (line,) = (row for row in capsys.readouterr().out.splitlines() if "table3" in row)
    absent = line.removeprefix("table3-cifar10: no table, because there are no runs of ")
    trained = {"fedavg", "divfl", "unionfl:window=5"}
    assert (
        set(absent.split(", "))
        == {*SELECTION_TABLES["cifar10"]["table3-cifar10"].methods} - trained
    )
