"""The data on a page is that of the results, within limits of size."""

import base64
import json

import numpy as np
import pytest
from scipy import stats
from synthetic import make_results

import fedjax_fair.report.contents as module
from fedjax_fair.report import page
from fedjax_fair.report.contents import contents

FLOORS = np.array([0.04, np.nan])


def unpacked(text, *shape):
    values = np.frombuffer(base64.b64decode(text), "<u2").astype(float)
    values[values == 65535] = np.nan
    return values.reshape(shape)


@pytest.mark.parametrize("partitions", [False, True])
def test_clients_have_their_accuracies_cohorts_and_examples(partitions):
    results = make_results(partitions=partitions, groups=True)
    found = contents(results, FLOORS)["clients"]
    assert found["rounds"] == results["round"].values.tolist()
    accuracy = unpacked(found["measured"], 2, 2, 3, 6)
    np.testing.assert_allclose(accuracy / 1e4, results["test_accuracy"].values)
    np.testing.assert_array_equal(
        unpacked(found["trained"], 2, 2, 4, 2), results["cohort_clients"].values
    )
    counts = results["train_examples"].values.reshape(-1, 6, 3)
    for run, owned in zip(counts, found["classes"], strict=True):
        again = np.zeros_like(run)
        for client, pairs in enumerate(owned):
            for label, examples in pairs:
                again[client, label] = examples
        np.testing.assert_array_equal(again, run)
    tested = results["test_examples"].sum("class").values.reshape(-1, 6)
    np.testing.assert_array_equal(found["tested"], tested)
    np.testing.assert_array_equal(found["groups"], results["group"].values.reshape(-1, 6))


def test_curves_have_intervals_of_students_t():
    results = make_results(seeds=4)
    results["accuracy_mean_clients"][1, :, 1] = np.nan  # Not evaluated then.
    found = contents(results, FLOORS)
    for method, (rounds, *columns) in enumerate(found["level"]):
        own = 100 * results["accuracy_mean_clients"].isel(algorithm=method).dropna("round").values
        assert rounds == ([0, 2, 4], [0, 4])[method]
        low, high = stats.t.interval(0.95, 3, own.mean(axis=0), stats.sem(own))
        np.testing.assert_allclose(columns, [own.mean(axis=0), low, high], atol=6e-4)
    assert found["tradeoff"][0][1] == [column[-1] for column in found["level"][0][1:]]
    assert found["tradeoff"][0][0] == [column[-1] for column in found["dissimilarity"][0][1:]]
    means = [curve[1] for curve in found["dissimilarity"]]
    np.testing.assert_allclose(means, 100 * results.client_dissimilarity.mean("seed"), atol=6e-4)
    assert found["floor"] == [4.0, None]


def test_one_seed_has_no_interval():
    (_, _, low, high), _ = contents(make_results(seeds=1), FLOORS)["level"]
    assert set(low) == set(high) == {None}


def test_charts_begin_where_methods_differ():
    results = make_results(evaluations=5)
    level = results["accuracy_mean_clients"]
    level[:, :, 1:3] = 0.5
    assert contents(results, FLOORS)["start"] == 3
    level[:, :, 3] = 0.5
    assert contents(results, FLOORS)["start"] == 3  # A curve has two evaluations.
    level[1, :, 2] = np.nan  # A single method differs from no other.
    assert contents(results, FLOORS)["start"] == 2
    level[:] = 0.5
    assert contents(results, FLOORS)["start"] == 1  # At round 0 no method has trained.
    assert contents(results.isel(round=[0, 4]), FLOORS)["start"] == 0


def test_participation_is_a_mean_over_seeds():
    results = make_results(clients=5, seeds=3)
    results["participation"][1] = 0  # Centralized training.
    first, second = contents(results, FLOORS)["participation"]
    assert second is None
    last = results["participation"].values[0, :, -1]
    ordered = -np.sort(-last, axis=1) / 4 * 100
    np.testing.assert_allclose(first["share"][0], [0, 25, 50, 75, 100])
    np.testing.assert_allclose(first["share"][1], ordered.mean(axis=0), atol=6e-4)
    gini = [np.abs(run[:, None] - run).mean() / (2 * run.mean()) for run in last]
    assert first["gini"][0] == pytest.approx(np.mean(gini), abs=6e-4)
    assert first["never"] == pytest.approx(100 * (last == 0).mean(), abs=0.06)


def test_a_round_counts_once_for_a_client_in_several_slots():
    """Only with a result that has arrived, and in rounds until the last evaluation."""
    results = make_results(["fedavg"], seeds=1, clients=3, rounds=3, slots=3, evaluations=2)
    results = results.isel(round=[0, 1]).assign_coords(round=[0, 2])
    results["cohort_clients"][0, 0] = [[1, 1, 1], [1, 0, 2], [2, 2, 2]]
    over = results["cohort_clients"].dims
    results["cohort_responded"] = over, np.array([[[[1, 1, 0], [1, 1, 0], [1, 1, 1]]]])
    results["participation"][0, 0, 1] = [1, 3, 0]
    (found,) = contents(results, FLOORS)["participation"]
    assert found["share"][1] == [100, 50, 0]
    assert found["never"] == pytest.approx(100 / 3, abs=0.06)
    assert found["gini"][0] == pytest.approx(0.5, abs=6e-4)  # Of 1, 3 and 0 times.


def test_groups_and_agreement_are_included_if_known():
    found = contents(make_results(groups=True), FLOORS)
    assert len(found["groups"]) == 2
    results = make_results(groups=True)
    expected = results["aggregation_nmi"].values[1].cumsum(axis=1) / np.arange(1, 5)
    np.testing.assert_allclose(found["cluster_agreement"][1][1], expected.mean(axis=0), atol=6e-4)
    assert not {"groups", "cluster_agreement"} & set(contents(make_results(), FLOORS))


def test_a_page_of_a_long_run_is_small():
    results = make_results("abcde", seeds=2, evaluations=201, clients=100, rounds=200, slots=10)
    text = page(results, {}, {})
    assert len(text.encode()) < 5e6
    assert len(contents(results, FLOORS)["clients"]["rounds"]) == 201  # All evaluations.


def test_the_page_of_a_large_run_states_what_it_omits():
    results = make_results("ab", seeds=2, evaluations=401, clients=2500, rounds=400, slots=2)
    found = contents(results, FLOORS)["clients"]
    assert len(found["ids"]) == 1000
    assert found["rounds"][-1] == 400
    text = page(results, {}, {})
    assert "Shown: 1,000 of 2,500 clients" in text
    assert "1 of 2 seeds" in text
    assert len(text.encode()) < 5e6
    place = {client: place for place, client in enumerate(found["ids"])}
    trained = unpacked(found["trained"], 2, 1, 400, 2)
    participants = results["cohort_clients"].values[:, :1]
    expected = np.vectorize(lambda client: place.get(client, np.nan))(participants)
    np.testing.assert_array_equal(trained, expected)


def test_evaluations_are_omitted_until_all_fits(monkeypatch):
    monkeypatch.setattr(module, "_MAX_VALUES", 200)
    found = contents(make_results(seeds=1, evaluations=21, rounds=20), FLOORS)["clients"]
    assert 2 * 6 * len(found["rounds"]) + 2 * 20 * 2 in range(180, 201)
    assert (found["rounds"][0], found["rounds"][-1]) == (0, 20)


def test_contents_are_json():
    text = json.dumps(contents(make_results(groups=True), FLOORS), allow_nan=False)
    assert json.loads(text)["methods"] == ["fedavg", "divfl"]
