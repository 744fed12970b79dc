"""Tables, comparisons and variables of sensitive groups, by each feature and for every task."""

from functools import cache

import numpy as np
import pytest
from sklearn import metrics as sklearn

import fedjax_fair as ff
from fedjax_fair import report, results
from fedjax_fair.app.cli import main
from fedjax_fair.results import sensitive_groups
from fedjax_fair.results.comparison import comparison_table
from fedjax_fair.results.tables import sensitive_group_tables

TOTAL = 240
PLACE = np.arange(TOTAL)
SEX = np.array(["f", "m"])[PLACE % 2]
RACE = np.array(["b", "w", "z"])[PLACE // 2 % 3]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(TOTAL, 3)).astype("float32")
NOISY = X + RNG.normal(size=X.shape)
TOKENS = RNG.integers(0, 5, (TOTAL, 5))
logistic = ff.models.logistic
TASKS = {
    "regression": (X, NOISY[:, :1], ff.models.as_regression(logistic(1))),
    "multi_label": (X, (NOISY > 0).astype(float), ff.models.as_multi_label(logistic(3))),
    "classes": (X, (NOISY[:, 0] > 0).astype(int), logistic(2)),
    "three classes": (X, np.digitize(NOISY[:, 0], [-1, 1]), logistic(3)),
    "text": (TOKENS[:, :-1], TOKENS[:, 1:], ff.models.char_lstm(5, layers=1, width=4)),
}


IS_POSITIVE = TASKS["classes"][1] == 1
CLIENTS = {
    "mixed": PLACE // 2 % 5,
    "by sex": PLACE % 2,
    "by sex and race": PLACE % 2 + 2 * (PLACE // 2 % 3),
    "positives apart": np.where((SEX == "f") & IS_POSITIVE, 9, PLACE // 2 % 3),
    "two": (PLACE >= TOTAL // 2).astype(int),
}
CHOSEN = {
    "all": slice(None),
    "no male z": ~((SEX == "m") & (RACE == "z")),
    "no positive z": ~(IS_POSITIVE & (RACE == "z")),
}


@cache
def trained(task, clients="mixed", features=("sex", "race"), chosen="all", seeds=(0, 1)):
    """Results of two methods that differ in their learning rate, and the data."""
    (x, y, model), kept = TASKS[task], CHOSEN[chosen]
    people = {"sex": SEX[kept], "race": RACE[kept]}
    data = ff.data.from_arrays(
        x[kept], y[kept], clients=CLIENTS[clients][kept], test_fraction=0.4,
        sensitive_features={name: people[name] for name in features},
    )  # fmt: skip
    runs = {}
    for name, rate in (("slow", 0.01), ("fast", 0.3)):
        parts = ff.selectors.Full(), ff.solvers.SGD(rate, 4, steps=3), ff.aggregators.Mean()
        runs[name] = ff.fit(ff.Round(model, *parts), data, rounds=1, seeds=seeds)
    return results.combine({name: run.dataset for name, run in runs.items()}), runs, data


@pytest.mark.parametrize(
    ("task", "clients", "lines", "words"),
    [
        ("classes", "by sex", [1] * 4, "Pooled people only: no client has"),
        ("three classes", "by sex", [1] * 4, "Pooled people only: no client has"),
        ("classes", "by sex and race", [1] * 4, "Pooled people only: no client has"),
        ("classes", "positives apart", [3, 1, 3, 3], "missing where no client has"),
        ("classes", "mixed", [3] * 4, "second: mean over the clients for which"),
    ],
)
def test_a_line_of_clients_is_left_out_where_no_client_has_two_groups(task, clients, lines, words):
    runs, _, _ = trained(task, clients, features=("sex",))
    table, _ = sensitive_group_tables(runs)
    assert words in table.note
    for row in table.rows[:-2]:
        cells = [cell.split("\n") for cell in row[1:]]
        assert [len(cell) for cell in cells] == lines
        assert not {"-", "", "nan"} & {line for cell in cells for line in cell}


def test_the_third_line_names_the_client_with_the_largest_difference():
    runs, _, _ = trained("classes", "mixed", features=("sex",))
    table, _ = sensitive_group_tables(runs)
    last = runs.isel(round=-1).mean("seed")
    for row, name in zip(table.rows, runs["algorithm"].values, strict=False):
        gaps = last["client_demographic_parity_difference"].sel(algorithm=name)
        largest = gaps.argmax("client").item()
        assert row[1].split("\n")[2] == f"{100 * gaps.max().item():.1f} {largest}"


@pytest.mark.parametrize("clients", ["mixed", "by sex", "positives apart"])
def test_the_last_rows_count_clients_with_a_difference_and_people_of_the_smallest_cell(clients):
    runs, _, data = trained("classes", clients, features=("sex",))
    *_, number, smallest = sensitive_group_tables(runs)[0].rows
    rows, owners = data.test.order, np.repeat(np.arange(data.num_clients), data.test.sizes)
    people = np.zeros((data.num_clients, 2, 2), int)  # By sex and label
    np.add.at(people, (owners, data.test.sensitive_features[rows, 0], data.test.labels[rows]), 1)
    by_sex = people.sum(axis=2, keepdims=True)
    cells = (by_sex, people[:, :, 1:], people, by_sex)  # Of each criterion
    for place, of_rate in enumerate(cells, start=1):
        has_gap = ((of_rate > 0).sum(axis=1) == 2).any(axis=1)
        assert number[place] == str(has_gap.sum())
        expected = [of_rate.sum(axis=0).min()]
        expected += [of_rate[has_gap][of_rate[has_gap] > 0].min()] if has_gap.any() else []
        assert smallest[place] == "\n".join(map(str, expected))


def expected_errors(task, predicted, labels):
    if task == "regression":
        return {
            "mean_absolute_error": sklearn.mean_absolute_error(labels, predicted),
            "root_mean_squared_error": sklearn.root_mean_squared_error(labels, predicted),
            "r2": sklearn.r2_score(labels, predicted),
        }
    if task == "multi_label":
        f1 = sklearn.f1_score(labels, predicted, average="macro")
        return {"label_f1": f1, "label_accuracy": (labels == predicted).mean()}
    return {"accuracy": (labels == predicted).mean()}


@pytest.mark.parametrize("task", list(TASKS))
def test_values_of_each_feature_are_of_the_pooled_examples_of_its_groups(task):
    runs, fitted, data = trained(task)
    last = runs.isel(algorithm=1, seed=0, round=-1)
    assert last.sensitive_value.values.tolist() == ["sex=f", "sex=m", "race=b", "race=w", "race=z"]
    rows = data.test.order
    predicted = np.asarray(fitted["fast"].predict(data.test.features[rows])[0])
    labels, codes = data.test.labels[rows], data.test.sensitive_features[rows]
    groups = [("sex", 0, 2), ("race", 1, 3)]
    for feature, column, number in groups:
        for code in range(number):
            own = codes[:, column] == code
            for name, value in expected_errors(task, predicted[own], labels[own]).items():
                values = sensitive_groups.values_by_feature(last, name, [feature])
                np.testing.assert_allclose(values[code], value, rtol=1e-4, err_msg=name)
        losses = sensitive_groups.values_by_feature(last, "loss", [feature])
        parts = last.sensitive_group_loss * last.sensitive_group_examples.sum("client")
        parts = parts.values.reshape(2, 3).sum(axis=1 - column)
        sizes = np.bincount(codes[:, column]) * (4 if task == "text" else 1)
        np.testing.assert_allclose(losses, parts / sizes, rtol=1e-5)
        gap = sensitive_groups.gap_by_feature(last, "loss_parity_difference", feature)
        np.testing.assert_allclose(gap, np.ptp(parts / sizes), rtol=1e-3)
        if task == "text":
            values = sensitive_groups.values_by_feature(last, "perplexity", [feature])
            np.testing.assert_allclose(values, np.exp(parts / sizes), rtol=1e-5)


@pytest.mark.parametrize("task", list(TASKS))
def test_gaps_of_all_groups_are_ranges_of_their_values(task):
    runs, _, _ = trained(task, features=("sex",))
    last = runs.isel(round=-1)
    names = ["loss", *(["perplexity"] if task == "text" else [])]
    for name in names:
        values = last[f"sensitive_group_{name}"]
        expected = values.max("sensitive_group") - values.min("sensitive_group")
        np.testing.assert_allclose(last[f"{name}_parity_difference"], expected, rtol=1e-4)
    assert "sensitive_value" not in runs.coords  # The groups are those of the feature.
    assert last.loss_parity_difference.attrs["units"] == last.sensitive_group_loss.units


TITLES = {
    "regression": "Mean absolute error",
    "multi_label": "F1",
    "classes": "Test accuracy",
    "text": "Test perplexity",
}


@pytest.mark.parametrize("task", list(TITLES))
def test_tables_and_pages_have_each_feature_first(task):
    runs, _, _ = trained(task)
    tables = [
        table for table in sensitive_group_tables(runs) if not table.title.startswith("Group")
    ]
    by = [table.title.rpartition(" by ")[2] for table in tables]
    assert by == ["sex (custom)", "race (custom)", "sex x race (custom)"]
    assert all(table.title.startswith(TITLES[task]) for table in tables)
    assert tables[1].headings == ("method", "b", "w", "z", "difference")
    quantity = results.task_metrics.primary(runs)
    values = sensitive_groups.values_by_feature(runs.isel(round=-1), quantity.name, ["race"])
    values = values.values[1] * (100 if task == "classes" else 1)
    shown = [float(cell.split()[0]) for cell in tables[1].rows[1][1:]]
    gap = np.ptp(values, axis=-1).mean()
    np.testing.assert_allclose(shown, [*values.mean(axis=0), gap], rtol=0.02)
    losses = sensitive_groups.values_by_feature(runs.isel(round=-1), "loss", ["race"])
    shown = [float(cell.split("\n")[1].split()[0]) for cell in tables[1].rows[1][1:4]]
    np.testing.assert_allclose(shown, losses.values[1].mean(axis=0), rtol=0.02)
    page = report.page(runs)
    places = [page.index(f"<h2>{table.title}</h2>") for table in tables]
    assert places == sorted(places)


@pytest.mark.parametrize("task", list(TITLES))
def test_methods_are_compared_by_gaps_of_a_feature(task, tmp_path, capsys):
    runs, _, _ = trained(task)
    quantity = results.task_metrics.primary(runs)
    for name, of in ((quantity.parity, quantity.name), ("loss_parity_difference", "loss")):
        values = sensitive_groups.values_by_feature(runs.isel(round=-1), of, ["race"])
        gaps = np.ptp(values.values, axis=-1).mean(axis=-1)
        compared = results.compare(runs, f"{name}:race")
        assert compared.difference.item() == pytest.approx(gaps[1] - gaps[0], rel=1e-3)
        table = comparison_table(compared, 1)
        assert "groups by race" in table.title
    results.save(runs, tmp_path / "results.nc")
    main(["compare", str(tmp_path / "results.nc"), "--columns", "mean"])
    text = " ".join(capsys.readouterr().out.split())
    places = [text.index(f"difference between groups by {name}") for name in ("sex", "race")]
    if task == "classes":
        places[0] = text.index("of accuracy between groups by sex")
    assert places == sorted(places)


@pytest.mark.parametrize("name", ["demographic_parity_difference", "equalized_odds_difference"])
def test_rates_are_compared_by_a_feature(name):
    runs, _, _ = trained("classes")
    expected = sensitive_groups.gaps(runs.isel(round=-1), ["sex"])[name].mean("seed")
    compared = results.compare(runs, f"{name}:sex")
    assert compared.difference.item() == pytest.approx(float(expected[1] - expected[0]))
    assert comparison_table(compared, 1).title.endswith("by sex, in %: differences to slow")


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("loss_parity_difference:age", "'sex', 'race'"),
        ("test_loss_mean_clients:sex", "before the colon"),
        ("demographic_parity_difference:sex", "before the colon"),
        ("no_parity_difference:sex", "before the colon"),
    ],
)
def test_unknown_gaps_of_a_feature_are_errors(metric, words):
    runs, _, _ = trained("regression")
    with pytest.raises(ValueError, match=words):
        results.compare(runs, metric)
    with pytest.raises(ValueError, match="metric="):
        results.compare(runs.drop_dims("sensitive_group"), metric)


@pytest.mark.parametrize(
    ("task", "chosen", "by_race", "of_all"),
    [
        ("classes", "all", "", ""),
        ("classes", "no positive z", "1 of 6", "2 of 12"),
        ("classes", "no male z", "", "2 of 12"),
        ("three classes", "no male z", "", "3 of 18"),
        ("regression", "no male z", "", "1 of 6"),
        ("text", "no male z", "", "1 of 6"),
    ],
)
def test_cells_without_examples_are_counted_beside_gaps(task, chosen, by_race, of_all):
    runs, _, data = trained(task, "two", chosen=chosen)
    by_class = "classes" in task
    tables = sensitive_group_tables(runs)[:: 2 if by_class else 1]
    of = "cells of a group and a class" if by_class else "groups"
    for table, most in zip(tables[1:], (by_race, of_all), strict=True):
        expected = f"No test examples, hence left out: {most} {of} of pooled people"
        assert (expected in table.note) == bool(most)
        assert ("of pooled people" in table.note) == bool(most)
    name = "equalized_odds_difference" if by_class else "loss_parity_difference"
    for metric, most in ((name, of_all), (f"{name}:race", by_race)):
        note = comparison_table(results.compare(runs, metric), 1).note
        assert (f"{most} {of} of pooled people" in note) == bool(most)
    labels = data.test.labels[data.test.order] if by_class else np.zeros(len(data.test.order), int)
    codes = data.test.sensitive_features[data.test.order]
    groups = codes[:, 0] * 3 + codes[:, 1]
    sizes = np.zeros((data.num_clients, 6, labels.max() + 1), int)
    owners = np.repeat(np.arange(data.num_clients), data.test.sizes)
    np.add.at(sizes, (owners, groups, labels), 1)
    found = sensitive_groups.describe_empty_cells(runs, by_class=by_class)
    empty = int((sizes == 0).sum())
    assert (f"{empty} of {sizes.size} {of} of clients" in found) == (by_class and empty > 0)


def test_a_group_without_test_examples_has_no_column():
    runs, _, _ = trained("regression", chosen="no male z")
    table = sensitive_group_tables(runs)[-1]
    assert table.headings == ("method", "f, b", "f, w", "f, z", "m, b", "m, w", "difference")
    assert not [cell for row in table.rows for cell in row if "-" in cell.split("\n")]
    earlier = runs.drop_dims("sensitive_value")  # Results of earlier versions.
    assert [table.title for table in sensitive_group_tables(earlier)] == [table.title]
