"""Clients with a chosen bias: requests by hand, achieved cells, and what cannot be given."""

import re

import numpy as np
import pandas as pd
import pytest

import fedjax_fair as ff
from fedjax_fair.app.cli import main
from fedjax_fair.data import biased, describe_bias
from fedjax_fair.data.partitions.biased import split_by_request

SEX = np.array(["F", "M"])
NEEDED = np.array([[[112, 28], [24, 36]], [[30, 30], [70, 70]]])


def pools_of(counts):
    """Labels and sexes with these numbers by sex and label, mixed."""
    counts = np.asarray(counts)
    rows = np.random.default_rng(0).permutation(np.repeat(np.arange(counts.size), counts.ravel()))
    return rows % counts.shape[1], SEX[rows // counts.shape[1]]


LABELS, SEXES = pools_of([[400, 200], [300, 300]])
REQUEST = {"prevalence": [[0.7, 0.3], [0.3, 0.7]], "base_rate": [[0.2, 0.6], [0.5, 0.5]]}


def counts_of(partition, labels, groups, values):
    """Examples of each client by value and label, by loops."""
    return np.array(
        [
            [
                [np.sum((groups[own] == value) & (labels[own] == label)) for label in (0, 1)]
                for value in values
            ]
            for own in partition.client_indices
        ]
    )


def people(total=12_000, seed=0):
    rng = np.random.default_rng(seed)
    sex, race = rng.integers(0, 2, total), rng.integers(0, 3, total)
    table = pd.DataFrame({"sex": SEX[sex], "race": np.array(["A", "B", "C"])[race]})
    table["hours"] = rng.normal(38, 8, total)
    table["salary"] = (rng.random(total) < 0.35 + 0.1 * sex).astype(int)
    return table


def test_cells_by_hand():
    partition = biased(2, "sex", **REQUEST, size=200).split(LABELS, seed=0, sex=SEXES)
    np.testing.assert_array_equal(counts_of(partition, LABELS, SEXES, SEX), NEEDED)
    assert len(np.unique(partition.order)) == 400
    assert len(partition.unassigned) == 800
    assert not np.isin(partition.unassigned, partition.order).any()
    largest = biased(2, "sex", **REQUEST).split(LABELS, seed=0, sex=SEXES)
    assert largest.sizes.tolist() == [563, 563]
    other = biased(2, "sex", **REQUEST, size=200).split(LABELS, seed=1, sex=SEXES)
    assert not np.array_equal(np.sort(other.order), np.sort(partition.order))


@pytest.mark.parametrize(
    ("prevalence", "rate", "gap", "expected"),
    [(0.6, 0.4, 0.2, (0.48, 0.28)), (0.7, 0.3, -0.1, (0.27, 0.37))],
)
def test_a_gap_keeps_the_base_rate_of_the_client(prevalence, rate, gap, expected):
    partitioner = biased(
        1, "sex", gap=gap, prevalence=[1 - prevalence, prevalence], base_rate=rate, favored="M",
    )  # fmt: skip
    cells = partitioner.split(LABELS, seed=0, sex=SEXES).bias.cells[0]
    rates = cells[:, 1] / cells.sum(axis=1)
    np.testing.assert_allclose(rates, expected[::-1])
    assert cells[:, 1].sum() == pytest.approx(rate)


def marginal_gaps(cells, sizes, place):
    """The base rate of each value of a column less that of all others, ``[clients, values]``."""
    grid = cells.reshape(len(cells), *sizes, 2)
    of_value = grid.sum(axis=tuple(a + 1 for a in range(len(sizes)) if a != place))
    others = of_value.sum(axis=1, keepdims=True) - of_value
    return of_value[..., 1] / of_value.sum(-1) - others[..., 1] / others.sum(-1)


def test_attributes_are_those_of_equally_many_clients():
    """The other attribute has no gap, although both depend on each other in the data."""
    table = people()
    table.loc[table.sex == "M", "race"] = "B"
    columns = {name: table[name].to_numpy() for name in ("sex", "race")}
    partitioner = biased(4, ["sex", "race"], "attribute", gap=0.1, favored=["M", "A"])
    with pytest.raises(ValueError, match="sex=M, race=A, label 0: 0 examples are too few"):
        partitioner.split(table.salary.to_numpy(), 0, **columns)
    table = people()
    columns = {name: table[name].to_numpy() for name in ("sex", "race")}
    partition = partitioner.split(table.salary.to_numpy(), 0, **columns)
    assert partition.groups.tolist() == [0, 0, 1, 1]
    sex, race = (marginal_gaps(partition.bias.cells, (2, 3), place) for place in (0, 1))
    np.testing.assert_allclose(sex[:, 1], [0.1, 0.1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(race[:, 0], [0, 0, 0.1, 0.1], atol=1e-12)


def test_values_prevalences_and_base_rates_vary_over_clients():
    table = people()
    labels, race = table.salary.to_numpy(), table.race.to_numpy()
    values = biased(4, "race", "value", gap=0.15).split(labels, 0, race=race)
    gaps = marginal_gaps(values.bias.cells, (3,), 0)
    assert values.groups.tolist() == [0, 1, 2, 0]
    np.testing.assert_allclose(gaps[np.arange(4), [0, 1, 2, 0]], -0.15)
    shares = biased(3, "sex", "prevalence").split(labels, 0, sex=table.sex.to_numpy())
    minority = int(table.sex.value_counts()["M"] < table.sex.value_counts()["F"])
    np.testing.assert_allclose(shares.bias.cells.sum(axis=2)[:, minority], [0.05, 0.25, 0.45])
    rates = shares.bias.cells[..., 1] / shares.bias.cells.sum(axis=2)
    np.testing.assert_allclose(rates, np.tile([labels[table.sex == s].mean() for s in SEX], (3, 1)))
    steps = biased(3, "race", "base_rate", gap=0.3).split(labels, 0, race=race).bias.cells
    expected = np.tile(labels.mean() + np.array([[-0.15], [0], [0.15]]), 3)
    np.testing.assert_allclose(steps[..., 1] / steps.sum(axis=2), expected)


def test_achieved_bias_is_within_two_points_of_the_request():
    """At 10,000 examples, of training and of held-out examples."""
    table = people(40_000)
    data = ff.data.from_table(
        table, label="salary", client=biased(2, "sex", "value", size=10_000),
        sensitive_features=["sex"], test=0.2,
    )  # fmt: skip
    found = describe_bias(data)
    assert (found["size"] == 8000).all()
    for name in ("share", "base_rate", "gap"):
        assert (found[name] - found[f"requested_{name}"]).abs().max() < 0.02
    assert found["requested_gap"].tolist() == pytest.approx([0.2, -0.2])
    tested = describe_bias(data._replace(train=data.test))
    assert ((tested["gap"] - tested["requested_gap"]).abs() < 3 * tested["gap_sd"]).all()


def test_separate_test_examples_have_the_requested_bias():
    """Their cells are other shares of the available ones than those of training examples."""
    table, test = people(), people(6_000, seed=1)
    partitioner = biased(2, "sex", gap=[0.3, -0.3], favored="M", size=500)
    data = ff.data.from_table(
        table, label="salary", client=partitioner, sensitive_features=["sex"], test=test
    )
    train, tested = (describe_bias(data._replace(train=part)) for part in (data.train, data.test))
    np.testing.assert_allclose(train["gap"], [0.3, -0.3], atol=0.01)
    np.testing.assert_allclose(tested["gap"], [0.3, -0.3], atol=0.01)
    assert (tested["size"] > 1000).all()
    selected = ff.data.transforms.select_clients(data, np.array([1]))
    assert describe_bias(selected)["requested_gap"].tolist() == pytest.approx([-0.3])


def test_the_description_by_hand():
    """The deviation of the gap of client 0 at 200 examples is larger than a gap of 0.05."""
    labels, sexes = LABELS, SEXES
    data = ff.data.from_arrays(
        np.arange(len(labels), dtype=np.float32)[:, None], labels,
        clients=biased(2, "sex", **REQUEST, size=200), sensitive_features={"sex": sexes},
        test_fraction=0.0,
    )  # fmt: skip
    found = describe_bias(data)
    assert found["client"].tolist() == [0, 1]
    assert found["value"].tolist() == ["M", "M"]
    np.testing.assert_allclose(found["share"], [0.3, 0.7])
    np.testing.assert_allclose(found["base_rate"], [0.6, 0.5])
    np.testing.assert_allclose(found["gap"], [0.4, 0], atol=1e-12)
    np.testing.assert_allclose(found["requested_gap"], [0.4, 0], atol=1e-12)
    assert found["gap_sd"][0] == pytest.approx(0.0717, abs=1e-4)


def split(*arguments, labels=LABELS, **options):
    return biased(*arguments, **options).split(labels, seed=0, sex=SEXES, race=SEXES)


WRONG = {
    "gap": ({"gap": 0.9}, "base rate -0.0333 of sex=F at client 0: expected a share in [0, 1]"),
    "large gap": ({"gap": [0.1, -1.1]}, "gap=[0.1, -1.1]: expected differences of shares, in [-1"),
    "gaps": ({"gap": [0.1] * 3}, "gap of shape (3,): expected a number, or one for each client"),
    "too many": (REQUEST | {"size": 700}, "sex=F, label 0 needs 497 of 400 examples; expected siz"),
    "size": ({"size": 0}, "size=0: expected an integer >= 1"),
    "sizes": ({"size": [1.5, 2]}, "size=np.float64(1.5): expected an integer >= 1"),
    "sum": ({"prevalence": [0.5, 0.6]}, "prevalence: expected shares >= 0 whose sum"),
    "prevalence": ({"prevalence": [1.0]}, "prevalence of shape (1,): expected (2,) or (2, 2)"),
    "sizes of clients": ({"size": [1] * 3}, "size of shape (3,): expected an integer, or one for"),
    "rates": ({"base_rate": [0.1, 0.2]}, "base_rate of shape (2,): expected a number or (2, 2)"),
    "rates of clients": ({"base_rate": [[0.1, 0.2]]}, "base_rate of shape (1,): expected a number"),
    "rates with a gap": (
        {"gap": 0.1, "base_rate": [[0.1, 0.2]] * 2},
        "base_rate of shape (2, 2): expected with a gap, a number, or one for each client",
    ),
    "rate": ({"gap": 0.1, "base_rate": 1.2}, "base_rate=1.2: expected a number in [0, 1]"),
    "value": ({"gap": 0.1, "favored": "X"}, "favored='X': expected a value of sex, one of ['F',"),
    "unused gap": (
        {"scenario": "prevalence", "gap": 0.1},
        "gap=0.1 has no effect with scenario='p",
    ),
    "unused value": ({"favored": "M"}, "favored='M' has no effect with scenario=None and no gap"),
    "both": ({"scenario": "value", "prevalence": [1, 0]}, "prevalence with scenario='value'"),
    "columns": ({"scenario": "attribute"}, "by=('sex',): expected two or more columns with scen"),
    "scenario": ({"scenario": "labels"}, "scenario='labels'"),
    "classes": ({"labels": LABELS + 1}, "labels of biased span [1, 2]: expected 0 and 1"),
    "no cell": ({"labels": 0 * LABELS, "base_rate": 0.5}, "sex=F, label 1: 0 examples are too few"),
}


@pytest.mark.parametrize(("options", "message"), WRONG.values(), ids=WRONG)
def test_a_bias_that_cannot_be_given_is_explained(options, message, as_users_call):
    with pytest.raises(ValueError, match=re.escape(message)):
        split(2, "sex", **options)


def test_a_description_needs_sensitive_features(as_users_call):
    with pytest.raises(ValueError, match="10 classes, 1 partitions and no sensitive features"):
        describe_bias(ff.data.load("digits"))


def test_data_show_prints_and_plots_requested_gaps(tmp_path, capsys):
    people(4000).to_csv(tmp_path / "pay.csv", index=False)
    picture = tmp_path / "bias.png"
    words = [
        "data", "show", f"--data.file={tmp_path / 'pay.csv'}", "--data.label=salary",
        "--data.sensitive-features", "sex", "race", "--data.partition=biased", "--data.by", "sex",
        "race", "--data.scenario=attribute", "--data.gap=0.1", "--data.clients=4",
    ]  # fmt: skip
    assert main([*words, "-o", str(picture)]) == 0
    printed = capsys.readouterr().out
    table = [line.split() for line in printed.split("\n\n")[-1].splitlines()]
    assert table[0][:3] == ["client", "feature", "value"]
    assert [float(row[-1]) for row in table[1:5]] == [0.1, 0.1, 0, 0]
    assert not any(cell.startswith("-0.0") and not float(cell) for row in table for cell in row)
    assert len(table) == 1 + 4 * 4 + 1  # Sex has one row of each client, race three.
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main([*words[:-2], "--data.gap=0.9", "--data.clients=4"]) == 2
    assert "expected a share in [0, 1]; choose a smaller gap" in capsys.readouterr().err


def test_the_figure_has_achieved_and_requested_gaps():
    table = people()
    data = ff.data.from_table(
        table, label="salary", client=biased(3, "race", "value", gap=0.1),
        sensitive_features=["race"],
    )  # fmt: skip
    described = describe_bias(data)
    (axes,) = ff.report.bias_gaps(described).axes
    lines = [line for line in axes.lines if line.get_linestyle() == "None"]
    shown = np.concatenate([line.get_ydata() for line in lines])
    np.testing.assert_allclose(np.sort(shown), np.sort(100 * described["gap"]))
    ends = np.concatenate([each.get_segments() for each in axes.collections])
    requested = ends[ends[:, 0, 1] == ends[:, 1, 1]][:, 0, 1]
    np.testing.assert_allclose(np.sort(requested), np.sort(100 * described["requested_gap"]))


def test_the_minority_has_the_requested_shares_of_drawn_examples():
    labels, sex = np.arange(4000) % 2, np.repeat(["F", "M", "M", "M"], 1000)
    partition = biased(3, "sex", "prevalence").split(labels, seed=0, sex=sex)
    shares = [np.mean(sex[own] == "F") for own in partition.client_indices]
    np.testing.assert_allclose(shares, [0.05, 0.25, 0.45], atol=0.005)


def test_test_examples_of_unknown_values_are_not_drawn():
    labels, sex = np.arange(400) % 2, np.repeat(["F", "M"], 200)
    request = biased(2, "sex", gap=0.2).split(labels, seed=0, sex=sex).bias
    sex = np.where(np.arange(400) % 4 < 2, "X", sex)
    drawn = split_by_request(request, labels, {"sex": sex}, seed=0)
    assert "X" not in sex[np.concatenate(drawn.client_indices)]


def test_the_favored_value_has_the_highest_base_rate_and_not_the_most_examples():
    sex, race = np.repeat(["F", "F", "F", "M"], 1000), np.tile(["a", "b"], 2000)
    labels = np.where(sex == "M", np.arange(4000) % 10 < 6, np.arange(4000) % 10 < 4).astype(int)
    partition = biased(2, ["sex", "race"], "attribute", gap=0.1, size=200).split(
        labels, seed=0, sex=sex, race=race
    )
    own = partition.client_indices[0]
    rates = [labels[own][sex[own] == each].mean() for each in ("F", "M")]
    assert rates[1] - rates[0] == pytest.approx(0.1, abs=0.03)


def test_base_rates_above_one_are_refused():
    labels, sex = (np.arange(1000) % 10 < 9).astype(int), np.repeat(["F", "M"], 500)
    with pytest.raises(ValueError, match=r"^base rate 1.1 of sex=M at client 0"):
        biased(1, "sex", gap=0.4, favored="M").split(labels, seed=0, sex=sex)
