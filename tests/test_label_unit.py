"""The unit of a regression's label, which the user gives, in results, tables, plots and pages."""

import jax
import numpy as np
import pandas as pd
import pytest

import fedjax_fair as ff
from fedjax_fair import report, results
from fedjax_fair.app.cli import main
from fedjax_fair.results.tables import final_tables

TOTAL = 80
RNG = np.random.default_rng(0)
X = RNG.normal(size=(TOTAL, 2)).astype("float32")
AGE = 40 + 9 * X[:, :1] + RNG.normal(size=(TOTAL, 1))
TOWN = np.array(list("abcd"))[np.arange(TOTAL) % 4]
TABLE = pd.DataFrame(X, columns=["u", "v"]).assign(age=AGE[:, 0], town=TOWN)
SEX = {"sex": np.array(["f", "m"])[np.arange(TOTAL) // 4 % 2]}


def of_arrays(unit, outputs=1, **settings):
    labels = np.repeat(AGE, outputs, axis=1)
    settings = {"clients": TOWN, "sensitive_features": SEX} | settings
    return ff.data.from_arrays(X, labels, label_unit=unit, **settings)


def of_table(unit, outputs=1):
    table = TABLE.assign(**{f"age{i}": TABLE.age for i in range(1, outputs)})
    names = ["age", *(f"age{i}" for i in range(1, outputs))]
    return ff.data.from_table(
        table, label=names, client="town", target="regression", label_unit=unit
    )


def trained(data, outputs=1):
    model = ff.models.as_regression(ff.models.logistic(outputs))
    parts = ff.selectors.Full(), ff.solvers.SGD(0.01, 4, steps=3), ff.aggregators.Mean()
    run = ff.fit(ff.Round(model, *parts), data, rounds=2)
    return run, results.combine({"fedavg": run.dataset})


@pytest.mark.parametrize("unit", ["years", "m/s", "10³ €"])
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("make", [of_arrays, of_table])
def test_errors_have_the_unit_of_the_user(make, outputs, unit):
    data = make(unit, outputs)
    assert f"float32, in {unit}" in str(data)
    fitted, runs = trained(data, outputs)
    for name in ("mean_absolute_error_mean_clients", "root_mean_squared_error_worst_10pct"):
        assert runs[name].units == unit
    assert runs.test_loss.units == f"({unit})^2"
    assert runs.r2_mean_clients.units == "1"
    assert fitted.evaluate(data).test_mean_absolute_error.units == unit
    for table in final_tables(runs):
        assert f"In {unit}" in table.note
        assert "unit of" not in table.note
    figures = report.standard_figures(runs)
    labels = figures["learning_curves"].axes[0].get_ylabel(), figures["distribution"].axes[0]
    assert " ".join(labels[0].split()).endswith(f"({unit})")
    assert " ".join(labels[1].get_xlabel().split()).endswith(f"({unit})")
    page = report.page(runs)
    assert f"In {unit}" in page
    assert "unit of the label" not in page
    assert "unit of age" not in page


def test_without_a_unit_it_is_that_of_the_label():
    assert trained(of_arrays(None))[1].test_mean_absolute_error.units == "unit of the label"
    assert trained(of_table(None))[1].test_mean_absolute_error.units == "unit of age"


def test_the_unit_stays_with_the_data():
    data = of_arrays("years")
    seen, unseen = ff.data.hold_out_clients(data, 0.25)
    central = ff.data.with_central_test(data, X[:5], AGE[:5])
    test = {"test_features": X, "test_labels": AGE, "test_sensitive_features": SEX}
    test |= {"clients": np.arange(TOTAL) % 2, "test_clients": np.arange(TOTAL) % 3}
    others = of_arrays("years", **test, unknown_clients="unseen").unseen
    copies = {
        "validation": ff.data.hold_out(data, 0.2),
        "seen": seen,
        "unseen": unseen,
        "owners": others,
        "central": central,
        "stacked": ff.data.stack([data, data]),
        "concatenated": ff.data.concatenate([of_arrays("years", clients=np.arange(TOTAL) % 2)] * 2),
        "mapped": jax.tree.map(np.asarray, data),
    }
    assert {name: each.label_unit for name, each in copies.items()} == dict.fromkeys(
        copies, "years"
    )
    assert jax.tree.structure(data.without_names()) == jax.tree.structure(
        of_arrays("days").without_names()
    )
    with pytest.raises(ValueError, match="label_unit"):
        ff.data.concatenate([data, of_arrays("days")])
    runs = trained(central)[1]
    assert runs.central_mean_absolute_error.units == "years"


@pytest.mark.parametrize("unit", ["", " ", "a\nb", "a\0", 3, "\ud800"])
def test_a_unit_is_text_in_one_line(unit):
    for make in (of_arrays, of_table):
        with pytest.raises(ValueError, match="label_unit="):
            make(unit)


@pytest.mark.parametrize("labels", [np.arange(TOTAL) % 2, np.arange(TOTAL) % 2 > 0])
def test_classes_have_no_unit(labels):
    with pytest.raises(ValueError, match="label_unit='years': expected the targets"):
        ff.data.from_arrays(X, labels, clients=TOWN, label_unit="years")
    with pytest.raises(ValueError, match="label_unit='years': expected the targets"):
        ff.data.from_table(TABLE.assign(age=labels), label="age", client="town", label_unit="years")


@pytest.fixture
def files(tmp_path):
    TABLE.to_csv(tmp_path / "ages.csv", index=False)
    arrays = {"features": X, "client": np.arange(TOTAL) % 4}
    np.savez(tmp_path / "ages.npz", labels=AGE, **arrays)
    np.savez(tmp_path / "classes.npz", labels=np.arange(TOTAL) % 2, **arrays)
    return tmp_path


@pytest.mark.parametrize("name", ["ages.csv", "ages.npz"])
def test_the_command_line_takes_a_unit(name, files, capsys, without_figures):
    options = ["--data.label=age", "--data.client=town"] if name.endswith("csv") else []
    options += ["--data.target=regression", "--data.label-unit", "years", "--methods=fedavg"]
    sizes = ["--training.rounds=1", "--selector.cohort-size=2", "--solver.learning-rate=0.001"]
    folder = ["--output", str(files / "runs")]
    assert (
        main(["run", "--data.file", str(files / name), *options, *sizes, "--quiet", *folder]) == 0
    )
    assert "In years or without unit" in " ".join(capsys.readouterr().out.split())
    (made,) = (files / "runs").iterdir()
    assert results.open(made).test_mean_absolute_error.units == "years"
    assert main(["show", str(made)]) == 0
    assert "In years" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        ["--data.file={}/classes.npz"],
        ["--data.file={}/ages.csv", "--data.label=town", "--data.client=u"],
        ["--data.name=digits"],
    ],
)
def test_a_unit_of_classes_is_an_error_in_one_line(options, files, capsys):
    given = [option.format(files) for option in options]
    assert main(["run", *given, "--data.label-unit=years", "--output", str(files / "runs")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "label" in error
    assert "unit" in error
