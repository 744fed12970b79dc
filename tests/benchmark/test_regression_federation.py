"""A federated dataset of a regression in the benchmark: errors, of which the largest are worst."""

import numpy as np
import pandas as pd
import pytest
from measure_tables import SEEDS, long_table, random_values
from page_contents import make_found
from short_track import finished

from fedjax_fair.app.settings.config import DataConfig, ModelConfig
from fedjax_fair.benchmark import (
    collected,
    federations,
    measure_labels,
    measures,
    protocol,
    published,
    ranking,
    report,
    report_figures,
    report_tables,
    run_cells,
    statistics,
    train,
    verdicts,
)
from fedjax_fair.benchmark.export import frame
from fedjax_fair.benchmark.populations import Pool, partition_pool
from fedjax_fair.data import iid

METHODS = ("fedavg", "local_converged", "q_fedavg")
ERROR = "mean_absolute_error"
TOTAL = 1000


def pool(_):
    """Ages; clients have other noise, so that their errors differ."""
    rng = np.random.default_rng(0)
    partition = iid(10).split(np.zeros(TOTAL, int), 0)
    owner = np.zeros(TOTAL)
    owner[partition.order] = np.repeat(np.arange(10), partition.sizes)
    x = rng.normal(size=(TOTAL, 3)).astype("float32")
    ages = 3 + x[:, :1] + (0.2 + owner[:, None] / 5) * rng.normal(size=(TOTAL, 1))
    return Pool("ages", x, ages.astype("float32"), 1, partition)


def make_federation():
    config = federations._config(ModelConfig(name="logistic"), rounds=4, cohort=4)
    config = config.__class__(
        **vars(config) | {"data": DataConfig(name="digits", target="regression")}
    )
    return federations.Federation("ages", "ages of people", config, pool, target=0.9)


@pytest.fixture(scope="module", autouse=True)
def ages():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(federations.FEDERATIONS, "ages", make_federation())
        yield


@pytest.fixture(scope="module")
def folder(ages, tmp_path_factory):
    track = protocol.Track(("ages",), METHODS, num_blocks=3)
    with finished(tmp_path_factory.mktemp("benchmark") / "embedded", track) as folder:
        yield folder


@pytest.fixture(scope="module")
def found(folder):
    return collected.collect(folder)


@pytest.mark.integration
def test_measures_are_of_errors(folder, found):
    finals = {final.method: final for final in measures.finals(folder) if final.criterion == "mean"}
    assert set(finals) == set(METHODS)
    runs = (
        found.all_runs.query("criterion == 'mean'")
        .set_index(["method", "seed", "measure"])
        .sort_index()
    )
    for method, final in finals.items():
        for seed in (1200, 1201, 1202):
            errors = final.last[f"test_{ERROR}"].sel(seed=seed).values
            value = runs.loc[method, seed]["value"]
            expected = {
                "accuracy": errors.mean(),
                "worst_10pct": errors.max(),  # Of eight clients.
                "standard_deviation": errors.std(),
                "dissimilarity": np.abs(errors[:, None] - errors)[~np.eye(8, dtype=bool)].mean(),
                "gini": np.abs(errors[:, None] - errors).mean() / (2 * errors.mean()),
            }
            for name, number in expected.items():
                assert value[name] == pytest.approx(number, rel=1e-4)
            assert "noise_floor" not in value
    errors, local = (
        finals[name].last[f"test_{ERROR}"].sel(seed=1200).values
        for name in ("fedavg", "local_converged")
    )
    share = runs.loc["fedavg", 1200]["value"]["worse_than_local_converged"]
    assert share == pytest.approx((errors > local).mean())
    unseen = finals["fedavg"].last[f"unseen_{ERROR}"].sel(seed=1201).values
    value = runs.loc["fedavg", 1201]["value"]
    assert value["unseen_accuracy"] == pytest.approx(unseen.mean(), rel=1e-5)
    assert value["unseen_worst_10pct"] == pytest.approx(unseen.max(), rel=1e-5)


@pytest.mark.integration
def test_settings_of_the_smallest_validation_errors_are_chosen(folder):
    for method in METHODS:
        own = folder / "programs" / "ages" / method
        cells = run_cells.read(own / "final.jsonl")
        tuned = run_cells.read(own / f"tuning-{cells[0]['window']}.jsonl")
        for block in range(3):
            rows = [c["validation"] | c for c in tuned if c["block"] == block]
            table = pd.DataFrame(rows).set_index("settings_hash")
            chosen = {
                criterion: cell["settings_hash"]
                for cell in cells
                for criterion in cell["criterion"]
                if cell["block"] == block
            }
            assert chosen["mean"] == table["accuracy"].idxmin()
            near = table[table["accuracy"] <= 1.01 * table["accuracy"].min()]
            assert chosen["fairest"] == near["standard_deviation"].idxmin()


@pytest.mark.integration
def test_the_constant_predictor_is_the_median(folder, found):
    data = federations.FEDERATIONS["ages"].load(None, (1200, 1201, 1202)).seen
    labels = [
        [
            test.labels[test.order[start : start + size], 0]
            for start, size in zip(test.offsets, test.sizes, strict=True)
        ]
        for test in (data.partition(run).test for run in range(3))
    ]
    errors = [
        [np.abs(part - np.median(np.concatenate(run))).mean() for part in run] for run in labels
    ]
    np.testing.assert_allclose(train.constant_errors(data), errors, rtol=1e-5)
    assert found.constants["ages", "accuracy"] == pytest.approx(np.mean(errors), rel=1e-5)
    worst = np.mean([max(run) for run in errors])
    assert found.constants["ages", "worst_10pct"] == pytest.approx(worst, rel=1e-5)


@pytest.mark.integration
def test_reports_have_the_quantity_its_unit_and_direction(folder, found, tmp_path):
    contents = report.contents(found)
    (table,) = report_tables.result_tables(contents, measure_labels.MEASURES)
    assert table.headings[1:4] == (
        "MAE (unit of the label)",
        "worst 10% (unit of the label)",
        "SD (unit of the label)",
    )
    level = contents.results.set_index("method")["accuracy"]
    shown = {row[0]: row[1].split()[0] for row in table.rows}
    assert shown["fedavg"] == f"{level['fedavg']:.3f}"
    compared = contents.differences.query("family == 'F2' and measure == 'accuracy'")
    compared = compared.set_index("method")["difference"]
    constant = found.constants["ages", "accuracy"]
    for name in METHODS[1:]:  # More is better.
        gain = (level["fedavg"] - level[name]) / constant
        assert compared[name] == pytest.approx(gain, rel=1e-4, abs=1e-9)
    ranks = contents.ranking.query("order == 'accuracy'")
    limited = found.settings.loc[found.settings["at_limit"] != "", "method"]
    assert set(ranks["method"]) == set(METHODS) - set(limited)
    assert "fedavg" in set(ranks["method"])
    assert report_figures.tradeoffs(contents).axes[0].get_ylabel() == "MAE (unit of the label)"
    (rows,) = [rows for _, rows in contents.results.groupby("federation")]
    assert level.idxmin() in report_figures.unsurpassed(rows)
    report_tables.write_tables(contents, tmp_path)
    text = (tmp_path / "results.md").read_text()
    assert "lowest mean validation MAE over clients" in text
    assert "accuracy" not in text
    text = (tmp_path / "report.md").read_text()
    assert "MAE (% of the constant predictor's MAE, + is better)" in text
    assert "SD (% of the constant predictor's MAE)" in text
    published.write(found, tmp_path / "report")
    again = published.read(tmp_path / "report", "embedded")
    assert again.constants == pytest.approx(found.constants)
    columns = frame(folder).query("stop_val == 4 and solver_name == 'fedavg'")
    assert columns["objective_accuracy"].min() > 0.5  # Errors of this noise.


def as_errors(values, federation, constant=2.0):
    """Accuracies of a federated dataset as the errors that `as_gains` makes equal numbers of."""
    errors = {name: -constant * np.asarray(runs) for name, runs in values[federation].items()}
    return {"ages": errors} | {name: runs for name, runs in values.items() if name != federation}


@pytest.mark.parametrize("federation", ["digits", "synthetic", "groups"])
def test_errors_are_ranked_as_accuracies(federation):
    names = ["fedavg", "a", "b", "c"]
    values = random_values(names, shift={"b": 2, "c": -1})
    expected = ranking.ranks(long_table(values), "accuracy", "mean", names)
    errors = long_table(as_errors(values, federation))
    gains = statistics.as_gains(errors, {("ages", "accuracy"): 2.0})
    found = ranking.ranks(gains, "accuracy", "mean", names).rename(index={"ages": federation})
    pd.testing.assert_frame_equal(found.sort_index(), expected.sort_index())
    assert statistics.as_gains(long_table(values), {}).equals(long_table(values))


@pytest.mark.parametrize("constant", [2.0, float("nan")])
def test_verdicts_are_those_of_gains(constant):
    rng = np.random.default_rng(0)
    parts = []
    for name in ("accuracy", "standard_deviation", "worst_10pct", "gini"):
        base, noise = 3 + 0.01 * rng.normal(size=len(SEEDS)), 1e-3 * rng.normal(size=len(SEEDS))
        fairer = {"fedavg": base, "fair": base + noise - (0.5 if name != "accuracy" else 0)}
        parts += [
            long_table({"ages": fairer}, name, criterion) for criterion in ("mean", "fairest")
        ]
    gains = statistics.as_gains(pd.concat(parts), {("ages", "accuracy"): constant})
    found = verdicts.differences(gains, "fedavg").set_index(["measure", "criterion"])
    assert found.verdict["standard_deviation", "fairest"] == "better"
    assert found.verdict["accuracy", "mean"] == "equivalent"
    scale = 2.0 if constant == 2.0 else 1.0
    by_measure = found["difference"].xs("fairest", level="criterion")
    assert by_measure["worst_10pct"] == pytest.approx(0.5 / scale, rel=0.01)
    assert by_measure["standard_deviation"] == pytest.approx(-0.5 / scale, rel=0.01)
    assert by_measure["gini"] == pytest.approx(-0.5, rel=0.01)


def test_errors_of_the_test_pool_have_the_unit_of_gains():
    keys = {"federation": "ages", "method": "ditto", "criterion": "mean", "measure": "accuracy"}
    constants = {f"constant_{name}": 2.0 for name in measures.CONSTANTS}
    shown = report.contents(
        make_found(
            ("ages",),
            federations=pd.DataFrame([{"federation": "ages", **constants}]),
            pool_errors=pd.DataFrame([keys | {"se": 0.1}]),
        )
    )
    (row,) = shown.differences.merge(pd.DataFrame([keys])).to_dict("records")
    assert row["se_pool"] == pytest.approx(0.05)
    assert row["difference"] == pytest.approx(0.05 / 2, rel=0.1)  # A smaller error.


def test_text_and_several_labels_have_their_quantity():
    known = federations.FEDERATIONS
    assert known["shakespeare"].quantity.name == known["digits"].quantity.name == "accuracy"
    assert federations.quantity_of("ages").name == ERROR
    assert federations.quantity_of("unknown").name == "accuracy"
    config = make_federation().config
    config = config.__class__(**vars(config) | {"data": DataConfig(target="multi_label")})
    assert known["digits"]._replace(config=config).quantity.name == "label_f1"
    made = partition_pool(pool(None), (0, 1), 50)
    assert train.constant_errors(made.seen).shape == (2, 8)
