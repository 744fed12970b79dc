"""The page shows the numbers of the results and needs no other file."""

import io
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import xarray as xr
from conftest import linear_model, make_federation
from rich.console import Console
from scipy import stats
from synthetic import make_results

from fedjax_fair import aggregators, metrics, report, results, selectors, solvers
from fedjax_fair.app import console
from fedjax_fair.report.maximization import chosen_pictures, value_against_bits
from fedjax_fair.simulate import Round
from fedjax_fair.submodular.federated.comparison import GREEDY
from fedjax_fair.training.centralized import Centralized
from fedjax_fair.training.fit import fit


class Reader(HTMLParser):
    """Collects the cells of tables, what is referred to, open tags, and the numbers of a page."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.sources, self.open, self.numbers, self.words = [], [], [], "", ""
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
            self.words += data


@pytest.fixture(scope="module")
def dataset():
    model, data = linear_model(), make_federation()._replace(name="<small & strange>")
    solver = solvers.SGD(0.1, 2, steps=2)
    federated = Round(model, selectors.Uniform(3), solver, aggregators.Mean())
    return results.combine(
        {
            "fedavg": fit(federated, data, rounds=4, seeds=(0, 1), eval_every=2),
            # evaluated at other rounds, so that the two are padded where they are put together
            "centralized": fit(
                Centralized(model, solver), data, rounds=3, seeds=(0, 1), eval_every=3
            ),
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


def test_the_tables_are_of_the_last_evaluation(dataset):
    reader = Reader(report.page(dataset, {"data": {"name": "x<y"}}, {"python": "3"}))
    (heading, *methods), (_, *rows) = reader.tables
    assert [cell.strip() for cell in heading[:3]] == ["method", "accuracy", "worst 10 %"]
    accuracy = 100 * dataset.accuracy_mean_clients.sel(algorithm="fedavg", round=4).values
    assert methods[0][1].strip() == interval(accuracy)
    assert len(rows) == len(metrics.SUMMARIES)
    shown = {row[0].strip(): [cell.strip() for cell in row] for row in rows}
    worst = 100 * dataset.accuracy_minimum.sel(algorithm="fedavg", round=4).values
    cells = shown["Test accuracy, worst client"]
    assert cells[1:4] == ["%", "clients with test examples", "uniform"]
    assert cells[4] in (interval(worst), f"{worst[0]:.1f}")
    assert not any(re.search(r"± 0\.0+$", cell) for row in shown.values() for cell in row)


def test_differences_are_those_that_results_compare(dataset):
    (_, _, second), _ = Reader(report.page(dataset, {}, {})).tables
    found = results.compare(dataset, metric="accuracy_mean_clients")
    numbers = [100 * found[name].item() for name in ("difference", "low", "high")]
    expected = "{:+.1f} ({:+.1f}, {:+.1f})".format(*numbers).replace("-", "−")  # noqa: RUF001
    assert expected in second[1]


def test_spread_stands_beside_its_noise_floor(dataset):
    (heading, first, _), _ = Reader(report.page(dataset, {}, {})).tables
    cell = first[[cell.strip() for cell in heading].index("dissimilarity")]
    floor = 100 * dataset.client_dissimilarity_noise.sel(algorithm="fedavg", round=4).values
    assert f"noise floor {floor.mean():.1f}" in cell


@pytest.mark.parametrize(
    ("gap", "said"), [(0.2, "against one, in points: two (accuracy +"), (0.001, "No difference")]
)
def test_the_finding_is_what_is_beyond_chance(gap, said):
    made = make_results(("one", "two"), seeds=5)
    noise = np.random.default_rng(1).normal(scale=0.01, size=(2, 5, 3))
    made["accuracy_mean_clients"][:] = 0.5 + noise + gap * np.array([0, 1])[:, None, None]
    made["client_dissimilarity"][:] = 0.3 + noise
    made["client_dissimilarity_noise"][:] = 0.2
    words = Reader(report.page(made, {}, {})).words
    assert said in words
    assert "its noise floor:" not in words
    made["client_dissimilarity_noise"][0] = 0.4
    assert "its noise floor:" not in Reader(report.page(made, {}, {})).words
    made["client_dissimilarity_noise"][:] = 0.4
    assert "No dissimilarity is above its noise floor" in Reader(report.page(made, {}, {})).words


def test_what_is_not_defined_is_a_dash(dataset):
    _, rows = Reader(report.page(dataset, {}, {})).tables
    disagreement = next(row for row in rows if row[0].startswith("Client disagreement: mean"))
    assert disagreement[-1].strip() == "–"  # noqa: RUF001  # no client trains in a centralized run
    assert "±" in disagreement[-2]


NASTY = "</script><script>throw 1</script><!-- <b>&amp;"


def test_the_page_needs_no_other_file_and_trusts_no_name(dataset):
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


def test_a_sweep_has_a_page_of_its_best_points():
    runs = [make_results(seeds=2, clients=5) for _ in range(6)]
    level = np.random.default_rng(2).uniform(0.2, 0.8, (6, 2))
    for run, means in zip(runs, level, strict=True):
        run["accuracy_mean_clients"][:] = means[:, None, None]
    swept = xr.concat(runs, xr.DataArray([0, 1, 2, 3, 4, 5], dims="prox", name="prox"))
    shared = {name: runs[0][name] for name in ("train_examples", "test_examples")}
    reader = Reader(report.page(swept.assign(shared), {}, {}))
    numbers, (table, _) = json.loads(reader.numbers), reader.tables
    names = [f"{['fedavg', 'divfl'][j]}, prox={i}" for i in range(6) for j in range(2)]
    best = [names[place] for place in np.argsort(-level.ravel())[:10]]
    assert numbers["methods"] == [row[0].strip() for row in table[1:]] == best
    assert numbers["settings"]["names"] == ["method", "prox"]
    assert numbers["settings"]["columns"] == [["fedavg", "divfl"], ["0", "1", "2", "3", "4", "5"]]
    for value, (method, prox) in numbers["settings"]["points"]:
        assert value == pytest.approx(100 * level[prox, method], abs=6e-4)
    assert len(numbers["settings"]["points"]) == 12
    assert "the 10 most accurate points" in reader.words


# No formula, no markup, no emoji, and nothing that clears a terminal.
STRANGE = r"$\frac{$ [/x] [red]a[/red] :key: " + "\x1b[2J\u202e"
SHOWN = r"$\frac{$ [/x] [red]a[/red] :key: \x1b[2J\u202e"


@pytest.fixture(scope="module")
def strange(dataset):
    renamed = dataset.assign_coords(algorithm=[f"{name} {STRANGE}" for name in "ab"])
    return renamed.assign_attrs(data=STRANGE)


def test_names_in_figures_are_no_formulas(strange):
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


def test_names_in_tables_are_shown_as_they_are(strange):
    for table in (*console.tables(strange), console.sweep_table(strange, [])):
        file = io.StringIO()
        Console(file=file, width=1000, force_terminal=True).print(table)
        printed = file.getvalue()
        assert "\x1b[2J" not in printed
        assert "\u202e" not in printed
        plain = re.sub(r"\x1b\[[0-9;]*m", "", printed)
        assert f"a {SHOWN}" in plain
        if table.title and "Differences" not in str(table.title):
            assert f"({SHOWN})" in plain.replace("\n", " ")
