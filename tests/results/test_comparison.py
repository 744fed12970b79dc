"""Comparisons of methods, and tables of results."""

import csv
import io
import re

import numpy as np
import pytest
import xarray as xr
from scipy import stats

import fedjax_fair as ff
from fedjax_fair import results
from fedjax_fair.metrics import paired
from fedjax_fair.results.comparison import (
    COLUMNS,
    LATEX_COLUMNS,
    compare_means,
    comparison_table,
    default_metrics,
)
from fedjax_fair.results.datasets import configurations_as_methods
from fedjax_fair.results.formats import format_number
from fedjax_fair.results.tables import final_tables

DIMS = ("algorithm", "seed", "round")


def made_up(**metrics):
    """Three methods, five seeds, two evaluations."""
    rng = np.random.default_rng(0)
    columns = {name: (DIMS, rng.uniform(0.4, 0.6, (3, 5, 2))) for name in metrics}
    runs = xr.Dataset(
        {"accuracy_mean_clients": (DIMS, rng.uniform(0.4, 0.6, (3, 5, 2)))} | columns,
        {"algorithm": ["one", "two", "three"], "seed": range(5), "round": [0, 9]},
        {"data": "made up"},
    )
    for name, shift in metrics.items():
        runs[name][1, :, 1] = runs[name][0, :, 1] + shift + [-0.01, 0.01, 0.0, 0.01, 0.0]
    return runs


def test_results_are_compared_at_their_last_evaluation():
    runs = made_up(client_dissimilarity=-0.2)
    found = results.compare(runs, "client_dissimilarity")
    assert found.algorithm.values.tolist() == ["two", "three"]
    alone = stats.ttest_rel(*(runs.client_dissimilarity.values[i, :, 1] for i in (1, 0)))
    other = stats.ttest_rel(*(runs.client_dissimilarity.values[i, :, 1] for i in (2, 0)))
    np.testing.assert_allclose(found.difference[0], -0.198)
    np.testing.assert_allclose(found.p, [2 * alone.pvalue, max(other.pvalue, 2 * alone.pvalue)])
    turned = results.compare(runs, "client_dissimilarity", baseline="two")
    assert turned.algorithm.values.tolist() == ["one", "three"]
    np.testing.assert_allclose(turned.high[0], -found.low[0])


def test_methods_that_equal_the_baseline_count_as_comparisons():
    runs = made_up(client_dissimilarity=-0.2).client_dissimilarity.isel(round=1)
    alone = results.differences(runs, "one")
    equal = runs.sel(algorithm=["one"]).assign_coords(algorithm=["equal"])
    found = results.differences(xr.concat([runs, equal], "algorithm"), "one")
    assert np.isnan(found.p.sel(algorithm=["one", "equal"])).all()
    np.testing.assert_allclose(found.p.sel(algorithm="two"), 1.5 * alone.p.sel(algorithm="two"))
    # A method without runs is compared with nothing.
    missing = xr.concat([runs, equal * np.nan], "algorithm")
    np.testing.assert_allclose(results.differences(missing, "one").p[:3], alone.p)


@pytest.mark.parametrize("metric", ["client_dissimilarity", "accuracy_worst_10pct"])
def test_means_are_compared_without_random_numbers(metric, monkeypatch):
    runs = made_up(accuracy_worst_10pct=0.3, client_dissimilarity=0.0)
    complete = results.compare(runs, metric)
    monkeypatch.setattr(np.random, "default_rng", None)
    with pytest.raises(TypeError):
        results.compare(runs, metric)
    simulated = {"bootstrap_low", "bootstrap_high", "noise_floor", "baseline_noise_floor"}
    xr.testing.assert_identical(compare_means(runs, metric), complete.drop_vars(simulated))


def test_what_cannot_be_compared_is_named():
    runs = made_up(client_dissimilarity=0.0)
    with pytest.raises(ValueError, match="metric='gini'"):
        results.compare(runs, "gini")
    with pytest.raises(ValueError, match="baseline='four'"):
        results.compare(runs, "client_dissimilarity", baseline="four")
    with pytest.raises(ValueError, match="seeds"):
        results.compare(runs.isel(seed=[0]), "client_dissimilarity")
    with pytest.raises(ValueError, match="methods"):
        results.compare(runs.isel(algorithm=[0]), "client_dissimilarity")


def test_the_table_of_methods_has_means_differences_and_stars():
    runs = made_up(accuracy_worst_10pct=0.3, client_dissimilarity=0.0)
    (table,) = final_tables(runs.assign_coords(client=range(3)))
    assert table.headings == ("method", "accuracy", "worst 10%", "dissimilarity")
    cells = {row[0]: [cell.split("\n") for cell in row[1:]] for row in table.rows}
    finals = 100 * runs.isel(round=-1)
    for place, name in enumerate(default_metrics(runs)[1]):
        gaps = results.differences(finals[name], "one")
        for row, method in enumerate(("one", "two", "three")):
            values = finals[name].values[row]
            mean, *difference = cells[method][place]
            half = stats.t.ppf(0.975, 4) * stats.sem(values)
            assert mean == f"{values.mean():.1f} ± {half:.1f}"
            point, low, high = (float(gaps[key][row]) for key in ("difference", "low", "high"))
            star = "*" if gaps["is_significant"][row] else ""
            assert difference == (
                [f"{format_number(point)}{star}", f"{format_number(low)} to {format_number(high)}"]
                if row
                else []
            )
    assert cells["two"][1][1].endswith("*")
    assert not cells["two"][2][1].endswith("*")


def test_columns_of_a_comparison_equal_those_of_scipy():
    runs = made_up(client_dissimilarity=-0.2)
    found = results.compare(runs, metric="client_dissimilarity", baseline="one")
    ends = runs.client_dissimilarity.values[:, :, 1]
    for row, own in enumerate(ends[1:]):
        gaps = own - ends[0]
        test = stats.ttest_rel(own, ends[0])
        interval = test.confidence_interval(0.95)
        one = found.isel(algorithm=row)
        np.testing.assert_allclose([one["mean"], one.deviation], [own.mean(), own.std(ddof=1)])
        np.testing.assert_allclose(one.half_width, stats.t.ppf(0.975, 4) * stats.sem(own))
        np.testing.assert_allclose([one.low, one.high], interval)
        np.testing.assert_allclose(one.effect_size, gaps.mean() / gaps.std(ddof=1))
        needed = paired.seeds_needed(gaps.mean(), gaps.std(ddof=1))
        assert (one.seeds, one.seeds_needed) == (5, needed)
        assert (one.bootstrap_low.item(), one.bootstrap_high.item()) == paired.bootstrap(gaps)
    np.testing.assert_allclose(found.baseline_mean, ends[0].mean())
    np.testing.assert_allclose(found.baseline_deviation, ends[0].std(ddof=1))


def test_means_of_the_last_evaluations_are_compared():
    runs = made_up(client_dissimilarity=-0.2)
    found = results.compare(runs, "client_dissimilarity", average_last=2)
    ends = runs.client_dissimilarity.values.mean(axis=2)
    np.testing.assert_allclose(found.difference, (ends[1:] - ends[0]).mean(axis=1))
    longer = results.compare(runs, "client_dissimilarity", average_last=99)
    np.testing.assert_allclose(longer.difference, found.difference)


def test_final_metrics_are_of_the_last_evaluation_of_each_method():
    values = np.arange(12.0).reshape(2, 2, 3)
    values[1, :, 2] = np.nan  # The second method has fewer rounds.
    undefined = np.where(np.arange(3) == 1, np.nan, values)  # Of both, in the middle.
    runs = xr.Dataset(
        {
            "loss": (DIMS, values),
            "gap": (DIMS, undefined),
            "of_client": ("client", [1.0, 2.0]),
            "accuracy": ((*DIMS, "client"), np.stack([values, values], axis=-1)),
        },
        {"algorithm": ["one", "two"], "seed": [0, 1], "round": [0, 5, 9]},
    )
    last = results.final_metrics(runs)
    assert last.loss.values.tolist() == [[2, 5], [7, 10]]
    assert np.isnan(last.gap.values[1]).all()
    both = results.final_metrics(runs, average_last=2)
    assert both.loss.values.tolist() == [[1.5, 4.5], [6.5, 9.5]]
    assert both.gap.values.tolist() == [[2, 5], [6, 9]]
    assert both.of_client.values.tolist() == [1.0, 2.0]
    assert last.accuracy.dims == both.accuracy.dims == ("algorithm", "seed", "client")
    assert last.accuracy[..., 1].values.tolist() == last.loss.values.tolist()
    assert "round" not in both.coords
    with pytest.raises(ValueError, match="average_last=0"):
        results.final_metrics(runs, average_last=0)
    with pytest.raises(ValueError, match="round"):
        results.final_metrics(runs[["of_client"]])


def test_methods_with_different_seeds_are_compared_unpaired():
    rng = np.random.default_rng(5)
    values = rng.normal(0.8, 0.05, (2, 7, 1))
    values[0, 4:] = values[1, :3] = np.nan  # One seed, 3, is common to both.
    runs = xr.Dataset({"accuracy": (DIMS, values)}, {"algorithm": ["one", "two"]})
    found = results.compare(runs, "accuracy", paired=False).isel(algorithm=0)
    one, two = values[0, :4, 0], values[1, 3:, 0]
    expected = stats.ttest_ind(two, one, equal_var=False)
    np.testing.assert_allclose([found.low, found.high], expected.confidence_interval(0.95))
    assert (found.bootstrap_low, found.bootstrap_high) == paired.bootstrap(two, one)
    assert found.seeds == 4
    alone = results.compare(runs, "accuracy").isel(algorithm=0)
    np.testing.assert_allclose(alone.difference, two[0] - one[3])
    assert alone.seeds == 1
    assert np.isnan(alone.low)


def equal_clients(seed=0, methods=1):
    """Forty clients of equal accuracy, each with a few test examples."""
    rng = np.random.default_rng(seed)
    examples = rng.integers(3, 20, (40, 2))
    sizes = examples.sum(axis=1)
    accuracy = rng.binomial(sizes, 0.8, (methods, 200, 1, 40)) / sizes
    pooled = (accuracy * sizes).sum(axis=-1) / sizes.sum()
    return accuracy, xr.Dataset(
        {
            "accuracy_mean_examples": (DIMS, pooled),
            "accuracy_standard_deviation": (DIMS, accuracy.std(axis=-1)),
            "test_examples": (("client", "class"), examples),
        },
        {"algorithm": [f"method {number}" for number in range(methods)]},
    )


def test_the_spread_of_clients_of_equal_accuracy_is_the_noise_floor():
    _, runs = equal_clients()
    name = "accuracy_standard_deviation"
    measured = runs[name].mean().item()
    floor = results.noise_floor(runs, [name])[name].item()
    # Means of 200 standard deviations of 40 values, each with a relative error of an eighth.
    np.testing.assert_allclose(floor, measured, rtol=4 * 0.125 * np.sqrt(2 / 200))


def test_noise_floors_are_per_method_and_means_over_partitions():
    _, runs = equal_clients(methods=2)
    name = "accuracy_standard_deviation"
    runs["accuracy_mean_examples"][1] = 1.0  # Has no sampling noise.
    floor = results.noise_floor(runs, [name, "accuracy_mean_examples"])
    assert floor[name][0] > 0.05
    assert floor[name][1] == 0
    assert np.isnan(floor["accuracy_mean_examples"]).all()
    few, many = (runs["test_examples"] * factor for factor in (1, 100))
    own = xr.concat([few, many], "seed").expand_dims(pair=100).stack(run=("pair", "seed"))
    own = own.drop_vars(["run", "pair", "seed"]).rename(run="seed")
    per_run = results.noise_floor(runs.drop_vars("test_examples").assign(test_examples=own), [name])
    alone = results.noise_floor(runs.assign(test_examples=many), [name])
    both = (floor[name][0] + alone[name][0]) / 2
    np.testing.assert_allclose(per_run[name][0], both, rtol=0.1)
    assert np.isnan(results.noise_floor(runs.drop_vars("test_examples"), [name])[name]).all()
    compared = results.compare(runs, name)
    assert compared.baseline_noise_floor == floor[name][0]
    assert compared.noise_floor.values.tolist() == [0.0]


def test_merged_runs_have_distinct_names():
    runs = made_up(client_dissimilarity=-0.2)
    other = runs.isel(algorithm=[0]).assign_coords(seed=[2, 3, 4, 5, 6]) + 0.1
    other.attrs = runs.attrs
    merged = results.merge_runs({"a": runs, "b": other})
    assert merged.algorithm.values.tolist() == ["one (a)", "two", "three", "one (b)"]
    assert merged.seed.values.tolist() == [0, 1, 2, 3, 4, 5, 6]
    found = results.compare(merged, "client_dissimilarity", baseline="one (a)")
    assert found.seeds.values.tolist() == [3, 3, 3]  # Seeds 2 to 4, which all methods have.
    assert found.seeds_left_out == "0, 1, 5, 6"
    with pytest.raises(
        ValueError,
        match="combined",
    ):
        results.merge_runs({"a": runs, "b": other.assign_attrs(data="others")})


def test_equal_results_of_a_method_are_merged():
    """Padding by other methods, with more rounds or larger cohorts, is no difference."""
    runs = made_up(client_dissimilarity=-0.2)
    runs["cohort_clients"] = (
        ("algorithm", "seed", "training_round", "slot"),
        np.ones((3, 5, 9, 2)),
    )
    runs = runs.assign_coords(slot=[0, 1])
    longer = (
        runs.isel(algorithm=[0])
        .pad(round=(0, 1), slot=(0, 1))
        .assign_coords(round=[0, 9, 20], slot=[0, 1, 2])
    )
    merged = results.merge_runs({"a": runs, "b": longer.assign_attrs(runs.attrs)})
    assert merged.algorithm.values.tolist() == ["one", "two", "three"]
    for name, place in (("cohort_clients", (0, 4, 8, 1)), ("client_dissimilarity", (0, 4, 1))):
        other = longer.copy(deep=True)
        other[name][place] += 1e-9
        merged = results.merge_runs({"a": runs, "b": other})
        assert merged.algorithm.values.tolist() == ["one (a)", "two", "three", "one (b)"]


def on_partition(seeds, examples, *, seed_axis=False, group=None):
    """Runs of one method on a partition, with class accuracies 0.5 and 1."""
    dims = ("seed", "client", "class") if seed_axis else ("client", "class")
    level = np.full((1, len(seeds), 1), 0.5)
    over = (DIMS, level, {"long_name": "made up", "units": "1"})
    names = ("mean_clients", "mean_examples", "worst_10pct", "standard_deviation")
    columns = {f"accuracy_{name}": over for name in names}
    columns |= dict.fromkeys(("sigma_acc", "client_dissimilarity"), over)
    columns |= {
        "test_accuracy": ((*DIMS, "client"), np.full((1, len(seeds), 1, 2), 0.5), over[2]),
        "class_accuracy": ((*DIMS, "class"), np.broadcast_to([0.5, 1.0], (1, len(seeds), 1, 2))),
        "test_examples": (dims, examples),
        "train_examples": (dims, examples),
    }
    if group is not None:
        columns["group"] = (dims[:-1], group)
    coordinates = {"algorithm": ["fedavg"], "seed": seeds, "round": [9]}
    return xr.Dataset(columns, coordinates, {"data": "made up", "label_skew_only": 1})


def named(run, name):
    return run.assign_coords(algorithm=[name])


FIXED = np.array([[40, 0], [0, 40]])
PER_SEED = np.array([[[40, 0], [0, 40]], [[20, 20], [20, 20]], [[10, 30], [30, 10]]])


@pytest.mark.parametrize("combine", [results.merge_runs, results.combine])
@pytest.mark.parametrize("name", ["train_examples", "test_examples", "group"])
def test_runs_on_other_partitions_are_refused(name, combine):
    """Also of the same size and name, with one partition or one per seed."""
    one = on_partition([0, 1, 2], FIXED, group=[0, 1])
    other = named(one, "divfl").copy(deep=True)
    other[name] = other[name][::-1]
    message = f"b: results on another partition .* the first ones; {name} differs"
    if combine is results.combine:
        one, other = (run.isel(algorithm=0, drop=True) for run in (one, other))
    with pytest.raises(ValueError, match=message):
        combine({"a": one, "b": other})
    with pytest.raises(ValueError, match=message):  # The partition of a run is that of all seeds.
        combine({"a": one, "b": other.assign_coords(seed=[5, 6, 7])})
    seeds = np.arange(3)
    one, other = (
        run.assign(
            {key: run[key].expand_dims(seed=seeds) for key in ("test_examples", "train_examples")}
        ).assign(group=run["group"].expand_dims(seed=seeds))
        for run in (one, other)
    )
    mixed = other.copy(deep=True)
    mixed[name][:2] = one[name][:2]
    with pytest.raises(ValueError, match=rf"{name} differs for seed 2\."):
        combine({"a": one, "b": mixed})
    later = other.assign_coords(seed=[3, 4, 5])
    with pytest.raises(ValueError, match="differs"):
        combine({"a": one, "b": later, "c": one.assign_coords(seed=[3, 6, 7])})


def test_runs_have_the_partitions_of_their_seeds():
    """Also if one run has a single partition, and seeds in another order."""
    one = on_partition([0, 1], PER_SEED[:2], seed_axis=True, group=np.array([[0, 1], [1, 0]]))
    two = on_partition([2, 1], PER_SEED[[2, 1]], seed_axis=True, group=np.array([[1, 1], [1, 0]]))
    fixed = on_partition([7], FIXED, group=[0, 0])
    runs = {"a": one, "b": named(two, "divfl"), "c": named(fixed, "oort")}
    merged = results.merge_runs(runs)
    assert merged.seed.values.tolist() == [0, 1, 2, 7]
    expected = np.concatenate([PER_SEED, FIXED[None]])
    for name in ("test_examples", "train_examples"):
        assert merged[name].dims == ("seed", "client", "class")
        assert merged[name].dtype.kind == "i"
        np.testing.assert_array_equal(merged[name], expected)
    np.testing.assert_array_equal(merged["group"], [[0, 1], [1, 0], [1, 1], [0, 0]])
    class_based = results.class_based(merged)
    for run in runs.values():
        (method,) = run.algorithm.values
        for name, values in results.class_based(run).items():
            found = class_based[name].sel(algorithm=[method], seed=run.seed)
            np.testing.assert_array_equal(found.transpose(*values.dims), values)
    # Other methods have no values for these seeds.
    is_run = merged["class_accuracy"].notnull().all("class")
    assert all((is_run | values.isnull()).all() for values in class_based.values())
    compared = results.compare(merged.merge(class_based), "client_dissimilarity_class_based")
    assert compared.seeds.values.tolist() == [1, 0]
    equal = results.merge_runs({"a": fixed, "b": named(fixed, "divfl")})
    assert equal.test_examples.dims == ("client", "class")


def test_noise_floors_are_of_the_partitions_of_a_method():
    """Methods with other seeds do not change them."""
    few, many = (
        on_partition([seed], factor * PER_SEED[[1]], seed_axis=True)
        for seed, factor in ((0, 1), (1, 100))
    )
    names = ["client_dissimilarity", "accuracy_standard_deviation"]
    merged = results.merge_runs({"a": few, "b": named(many, "divfl")})
    together = results.noise_floor(merged, names)
    for method, run in (("fedavg", few), ("divfl", many)):
        for name, floor in results.noise_floor(run, names).items():
            assert together[name].sel(algorithm=method) == floor.item()


def test_configurations_of_personalized_models_keep_their_mark():
    accuracy = [[[[0.5]], [[0.6]]], [[[0.4]], [[0.7]]]]
    names = ["ditto", "ditto (personalized)"]
    swept = xr.Dataset(
        {"accuracy_mean_clients": (("algorithm", "prox", "seed", "round"), accuracy)},
        {"algorithm": names, "prox": [0.0, 0.1]},
    )
    shown = configurations_as_methods(swept).algorithm.values.tolist()
    assert shown[1::2] == ["ditto, prox=0.1", "ditto, prox=0.1 (personalized)"]


def compared(units="1"):
    runs = made_up(client_dissimilarity=0.2)
    runs = runs.assign_coords(algorithm=["by_size", "50 % {x}", "three"])
    for name in runs:
        runs[name].attrs = {"units": units, "long_name": "What is measured"}
    return results.compare(runs, "client_dissimilarity")


def test_a_csv_table_has_all_digits_in_percent():
    comparison = compared()
    rows = list(csv.DictReader(io.StringIO(results.to_text(comparison, "csv"))))
    assert [row["method"] for row in rows] == ["by_size", "50 % {x}", "three"]
    assert {(row["unit"], row["baseline"]) for row in rows} == {("%", "by_size")}
    assert rows[0]["difference"] == rows[0]["seeds"] == ""
    for row, method in zip(rows[1:], comparison.algorithm.values, strict=True):
        for name, factor in {"mean": 100, "bootstrap_high": 100, "p": 1, "effect_size": 1}.items():
            value = float(comparison[name].sel(algorithm=method))
            np.testing.assert_allclose(float(row[name]), factor * value)
    assert "nat" in results.to_text(compared("nat"), "csv")


def test_perplexities_are_not_in_percent():
    runs = made_up(perplexity_pooled=0.2)
    runs["perplexity_pooled"].attrs = {"units": "1", "long_name": "Test perplexity"}
    comparison = results.compare(runs, "perplexity_pooled")
    table = comparison_table(comparison, 1)
    assert table.title == "Test perplexity: differences to one"
    mean, half = comparison["mean"][0].item(), comparison.half_width[0].item()
    assert table.rows[1][1] == f"{mean:.4g} ± {half:.4g}"
    first, second, _ = csv.DictReader(io.StringIO(results.to_text(comparison, "csv")))
    assert first["unit"] == "1"
    np.testing.assert_allclose(float(second["mean"]), mean)


def test_markdown_and_latex_have_the_same_cells_and_stars():
    comparison = compared()
    about, _, head, ruled, *rows = results.to_text(comparison).splitlines()
    assert "in %: differences to by_size. Over 5 paired seeds" in about
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in (head, ruled, *rows)]
    assert {len(row) for row in cells} == {9}
    two = comparison.sel(algorithm="50 % {x}")
    assert two.p < 0.05
    assert cells[3][3] == f"+{100 * two.difference.item():.2f}*"
    assert not cells[4][3].endswith("*")
    low, high = 100 * two.low.item(), 100 * two.high.item()
    assert cells[3][4] == f"{low:+.2f}, {high:+.2f}"
    latex = results.to_text(comparison, "latex", list(COLUMNS)).splitlines()
    begin, _, caption, tabular, *lines, end_tabular, end = latex
    assert (begin, end) == (r"\begin{table}", r"\end{table}")
    assert caption.startswith(r"\caption{What is measured, in \%: differences to by\_size. Over 5 ")
    assert (tabular, end_tabular) == (r"\begin{tabular}{lrrrrrrrr}", r"\end{tabular}")
    assert (lines[0], lines[2], lines[-1]) == (r"\toprule", r"\midrule", r"\bottomrule")
    body = lines[3:-1]
    assert {len(re.findall(r"(?<!\\)&", row)) for row in (lines[1], *body)} == {8}
    assert all(row.endswith(r" \\") for row in body)
    assert body[0].startswith(r"by\_size & ")
    assert body[1].startswith(r"50 \% \{x\} & ")
    assert f"$+${100 * two.difference.item():.2f}$^*$ & " in body[1]


@pytest.mark.parametrize("form", ["markdown", "latex"])
def test_columns_of_a_comparison_can_be_chosen(form):
    """Notes explain the chosen columns only; by default LaTeX has those that papers print."""
    comparison = compared()
    whole = comparison_table(comparison, 2)
    assert len(whole.headings) == 1 + len(COLUMNS)
    chosen = ["p", "mean"]
    table = comparison_table(comparison, 2, chosen)
    places = [0, *(1 + list(COLUMNS).index(name) for name in chosen)]
    assert table.rows == [tuple(row[place] for place in places) for row in whole.rows]
    text = results.to_text(comparison, form, chosen)
    assert text.count("95") == 1 + text.count("95.")  # That of ±.
    for word in ("Cohen", "probability 0.8", "Noise floor", "significant"):
        assert word in whole.note
        assert word not in text
    latex = results.to_text(comparison, "latex")
    assert latex == results.to_text(comparison, "latex", LATEX_COLUMNS)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("form", "columns", "message"),
    [
        ("markdown", ["q"], "columns='q'"),
        ("latex", ["p", "p"], "columns="),
        ("csv", ["p"], "columns="),
    ],
)
def test_wrong_columns_are_refused(form, columns, message):
    with pytest.raises(ValueError, match=message):
        results.to_text(compared(), form, columns)


@pytest.mark.parametrize("seeds", [2, 4, 5, 6])
def test_differences_are_marked_from_five_seeds_on(seeds):
    """The same ones in the table of methods, in comparisons and in all their formats."""
    rng = np.random.default_rng(0)
    base = rng.uniform(0.4, 0.6, (1, seeds, 1))
    shift = np.array([0.0, 0.3, 0.004])[:, None, None] + rng.normal(0, 1e-3, (3, seeds, 1))
    runs = xr.Dataset(
        {"accuracy_mean_clients": (DIMS, base + shift, {"units": "1", "long_name": "Accuracy"})},
        {"algorithm": ["one", "two", "three"], "client": range(3)},
        {"data": "made up"},
    )
    comparison = results.compare(runs, "accuracy_mean_clients")
    assert comparison.p[0] < 0.05
    expected = ((comparison.p < 0.05) & (seeds >= 5)).values.tolist()
    assert comparison.is_significant.values.tolist() == expected
    (table,) = final_tables(runs)
    stars = ["*" in row[1] for row in table.rows[1:]]
    rows = comparison_table(comparison, digits=1).rows[1:]
    assert stars == ["*" in row[3] for row in rows] == expected
    for form in ("markdown", "latex"):
        lines = results.to_text(comparison, form).splitlines()
        (two,) = [line for line in lines if re.match(r"(\| )?two", line)]
        assert ("*" in two) == expected[0]


@pytest.mark.parametrize(
    ("p", "shown"),
    [(0.0499, ".050"), (0.001, ".001"), (0.00099, "< .001"), (0, "< .001"), (np.nan, "-")],
)
def test_p_values_are_never_zero(p, shown):
    comparison = compared()
    comparison["p"] = ("algorithm", [p, 1.0])
    rows = comparison_table(comparison, digits=1).rows
    assert [row[6] for row in rows] == ["-", shown, "1.000"]
    latex = results.to_text(comparison, "latex", ["p", "mean"]).splitlines()[8]
    assert latex.split(" & ")[1] == shown.replace("<", "$<$")


def test_plus_minus_is_half_of_the_interval_in_every_table():
    runs = made_up(client_dissimilarity=0.2).assign_coords(client=range(3))
    (table,) = final_tables(runs)
    (place,) = (i for i, name in enumerate(table.headings) if name == "dissimilarity")
    comparison = results.compare(runs, "client_dissimilarity")
    for row, other, values in zip(
        table.rows,
        comparison_table(comparison.assign_attrs(units="1"), digits=1).rows,
        100 * runs.client_dissimilarity.values[:, :, -1],
        strict=True,
    ):
        half = stats.t.ppf(0.975, 4) * stats.sem(values)
        assert row[place].split("\n")[0] == other[1] == f"{values.mean():.1f} ± {half:.1f}"
    assert "half of the 95% CI" in table.note
    assert "±: half of the 95% CI of the mean" in comparison_table(comparison, 1).note


@pytest.mark.usefixtures("as_users_call")
def test_an_unknown_format_is_refused():
    with pytest.raises(ValueError, match="form='html'"):
        results.to_text(compared(), "html")


def test_only_measures_of_spread_are_class_based():
    """The column of the accuracy is not, although a class-based one exists."""
    method = ff.Round(
        ff.models.mlp(10, hidden=(4,)),
        ff.selectors.Uniform(2),
        ff.solvers.SGD(0.1, 10, steps=1),
        ff.aggregators.Mean(),
    )
    data = ff.data.load("digits", ff.data.classes_per_client(4, 3))
    dataset = results.combine({"fedavg": ff.fit(method, data, rounds=1).dataset})
    assert list(default_metrics(dataset)[1]) == [
        "accuracy_mean_clients",
        "accuracy_worst_10pct_class_based",
        "client_dissimilarity_class_based",
    ]
