"""The page has the values of the results, and needs no other file."""

import io
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import xarray as xr
from conftest import linear_model, make_federation
from scipy import stats
from synthetic import make_results

from fedjax_fair import aggregators, metrics, report, results, selectors, solvers
from fedjax_fair.app.terminal.console import format_table
from fedjax_fair.report.maximization_page import chosen_pictures, value_against_bits
from fedjax_fair.results.formats import format_number
from fedjax_fair.results.tables import final_tables
from fedjax_fair.rounds.round import Round
from fedjax_fair.submodular.federated.method_comparison import GREEDY
from fedjax_fair.training.centralized import Centralized
from fedjax_fair.training.fit import fit


class Reader(HTMLParser):
    """Collects table cells, references, open tags, JSON data and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.sources, self.open, self.numbers, self.text = [], [], [], "", ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.sources += [value for name, value in attrs if name in ("src", "href")]
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += f"{data} "
        elif self.open and self.open[-1] == "script":
            self.numbers = self.numbers or data
        elif "style" not in self.open:
            self.text += data


@pytest.fixture(scope="module")
def dataset():
    model, data = linear_model(), make_federation()._replace(name="<small & strange>")
    solver = solvers.SGD(0.1, 2, steps=2)
    federated = Round(model, selectors.Uniform(3), solver, aggregators.Mean())
    return results.combine(
        {
            "fedavg": fit(federated, data, rounds=4, seeds=(0, 1), eval_every=2).dataset,
            # Evaluated at other rounds, so that both are padded when combined.
            "centralized": fit(
                Centralized(model, solver), data, rounds=3, seeds=(0, 1), eval_every=3
            ).dataset,
        }
    )


def test_final_is_the_last_evaluation_of_every_method(dataset):
    last = results.final_metrics(dataset)
    for name, round in {"fedavg": 4, "centralized": 3}.items():
        expected = dataset.test_loss.sel(algorithm=name, round=round)
        np.testing.assert_array_equal(last.test_loss.sel(algorithm=name), expected)
    assert "round" not in last.dims


def interval(values):
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return f"{values.mean():.1f} ± {half:.1f}"


def test_tables_show_the_last_evaluation(dataset):
    reader = Reader(report.page(dataset, {"data": {"name": "x<y"}}, {"python": "3"}))
    (heading, *methods, _), (_, *rows) = reader.tables
    assert [cell.strip() for cell in heading[:3]] == ["method", "accuracy", "worst 10%"]
    accuracy = 100 * dataset.accuracy_mean_clients.sel(algorithm="fedavg", round=4).values
    assert methods[0][1].strip() == interval(accuracy)
    assert len(rows) == len(metrics.SUMMARIES) - 1  # Tables have one noise floor.
    shown = {row[0].strip(): [cell.strip() for cell in row] for row in rows}
    worst = 100 * dataset.accuracy_minimum.sel(algorithm="fedavg", round=4).values
    name = "Test accuracy, worst client in %; clients with test examples; weighting: uniform"
    assert shown[name][1] in (interval(worst), f"{worst[0]:.1f}")
    assert not any(re.search(r"± 0\.0+$", cell) for row in shown.values() for cell in row)


def test_differences_are_those_that_results_compare(dataset):
    (_, _, second, _), _ = Reader(report.page(dataset, {}, {})).tables
    found = results.compare(dataset, metric="accuracy_mean_clients")
    numbers = [100 * found[name].item() for name in ("difference", "low", "high")]
    point, low, high = (format_number(number) for number in numbers)
    assert second[1].replace("*", "").strip().endswith(f" {point} {low} to {high}")


def test_spread_has_a_noise_floor(dataset):
    (heading, *_, floors), _ = Reader(report.page(dataset, {}, {})).tables
    cell = floors[[cell.strip() for cell in heading].index("dissimilarity")]
    floor = 100 * results.noise_floor(dataset, ["client_dissimilarity"]).mean()
    assert cell.strip() == f"{float(floor['client_dissimilarity']):.1f}"


@pytest.mark.parametrize(
    ("gap", "finding"),
    [(0.2, "differences to one, in points: two (accuracy +"), (0.001, "No difference to one")],
)
def test_the_finding_names_significant_differences(gap, finding):
    made = make_results(("one", "two"), seeds=5)
    noise = np.random.default_rng(1).normal(scale=0.01, size=(2, 5, 3))
    made["accuracy_mean_clients"][:] = 0.5 + noise + gap * np.array([0, 1])[:, None, None]
    made["client_dissimilarity"][:] = 0.3 + noise
    made["accuracy_mean_examples"][:] = 0.5
    made["test_examples"][:] = 100
    text = Reader(report.page(made, {}, {})).text
    assert finding in text
    assert "its noise floor:" not in text
    made["test_examples"][:] = np.eye(6, 3)  # Three clients have one test example.
    text = Reader(report.page(made, {}, {})).text
    assert "No dissimilarity is above its noise floor" in text
    made["accuracy_mean_examples"][0] = 1.0
    assert "its noise floor:" not in Reader(report.page(made, {}, {})).text
    few = Reader(report.page(made.isel(seed=slice(4)), {}, {})).text
    assert "Significance of differences needs 5 seeds or more" in few
    assert "*" not in few.partition("Noise floor:")[0].replace("*: statistically", "")


def test_undefined_values_are_dashes(dataset):
    _, rows = Reader(report.page(dataset, {}, {})).tables
    disagreement = next(row for row in rows if row[0].startswith("Client disagreement: mean"))
    assert disagreement[-1].strip() == "-"  # No client trains in a centralized run.
    assert "±" in disagreement[-2]


NASTY = "</script><script>throw 1</script><!-- <b>&amp;"


def test_the_page_needs_no_other_file_and_escapes_names(dataset):
    renamed = dataset.assign_coords(algorithm=[NASTY, "b"])
    text = report.page(renamed, {"data": {"name": "x<y"}}, {NASTY: NASTY})
    reader = Reader(text)
    assert reader.sources == []
    assert set(re.findall(r"https?://[^\"']+", text)) == {"http://www.w3.org/2000/svg"}  # A name.
    assert "<small & strange>" not in text
    assert "&lt;small &amp; strange&gt;" in text
    assert "x&lt;y" in text
    assert "throw 1</script>" not in text
    assert "<!--" not in text
    assert json.loads(reader.numbers)["methods"] == [NASTY, "b"]


def names_of(num_values):
    return [f"{['fedavg', 'divfl'][j]}, prox={i}" for i in range(num_values) for j in range(2)]


@pytest.mark.parametrize("has_validation", [False, True])
def test_the_page_of_a_sweep_has_its_best_configurations(has_validation):
    runs = [make_results(seeds=2, clients=5) for _ in range(6)]
    level = np.random.default_rng(2).uniform(0.2, 0.8, (6, 2))
    for run, means in zip(runs, level, strict=True):
        run["accuracy_mean_clients"][:] = means[:, None, None]
        if has_validation:  # Test examples must not rank configurations.
            run["validation_accuracy_mean_clients"] = 1 - run["accuracy_mean_clients"]
    swept = xr.concat(runs, xr.DataArray([0, 1, 2, 3, 4, 5], dims="prox", name="prox"))
    shared = {name: runs[0][name] for name in ("train_examples", "test_examples")}
    reader = Reader(report.page(swept.assign(shared), {}, {}))
    numbers, (table, of_front, _) = json.loads(reader.numbers), reader.tables
    assert of_front[0][0].strip() == "method"
    assert {row[0].strip() for row in of_front[1:]} <= set(names_of(6))
    names = names_of(6)
    best = [names[place] for place in np.argsort(-level.ravel())]
    best = best[:-11:-1] if has_validation else best[:10]
    assert numbers["methods"] == [row[0].strip() for row in table[1:-1]] == best
    assert numbers["settings"]["names"] == ["method", "prox"]
    assert numbers["settings"]["columns"] == [["fedavg", "divfl"], ["0", "1", "2", "3", "4", "5"]]
    for value, (method, prox) in numbers["settings"]["points"]:
        assert value == pytest.approx(100 * level[prox, method], abs=6e-4)
    assert len(numbers["settings"]["points"]) == 12
    assert "the 10 most accurate configurations" in reader.text


# No formula, no markup, no emoji, and nothing that clears a terminal.
STRANGE = r"$\frac{$ [/x] [red]a[/red] :key: " + "\x1b[2J\u202e"
SHOWN = r"$\frac{$ [/x] [red]a[/red] :key: \x1b[2J\u202e"


@pytest.fixture(scope="module")
def strange(dataset):
    renamed = dataset.assign_coords(algorithm=[f"{name} {STRANGE}" for name in "ab"])
    return renamed.assign_attrs(data=STRANGE)


def test_names_in_figures_are_not_formulas(strange):
    figures = report.standard_figures(strange)
    for figure in figures.values():
        figure.savefig(io.BytesIO(), format="png", dpi=30)
    title = figures["learning_curves"].axes[0].get_title(loc="left")
    assert title == SHOWN.replace("$", r"\$")
    first, _ = figures["learning_curves"].legends[0].get_texts()
    assert first.get_text() == "a " + SHOWN.replace("$", r"\$")


def test_items_of_a_maximization_may_have_any_name():
    over = ("algorithm", "seed", "round")
    values, bits = np.array([[[0, 2.0]], [[0, 1.0]]]), np.array([[[0, 0]], [[0, 8]]])
    compared = xr.Dataset(
        {
            "value": (over, values),
            "bits_up": (over, bits),
            "bits_down": (over, bits),
            "final_value": (over[:2], values[..., 1]),
            "chosen": (("algorithm", "seed", "item"), np.array([[[False, True]], [[True, False]]])),
            "picture": (("item", "height", "width"), np.arange(8).reshape(2, 2, 2)),
        },
        {"algorithm": [GREEDY, STRANGE], "label": ("item", [STRANGE, "7"])},
        {"data": STRANGE},
    )
    for draw in (value_against_bits, chosen_pictures):
        draw(compared).savefig(io.BytesIO(), format="png", dpi=30)


def test_names_in_tables_are_escaped(strange):
    for table in final_tables(strange):
        printed = format_table(table, 1000)
        assert "\x1b" not in printed
        assert "\u202e" not in printed
        assert f"a {SHOWN}" in printed
        assert f"({SHOWN})" in printed
