"""A central test set is measured once at each evaluation, next to the clients' test examples."""

import json
import re

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import fedjax_fair as ff
from fedjax_fair.app.cli import main
from fedjax_fair.results.datasets import by_model
from fedjax_fair.results.tables import final_tables

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(90, 4)).astype(np.float32)
CLASSES = (FEATURES[:, 0] > 0).astype(int) + (FEATURES[:, 1] > 0)
CENTRAL = RNG.normal(size=(31, 4)).astype(np.float32), RNG.integers(0, 3, 31)
ROUND = {
    "selector": ff.selectors.Uniform(2),
    "solver": ff.solvers.SGD(0.1, batch_size=10, epochs=1),
    "aggregator": ff.aggregators.Mean(),
}


def federation(features=FEATURES, labels=CLASSES, central=CENTRAL, **settings):
    data = ff.data.from_arrays(features, labels, clients=np.arange(90) % 5, **settings)
    return data if central is None else ff.data.with_central_test(data, *central)


def method(model=None, **roles):
    return ff.Round(model or ff.models.logistic(3), **ROUND | roles)


def expected(fitted, central=CENTRAL):
    """Accuracy and loss of the last models, by their predictions."""
    features, labels = central
    probabilities = fitted.predict_proba(features)
    loss = -np.log(np.take_along_axis(probabilities, labels[None, :, None], -1)).mean((1, 2))
    return (fitted.predict(features) == labels).mean(1), loss


@pytest.mark.parametrize("data", ["plain", "partitions", "validation", "images"])
def test_it_is_measured_with_the_models_of_each_seed(data):
    central = CENTRAL
    if data == "images":
        pixels = RNG.integers(0, 256, (31, 2, 2), dtype=np.uint8)
        central = pixels[..., None], CENTRAL[1]
        own = federation(RNG.integers(0, 256, (90, 2, 2), dtype=np.uint8), central=central)
    elif data == "partitions":
        tests = {"test_features": FEATURES[:30], "test_labels": CLASSES[:30]}
        parts = [
            ff.data.from_arrays(FEATURES, CLASSES, clients=ff.data.iid(5), **tests, seed=seed)
            for seed in (0, 1)
        ]
        own = ff.data.with_central_test(ff.data.stack(parts), *CENTRAL)
    else:
        own = federation(validation_fraction=0.2 if data == "validation" else 0.0)
    fitted = ff.fit(method(), own, rounds=3, seeds=(4, 1), eval_every=2)
    last = fitted.dataset.isel(round=-1)
    accuracy, loss = expected(fitted, central)
    np.testing.assert_allclose(last.central_accuracy, accuracy, rtol=1e-6)
    np.testing.assert_allclose(last.central_loss, loss, rtol=1e-5)
    assert fitted.dataset.central_accuracy.sizes == {"seed": 2, "round": 3}
    assert fitted.dataset.central_loss.attrs["units"] == "nat"


def test_it_changes_nothing_else():
    with_set = ff.fit(method(), federation(), rounds=2, seeds=(0, 1)).dataset
    without = ff.fit(method(), federation(central=None), rounds=2, seeds=(0, 1)).dataset
    xr.testing.assert_identical(with_set.drop_vars(["central_accuracy", "central_loss"]), without)


def test_hyperparameters_and_personalized_models():
    """Methods in a list have their own models; those of clients have no central accuracy."""
    rates = [method(solver=ff.solvers.SGD(rate, 10, epochs=1)) for rate in (0.01, 0.5)]
    several = ff.fit(rates, federation(), rounds=2, seeds=(0, 1)).dataset
    for seed, rate in enumerate(rates):
        alone = ff.fit(rate, federation(), rounds=2, seeds=(seed,)).dataset
        np.testing.assert_allclose(several.central_loss[seed], alone.central_loss[0], rtol=1e-5)
    tuned = ff.fit(method(solver=ff.solvers.Ditto(ROUND["solver"], 0.1)), federation(), rounds=2)
    models = by_model(tuned.dataset).isel(round=-1)
    assert np.isfinite(models.central_accuracy.values[0]).all()
    assert np.isnan(models.central_accuracy.values[1]).all()


def test_tables_show_it_once():
    results = ff.results.combine(
        {name: ff.fit(method(), federation(), rounds=1).dataset for name in ("one", "two")}
    )
    first, *others = final_tables(results)
    assert first.headings[-1] == "central\ntest"
    shown = f"{100 * results.central_accuracy.values[0, :, -1].mean():.1f}"
    assert [row[-1].partition("\n")[0].partition(" ")[0] for row in first.rows[:2]] == [shown] * 2
    assert "test examples of no client" in first.note
    assert "central" not in str(others)
    assert "central" in ff.report.page(results)


def test_it_is_part_of_what_checkpoints_are_compared_by(tmp_path):
    data = federation()
    ff.fit(method(), data, rounds=1, checkpoints=tmp_path)
    other = ff.data.with_central_test(data, CENTRAL[0] + 1, CENTRAL[1])
    for changed in (other, federation(central=None)):
        with pytest.raises(ValueError, match="central_test"):
            ff.fit(method(), changed, rounds=2, checkpoints=tmp_path)
    resumed = ff.fit(method(), data, rounds=2, checkpoints=tmp_path).dataset
    whole = ff.fit(method(), data, rounds=2).dataset
    np.testing.assert_array_equal(resumed.central_accuracy, whole.central_accuracy)


@pytest.mark.parametrize(
    ("central", "message"),
    [
        ((CENTRAL[0][:, :3], CENTRAL[1]), r"central_test.features \(31, 3\) of float32: expected"),
        ((CENTRAL[0].astype(int), CENTRAL[1]), "central_test.features .* of int32: expected"),
        ((CENTRAL[0], CENTRAL[1] + 1), r"central_test.labels span \[1, 3\]: expected \[0, 2\]"),
        ((CENTRAL[0], CENTRAL[1][:-1]), "central test features of shape .*: expected one for each"),
        ((CENTRAL[0], np.ones((31, 3))), "central_test.labels .* expected labels like train's"),
        ((CENTRAL[0][:0], CENTRAL[1][:0]), "expected one or more examples, got none"),
        ((CENTRAL[0] * np.nan, CENTRAL[1]), "central_test.features: 124 values are not finite"),
    ],
)
def test_sets_that_do_not_fit_are_refused(central, message):
    with pytest.raises(ValueError, match=message):
        federation(central=central)


TABLE = pd.DataFrame(FEATURES, columns=list("abcd")).assign(
    job=np.where(CLASSES > 1, "cook", "clerk"),
    label=np.array(["low", "mid", "top"])[CLASSES],
    client=[f"c{i % 5}" for i in range(90)],
)
ROWS = TABLE.drop(columns="client").iloc[:20]


@pytest.mark.parametrize("kind", ["columns", "arrays"])
def test_a_table_is_encoded_as_the_training_rows(kind):
    settings = {"label": "label", "client": "client"}
    table, rows = TABLE, ROWS
    if kind == "arrays":
        table, rows = TABLE.assign(x=[*FEATURES]), ROWS.assign(x=[*FEATURES[:20]])
        settings["features"] = "x"
    made = ff.data.from_table(table, **settings, central_test=rows)
    np.testing.assert_array_equal(made.central_test.labels, CLASSES[:20])
    features = FEATURES[:20] if kind == "arrays" else made.encoding.encode(rows)
    np.testing.assert_array_equal(made.central_test.features, features)
    with_test = ff.data.from_table(table, **settings, central_test=rows, test=table)
    assert with_test.test.sizes.tolist() == [18] * 5
    with pytest.raises(ValueError, match="central_test: no column 'label'"):
        ff.data.from_table(table, **settings, central_test=rows.drop(columns="label"))
    with pytest.raises(ValueError, match="20 test labels are of 1 classes that no training"):
        ff.data.from_table(table, **settings, central_test=rows.assign(label="max"))


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_a_central_test_set_on_the_command_line(kind, tmp_path, capsys):
    words = ["run", "--methods=fedavg", "--training.rounds=1", "--training.seeds=0", "--quiet"]
    words += [f"--output={tmp_path / 'out'}"]
    if kind == "csv":
        TABLE.to_csv(tmp_path / "a.csv", index=False)
        ROWS.to_csv(tmp_path / "b.csv", index=False)
        words += ["--data.label=label", "--data.client=client"]
        count = 20
    else:
        np.savez(tmp_path / "a.npz", features=FEATURES, labels=CLASSES, client=np.arange(90) % 5)
        tests = dict(zip(("x_test", "y_test"), CENTRAL, strict=True))
        np.savez(tmp_path / "b.npz", x_train=FEATURES, y_train=CLASSES, **tests)
        count = 31
    words += [f"--data.file={tmp_path}/a.{kind}", f"--data.central-test={tmp_path}/b.{kind}"]
    assert main(words) == 0
    assert "test examples of no client" in " ".join(capsys.readouterr().out.split())
    (folder,) = (tmp_path / "out").iterdir()
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    results = ff.results.open(folder)
    logged = [json.loads(line)["central_accuracy"] for line in lines]
    np.testing.assert_allclose(logged, results.central_accuracy.values.ravel(), rtol=1e-6)
    assert np.allclose(results.central_accuracy * count % 1, 0, atol=1e-4)
    assert main(["data", "show", *words[-2:], *([] if kind == "npz" else words[-4:-2])]) == 0
    assert f"central test       {count} examples of no client" in capsys.readouterr().out
    assert main(["data", "show", "--data.name=digits", words[-1]]) == 2
    # Other features than those of the named data set.
    said = capsys.readouterr().err
    assert re.search(r"data\.central_test=.*expected (an \.npz|features like)", said)


def test_a_regression_is_measured_by_its_errors():
    targets = (FEATURES @ np.float32([1, 2, 0, 1]))[:, None]
    central = CENTRAL[0], CENTRAL[0][:, :1] * 3
    data = ff.data.from_arrays(FEATURES, targets, clients=np.arange(90) % 5)
    model = ff.models.as_regression(ff.models.logistic(1))
    fitted = ff.fit(
        method(model), ff.data.with_central_test(data, *central), rounds=3, seeds=(0, 1)
    )
    errors = fitted.predict(central[0]).reshape(2, -1) - central[1][:, 0]
    last = fitted.dataset.isel(round=-1)
    np.testing.assert_allclose(last.central_mean_absolute_error, abs(errors).mean(1), rtol=1e-5)
    variance = central[1].var()
    np.testing.assert_allclose(last.central_r2, 1 - (errors**2).mean(1) / variance, rtol=1e-4)
    assert "central_accuracy" not in last
    assert last.central_mean_absolute_error.attrs["better"] == "lower"
    methods, *_ = final_tables(by_model(fitted.dataset.expand_dims(algorithm=["fedavg"])))
    assert methods.headings[-1] == "central\ntest"
    assert float(methods.rows[0][-1].split()[0]) == pytest.approx(abs(errors).mean(), rel=0.02)
