"""Metrics of group fairness against fairlearn and worked examples."""

import fairlearn.metrics as fairlearn
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score

from fedjax_fair.metrics import group_fairness as gf

GAPS = (
    "demographic_parity_difference",
    "demographic_parity_ratio",
    "equal_opportunity_difference",
    "equal_opportunity_ratio",
    "equalized_odds_difference",
    "equalized_odds_ratio",
)


@st.composite
def people(draw):
    """Groups, labels and predictions of a few people, of whom some groups lack some labels."""
    size = draw(st.sampled_from([1, 3, 9, 25]))  # Each size compiles again.
    num_groups = draw(st.integers(1, 4))
    codes = st.lists(st.integers(0, num_groups - 1), min_size=size, max_size=size)
    bits = st.lists(st.integers(0, 1), min_size=size, max_size=size)
    return *(np.array(draw(values)) for values in (codes, bits, bits)), num_groups


def counted(groups, labels, predicted, num_groups, num_classes=2):
    arrays = (jnp.asarray(values, jnp.int32) for values in (groups, labels, predicted))
    return gf.count_groups(*arrays, num_groups, num_classes)


@given(people(), st.sampled_from(["between_groups", "to_overall"]))
@settings(max_examples=60, deadline=None)
def test_values_are_those_of_fairlearn(drawn, method):
    groups, labels, predicted, num_groups = drawn
    counts = np.asarray(counted(groups, labels, predicted, num_groups))
    features = pd.DataFrame({"group": groups})
    arguments = {"y_true": labels, "y_pred": predicted, "sensitive_features": features}
    for name in GAPS:
        options = [{"agg": "worst_case"}, {"agg": "mean"}] if "odds" in name else [{}]
        for option in options:
            expected = getattr(fairlearn, name)(**arguments, method=method, **option)
            if option.get("agg") == "worst_case" and np.isnan(expected):
                continue  # The minimum of NaN and a ratio is either in fairlearn, by their order.
            actual = getattr(gf, name)(counts, method=method, empty="zero", **option)
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6, err_msg=name)
    frame = fairlearn.MetricFrame(
        metrics=accuracy_score, y_true=labels, y_pred=predicted, sensitive_features=features
    )
    accuracy = gf.accuracy(counts)
    np.testing.assert_allclose(gf.lowest(accuracy), frame.group_min(), rtol=1e-5)
    for name in ("difference", "ratio"):
        actual = getattr(gf, name)("accuracy_parity", counts, method=method, empty="zero")
        expected = getattr(frame, name)(method=method)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@given(people())
@settings(max_examples=40, deadline=None)
def test_without_empty_cells_skipping_changes_nothing(drawn):
    groups, labels, predicted, num_groups = drawn
    counts = np.asarray(counted(groups, labels, predicted, num_groups)) + 1
    if num_groups == 1:
        return
    for name in GAPS:
        skipped, zeros = (getattr(gf, name)(counts, empty=empty) for empty in ("skip", "zero"))
        np.testing.assert_array_equal(skipped, zeros)


def test_rates_are_those_of_fairlearn_for_intersections_and_weights():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, [2, 3], (60, 2))
    codes = codes[~((codes[:, 0] == 1) & (codes[:, 1] == 2))]  # Nobody is in both.
    labels, predicted = rng.integers(0, 2, (2, len(codes)))
    weights = rng.uniform(0.5, 2, len(codes))
    frame = fairlearn.MetricFrame(
        metrics={
            "selection_rate": fairlearn.selection_rate,
            "true_positive_rate": fairlearn.true_positive_rate,
            "false_positive_rate": fairlearn.false_positive_rate,
            "accuracy": accuracy_score,
        },
        y_true=labels,
        y_pred=predicted,
        sensitive_features=pd.DataFrame(codes, columns=["sex", "race"]),
        sample_params={
            name: {"sample_weight": weights}
            for name in ("selection_rate", "true_positive_rate", "false_positive_rate", "accuracy")
        },
    )
    groups = np.asarray(gf.intersection_codes(jnp.asarray(codes, jnp.int32), (2, 3)))
    counts = np.zeros((6, 2, 2))
    np.add.at(counts, (groups, labels, predicted), weights)
    for name in ("selection_rate", "true_positive_rate", "false_positive_rate", "accuracy"):
        np.testing.assert_allclose(getattr(gf, name)(counts), frame.by_group[name], rtol=1e-5)
    assert int(gf.undefined_groups(counts)) == 1
    of_race = np.zeros((3, 2, 2))
    np.add.at(of_race, (codes[:, 1], labels, predicted), weights)
    np.testing.assert_allclose(gf.marginal_counts(counts, (2, 3), [1]), of_race)
    np.testing.assert_array_equal(gf.marginal_counts(counts, (2, 3), [0, 1]), counts)


def test_groups_without_positives_are_left_out_unless_they_count_as_zero():
    #                  y=0     y=1
    counts = np.array([[[2, 2], [1, 3]], [[2, 2], [1, 1]], [[4, 0], [0, 0]], [[0, 0], [0, 0]]])
    assert gf.difference("equal_opportunity", counts) == pytest.approx(0.25)
    assert gf.difference("equal_opportunity", counts, empty="zero") == pytest.approx(0.75)
    assert gf.ratio("equal_opportunity", counts) == pytest.approx(2 / 3)
    assert gf.difference("demographic_parity", counts) == pytest.approx(5 / 8)
    assert (int(gf.undefined_groups(counts)), int(gf.undefined_groups(counts, 1))) == (1, 2)


def test_a_gap_needs_two_groups():
    counts = np.array([[[2, 2], [1, 3]], [[0, 0], [0, 0]]])
    for name in GAPS:
        assert np.isnan(getattr(gf, name)(counts))
        assert not np.isnan(getattr(gf, name)(counts, empty="zero"))
    assert np.isnan(gf.difference("accuracy_parity", counts))
    assert gf.lowest(gf.accuracy(counts)) == pytest.approx(5 / 8)
    assert np.isnan(gf.lowest(gf.accuracy(np.zeros((2, 2, 2)))))


def test_pooled_and_mean_of_clients_may_point_in_opposite_directions():
    """Each client favors group 0, all clients together favor group 1 (Simpson)."""
    #       client 0: y=0 only            client 1
    counts = np.array(
        [[[[1, 9], [0, 0]], [[20, 80], [0, 0]]], [[[90, 10], [0, 0]], [[10, 0], [0, 0]]]]
    )
    rates, pooled = gf.selection_rate(counts), gf.selection_rate(counts.sum(axis=0))
    assert (np.asarray(rates[:, 0]) > np.asarray(rates[:, 1])).all()
    assert pooled[1] > pooled[0]
    assert gf.difference("demographic_parity", counts).shape == (2,)


THREE_CLASSES = np.array(
    [
        [[20, 5, 5], [4, 30, 6], [2, 3, 25]],
        [[10, 5, 5], [5, 10, 5], [10, 0, 45]],
        [[6, 2, 2], [1, 7, 2], [4, 4, 12]],
    ]
)


@pytest.mark.parametrize(
    ("criterion", "options", "expected"),
    [
        ("demographic_parity", {}, 0.222105),
        ("demographic_parity", {"agg": "mean"}, 0.152018),
        ("demographic_parity", {"classes": [0]}, 0.015),
        ("demographic_parity", {"classes": [2]}, 0.218947),
        ("demographic_parity", {"method": "to_overall"}, 0.123628),
        ("equal_opportunity", {}, 0.25),
        ("equal_opportunity", {"agg": "mean"}, 0.216667),
        ("equal_opportunity", {"classes": [0, 2]}, 0.233333),
        ("equal_opportunity", {"method": "to_overall"}, 0.180952),
        ("equalized_odds", {}, 0.25),
        ("equalized_odds", {"agg": "mean"}, 0.155556),
        ("accuracy_parity", {}, 0.125),
    ],
)
def test_three_classes_have_the_values_of_a_hand_calculation(criterion, options, expected):
    value = gf.difference(criterion, THREE_CLASSES, **options)
    assert float(value) == pytest.approx(expected, abs=5e-7)


@given(st.sampled_from([3, 5]), st.sampled_from([2, 4]), st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_each_class_against_all_others_is_as_in_fairlearn(num_classes, num_groups, seed):
    rng = np.random.default_rng(seed)
    size = int(rng.choice([2, 9, 80]))  # Each size compiles again.
    groups = rng.integers(0, num_groups, size)
    labels, predicted = rng.integers(0, num_classes, (2, size))
    counts = counted(groups, labels, predicted, num_groups, num_classes)
    gaps = {name: [] for name in ("demographic_parity", "equal_opportunity", "equalized_odds")}
    for label in range(num_classes):
        rest = {"y_true": labels == label, "y_pred": predicted == label}
        for name, values in gaps.items():
            function = getattr(fairlearn, f"{name}_difference")
            values.append(function(**rest, sensitive_features=groups))
    for name, values in gaps.items():
        options = {"empty": "zero", "form": "one_vs_rest"}
        for label, expected in enumerate(values):
            one = gf.difference(name, counts, classes=[label], **options)
            assert float(one) == pytest.approx(expected, abs=1e-6)
        assert float(gf.difference(name, counts, **options)) == pytest.approx(max(values), abs=1e-6)
    of_label = [
        [
            np.mean(predicted[chosen] == j)
            if (chosen := (groups == g) & (labels == i)).any()
            else np.nan
            for g in range(num_groups)
        ]
        for i in range(num_classes)
        for j in range(num_classes)
    ]
    known = [
        np.ptp(np.array(row)[~np.isnan(row)]) for row in of_label if np.sum(~np.isnan(row)) > 1
    ]
    odds = float(gf.difference("equalized_odds", counts))
    assert odds == pytest.approx(max(known, default=np.nan), abs=1e-6, nan_ok=True)


def test_classes_of_a_table_of_two_are_those_of_one_against_the_other():
    counts = THREE_CLASSES[:, :2, :2]
    for name in ("demographic_parity", "equal_opportunity", "equalized_odds"):
        np.testing.assert_array_equal(
            gf.difference(name, counts),
            gf.difference(name, counts, classes=[1], form="one_vs_rest"),
        )
    assert float(gf.difference("equal_opportunity", counts, classes=[0, 1])) == pytest.approx(
        float(gf.difference("equalized_odds", counts))
    )


def test_empty_cells_of_a_class_are_left_out():
    """Nobody of group 1 has label 2, and nobody is predicted to be in class 1."""
    counts = np.array([[[4, 0, 0], [1, 0, 3], [0, 0, 2]], [[2, 0, 2], [0, 0, 4], [0, 0, 0]]])
    assert float(gf.difference("equal_opportunity", counts, classes=[0])) == 0.5
    assert float(gf.difference("equal_opportunity", counts, classes=[1])) == 0
    assert np.isnan(gf.difference("equal_opportunity", counts, classes=[2]))
    assert float(gf.difference("equal_opportunity", counts)) == 0.5
    assert float(gf.ratio("demographic_parity", counts, classes=[1])) == 1  # 0 and 0 are equal.
    assert float(gf.ratio("equal_opportunity", counts)) == 0.5


@pytest.mark.parametrize("label", [3, -1, None])
def test_a_rate_of_three_classes_needs_one_of_them(label):
    for function in (gf.selection_rate, gf.true_positive_rate, gf.false_positive_rate):
        with pytest.raises(ValueError, match=f"pos_label={label}: expected"):
            function(THREE_CLASSES, pos_label=label)
    for counts in (np.ones((3, 2)), np.ones((2, 2)), np.ones((2, 3, 2))):
        with pytest.raises(ValueError, match=r"expected \[..., groups, classes, classes\]"):
            gf.difference("demographic_parity", counts)
    with pytest.raises(ValueError, match="form='both'"):
        gf.difference("equalized_odds", THREE_CLASSES, form="both")


def test_calibration_of_groups_equals_a_loop():
    rng = np.random.default_rng(1)
    scores, groups = rng.uniform(size=200), rng.integers(0, 3, 200)
    labels = rng.uniform(size=200) < scores**2
    bins = np.minimum((scores * 4).astype(int), 3)
    sums = np.zeros((3, 3, 4))
    for kind, values in enumerate((np.ones(200), labels, scores)):
        np.add.at(sums[kind], (groups, bins), values)
    expected = [
        sum(
            np.abs(labels[chosen].mean() - scores[chosen].mean()) * chosen.sum()
            for bin in range(4)
            if (chosen := (groups == group) & (bins == bin)).any()
        )
        / (groups == group).sum()
        for group in range(3)
    ]
    np.testing.assert_allclose(gf.calibration_error(*map(jnp.float32, sums)), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"method": "overall"}, "method='overall'"), ({"empty": "nan"}, "empty='nan'")],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        gf.difference("equal_opportunity", np.ones((2, 2, 2)), **options)


NAN = float("nan")
PEOPLE = [0, 0, 1, 1], [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("labels", "predicted", "differences", "ratios"),
    [
        pytest.param(PEOPLE, PEOPLE, (0, 0, 0), (1, 1, 1), id="perfect"),
        pytest.param(PEOPLE, ([1, 1, 0, 0],) * 2, (0, 0, 0), (1, 1, 1), id="all wrong"),
        pytest.param(PEOPLE, ([0] * 4,) * 2, (0, 0, 0), (1, 1, 1), id="all rejected"),
        pytest.param(PEOPLE, ([1] * 4,) * 2, (0, 0, 0), (1, 1, 1), id="all accepted"),
        pytest.param(
            PEOPLE, ([0, 0, 1, 1], [0, 1, 1, 1]), (0.25, 0, 0.5), (2 / 3, 1, 0), id="FPR 0 and .5"
        ),
        pytest.param(PEOPLE, ([0, 1, 0, 0],) * 2, (0, 0, 0), (1, 1, 1), id="TPR 0"),
        pytest.param(
            ([0, 0, 1, 1], [0] * 4), ([0, 0, 1, 1], [0] * 4), (0.5, NAN, 0), (0, NAN, 1),
            id="no positives",
        ),
        pytest.param(
            ([0, 0, 1, 1], [1] * 4), ([0, 0, 1, 1], [1] * 4), (0.5, 0, 0), (0.5, 1, 1),
            id="no negatives",
        ),
        pytest.param(([0, 0, 1, 1],), ([0, 0, 1, 1],), (NAN,) * 3, (NAN,) * 3, id="one group"),
        pytest.param(
            (PEOPLE[0] * 2,) * 2, ([0] * 4 + [0, 0, 1, 1], [0] * 8), (0.25, 0.5, 0.5), (0, 0, 0),
            id="FPR 0, TPR .5 and 0",
        ),
        pytest.param(
            ([0] * 4, [1] * 4), ([0, 1, 0, 0], [1] * 4), (0.75, NAN, NAN), (0.25, NAN, NAN),
            id="no rate in common",
        ),
    ],
)  # fmt: skip
def test_rates_that_are_zero_are_equal_and_rates_of_nobody_are_left_out(
    labels, predicted, differences, ratios
):
    groups = np.repeat(np.arange(len(labels)), [len(group) for group in labels])
    counts = counted(groups, np.concatenate(labels), np.concatenate(predicted), len(labels))
    for kind, expected in (("difference", differences), ("ratio", ratios)):
        for criterion, value in zip(
            ("demographic_parity", "equal_opportunity", "equalized_odds"), expected, strict=True
        ):
            actual = getattr(gf, kind)(criterion, counts)
            np.testing.assert_allclose(actual, value, rtol=1e-6, err_msg=f"{criterion} {kind}")


def test_the_mean_of_rates_leaves_out_undefined_ones():
    """Group 1 has no positives, so that only false positive rates compare."""
    counts = np.array([[[3, 1], [0, 2]], [[2, 2], [0, 0]]])
    assert float(gf.equalized_odds_difference(counts, agg="mean")) == pytest.approx(0.25)
    assert float(gf.equalized_odds_ratio(counts, agg="mean")) == pytest.approx(0.5)
    assert float(gf.equalized_odds_ratio(counts, "to_overall")) == pytest.approx(2 / 3)
