"""Thresholds of trained models against loops over people."""

import re
from functools import partial

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import fedjax_fair as ff
from fedjax_fair.analysis import group_rates_table, post_process, post_processing_table
from fedjax_fair.results.formats import format_mean

TOWNS = ("Aba", "Bern", "Cork")


def make_table(total=1500):
    rng = np.random.default_rng(0)
    sex, race, town = (
        rng.integers(0, 2, total),
        rng.integers(0, 3, total),
        rng.integers(0, 3, total),
    )
    hours = rng.normal(38 + 6 * sex, 8)
    table = pd.DataFrame({"hours": hours, "race": race, "sex": np.array(["F", "M"])[sex]})
    table["town"] = np.array(TOWNS)[town]
    table["salary"] = hours + 6 * sex * (1 - 2 * (town == 0)) + rng.normal(0, 6, total) > 42
    return table


def read(table, **options):
    return ff.data.from_table(
        table, label="salary", client="town", sensitive_features=["sex", "race"], test=0.4,
        **{"validation_fraction": 0.4} | options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained():
    data = read(make_table())
    solver = ff.solvers.SGD(0.1, batch_size=50, epochs=1)
    method = ff.Round(
        ff.models.logistic(2),
        ff.selectors.Full(),
        ff.solvers.Ditto(solver, personal_prox=0.1),
        ff.aggregators.Mean(),
    )
    return data, ff.fit(method, data, rounds=4, seeds=(0, 1))


def people(data, fitted, part, personalized):
    """Client, sex, label and scores of all seeds."""
    examples = getattr(data, part)
    for client in range(data.num_clients):
        start = examples.offsets[client]
        for row in examples.order[start : start + examples.sizes[client]]:
            own = client if personalized else None
            scores = fitted.predict_proba(examples.features[row : row + 1], client=own)
            yield client, examples.sensitive_features[row, 0], examples.labels[row], scores[:, 0, 1]


def gap_of(share, sexes, counts_all, labels, inside):
    """The difference of the rates of two sexes."""
    inside = inside & ((labels == 1) | counts_all)
    rates = [share[inside & (sexes == sex)].mean() for sex in (0, 1)]
    return abs(rates[0] - rates[1])


@pytest.mark.parametrize("constraint", ["demographic_parity", "equal_opportunity"])
@pytest.mark.parametrize("personalized", [False, True])
def test_values_are_those_of_a_loop_over_people(trained, constraint, personalized):
    data, fitted = trained
    found = post_process(
        fitted, data, constraint, max_global_gap=0.03, max_local_gap=0.1, features=["sex"],
        personalized=personalized,
    )  # fmt: skip
    for part in ("validation", "test"):
        clients, sexes, labels, scores = zip(*people(data, fitted, part, personalized), strict=True)
        clients, sexes, labels, scores = map(np.array, (clients, sexes, labels, scores))
        is_counted = (labels == 1) | (constraint == "demographic_parity")
        cells = [
            [(is_counted & (clients == client) & (sexes == sex)).sum() for sex in (0, 1)]
            for client in range(3)
        ]
        np.testing.assert_array_equal(found.dataset["people"].sel(part=part), [cells] * 2)
        for seed in range(2):
            own = scores[:, seed]
            chosen = {
                "model": (own >= 0.5).astype(float),
                "thresholds": found.thresholds[seed].probabilities(own, sexes, clients),
            }
            for predictions, share in chosen.items():
                gap = partial(gap_of, share, sexes, constraint == "demographic_parity", labels)
                local = [gap(clients == client) for client in range(3)]
                values = found.dataset.isel(seed=seed).sel(part=part, predictions=predictions)
                rates = [share[is_counted & (sexes == sex)].mean() for sex in (0, 1)]
                np.testing.assert_allclose(values["rate"].sel(group=["F", "M"]), rates)
                right = np.where(labels == 1, share, 1 - share).mean()
                assert values["accuracy"].item() == pytest.approx(right)
                assert values["global_gap"].item() == pytest.approx(gap(clients >= 0), abs=1e-6)
                np.testing.assert_allclose(values["client_gap"], local, atol=1e-6)
                assert values["local_gap_mean"].item() == pytest.approx(np.mean(local), abs=1e-6)
                assert values["local_gap_maximum"].item() == pytest.approx(max(local), abs=1e-6)


def test_bounds_hold_on_fitted_examples_and_nearly_on_others(trained):
    data, fitted = trained
    found = post_process(fitted, data, max_local_gap=0.02, features=["sex"]).dataset
    thresholds = found.sel(predictions="thresholds")
    fit, test = (thresholds["local_gap_maximum"].sel(part=part) for part in ("validation", "test"))
    assert (fit <= 0.02 + 1e-6).all()
    before = found["local_gap_maximum"].sel(predictions="model", part="test")
    floor = found["local_gap_maximum_floor"].sel(part="test")
    assert (test < 0.02 + 3 * floor).all()
    assert (test < before / 2).all()
    assert found["client"].values.tolist() == list(TOWNS)


def test_the_table_names_the_worst_client(trained):
    data, fitted = trained
    found = post_process(fitted, data, max_global_gap=0.05).dataset
    table = post_processing_table(found)
    assert [row[0] for row in table.rows] == [
        "model, validation", "thresholds, validation", "model, test", "thresholds, test",
        "noise floor, test",
    ]  # fmt: skip
    means = found["client_gap"].sel(part="test", predictions="thresholds").mean("seed")
    worst = int(means.argmax("client"))
    fewest = int(found["people"].sel(part="test").isel(client=worst).min())
    assert table.rows[3][-1].endswith(f"\n{TOWNS[worst]} ({fewest})")
    assert "at most 5 (global). Local: 3 of 3 clients" in table.note
    assert "sex, race" in table.note


def test_rates_are_printed_with_the_numbers_that_they_count(trained):
    data, fitted = trained
    test = data.test
    is_m = (test.sensitive_features[:, 0] == 1) & (test.labels == 1)
    numbers = [is_m[rows].sum() for rows in test.client_indices]
    found = post_process(fitted, data, "equal_opportunity", max_global_gap=0, features=["sex"])
    table = group_rates_table(found.dataset)
    name, _, people, model, _ = table.rows[1]
    assert (name, people) == ("M", f"{sum(numbers)}\n{min(numbers)}")
    rates = 100 * found.dataset["rate"].sel(part="test", predictions="model", group="M")
    assert model == format_mean(rates.values)
    assert "people with label 1" in table.note
    # Nobody of client 0 is a woman, of whom nobody is left in test examples.
    codes = test.sensitive_features.copy()
    codes[np.concatenate(test.client_indices), 0] = 1
    validated = data.validation.sensitive_features.copy()
    validated[data.validation.client_indices[0], 0] = 1
    few = data._replace(
        test=test._replace(sensitive_features=codes),
        validation=data.validation._replace(sensitive_features=validated),
    )
    found = post_process(fitted, few, max_global_gap=0, features=["sex"])
    _, fitted_people, tested_people, *rates = group_rates_table(found.dataset).rows[0]
    total, fewest = fitted_people.split("\n")
    assert 0 < int(fewest) < int(total)
    assert (tested_people, rates) == ("0\n0", ["-", "-"])


def test_each_seed_is_fitted_on_its_own_partition(trained):
    data, fitted = trained
    turned = data.map_parts(
        lambda part: part._replace(offsets=part.offsets[::-1], sizes=part.sizes[::-1])
    )
    together = post_process(fitted, ff.data.stack([data, turned]), max_local_gap=0.05)
    for run, own in enumerate((data, turned)):
        alone = post_process(fitted, own, max_local_gap=0.05)
        values = together.dataset.isel(seed=run)
        xr.testing.assert_equal(values, alone.dataset.isel(seed=run))
        np.testing.assert_array_equal(together.thresholds[run].high, alone.thresholds[run].high)


def test_mistakes_in_the_data_are_explained(trained, as_users_call):
    data, fitted = trained
    without = data._replace(validation=None)
    three = data._replace(num_classes=3)
    anonymous = data._replace(sensitive_names=None)
    for other, message in (
        (
            without,
            "data has no validation examples: expected some to fit thresholds on; train with",
        ),
        (three, "data with 3 classes: expected two"),
        (anonymous, "data has no sensitive features"),
        (ff.data.stack([data] * 3), "data with 3 partitions: expected one for each of 2 seeds"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            post_process(fitted, other)
    for features in (["age"], []):
        with pytest.raises(ValueError, match=r"expected some of \['sex', 'race'\]"):
            post_process(fitted, data, features=features)
    with pytest.raises(ValueError, match="max_global_gap=-1"):
        post_process(fitted, data, max_global_gap=-1)


def test_the_figure_has_the_gaps_of_test_examples(trained):
    data, fitted = trained
    found = post_process(fitted, data, max_local_gap=0.05, features=["sex"]).dataset
    axes = ff.report.threshold_gaps(found).axes[0]
    tested = 100 * found.sel(part="test").mean("seed")
    for line, kind in zip(axes.lines, ("model", "thresholds"), strict=True):
        own = tested.sel(predictions=kind)
        expected = [own["global_gap"], *own["client_gap"]]
        np.testing.assert_allclose(line.get_ydata(), expected)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["all people", *TOWNS]
    (bound,) = axes.collections  # Of clients: there is no global bound.
    heights = [segment[:, 1] for segment in bound.get_segments()]
    np.testing.assert_allclose(heights, 5)
    assert len(heights) == 3
    floors = [tested["global_gap_floor"], *[tested["local_gap_mean_floor"]] * 3]
    np.testing.assert_allclose([bar.get_height() for bar in axes.patches], floors)
