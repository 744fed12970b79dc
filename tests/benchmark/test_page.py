"""The page of a benchmark is complete, loads nothing, escapes names, and sorts in a browser."""

import csv
import html
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from opened_pages import look, needs_browser
from page_contents import FEDERATIONS, KINDS, METHODS, make_about, make_contents

from experiments.benchmark_page import html_tables as tables
from experiments.benchmark_page.page import page
from fedjax_fair.benchmark import measure_labels as measures
from fedjax_fair.benchmark.report_figures import curves, tradeoffs, unsurpassed, write_figures
from fedjax_fair.benchmark.report_tables import write_tables

ABOUT = make_about()
WIDTHS = (390, 1280)
VOID = {"meta", "input", "wbr", "link", "br", "img"}


class Checker(HTMLParser):
    """Verifies that elements are closed in order; collects names of elements and attributes."""

    def __init__(self):
        super().__init__()
        self.open, self.elements, self.attributes, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += [(tag, *attribute) for attribute in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += [(tag, *attribute) for attribute in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)


def parsed(text):
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert not checker.open
    return checker


@pytest.fixture(scope="module")
def contents():
    return make_contents()


@pytest.fixture(scope="module")
def plain(contents):
    return page(contents, ABOUT)


def test_the_page_is_well_formed_and_loads_nothing(plain):
    checker = parsed(plain)
    assert checker.elements.count("script") == 1
    assert not {"link", "img", "iframe", "object", "embed", "base"} & set(checker.elements)
    assert not [a for a in checker.attributes if a[1] in ("src", "srcset", "data")]
    inside = {value for _, name, value in checker.attributes if name == "xlink:href"}
    addresses = {value for tag, name, value in checker.attributes if name == "href"} | inside
    outside = {value for value in addresses if not value.startswith("#")}
    assert outside == {"https://arxiv.org/abs/1905.10497"}  # Links to papers, which load nothing.
    assert "url(" not in plain
    assert "@import" not in plain
    assert "default-src 'none'" in plain
    ids = [value for _, name, value in checker.attributes if name == "id"]
    assert len(set(ids)) == len(ids)
    assert {value[1:] for value in addresses - outside} <= set(ids)


def test_text_is_escaped(plain):
    assert "<script>alert" not in plain
    assert "<i>more" not in plain
    assert "<b>methods" not in plain
    text = "".join(parsed(plain).text)
    assert "<script>alert(1)</script>&" in text
    assert "</pre><script>x</script>" in text


def test_drawings_are_well_formed(plain):
    drawings = re.findall(r"<svg.*?</svg>", plain, re.DOTALL)
    assert len(drawings) == 2 + 1 + len(FEDERATIONS) + len(METHODS)
    labels = [ElementTree.fromstring(one).attrib["aria-label"] for one in drawings]
    assert len(set(labels)) == len(labels)
    assert not any("nan" in one for one in drawings)


def test_every_number_of_the_results_is_shown(contents, plain):
    cells = re.findall(r'data-value="([^"]*)"[^>]*>([^<]*)</td>', plain)
    numbers = [(value, html.unescape(text)) for value, text in cells if value not in KINDS.values()]
    rows = contents.results.to_dict("records")
    expected = []
    for row in rows:
        same = contents.results[contents.results["federation"] == row["federation"]]
        for name, measure in measures.MEASURES.items():
            if same[name].isna().all():
                continue
            if np.isnan(row[name]):
                expected.append(("", "-"))
                continue
            mean, half = (measure.scale * row[key] for key in (name, f"{name}_half"))
            mean, half = (f"{number:,.{measure.digits}f}" for number in (mean, half))
            shown = mean if float(half.replace(",", "")) == 0 else f"{mean} ± {half}"
            expected.append((f"{row[name]:.6g}", shown))
    assert numbers == expected


def test_missing_values_have_reasons(plain):
    cells = re.findall(r'<td[^>]*data-value=""([^>]*)>-</td>', plain)
    assert cells
    assert all(re.fullmatch(r' title=".+"', about) for about in cells)
    results = plain[plain.index('id="results"') :]
    first = results[: results.index('data-federation="groups"')]
    assert "Not shown: demographic parity" in first
    assert "the federation has no sensitive feature" in first
    assert "rounds to target, MB to target (the target was not reached)" in first


def test_the_page_leads_with_what_is_known(contents, plain):
    assert len(contents.statements) > 10
    start = plain.index('class="statements"')
    assert start < plain.index('id="ranking"') < plain.index('class="undecided"')
    assert plain.index('class="undecided"') < plain.index('id="results"')
    for name in ("statements", "undecided"):
        start = plain.index(f'class="{name}"')
        part = plain[start : plain.index("</table>", start)]
        rows = re.findall(r"<tr>(.*?)</tr>", part)[1:]
        assert len(rows) == len(getattr(contents, name)) > 0
        for row, expected in zip(rows, getattr(contents, name).to_dict("records"), strict=True):
            scale = 1 if expected["scope"] == "overall" else 100
            shown = f"{scale * expected['difference']:+.2f}".replace("-", "&minus;")
            assert f"<td>{shown}</td>" in row
            assert f'href="#{tables.anchor(expected["method"])}"' in row


def test_the_headline_names_claims_over_all_datasets(contents):
    known = contents.statements.copy()
    ranks = known[known["scope"] == "overall"]
    assert len(ranks) == 4
    spread = {"ditto": (True, False), "scaffold": (False, False)}
    for method, (is_fairer, is_robust) in spread.items():
        place = ranks.index[(ranks["method"] == method) & (ranks["order"] == "spread")]
        known.loc[place, ["is_fairer", "is_robust"]] = is_fairer, is_robust
    text = "".join(parsed(page(contents._replace(statements=known), ABOUT)).text)
    assert "Better than fedavg, rank by accuracy: scaffold." in text
    assert "Worse than fedavg, rank by accuracy: ditto." in text
    assert "Fairer than fedavg, rank by SD: ditto." in text
    nothing = page(contents._replace(statements=known.iloc[:0]), ABOUT)
    assert "No method differs over all datasets." in "".join(parsed(nothing).text)


def test_unsurpassed_methods(contents):
    for name in FEDERATIONS:
        rows = contents.results[contents.results["federation"] == name]
        up, across = (rows[key].to_numpy() for key in ("accuracy", "standard_deviation"))
        better = (up[:, None] > up) & (across[:, None] < across)
        expected = rows["method"].to_numpy()[~better.any(axis=0)].tolist()
        assert unsurpassed(rows) == expected


def test_markers_are_at_the_values(contents):
    figure = tradeoffs(contents)
    for axes, name in zip(figure.axes, FEDERATIONS, strict=True):
        rows = contents.results[contents.results["federation"] == name]
        marked = [line for line in axes.lines if line.get_marker() in ("o", "s", "^", "D")]
        found = np.array([np.ravel(line.get_xydata()) for line in marked])
        np.testing.assert_allclose(found, 100 * rows[["standard_deviation", "accuracy"]])


def test_cards_have_commands_and_settings(contents, plain):
    cards = re.findall(r'<details class="card" id="([^"]+)">(.*?)</details>', plain, re.DOTALL)
    assert [name for name, _ in cards] == [tables.anchor(name) for name in METHODS]
    for (_, card), row in zip(cards, ABOUT.methods.to_dict("records"), strict=True):
        assert html.escape(row["command"]) in card
        assert card.count("learning_rate=0.1, q=1.0") == len(FEDERATIONS)
        assert card.count("<svg") == 1


def test_links_of_other_schemes_are_text(contents):
    methods = ABOUT.methods.assign(link="javascript:alert(1)")
    assert "javascript:" not in page(contents, ABOUT._replace(methods=methods))


def test_empty_parts_and_single_seeds_have_pages(contents, tmp_path):
    halves = [name for name in contents.results if name.endswith("_half")]
    results = contents.results.copy()
    results[halves] = np.nan
    results.loc[results["federation"] == "digits", ["accuracy", "standard_deviation"]] = np.nan
    small = contents._replace(
        results=results, curves=contents.curves.iloc[:0],
        **{name: getattr(contents, name).iloc[:0]
           for name in ("statements", "ranking", "differences", "undecided")},
    )  # fmt: skip
    text = page(small, ABOUT)
    parsed(text)
    assert "nan" not in text
    assert len(write_tables(small, tmp_path)) == 8
    assert "ranking" not in {path.stem for path in write_figures(small, tmp_path)}


def test_counts_and_reasons_are_named(plain):
    chosen = {"federations": ("digits",), "methods": METHODS[:2]}
    one, about = make_contents(**chosen), make_about(**chosen)
    assert f"{len(METHODS)} methods, {len(FEDERATIONS)} datasets, " in plain
    assert "Not run" not in plain
    text = page(one, about._replace(failures=("a on b: <c>", "d on e: f")))
    assert "2 methods, 1 dataset, " in text
    assert "Not run (2)" in text
    assert "<li>a on b: &lt;c&gt;</li><li>d on e: f</li>" in text


def test_tables_are_written(contents, tmp_path):
    paths = write_tables(contents, tmp_path)
    assert sorted(paths) == sorted(tmp_path.iterdir())
    with (tmp_path / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["accuracy"]) for row in rows] == contents.results["accuracy"].tolist()
    for name in ("ranking", "differences"):
        again = pd.read_csv(tmp_path / f"{name}.csv", keep_default_na=False, na_values=[""])
        expected = getattr(contents, name)
        assert again["method"].tolist() == expected["method"].tolist()
        columns = ["difference", "low", "high", "p", "blocks_needed"]
        np.testing.assert_array_equal(again[columns], expected[columns].astype(float))
    report = (tmp_path / "report.md").read_text()
    titles = ("What is known", "Ranking", "Differences on digits", "What could not be decided")
    places = [report.index(title) for title in titles]
    assert places == sorted(places)
    assert "Chance explains" in report
    assert "so that spread has no verdict" in report
    lines = (tmp_path / "results.md").read_text().splitlines()
    assert sum(line.startswith("| fedavg |") for line in lines) == len(FEDERATIONS)
    widths = {line.count("|") for line in lines if line.startswith("|")}
    assert len(widths) == 2  # With and without measures of group fairness.
    text = "\n".join(lines)
    assert "| tilted (limit), 12% diverged |" in text
    assert "| tilted, 12% diverged |" in text
    latex = (tmp_path / "results-digits.tex").read_text()
    first = contents.results.iloc[0]
    mean, half = 100 * first["accuracy"], 100 * first["accuracy_half"]
    assert rf"fedavg & {mean:.1f} $\pm$ {half:.1f} &" in latex
    body = [line for line in latex.splitlines() if line.endswith(r"\\")]
    assert len({line.count(" & ") for line in body}) == 1
    assert len(body) == 1 + len(METHODS)


def test_a_long_interval_hides_no_point(contents):
    results = contents.results.copy()
    results["accuracy_half"], results["standard_deviation_half"] = 0.01, 0.01
    results.loc[results["method"] == "tilted", "accuracy_half"] = 5.0
    for axes in tradeoffs(contents._replace(results=results)).axes:
        low, high = axes.get_ylim()
        assert high - low < 200  # The interval has 1,000 points.
        points = [line.get_xydata()[0] for line in axes.lines if line.get_marker() != "None"]
        assert all(low < y < high for _, y in points)


def test_figures_are_written(tmp_path):
    contents = make_contents(federations=("digits", "$x$", "c", "d"), methods=METHODS[:3])
    paths = write_figures(contents, tmp_path)
    names = ("ranking", "tradeoffs", "worst_off", "curves", "unseen")
    assert [path.name for path in paths] == [f"{a}.{b}" for a in names for b in ("pdf", "png")]
    assert all(path.stat().st_size > 1000 for path in paths)


@pytest.mark.parametrize(("number", "named"), [(12, 12), (14, 14), (60, 15)])
def test_curves_of_many_methods_have_room(contents, number, named):
    one = contents.curves[contents.curves["method"] == "fedavg"]
    names = ["fedavg", *(f"method {i}" for i in range(1, number))]
    levels = {name: 1 + (i * 7 % number) / number for i, name in enumerate(names)}
    many = pd.concat(
        [one.assign(method=name, accuracy=one["accuracy"] * levels[name]) for name in names]
    )
    figure = curves(contents._replace(curves=many))
    figure.draw_without_rendering()
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(labels) == named
    if named < number:
        best = sorted(names[1:], key=levels.__getitem__, reverse=True)
        assert labels == ["fedavg", *best[: named - 2], "others"]
    for axes in figure.axes:
        assert axes.get_window_extent().height > 1.5 * figure.dpi  # Inches.
        assert len(axes.lines) == number


def test_figures_without_values_are_left_out(contents, tmp_path):
    without = [name for name in contents.results if "unseen" in name or "adapted" in name]
    small = contents._replace(
        results=contents.results.drop(columns=without), curves=contents.curves.iloc[:0],
        ranking=contents.ranking[contents.ranking["method"] == "fedavg"],
    )  # fmt: skip
    names = {path.stem for path in write_figures(small, tmp_path)}
    assert names == {"tradeoffs", "worst_off"}


def look_at(page, folder, *options):
    """Returns what the script observed, by page and width."""
    options = "--virtual-time-budget=60000", "--window-size=1400,1000", *options
    return look({"plain": page}, WIDTHS, folder, *options, script="benchmark/page_browser.js")


@pytest.fixture(scope="module")
def seen(plain, tmp_path_factory):
    return look_at(plain, tmp_path_factory.mktemp("browser"))


def verify(one, width):
    assert one["problems"] == []
    assert one["width"] == one["widthAfterwards"] == width
    assert one["beyond"] == one["beyondAfterwards"] == []


@needs_browser
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_fits_without_errors(seen, width):
    verify(seen[f"plain {width}"], width)


@needs_browser
def test_tables_sort_search_and_filter(seen, contents):
    did = seen["plain 1280"]["did"]
    digits = contents.results[contents.results["federation"] == "digits"]
    by_accuracy = digits.sort_values("accuracy")["method"].tolist()
    assert did["start"] == list(METHODS)
    assert (did["sections"], did["scopes"]) == (1, 1)
    assert did["down"] == {"order": "descending", "names": by_accuracy[::-1]}
    assert did["up"] == {"order": "ascending", "names": by_accuracy}
    assert did["byName"] == {"order": "ascending", "names": sorted(METHODS)}
    assert did["heads"] == 2 + len(measures.GROUPS["accuracy and fairness"])
    assert did["costs"] == [
        "method", "kind", "upload", "download", "rounds to target", "MB to target", "compute",
        "trained",
    ]  # fmt: skip
    for names in did["missingLast"]:
        assert set(names[-2:]) == {"divfl", "tilted"}
    assert did["missingLast"][0][:10] == did["missingLast"][1][:10][::-1]
    assert set(did["selection"]) == {"power_of_choice", "divfl"}
    assert did["count"] == "2 of 12 methods."
    assert did["searched"] == ["fedadam"]
    assert did["federation"] == ["groups"]
    assert did["scope"] == ["digits"]


@needs_browser
def test_dark_mode_has_dark_colors(seen, plain, tmp_path):
    dark = look_at(plain, tmp_path, "--blink-settings=preferredColorScheme=0")

    def brightness(color):
        return sum(map(int, re.findall(r"\d+", color)))

    for one, other in ((seen["plain 390"], 1), (dark["plain 390"], -1)):
        ink, paper = map(brightness, one["colors"])
        assert other * (paper - ink) > 400
