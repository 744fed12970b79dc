"""What results show of a task: regression, several labels, text, and metrics of the user."""

import json

import numpy as np
import pytest
import xarray as xr
from sklearn import metrics as sklearn

import fedjax_fair as ff
from fedjax_fair import results
from fedjax_fair.metrics import predictions
from fedjax_fair.results import task_metrics
from fedjax_fair.results.comparison import comparison_table
from fedjax_fair.results.tables import final_tables
from fedjax_fair.roles import ClientMetric, Metric

CLIENTS, TOTAL = 12, 240
OWNERS = np.arange(TOTAL) % CLIENTS
SEX = np.array(["f", "m"])[np.arange(TOTAL) // CLIENTS % 2]
ERROR = "mean_absolute_error"


def make_data(outputs=1, kind="regression", **settings):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(TOTAL, 3)).astype("float32")
    y = x @ rng.normal(size=(3, outputs)) * 5 + 3 * rng.normal(size=(TOTAL, outputs))
    labels = {"regression": y + 40, "multi_label": (y > 1).astype(float), "classes": None}[kind]
    if labels is None:
        labels = (y[:, 0] > 1).astype(int)
    return ff.data.from_arrays(
        x, labels, clients=OWNERS, sensitive_features={"sex": SEX}, **settings
    )


def method(model, rate=0.05, solver=None):
    sgd = ff.solvers.SGD(rate, batch_size=4, steps=5)
    return ff.Round(model, ff.selectors.Uniform(6), solver or sgd, ff.aggregators.Mean())


def regression(outputs=1, loss="squared"):
    return ff.models.as_regression(ff.models.logistic(outputs), loss)


def predicted_by_client(fitted, data, **client):
    """Predictions and labels of the first seed for the test examples of each client."""
    test = data.test
    for i in range(data.num_clients):
        rows = test.order[test.offsets[i] : test.offsets[i] + test.sizes[i]]
        given = dict.fromkeys(client, i)
        yield fitted.predict(test.features[rows], **given)[0], np.asarray(test.labels[rows]), rows


@pytest.fixture(scope="module")
def data():
    return make_data(validation_fraction=0.25, test_fraction=0.5)


@pytest.fixture(scope="module")
def fitted(data):
    return ff.fit(method(regression()), data, rounds=4, eval_every=2, seeds=(0, 1))


def test_errors_of_clients_pooled_examples_and_groups_equal_scikit_learn(data, fitted):
    parts = list(predicted_by_client(fitted, data))
    final = fitted.dataset.isel(seed=0, round=-1)
    functions = {
        ERROR: sklearn.mean_absolute_error,
        "root_mean_squared_error": sklearn.root_mean_squared_error,
        "r2": sklearn.r2_score,
    }
    outputs, labels = (np.concatenate(each) for each in list(zip(*parts, strict=True))[:2])
    rows = np.concatenate([rows for *_, rows in parts])
    codes = np.asarray(data.test.sensitive_features)[rows, 0]
    for name, function in functions.items():
        each = np.array([function(true, predicted) for predicted, true, _ in parts])
        worst = np.sort(each)[-2:] if name != "r2" else np.sort(each)[:2]  # A tenth of 12, up.
        groups = [function(labels[codes == code], outputs[codes == code]) for code in (0, 1)]
        pairs = np.abs(each[:, None] - each)[~np.eye(CLIENTS, dtype=bool)]
        expected = {
            f"test_{name}": each,
            f"{name}_mean_clients": each.mean(),
            f"{name}_worst_10pct": worst.mean(),
            f"{name}_standard_deviation": each.std(),
            f"{name}_dissimilarity": pairs.mean(),
            f"{name}_pooled": function(labels, outputs),
            f"sensitive_group_{name}": groups,
            f"{name}_parity_difference": abs(groups[0] - groups[1]),
        }
        for variable, value in expected.items():
            np.testing.assert_allclose(final[variable], value, rtol=2e-4, err_msg=variable)
    squared = (outputs - labels)[:, 0] ** 2
    losses = [squared[codes == code].mean() for code in (0, 1)]
    np.testing.assert_allclose(
        final["loss_parity_difference"], abs(losses[0] - losses[1]), rtol=1e-3
    )
    differences = [
        abs(np.subtract(*(np.abs(p - y)[codes_of == code].mean() for code in (0, 1))))
        for p, y, own in parts
        if len(set(codes_of := np.asarray(data.test.sensitive_features)[own, 0])) == 2
    ]
    np.testing.assert_allclose(
        final[f"{ERROR}_parity_difference_mean_clients"], np.mean(differences), rtol=1e-3
    )
    assert not [name for name in fitted.dataset if "accuracy" in str(name)]
    assert len({f"validation_{name}_worst_10pct" for name in functions} - set(final)) == 0


@pytest.mark.parametrize(
    ("loss", "units"),
    [("squared", "(unit of the label)^2"), ("absolute", "unit of the label")],
)
def test_errors_and_losses_have_the_unit_of_the_label(data, loss, units):
    run = ff.fit(method(regression(loss=loss), 0.01), data, rounds=1).dataset
    assert run.test_loss.units == run.test_loss_mean_clients.units == units
    assert run.train_loss.units == run.sensitive_group_loss.units == units
    assert run[f"test_{ERROR}"].units == run[f"{ERROR}_worst_10pct"].units == "unit of the label"
    assert run.test_r2.units == "1"
    assert "nat" not in {values.attrs.get("units") for name, values in run.items()
                         if not str(name).startswith("cohort")}  # fmt: skip


def test_several_targets_have_errors_each():
    data = make_data(3)
    fitted = ff.fit(method(regression(3)), data, rounds=2)
    parts = list(predicted_by_client(fitted, data))
    outputs, labels = (np.concatenate(each) for each in list(zip(*parts, strict=True))[:2])
    final = fitted.dataset.isel(seed=0, round=-1)
    each = sklearn.mean_absolute_error(labels, outputs, multioutput="raw_values")
    np.testing.assert_allclose(final[f"output_{ERROR}"], each, rtol=1e-4)
    np.testing.assert_allclose(final[f"{ERROR}_pooled"], each.mean(), rtol=1e-4)
    r2 = sklearn.r2_score(labels, outputs, multioutput="raw_values")
    np.testing.assert_allclose(final["output_r2"], r2, rtol=1e-3)
    np.testing.assert_allclose(final["r2_pooled"], r2.mean(), rtol=1e-3)


def test_several_labels_have_f1_and_accuracy_each():
    data = make_data(4, "multi_label")
    fitted = ff.fit(method(ff.models.as_multi_label(ff.models.logistic(4)), 0.5), data, rounds=3)
    parts = list(predicted_by_client(fitted, data))
    outputs, labels = (np.concatenate(each) for each in list(zip(*parts, strict=True))[:2])
    final = fitted.dataset.isel(seed=0, round=-1)
    f1 = sklearn.f1_score(labels, outputs, average=None)
    np.testing.assert_allclose(final["output_label_f1"], f1, rtol=1e-5)
    np.testing.assert_allclose(final["label_f1_pooled"], f1.mean(), rtol=1e-5)
    right = (outputs == labels).mean(axis=0)
    np.testing.assert_allclose(final["output_label_accuracy"], right, rtol=1e-5)
    of_clients = [
        np.nanmean(sklearn.f1_score(y, p, average=None, zero_division=np.nan)) for p, y, _ in parts
    ]
    np.testing.assert_allclose(final["test_label_f1"], of_clients, rtol=1e-5)
    table, of_labels, parity, *_ = final_tables(results.combine({"fedavg": fitted.dataset}))
    assert table.headings[1] == "F1"
    assert table.headings[-1] == "accuracy of labels"
    assert of_labels.headings[1:3] == ("F1\n0", "F1\n1")
    assert parity.title.startswith("F1 score by sex")


def test_tables_of_a_regression_show_errors_without_a_dash(fitted):
    other = fitted.dataset.copy()
    for name in [name for name in other if "error" in str(name)]:
        other[name] = 1.5 * other[name]
    table, parity = final_tables(results.combine({"fedavg": fitted.dataset, "other": other}))
    assert table.title == "Mean absolute error of 12 clients (custom)"
    assert table.headings == ("method", "MAE", "worst 10%", "dissimilarity", "RMSE", "R2")
    assert [row[0] for row in table.rows] == ["fedavg", "other"]  # No noise floor.
    mean = fitted.dataset[f"{ERROR}_mean_clients"][:, -1].values.mean()
    assert table.rows[0][1].startswith(f"{mean:.2f}")
    assert table.note.startswith("In unit of the label or without unit; of MAE, lower is better")
    assert parity.title == "Mean absolute error by sex (custom)"
    assert parity.headings[1:] == ("f", "m", "difference")
    cells = [cell for each in (table, parity) for row in each.rows for cell in row]
    assert "-" not in cells
    assert not any("nan" in cell for cell in cells)


def runs_of(values, better="lower", name="error"):
    """Results of methods, ``[methods, seeds]``, in a quantity of the user."""
    dims = ("algorithm", "seed", "round")
    attributes = {"better": better, "heading": "E", "units": "kg", "long_name": "Error"}
    columns = {
        f"{name}_mean_clients": (dims, np.asarray(values, float)[..., None], attributes),
        f"{name}_worst_10pct": (dims, np.asarray(values, float)[..., None], attributes),
    }
    labels = {"algorithm": [f"m{i}" for i in range(len(values))], "round": [3]}
    attrs = {"quantities": json.dumps([name]), "data": "made"}
    return xr.Dataset(columns, labels | {"seed": range(len(values[0]))}, attrs)


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_a_comparison_keeps_the_sign_and_says_which_values_are_better(better):
    runs = runs_of([[5, 6, 7, 8, 9], [3.1, 4, 5, 6.1, 7]], better)
    compared = results.compare(runs, "error_mean_clients")
    assert compared.difference.item() == pytest.approx(-1.96)
    assert compared.is_significant.item()
    table = comparison_table(compared, 1)
    assert table.rows[1][2].startswith("-1.96")
    assert table.rows[1][2].endswith("*")
    assert table.title == "Error, in kg: differences to m0"
    assert f"{better.capitalize()} is better." in table.note
    assert "noise\nfloor" not in table.headings


@pytest.mark.parametrize(("better", "first"), [("lower", "lam=2"), ("higher", "lam=1")])
@pytest.mark.parametrize("is_validated", [True, False])
def test_a_sweep_ranks_in_the_direction_of_the_quantity(better, first, is_validated):
    runs = runs_of([[5.0], [3.0], [4.0]], better).rename(algorithm="lam")
    runs = runs.assign_coords(lam=[1, 2, 3]).expand_dims(algorithm=["fedavg"])
    if is_validated:
        runs["validation_error_mean_clients"] = runs["error_mean_clients"]
        runs["error_mean_clients"] = 10 - runs["error_mean_clients"]
    best = results.datasets.configurations_as_methods(runs, 1)
    assert best.algorithm.item() == f"fedavg, {first}"
    (table,) = final_tables(runs)
    assert table.title.startswith("The best" if is_validated else "The first")
    if is_validated:
        assert table.rows[0][0] == f"fedavg, {first}"
        assert table.headings[1:3] == ("validation", "E")
    broken = runs.where(runs.lam != int(first[-1]))
    assert results.datasets.configurations_as_methods(broken, 1).algorithm.item() != best.algorithm


@pytest.mark.parametrize(
    ("name", "choose"),
    [
        (f"validation_{ERROR}_mean_clients", np.argmin),
        ("validation_r2_pooled", np.argmax),
        ("validation_loss_mean_clients", np.argmin),
    ],
)
def test_the_best_model_is_that_of_the_best_value_of_a_metric(data, name, choose):
    rates = method(regression(), 0.3)  # Errors rise and fall.
    fitted = ff.fit(rates, data, rounds=6, eval_every=1, seeds=(0, 1), best=name)
    expected = choose(fitted.dataset[name].values, axis=1)
    np.testing.assert_array_equal(fitted.rounds, expected)
    assert (expected < 6).any()


def test_an_unknown_metric_of_the_best_model_is_an_error(data):
    for name in ("accuracy_mean_clients", "participation", "num_clients"):
        with pytest.raises(ValueError, match=f"best='{name}'"):
            ff.fit(method(regression()), data, rounds=1, best=name)


def _off(predictions):
    return predictions.mean((predictions.predicted != predictions.labels).astype("float32"))


@pytest.mark.parametrize(
    ("metric", "heading"),
    [
        (predictions.macro_f1(2), "macro_f1"),
        (ClientMetric("mistakes", "Mistakes", "1", _off, "lower", "mistakes"), "mistakes"),
    ],
)
def test_a_metric_of_the_user_is_shown_first(metric, heading):
    data = make_data(kind="classes", test_fraction=0.5)
    run = ff.fit(method(ff.models.logistic(2)), data, rounds=2, metrics=[metric]).dataset
    assert [each.name for each in task_metrics.quantities(run)] == [metric.name, "accuracy"]
    values = run[f"test_{metric.name}"].isel(round=-1).values[0]
    is_error = metric.better == "lower"
    worst = np.sort(values)[-2:] if is_error else np.sort(values)[:2]
    np.testing.assert_allclose(run[f"{metric.name}_worst_10pct"][0, -1], worst.mean(), rtol=1e-5)
    table, parity, *_ = final_tables(results.combine({"fedavg": run}))
    assert table.headings == ("method", heading, "worst 10%", "dissimilarity", "accuracy")
    assert table.rows[0][-1] == f"{100 * run.accuracy_mean_clients[0, -1].item():.1f}"
    assert parity.title.startswith(f"{metric.description.partition(',')[0]} by sex")
    if is_error:
        np.testing.assert_allclose(values, 1 - run.test_accuracy[0, -1], atol=1e-6)
    again = ff.fit(method(ff.models.logistic(2)), data, rounds=2).dataset
    assert "quantities" not in again.attrs
    xr.testing.assert_identical(again.test_accuracy, run.test_accuracy)


def test_names_of_made_metrics_are_taken():
    own = Metric("macro_f1_pooled", "Mine", "1", "clients", "uniform", lambda metrics: 0.0)
    with pytest.raises(ValueError, match="macro_f1_pooled"):
        ff.fit(
            method(ff.models.logistic(2)),
            make_data(kind="classes"),
            rounds=1,
            metrics=[own, predictions.macro_f1(2)],
        )


def test_personalized_models_and_references_are_compared_by_errors(data):
    sgd = ff.solvers.SGD(0.05, batch_size=4, steps=5)
    ditto = method(regression(), solver=ff.solvers.Ditto(sgd, personal_prox=0.1))
    own = ff.fit(ditto, data, rounds=3)
    final = own.dataset.isel(seed=0, round=-1)
    each = [
        sklearn.mean_absolute_error(y, p) for p, y, _ in predicted_by_client(own, data, client=0)
    ]
    np.testing.assert_allclose(final[f"personalized_test_{ERROR}"], each, rtol=1e-3)
    np.testing.assert_allclose(
        final[f"personalized_{ERROR}_worst_10pct"], np.sort(each)[-2:].mean(), rtol=1e-3
    )
    local = ff.fit(method(regression(), solver=ff.solvers.Local(sgd)), data, rounds=3)
    both = results.combine({"ditto": own.dataset, "local": local.dataset})
    table, *_ = final_tables(both)
    assert [row[0] for row in table.rows] == [
        "ditto",
        "ditto (personalized)",
        "local (personalized)",
    ]
    errors = local.dataset[f"personalized_test_{ERROR}"][0, -1].values
    share = results.share_worse_off(both, "local").sel(algorithm="ditto (personalized)").item()
    assert share == pytest.approx(np.mean(np.array(each) > errors))
    assert "share of clients with a worse MAE, in %" in table.note


@pytest.mark.parametrize("steps", [0, 3])
def test_unseen_clients_are_measured_by_errors(steps):
    seen, unseen = ff.data.hold_out_clients(make_data(), fraction=0.25)
    fitted = ff.fit(method(regression()), seen, rounds=2)
    measured = ff.analysis.evaluate_unseen(
        fitted.model, fitted.variables, [0.05], unseen, seeds=(0,), batch_size=4, steps=steps,
        metrics=[predictions.mean_squared_error()],
    )  # fmt: skip
    each = [sklearn.mean_absolute_error(y, p) for p, y, _ in predicted_by_client(fitted, unseen)]
    np.testing.assert_allclose(measured[f"unseen_{ERROR}"][0], each, rtol=1e-4)
    np.testing.assert_allclose(measured["adapted_mean_squared_error"], measured["adapted_loss"])
    changed = not np.allclose(measured[f"adapted_{ERROR}"], measured[f"unseen_{ERROR}"])
    assert changed == (steps > 0)
    assert "unseen_accuracy" not in measured
    undefined = ff.analysis.undefined_unseen(unseen, (0,), fitted.model)
    assert np.isnan(undefined[f"adapted_{ERROR}"]).all()
    again = fitted.evaluate(unseen)
    np.testing.assert_allclose(again[f"test_{ERROR}"][0], each, rtol=1e-4)
    assert task_metrics.primary(again).name == ERROR


def test_ground_truth_groups_of_clients_are_compared_by_errors():
    data = make_data()._replace(groups=np.arange(CLIENTS, dtype=np.int32) % 3)
    run = ff.fit(method(regression()), data, rounds=1).dataset
    errors = run[f"test_{ERROR}"][0, -1].values
    means = [errors[data.groups == group].mean() for group in range(3)]
    np.testing.assert_allclose(run[f"group_{ERROR}"][0, -1], means, rtol=1e-5)
    np.testing.assert_allclose(run[f"group_{ERROR}_gap"][0, -1], np.ptp(means), rtol=1e-5)
    table, groups, *_ = final_tables(results.combine({"fedavg": run}))
    assert "gap of groups" in table.headings
    assert groups.title == "Mean absolute error of ground-truth groups"
    assert groups.headings[-1] == "gap"


def test_tables_of_text_begin_with_the_perplexity():
    tokens = np.random.default_rng(0).integers(5, size=(60, 4))
    data = ff.data.from_arrays(tokens, (tokens + 1) % 5, clients=np.arange(60) % 6)
    text = ff.fit(method(ff.models.char_lstm(5, width=8, layers=1)), data, rounds=1).dataset
    first, second = task_metrics.quantities(text)
    assert (first.name, second.name) == ("perplexity", "accuracy")
    np.testing.assert_allclose(text.test_perplexity, np.exp(text.test_loss), rtol=1e-6)
    table, *_ = final_tables(results.combine({"fedavg": text}))
    assert table.title == "Test perplexity of 6 clients (custom)"
    assert table.headings == ("method", "perplexity", "worst 10%", "dissimilarity", "accuracy")
    mean = text.perplexity_mean_clients[0, -1].item()
    assert table.rows[0][1] == f"{mean:.2f}"


def test_values_have_three_digits_or_the_unit_percent():
    values = {"error": 17.31, "small": 0.01234, "large": 43210.0, "accuracy_mean_clients": 0.5}
    runs = xr.Dataset(values | {"nothing": np.nan, "zero": 0.0})
    digits = [task_metrics.digits(runs, name) for name in runs]
    assert digits == [1, 4, 0, 1, 1, 1]
    assert task_metrics.scale(runs, "accuracy_mean_clients") == 100
    assert task_metrics.scale(runs, "error") == 1
    for name in ("label_f1_dissimilarity", "r2_dissimilarity", "perplexity_dissimilarity"):
        assert task_metrics.unit(xr.Dataset({name: 0.5}), name) == ""


def test_quantities_of_logs_are_found_by_their_names():
    names = [f"{name}_worst_10pct" for name in ("accuracy", "own", "r2", ERROR)]
    logged = dict.fromkeys([*names, f"validation_{ERROR}_worst_10pct"], np.ones(2))
    found = [each.name for each in task_metrics.quantities(logged)]
    assert found == [ERROR, "r2", "accuracy", "own"]
    logged["accuracy_worst_10pct"] = np.full(2, np.nan)
    assert [each.name for each in task_metrics.quantities(logged)] == [ERROR, "r2", "own"]
    assert task_metrics.primary({}).name == "accuracy"


@pytest.mark.parametrize("dtype", ["int64", "float32", "uint8"])
def test_images_of_labels_are_to_be_flattened(dtype):
    masks = np.zeros((6, 4, 4), dtype)
    with pytest.raises(ValueError, match=r"flatten to \[N, H\*W\], labels.reshape\(6, -1\)"):
        ff.data.from_arrays(np.zeros((6, 4, 4, 1)), masks, clients=np.arange(6) % 2)
