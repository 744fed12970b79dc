"""Noise floors and intervals of group fairness against simulations and closed forms."""

import numpy as np
import pytest
from conftest import linear_model
from people_federation import make_people

import fedjax_fair as ff
from fedjax_fair.metrics import definitions
from fedjax_fair.metrics import group_fairness as gf
from fedjax_fair.metrics.group_noise import expected_difference, expected_largest, interval
from fedjax_fair.results.tables import GROUP_FLOOR


def folded_normal(shares, sizes):
    """Mean absolute difference of two shares of equal expectation, for large groups."""
    return np.sqrt(2 / np.pi * shares * (1 - shares) * (1 / sizes[0] + 1 / sizes[1]))


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("demographic_parity", (1000, 4000)),
        ("equal_opportunity", (400, 1000)),
        ("accuracy_parity", (1000, 4000)),
    ],
)
def test_floors_of_two_large_groups_have_a_closed_form(name, sizes):
    # Of label 1 half is selected in both groups.
    small = np.array([[550, 50], [200, 200]])
    counts = np.stack([small, np.array([[2800, 200], [500, 500]])])
    selected = counts[:, :, 1].sum() / counts.sum()
    correct = np.trace(counts.sum(axis=0)) / counts.sum()
    shares = {"demographic": selected, "equal": 0.5, "accuracy": correct}
    expected = folded_normal(shares[name.split("_")[0]], sizes)
    assert expected_difference(name, counts, draws=3000) == pytest.approx(expected, rel=0.06)


def test_the_largest_difference_of_clients_has_a_floor_above_theirs():
    """The largest of ten half-normal variables of equal scale; a client of one group has none."""
    cells = np.array([[[500, 500], [0, 0]], [[500, 500], [0, 0]]])
    counts = np.stack([cells] * 10)
    deviation = np.sqrt(0.25 * 2 / 1000)
    draws = np.abs(np.random.default_rng(0).normal(0, deviation, (100_000, 10)))
    floor = expected_largest("demographic_parity", counts, draws=3000)
    assert floor == pytest.approx(draws.max(axis=1).mean(), rel=0.03)
    assert floor > 1.5 * expected_difference("demographic_parity", counts).max()
    alone = np.concatenate([counts, [cells * np.array([1, 0])[:, None, None]]])
    again = expected_largest("demographic_parity", alone, draws=3000)
    assert again == pytest.approx(floor, rel=0.03)
    assert np.isnan(expected_largest("demographic_parity", alone[-1:]))


@pytest.mark.parametrize("criterion", list(gf.CRITERIA))
def test_floors_of_three_classes_equal_a_simulation_of_people(criterion):
    counts = np.array([[[30, 5, 5], [4, 20, 6], [2, 3, 25]], [[6, 2, 2], [1, 7, 2], [4, 4, 12]]])
    rng, people = np.random.default_rng(1), counts.sum(axis=2)
    together = counts.sum(axis=0)
    values = []
    for _ in range(150):
        drawn = np.zeros_like(counts)
        for group, label in np.ndindex(people.shape):
            size = people[group, label]
            if criterion == "accuracy_parity":
                correct = rng.uniform(size=size) < np.trace(together) / together.sum()
                predicted = np.where(correct, label, (label + 1) % 3)
            else:
                by_class = together.sum(axis=0) if criterion[0] == "d" else together[label]
                predicted = rng.choice(3, size, p=by_class / by_class.sum())
            np.add.at(drawn, (group, label, predicted), 1)
        values.append(float(gf.difference(criterion, drawn)))
    floor = expected_difference(criterion, counts, draws=2000)
    error = np.std(values) / np.sqrt(len(values))
    assert floor == pytest.approx(np.mean(values), abs=4 * error)
    low, high = interval(criterion, counts)
    assert 0 <= low < float(gf.difference(criterion, counts)) + 0.05 < high + 0.1


def test_floors_grow_as_groups_shrink_and_measure_each_client():
    client = np.array([[[8, 2], [1, 9]], [[9, 1], [2, 8]]])
    clients = np.stack([client, 100 * client])
    for name in gf.CRITERIA:
        small, large = expected_difference(name, clients)
        pooled = expected_difference(name, clients.sum(axis=0))
        assert 0 < pooled < small / 5
        assert 0 < large < small / 5


def test_predictions_that_are_all_equal_have_no_chance():
    counts = np.array([[[0, 5], [0, 5]], [[0, 3], [0, 2]]])
    for name in ("demographic_parity", "equalized_odds"):
        assert expected_difference(name, counts) == 0


def test_undefined_differences_have_undefined_floors():
    counts = np.array([[[[2, 2], [0, 0]], [[1, 3], [2, 2]]], [[[2, 2], [1, 1]], [[1, 3], [2, 2]]]])
    floors = expected_difference("equal_opportunity", counts)
    assert np.isnan(floors).tolist() == [True, False]
    low, high = interval("equal_opportunity", counts)
    assert np.isnan(low).tolist() == np.isnan(high).tolist() == [True, False]


def test_intervals_cover_the_difference():
    """Of samples with a known difference about 95% have it in their interval."""
    rng = np.random.default_rng(5)
    selected = np.stack([rng.binomial(80, 0.3, 300), rng.binomial(120, 0.7, 300)], axis=1)
    zeros = np.zeros_like(selected)
    rows = np.stack([np.array([[80, 120]]) - selected, selected], axis=-1)
    counts = np.stack([rows, np.stack([zeros, zeros], axis=-1)], axis=-2)
    low, high = interval("demographic_parity", counts, draws=200)
    covered = np.mean((low <= 0.4) & (high >= 0.4))
    assert 0.9 < covered < 0.985
    values = np.asarray(gf.difference("demographic_parity", counts))
    assert ((low < values) & (values < high)).all()
    wide = interval("demographic_parity", counts, level=0.99, draws=200)
    assert (wide.high - wide.low).mean() > (high - low).mean()


def test_the_documented_call_has_intervals_of_results():
    page = " ".join(definitions.page().split())
    assert "`fedjax_fair.metrics.group_noise.interval(criterion, counts)`" in page
    assert 'feature_counts(dataset, ["sex"])`, summed over clients' in page
    method = ff.Round(
        linear_model(2), ff.selectors.Full(), ff.solvers.SGD(0.5, 4, steps=2), ff.aggregators.Mean()
    )
    dataset = ff.fit(method, make_people(), rounds=1).dataset
    counts = ff.results.sensitive_groups.feature_counts(dataset, ["sex"]).sum("client")
    for name in gf.CRITERIA:
        low, high = interval(name, counts)
        assert low.shape == (1, 2)  # A seed and two evaluations.
        assert (low < high).all()
    # Of combined results, whose counts are floats with NaN for missing evaluations.
    both = ff.results.combine({"two": dataset, "one": dataset.isel(round=slice(1))})
    combined = ff.results.sensitive_groups.feature_counts(both, ["sex"]).sum("client")
    assert combined.dtype.kind == "f"
    (name, *_) = gf.CRITERIA
    found, expected = interval(name, combined), interval(name, counts)
    assert np.isnan(found.low[1, 0, 1])
    assert np.isfinite(found.low[0, 0]).all()
    np.testing.assert_allclose(found.low[0, 0, 0], expected.low[0, 0], atol=0.1)


def test_the_noise_floor_of_sensitive_groups_is_defined():
    """Metrics of sensitive groups have one only in their tables."""
    floor = "difference expected from finite groups if all had equal rates"
    assert floor in GROUP_FLOOR
    assert floor in definitions.TERMS["noise floor"]
    assert "Group fairness by" in definitions.TERMS["noise floor"]


@pytest.mark.parametrize(
    ("name", "counts", "message"),
    [
        ("parity", np.ones((2, 2, 2), int), "criterion='parity'"),
        ("demographic_parity", np.full((2, 2, 2), 1.5), "got float64"),
        ("demographic_parity", np.ones((2, 3, 2), int), r"shape \(2, 3, 2\)"),
        ("demographic_parity", -np.ones((2, 2, 2), int), "integers >= 0"),
        ("demographic_parity", -np.ones((2, 2, 2)), "got float64"),
        ("demographic_parity", np.full((2, 2, 2), np.nan), "got float64 .* with NaN"),
        ("demographic_parity", np.full((2, 2, 2), np.inf), "got float64"),
    ],
)
def test_bad_arguments_are_named(name, counts, message):
    for function in (expected_difference, interval):
        with pytest.raises(ValueError, match=message):
            function(name, counts)
