"""The page shows the numbers of the results and needs no other file."""

import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import xarray as xr
from conftest import linear_model, make_federation
from rich.console import Console

from fedjax_fair import aggregators, metrics, report, results, selectors, solvers
from fedjax_fair.app import console
from fedjax_fair.report.maximization import chosen_pictures, value_against_bits
from fedjax_fair.simulate import make_round
from fedjax_fair.submodular.federated.comparison import GREEDY
from fedjax_fair.training.centralized import make_centralized
from fedjax_fair.training.fit import fit


class Reader(HTMLParser):
    """Collects table cells, link targets and open tags."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.sources, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.sources += [value for name, value in attrs if name in ("src", "href")]
        if tag == "tr":
            self.rows.append([])
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1].append(data)


@pytest.fixture(scope="module")
def dataset():
    model, data = linear_model(), make_federation()._replace(name="<small & strange>")
    solver = solvers.sgd(0.1, 2, steps=2)
    federated = make_round(model, selectors.uniform(3), solver, aggregators.mean())
    return results.combine(
        {
            "fedavg": fit(federated, data, rounds=4, seeds=(0, 1), eval_every=2),
            # evaluated at other rounds, so that the two are padded where they are put together
            "centralized": fit(
                make_centralized(model, solver), data, rounds=3, seeds=(0, 1), eval_every=3
            ),
        }
    )


def test_final_is_the_last_evaluation_of_every_method(dataset):
    last = results.final(dataset)
    for name, round in {"fedavg": 4, "centralized": 3}.items():
        expected = dataset.test_loss.sel(algorithm=name, round=round)
        np.testing.assert_array_equal(last.test_loss.sel(algorithm=name), expected)
    assert "round" not in last.dims


def test_the_page_shows_every_summary_of_every_method(dataset):
    reader = Reader(
        report.page(
            dataset, report.standard_figures(dataset), {"data": {"name": "x<y"}}, {"python": "3"}
        )
    )
    assert reader.open == []
    heading, *rows = reader.rows
    assert heading[-2:] == ["fedavg", "centralized"]
    assert len(rows) == len(metrics.SUMMARIES)
    shown = {row[0]: row for row in rows}["Test accuracy, worst client"]
    values = dataset.accuracy_minimum.sel(algorithm="fedavg", round=4).values
    assert shown[-2] == f"{values.mean():.4f} ± {values.std(ddof=1):.4f}"
    assert shown[1:4] == ["1", "clients with test examples", "uniform"]


def test_what_is_not_defined_is_a_dash(dataset):
    rows = Reader(report.page(dataset, report.standard_figures(dataset), {}, {})).rows
    disagreement = next(row for row in rows if row[0].startswith("Client disagreement: mean"))
    assert disagreement[-1] == "-"  # no client trains in a centralized run
    assert "±" in disagreement[-2]


def test_the_page_needs_no_other_file_and_trusts_no_name(dataset):
    text = report.page(dataset, report.standard_figures(dataset), {"data": {"name": "x<y"}}, {})
    sources = Reader(text).sources
    assert len(sources) == len(report.standard_figures(dataset))
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not re.search(r"https?://", text)
    assert "<small" not in text
    assert "&lt;small &amp; strange&gt;" in text
    assert "x&lt;y" in text


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
            "found": (over[:2], values[..., 1]),
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
