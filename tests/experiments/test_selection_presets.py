"""The presets of published tables, and tables of their runs."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy import stats

from experiments.reproduction import calibrate, paper, runs, selection, tables
from experiments.reproduction.presets import PAPERS, SELECTION_TABLES
from fedjax_fair.app.build import build
from fedjax_fair.app.cli import main
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.config import DataConfig, ModelConfig, SolverConfig, TrainingConfig
from fedjax_fair.results import class_based
from fedjax_fair.training.fit import fit

ALL_TABLES = [(data, name) for data, tables in SELECTION_TABLES.items() for name in tables]


@pytest.mark.parametrize(("data", "name"), ALL_TABLES)
def test_tables_have_methods_with_reported_values(data, name):
    config = SELECTION_TABLES[data][name]
    reported = set(paper.SELECTION[data])
    assert name.startswith("sensitivity") or set(config.methods) <= reported
    assert {"fedavg", "divfl"} < set(config.methods)
    assert PAPERS[name].config == config
    assert (config.data.name, config.data.partition_per_seed) == (data, True)
    # Algorithm 1 averages with 1 / kappa; the rest was chosen on random selection alone.
    assert config.aggregator.weights == "uniform"
    rate, rounds = {"mnist": (0.01, 21), "cifar10": (0.03, 31)}[data]
    assert (config.solver.learning_rate, config.training.rounds) == (rate, rounds)
    assert (config.solver.batch_size, config.solver.steps, config.solver.epochs) == (50, 50, None)


@pytest.mark.parametrize(("data", "name"), ALL_TABLES)
def test_every_method_of_a_table_can_be_built(data, name):
    small = smaller(SELECTION_TABLES[data][name])
    ready = build(presets.resolve(small))
    assert list(ready.rounds) == list(small.methods)


def smaller(config):
    """The same comparison on small data."""
    return replace(
        config,
        data=DataConfig(clients=20, partition_per_seed=True),
        model=ModelConfig(name="logistic"),
        solver=SolverConfig(learning_rate=0.1, batch_size=10, steps=2),
        training=TrainingConfig(rounds=6, eval_every=1, seeds=(0, 1, 2)),
    )


def test_only_missing_runs_are_trained(tmp_path, capsys, monkeypatch):
    config = smaller(SELECTION_TABLES["mnist"]["table1"])
    file = tmp_path / "new" / "runs.csv"
    monkeypatch.setattr(runs.os, "sched_getaffinity", lambda process: {0, 1})
    runs.run_missing(config, ("fedavg",), (0,), file)
    assert capsys.readouterr().out.startswith("fedavg, seeds (0,)")
    runs.run_missing(config, ("fedavg", "divfl"), (0, 1), file)
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.rsplit(":", 1)[0] for line in lines) == [
        "divfl, seeds (0, 1)",
        "fedavg, seeds (1,)",
    ]
    assert [path.name for path in file.parent.iterdir()] == ["runs.csv"]
    both = runs.collect(("fedavg", "divfl"), file)
    assert both.sizes == {"algorithm": 2, "seed": 2, "round": 7}
    assert both.algorithm.values.tolist() == ["fedavg", "divfl"]
    # Only seeds of both methods are comparable.
    runs.run_missing(config, ("fedavg",), (2,), file)
    assert runs.collect(("fedavg", "divfl"), file).seed.values.tolist() == [0, 1]
    assert runs.collect(("fedavg",), file).seed.values.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="expected at least one seed of unionfl"):
        runs.collect(("unionfl",), file)


def test_the_file_has_the_metrics_of_a_run(tmp_path):
    config = replace(smaller(SELECTION_TABLES["mnist"]["table1"]), methods=("fedavg",))
    runs.run_missing(config, ("fedavg",), (3,), tmp_path / "runs.csv")
    saved = runs.collect(("fedavg",), tmp_path / "runs.csv").isel(algorithm=0, seed=0)
    own = replace(config, training=replace(config.training, seeds=(3,)))
    ready = build(presets.resolve(own))
    # The same compiled function as above.
    settings = {"eval_every": 1, "train_loss": False, "mesh": ready.mesh}
    run = fit(ready.rounds["fedavg"], ready.data, rounds=6, seeds=(3,), **settings).dataset
    run = run.merge(class_based(run))
    for metric in runs.SUMMARIES:
        np.testing.assert_allclose(saved[metric], run[metric].isel(seed=0), rtol=1e-5)
    np.testing.assert_allclose(
        saved.cohort_loss[1:], run.cohort_loss.isel(seed=0).mean("slot"), rtol=1e-5
    )
    chosen = [[int(one) for one in cohort.split()] for cohort in saved.cohort[1:].values]
    np.testing.assert_array_equal(chosen, run.cohort_clients.isel(seed=0))


def made_up(accuracy, dissimilarity):
    """Results of two methods, three seeds and six rounds."""
    shape = ("algorithm", "seed", "round")
    return xr.Dataset(
        {
            "accuracy_mean_clients": (shape, accuracy),
            "client_dissimilarity": (shape, dissimilarity),
            "client_dissimilarity_class_based": (shape, 0.75 * dissimilarity),
            "other_selections": (shape, np.full((2, 3, 6), 0.5)),
            "bonus_open": (shape, np.full((2, 3, 6), np.nan)),
            "accuracy_standard_deviation": (shape, dissimilarity / 2),
            "cohort_loss": (shape, np.full((2, 3, 6), 0.25)),
        },
        coords={"algorithm": ["fedavg", "divfl"], "seed": range(3)},
    )


def test_the_summary_has_means_and_differences_over_seeds():
    rng = np.random.default_rng(0)
    accuracy, dissimilarity = rng.uniform(0.5, 1, (2, 2, 3, 6))
    measured = made_up(accuracy, dissimilarity)
    table = tables.summarize(measured, selection.LAYOUT, paper.SELECTION["mnist"])
    table = table.set_index(["method", "moment"])
    last = table.loc[("divfl", "last")]
    np.testing.assert_allclose(last["accuracy"], 100 * accuracy[1, :, -1].mean())
    np.testing.assert_allclose(last["accuracy sd"], 100 * accuracy[1, :, -1].std(ddof=1))
    np.testing.assert_allclose(last["dissimilarity paper"], 8.89)
    five = table.loc[("divfl", "last 5")]
    means = 100 * dissimilarity[:, :, 1:].mean(axis=-1)
    np.testing.assert_allclose(five["dissimilarity"], means[1].mean())
    gaps = means[1] - means[0]
    np.testing.assert_allclose(five["dissimilarity less fedavg"], gaps.mean())
    # Half a 95 % interval of three values is 4.303 standard errors.
    half = 4.3027 * gaps.std(ddof=1) / np.sqrt(3)
    np.testing.assert_allclose(
        five["dissimilarity less fedavg high"] - gaps.mean(), half, rtol=1e-4
    )
    assert five["dissimilarity less divfl"] == 0
    text = tables.markdown(table.reset_index(), 3, selection.LAYOUT)
    assert f"{five['dissimilarity']:.2f}" in text
    assert "[8.89 ± 0.59]" in text
    alone = stats.ttest_rel(means[1], means[0]).pvalue
    np.testing.assert_allclose(five["dissimilarity less fedavg p"], alone, rtol=1e-6)
    np.testing.assert_allclose(five["dissimilarity less fedavg paper"], 8.89 - 9.16)
    # The paper's values have the sampling noise of test sets.
    assert np.isnan(five["class_based less fedavg paper"])
    assert f"| divfl | {five['class_based less fedavg']:+.2f} (" in text


def test_tables_are_presets_of_the_experiments_only(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["run", "table1", "--help"], presets.PRESETS | PAPERS)
    assert not stop.value.code
    assert "--solver.learning-rate" in capsys.readouterr().out
    assert main(["run", "table1"]) == 2
    assert "preset='table1'" in capsys.readouterr().err
    assert not presets.PRESETS.keys() & PAPERS.keys()


def test_effects_of_the_bonus_are_counted():
    shape = ("algorithm", "seed", "round")
    cohorts = [["", "0 1 2 3", "4 5 6 7"], ["", "3 2 1 0", "4 5 8 9"]]
    unsaturated = [[np.nan] * 3, [np.nan, 0.25, 0.5]]
    measured = selection.with_choices(
        xr.Dataset(
            {
                "cohort": (shape, np.array(cohorts, object)[:, None]),
                "selection_unsaturated": (shape, np.array(unsaturated)[:, None]),
            },
            coords={"algorithm": ["divfl", "subtrunc"], "seed": [0], "round": [0, 1, 2]},
        )
    )
    # The same cohort in another order is no other selection; then two of four are others.
    np.testing.assert_array_equal(measured.other_selections.isel(seed=0, round=0), [0, 0.25])
    # Only in the second round could more than the first of four selections add to the bonus.
    np.testing.assert_array_equal(measured.bonus_open.isel(seed=0, round=0), [np.nan, 0.5])


def test_calibration_uses_training_examples_only():
    config = smaller(SELECTION_TABLES["mnist"]["table1"])
    data = build(presets.resolve(config)).data
    held = runs.held_out(data)
    np.testing.assert_array_equal(held.test.sizes, data.train.sizes // 5)
    for run in range(3):
        mine, whole = held.partition(run), data.partition(run)
        for client in range(20):
            own = [
                part.order[part.offsets[client] :][: part.sizes[client]]
                for part in (mine.train, mine.test, whole.train)
            ]
            assert sorted([*own[0], *own[1]]) == sorted(own[2])
    np.testing.assert_array_equal(held.test.features, data.train.features)
    assert held.label_skew_only


def test_the_calibrated_rounds_are_closest_to_the_reported_accuracy(tmp_path):
    file = tmp_path / "calibration-mnist-runs.csv"
    rows = [
        {"algorithm": "fedavg", "seed": seed, "round": round,
         "accuracy_mean_clients": 0.7299 + 0.01 * round + shift}
        for seed, shift in ((100, -0.02), (101, 0.02)) for round in range(20)
    ]  # fmt: skip
    pd.DataFrame(rows).to_csv(file, index=False)
    table = calibrate.summarize(file)
    # The mean of five evaluations is that of the middle one, two rounds before.
    np.testing.assert_allclose(table.loc[12, "accuracy"], 82.99)
    assert calibrate.choose(table, "mnist") == 12
