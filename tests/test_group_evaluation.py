"""Counts of people in evaluations and results, against NumPy and fairlearn."""

from functools import cache

import fairlearn.metrics as fairlearn
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from conftest import linear_model
from people_federation import FEATURES, make_people, people_of
from sklearn.metrics import roc_auc_score

import fedjax_fair as ff
from fedjax_fair.data.sensitive import SensitiveFeature
from fedjax_fair.evaluation.clients import evaluate
from fedjax_fair.evaluation.sensitive_group_sums import example_values
from fedjax_fair.metrics import SENSITIVE_GROUP_SUMMARIES
from fedjax_fair.metrics import group_fairness as gf
from fedjax_fair.metrics.group_fairness import CRITERIA
from fedjax_fair.metrics.sensitive_group_metrics import MAX_COUNTED, sensitive_group_summaries
from fedjax_fair.results import combine
from fedjax_fair.results.sensitive_groups import feature_counts, gaps
from fedjax_fair.results.tables import sensitive_group_tables

DATA = make_people()
MODEL = linear_model(2)
FLAT = DATA.test.sensitive_features[:, 0] * 3 + DATA.test.sensitive_features[:, 1]


def measured(data, model, personalized=None, **settings):
    variables = model.init(jax.random.key(3), data.train.features[:1])
    idle = jnp.zeros(data.num_clients, jnp.int32)
    function = None if personalized is None else lambda client: personalized(variables, client)
    return variables, jax.jit(
        lambda: evaluate(model, variables, data, idle, idle[:2], personalized=function, **settings)
    )()


def scaled(variables, client):
    """Another model for every client, some of which flip predictions."""
    return jax.tree.map(lambda leaf: leaf * (1 - client.astype(jnp.float32)), variables)


def expected_sums(data, variables_of, num_classes=2):
    """Counts and losses of the test examples, with a loop over people."""
    part, groups = data.test, FLAT
    counts = np.zeros((data.num_clients, 6, num_classes, num_classes), int)
    losses, scores = np.zeros((data.num_clients, 6)), []
    for client in range(data.num_clients):
        variables = variables_of(client)
        kernel, bias = (np.asarray(variables.params[name]) for name in ("kernel", "bias"))
        for person in people_of(part, client):
            logits = part.features[person] @ kernel + bias
            shares = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
            label, group = part.labels[person], groups[person]
            counts[client, group, label, logits.argmax()] += 1
            losses[client, group] -= np.log(shares[label])
            scores.append((group, label, shares[1]))
    return counts, losses, scores


@pytest.mark.parametrize("is_personalized", [False, True])
def test_sums_are_those_of_a_loop_over_people(is_personalized):
    personalized = scaled if is_personalized else None
    variables, clients = measured(DATA, MODEL, personalized)

    def variables_of(client):
        return scaled(variables, jnp.int32(client)) if is_personalized else variables

    counts, losses, scores = expected_sums(DATA, variables_of)
    sums = (clients.personalized if is_personalized else clients).sensitive
    np.testing.assert_array_equal(sums.counts, counts)
    np.testing.assert_allclose(sums.loss, losses, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(sums.examples, counts.sum(axis=(2, 3)))
    np.testing.assert_array_equal(sums.correct, np.trace(counts, axis1=2, axis2=3))
    errors = np.full(6, np.nan)
    for group in range(6):
        of_group = np.array([(label, score) for g, label, score in scores if g == group])
        if len(of_group):
            bins = np.minimum((of_group[:, 1] * 10).astype(int), 9)
            gaps = [of_group[bins == bin] for bin in range(10)]
            errors[group] = sum(abs(each[:, 0].sum() - each[:, 1].sum()) for each in gaps)
            errors[group] /= len(of_group)
    np.testing.assert_allclose(sums.calibration_error, errors, rtol=1e-4)


@pytest.mark.parametrize("is_personalized", [False, True])
def test_ranks_of_groups_are_pooled_for_one_model_only(is_personalized):
    """Scores of different models are no ranks: there, clients are averaged by their examples."""
    personalized = scaled if is_personalized else None
    metric = ff.metrics.predictions.auc(2)
    variables, clients = measured(DATA, MODEL, personalized, custom=[metric])
    rows = []
    for client in range(DATA.num_clients):
        own = scaled(variables, jnp.int32(client)) if is_personalized else variables
        for person in people_of(DATA.test, client):
            logits = DATA.test.features[person] @ np.asarray(own.params["kernel"])
            logits = logits + np.asarray(own.params["bias"])
            score = np.asarray(jax.nn.softmax(logits))[1]  # In float32, so that ties are the same.
            rows.append((client, FLAT[person], DATA.test.labels[person], score))
    people = pd.DataFrame(rows, columns=["client", "group", "label", "score"])

    def area(part):
        if part.label.nunique() < 2:
            return np.nan
        return roc_auc_score(part.label, part.score)

    def pooled(part):
        if not is_personalized:
            return area(part)
        parts = [own for _, own in part.groupby("client") if own.label.nunique() == 2]
        sizes = [len(own) for own in parts]
        return np.average([area(own) for own in parts], weights=sizes) if parts else np.nan

    def by(column, size):
        return [pooled(people[column == value]) for value in range(size)]

    found = (clients.personalized if is_personalized else clients).quantities
    np.testing.assert_allclose(found.pooled["test_auc"], pooled(people), rtol=1e-5)
    np.testing.assert_allclose(found.groups["auc"], by(people.group, 6), rtol=1e-5)
    values = [*by(people.group // 3, 2), *by(people.group % 3, 3)]
    np.testing.assert_allclose(found.features["auc"], values, rtol=1e-5)
    cells = found.client_groups["auc"]
    for (client, group), part in people.groupby(["client", "group"]):
        np.testing.assert_allclose(cells[client, group], area(part), rtol=1e-5)


@pytest.mark.parametrize("is_personalized", [False, True])
def test_several_classes_are_counted_without_calibration(is_personalized):
    data = make_people(num_classes=3)
    personalized = scaled if is_personalized else None
    variables, clients = measured(data, linear_model(3), personalized)

    def variables_of(client):
        return scaled(variables, jnp.int32(client)) if is_personalized else variables

    clients = clients.personalized if is_personalized else clients
    groups = data.test.sensitive_features @ [3, 1]
    counts = np.zeros((data.num_clients, 6, 3, 3), int)
    for client in range(data.num_clients):
        params = {name: np.asarray(leaf) for name, leaf in variables_of(client).params.items()}
        for person in people_of(data.test, client):
            logits = data.test.features[person] @ params["kernel"] + params["bias"]
            counts[client, groups[person], data.test.labels[person], logits.argmax()] += 1
    np.testing.assert_array_equal(clients.sensitive.counts, counts)
    assert clients.sensitive.calibration_error is None
    by_client = np.asarray(clients.sensitive.correct).sum(axis=1) / data.test.sizes
    np.testing.assert_allclose(by_client, clients.test_accuracy, rtol=1e-6)
    by_client = np.asarray(clients.sensitive.loss).sum(axis=1) / data.test.sizes
    np.testing.assert_allclose(by_client, clients.test_loss, rtol=1e-5)


def test_three_classes_have_all_criteria_in_results_and_tables():
    data = make_people(num_classes=3)
    method = ff.Round(
        linear_model(3),
        ff.selectors.Full(),
        ff.solvers.SGD(0.1, 4, epochs=1),
        ff.aggregators.Mean(),
    )
    results = ff.fit(method, data, rounds=1, seeds=[0, 1]).dataset
    last = results.isel(round=-1)
    assert last.sensitive_group_selection_rate.dims == ("seed", "sensitive_group", "class")
    shares = last.sensitive_group_selection_rate.sum("class")
    np.testing.assert_allclose(shares, np.where(np.isnan(shares), np.nan, 1), rtol=1e-6)
    of_sex = gaps(last, ["sex"])
    counts = last.sensitive_group_counts.values.sum(axis=1).reshape(2, 2, 3, 3, 3).sum(axis=2)
    for criterion in CRITERIA:
        name = f"{criterion}_difference"
        assert last[name].notnull().all()
        expected = [float(gf.difference(criterion, run)) for run in counts]
        np.testing.assert_allclose(of_sex[name], expected)
    by_sex, *_ = sensitive_group_tables(combine({"fedavg": results}))
    assert "over the 3 classes" in by_sex.note
    for _, *cells in by_sex.rows:
        assert len(cells) == len(CRITERIA)
        assert not [cell for cell in cells if "-" in cell or "nan" in cell]


@pytest.mark.parametrize("num_classes", [1, MAX_COUNTED + 1])
def test_too_many_classes_have_accuracies_and_losses_only(num_classes):
    names = [metric.name for metric in sensitive_group_summaries(num_classes)]
    assert "accuracy_parity_difference" in names
    assert "demographic_parity_difference" not in names
    data = make_people()._replace(num_classes=num_classes)
    values = example_values(
        linear_model(2), jnp.zeros((3, 2)), jnp.zeros(3, jnp.int32), data.num_classes
    )
    assert values.predicted is None


def test_labels_of_sequences_count_each():
    """Masked labels do not."""
    data = make_people()

    def as_sequences(part):
        return part._replace(labels=np.stack([part.labels, np.full_like(part.labels, -1)], axis=1))

    def apply(params, state, x, *, train, key):
        logits = x @ params["kernel"] + params["bias"][None, :]
        return jnp.stack([logits, logits], axis=1), state

    plain = linear_model(2)
    model = ff.Model.from_functions(plain.init, apply, plain.features)
    _, clients = measured(data.map_parts(as_sequences), model)
    _, expected = measured(data, plain)
    np.testing.assert_array_equal(clients.sensitive.examples, expected.sensitive.examples)
    np.testing.assert_allclose(clients.sensitive.loss, expected.sensitive.loss, rtol=1e-5)


def test_without_sensitive_features_nothing_is_measured():
    def without(part):
        return part._replace(sensitive_features=None)

    _, clients = measured(DATA.map_parts(without)._replace(sensitive_names=None), MODEL)
    assert clients.sensitive is None


@cache
def fitted():
    method = ff.Round(
        MODEL, ff.selectors.Uniform(3), ff.solvers.SGD(0.5, 4, epochs=2), ff.aggregators.Mean()
    )
    return ff.fit(method, DATA, rounds=2, eval_every=1, seeds=(0, 1))


def test_results_equal_fairlearn_on_the_same_predictions():
    result = fitted()
    dataset = result.dataset
    predictions = np.asarray(result.predict(DATA.test.features))
    sex = DATA.test.sensitive_features[:, 0]
    owned = people_of(DATA.test)
    for seed in range(2):
        last = dataset.isel(seed=seed, round=-1)
        for people, of in ((FLAT, last), (sex, gaps(dataset, ["sex"]).isel(seed=seed, round=-1))):
            arguments = {
                "y_true": DATA.test.labels[owned],
                "y_pred": predictions[seed][owned],
                "sensitive_features": pd.DataFrame({"group": people[owned]}),
            }
            expected = fairlearn.demographic_parity_difference(**arguments)
            assert float(of.demographic_parity_difference) == pytest.approx(expected, rel=1e-5)
        expected = fairlearn.equalized_odds_difference(**arguments)
        assert float(of.equalized_odds_difference) == pytest.approx(expected, rel=1e-5)
        frame = fairlearn.MetricFrame(
            metrics=fairlearn.selection_rate, **arguments | {"sensitive_features": FLAT[owned]}
        )
        rates = last.sensitive_group_selection_rate.dropna("sensitive_group")
        np.testing.assert_allclose(rates, frame.by_group, rtol=1e-6)
        client = 1
        chosen = people_of(DATA.test, client)
        expected = fairlearn.demographic_parity_difference(
            DATA.test.labels[chosen], predictions[seed][chosen], sensitive_features=sex[chosen]
        )
        actual = of.client_demographic_parity_difference[client]
        assert float(actual) == pytest.approx(expected, rel=1e-5)


def test_groups_of_validation_examples_are_measured_after_training():
    """Results of a run have groups of test examples only."""
    data = ff.data.hold_out(make_people(sizes=(20, 30, 25)), 0.4)
    method = ff.Round(
        MODEL, ff.selectors.Full(), ff.solvers.SGD(0.5, 4, epochs=1), ff.aggregators.Mean()
    )
    result = ff.fit(method, data, rounds=1)
    assert not [
        name for name in result.dataset if "parity" in name and name.startswith("validation")
    ]
    found = result.evaluate(data._replace(test=data.validation))
    part, rows = data.validation, data.validation.order
    predicted = np.asarray(result.predict(part.features[rows]))[0]
    groups = part.sensitive_features[rows, 0] * 3 + part.sensitive_features[rows, 1]
    expected = fairlearn.demographic_parity_difference(
        part.labels[rows], predicted, sensitive_features=groups
    )
    difference = found.demographic_parity_difference.isel(seed=0)
    assert float(difference) == pytest.approx(expected, rel=1e-5)


def test_results_have_all_metrics_and_names_of_groups():
    dataset = fitted().dataset
    assert {metric.name for metric in SENSITIVE_GROUP_SUMMARIES} <= set(dataset)
    assert dataset.sensitive_group.values.tolist() == [
        "F, a",
        "F, b",
        "F, c",
        "M, a",
        "M, b",
        "M, c",
    ]
    last = dataset.isel(round=-1)
    for name in (f"{criterion}_difference" for criterion in CRITERIA):
        of_clients = last[f"client_{name}"]
        np.testing.assert_allclose(
            last[f"{name}_mean_clients"], of_clients.mean("client"), rtol=1e-5
        )
        np.testing.assert_allclose(
            last[f"{name}_worst_client"], of_clients.max("client"), rtol=1e-5
        )
    assert last.client_demographic_parity_difference.isnull().any()  # Client 3 has one person.
    assert last.client_demographic_parity_difference.notnull().any()
    worst = last.sensitive_group_accuracy.min("sensitive_group")
    np.testing.assert_allclose(last.worst_group_accuracy, worst, rtol=1e-6)
    worst = last.sensitive_group_loss.max("sensitive_group")
    np.testing.assert_allclose(last.worst_group_loss, worst, rtol=1e-6)
    again = fitted().evaluate(DATA)
    for metric in SENSITIVE_GROUP_SUMMARIES:
        if metric.population == "people with test examples":
            np.testing.assert_allclose(again[metric.name], last[metric.name], rtol=1e-5)


def test_counts_of_one_feature_are_sums_over_the_other():
    dataset = fitted().dataset
    by_age = feature_counts(dataset, ["age"]).isel(seed=0, round=-1)
    assert by_age.sensitive_group.values.tolist() == ["a", "b", "c"]
    people = by_age.sum(["client", "label", "prediction"]).values
    assert people.tolist() == np.bincount(DATA.test.sensitive_features[:, 1]).tolist()
    with pytest.raises(ValueError, match="features="):
        gaps(dataset, ["race"])
    with pytest.raises(ValueError, match="sensitive_group_counts"):
        gaps(dataset.drop_vars("sensitive_group_counts"))


def test_tables_show_each_feature_and_their_combination():
    dataset = fitted().dataset
    tables = sensitive_group_tables(combine({"fedavg": dataset, "again": dataset}))
    titles = [table.title for table in tables]
    assert titles == [
        f"{what} by {name} (small)"
        for name in ("sex", "age", "sex x age")
        for what in ("Group fairness", "Test accuracy")
    ]
    names = [row[0] for row in tables[0].rows]
    assert names == ["fedavg", "again", "noise floor", "clients", "smallest cell"]
    pooled = 100 * gaps(dataset, ["sex"]).demographic_parity_difference.isel(round=-1).values.mean()
    assert tables[0].rows[0][1].startswith(f"{pooled:.1f} ±")


def test_one_group_has_no_differences():
    everybody = (SensitiveFeature("species", ("human",)), FEATURES[0])[:1]
    data = make_people(features=everybody)
    _, clients = measured(data, MODEL)
    values = {metric.name: metric.function(clients) for metric in SENSITIVE_GROUP_SUMMARIES}
    assert np.isnan(values["demographic_parity_difference"])
    accuracy = clients.sensitive.correct.sum() / clients.sensitive.examples.sum()
    assert values["worst_group_accuracy"] == pytest.approx(float(accuracy))
