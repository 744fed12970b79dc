"""Reports of every task and of little data: no dash, no empty chart, the unit of the label."""

import re

import numpy as np
import pandas as pd
import pytest
from opened_pages import look, needs_browser

import fedjax_fair as ff
from fedjax_fair import report, results

WIDTHS = (390, 1280)
CLASSES = ("<=50K", ">50K-100K", ">100K & $")
UNITS = {
    "task regression": "unit of age-in-years",
    "task classes": "%",
    "task labels": "",
    "task two clients": "%",
}


def trained(data, model, seeds=(0, 1), rounds=4, **settings):
    parts = ff.selectors.Uniform(2), ff.solvers.SGD(0.02, 10, epochs=1)
    method = ff.Round(model, *parts, ff.aggregators.Mean())
    settings = {"rounds": rounds, "eval_every": 2, "seeds": seeds} | settings
    other = method.replace(solver=ff.solvers.SGD(0.05, 10, epochs=1))
    fitted = {name: ff.fit(one, data, **settings) for name, one in (("a-b", method), ("c", other))}
    return results.combine({name: one.dataset for name, one in fitted.items()})


def make_table(rng):
    total = 160
    table = pd.DataFrame(rng.normal(size=(total, 2)), columns=["x-1", "x-2"])
    table["age-in-years"] = 40 + 5 * table["x-1"] + rng.normal(size=total)
    table["income"] = np.array(CLASSES)[np.digitize(table["x-2"], [-0.4, 0.4])]
    table["sex"] = np.where(np.arange(total) // 4 % 2, "non-binary", "f")
    return table.assign(town=np.array(["St-Denis", "007", "Aix", "-5"])[np.arange(total) % 4])


@pytest.fixture(scope="module")
def runs():
    rng = np.random.default_rng(0)
    table, people = make_table(rng), {"client": "town", "sensitive_features": ["sex"]}
    ages = ff.data.from_table(
        table.drop(columns="income"), label="age-in-years", target="regression", **people
    )
    incomes = ff.data.from_table(table.drop(columns="age-in-years"), label="income", **people)
    x = rng.normal(size=(60, 3)).astype("float32")
    tags, owners = (x + rng.normal(size=x.shape) > 0).astype(float), np.arange(60) % 2
    tagged = ff.data.from_arrays(x, tags, clients=np.arange(60) % 5)
    tested = {"test_features": x[:9], "test_labels": tags[:9, 0], "test_clients": [0] * 9}
    tested["test_labels"] = tested["test_labels"].astype(int)
    two = ff.data.from_arrays(x, tags[:, 0].astype(int), clients=owners, **tested)
    logistic = ff.models.logistic
    return {
        "task regression": trained(ages, ff.models.as_regression(logistic(1))),
        "task classes": trained(incomes, logistic(3)),
        "task labels": trained(tagged, ff.models.as_multi_label(logistic(3)), seeds=(0,)),
        "task two clients": trained(two, logistic(2), seeds=(0,), rounds=2).isel(algorithm=[0]),
    }


@pytest.fixture(scope="module")
def seen(runs, tmp_path_factory):
    pages = {name: report.page(run) for name, run in runs.items()}
    return look(pages, WIDTHS, tmp_path_factory.mktemp("tasks"))


@needs_browser
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", list(UNITS))
def test_pages_have_no_dash_and_no_empty_chart(seen, name, width):
    page = seen[f"{name} {width}"]
    did = page["did"]
    assert page["problems"] == page["beyond"] == page["beyondAfterwards"] == did["empty"] == []
    assert {"learning", "busy", "distribution", "partition", "client"} <= set(did["charts"])
    assert did["smallest"] >= 11
    assert did["uncolored"] == 0
    words = re.compile(r"^\W*[-\N{MINUS SIGN}]$|: -$|\bnan\b|NaN|undefined|Infinity")
    assert not [line for line in did["lines"] if words.search(line)]
    unit = UNITS[name]
    axes = [axis for axis in did["axes"] if "mean over clients" in axis or "of a client" in axis]
    assert len(axes) == 2
    assert all(axis.endswith(f"({unit})") if unit else "(" not in axis for axis in axes)


@needs_browser
def test_names_are_those_of_the_user(seen):
    """A search for a name finds it: hyphens stay hyphens, and classes have their names."""
    regression, classes = (
        "\n".join(seen[f"task {name} 1280"]["did"]["lines"]) for name in ("regression", "classes")
    )
    for name in ("a-b", "St-Denis", "007", "age-in-years", "non-binary"):
        assert name in regression
    assert set(seen["task classes 1280"]["did"]["classes"]) == set(CLASSES)
    assert not re.search(r"class \d", classes)
    assert "St-Denis" in classes
    assert "-5" in classes
    assert "accuracy" not in regression.casefold()
    assert "Group fairness by sex" in classes


def test_results_have_the_names_of_classes(runs):
    classes = runs["task classes"]
    assert sorted(classes["class"].values.tolist()) == sorted(CLASSES)
    assert "class" not in runs["task two clients"].coords
    labels = report.plots.partition(classes).axes[0].get_yticklabels()
    assert {label.get_text().replace(r"\$", "$") for label in labels} == set(CLASSES)


@pytest.mark.parametrize("name", list(UNITS))
def test_figures_have_values_and_the_unit(runs, name):
    figures = report.standard_figures(runs[name])
    assert {"learning_curves", "distribution", "participation", "partition"} <= set(figures)
    assert ("dissimilarity" in figures) == ("tradeoff" in figures) == (name != "task two clients")
    for figure in figures.values():
        figure.canvas.draw()
        for axes in figure.axes:
            assert axes.has_data()
            assert not [one for one in axes.texts if one.get_text() == "no values"]
    unit = UNITS[name]
    labels = [figures["learning_curves"].axes[0].get_ylabel()]
    labels += [figures["distribution"].axes[0].get_xlabel()]
    for label in (" ".join(label.split()) for label in labels):
        assert label.endswith(f"({unit})") if unit else "(" not in label


def test_the_largest_errors_are_the_worst_tenth(runs):
    run = runs["task regression"]
    lines = report.plots.distribution(run).axes[0].lines
    dots = [line for line in lines if len(line.get_xdata()) == 1]
    last = run["test_mean_absolute_error"].isel(round=-1)
    for dot, values in zip(dots, last.values, strict=True):
        assert dot.get_xdata()[0] == pytest.approx(np.sort(values.ravel())[-1])  # Of eight values.
        assert dot.get_ydata()[0] == pytest.approx(0.9)


@pytest.mark.parametrize("methods", [1, 2])
@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("evaluations", [1, 2, 3])
def test_few_points_are_drawn(runs, methods, seeds, evaluations):
    """With two evaluations a learning curve is a line, from the first one."""
    run = runs["task classes"].isel(
        algorithm=slice(methods), seed=slice(seeds), round=slice(-evaluations, None)
    )
    for figure in report.standard_figures(run).values():
        figure.canvas.draw()
    lines = report.plots.learning_curves(run).axes[0].lines
    assert len(lines) == methods
    assert all(
        len(line.get_xdata()) == min(evaluations, 3 if methods == 1 else 2) for line in lines
    )
    for one in (run, run.assign(client_dissimilarity=run["client_dissimilarity"] * np.nan)):
        assert "<section>" in report.page(one)


def test_a_variable_without_values_is_said_to_have_none(runs):
    run = runs["task two clients"]
    figure = report.plots.learning_curves(run, "client_dissimilarity")
    assert [note.get_text() for note in figure.axes[0].texts] == ["no values"]
    assert figure.legends == []
    for draw in (report.selection.tradeoff, report.plots.distribution):
        draw(run * np.nan if draw is report.plots.distribution else run).canvas.draw()
