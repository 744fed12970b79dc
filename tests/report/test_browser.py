"""Pages in a browser: they load without errors, fit, and respond; functions of the scripts."""

import json
import re
import shutil
import subprocess
from importlib import resources
from xml.etree import ElementTree

import numpy as np
import pytest
import xarray as xr
from opened_pages import look, needs_browser
from synthetic import make_results

from fedjax_fair import report
from fedjax_fair.report import maximization_page
from fedjax_fair.report.contents import contents
from fedjax_fair.submodular.federated.method_comparison import GREEDY, POPULAR

WIDTHS = (360, 900, 1600)

NODE = shutil.which("node")


def run_results():
    return make_results(("fedavg", "x" * 60), clients=8, groups=True, partitions=True)


def sweep_results():
    points = [make_results(clients=150) for _ in range(3)]
    for number, point in enumerate(points):
        point["accuracy_mean_clients"] = point["accuracy_mean_clients"] - number / 10
    swept = xr.concat(points, xr.DataArray([0.0, 0.1, 1.0], dims="prox", name="prox"))
    shared = {name: points[0][name] for name in ("train_examples", "test_examples")}
    return swept.assign(shared)


def maximization_results(pictures):
    rng = np.random.default_rng(0)
    over, shape = ("algorithm", "seed", "round"), (3, 2, 4)
    chosen = np.zeros((3, 2, 6), bool)
    chosen[..., :3] = True
    chosen[1, :, 1:5] = [0, 1, 1, 0]
    columns = {
        "value": (over, rng.uniform(0.5, 1, shape)),
        "bits_up": (over, np.cumsum(rng.uniform(1e3, 1e6, shape), axis=2)),
        "bits_down": (over, np.cumsum(rng.uniform(1e3, 1e6, shape), axis=2)),
        "contacted": (over, np.ones(shape)),
        "final_value": (over[:2], rng.uniform(0.8, 1, shape[:2])),
        "rounded": (over[:2], rng.uniform(0.8, 1, shape[:2])),
        "rounds": ("algorithm", [0, 1, 4]),
        "chosen": ((*over[:2], "item"), chosen),
    }
    columns["bits_up"][1][0] = columns["bits_down"][1][0] = 0
    if pictures:
        columns["picture"] = (("item", "height", "width"), rng.integers(0, 255, (6, 8, 8)))
    labels = [f"A movie of a rather long name ({number})" for number in range(6)]
    return xr.Dataset(
        columns,
        {"algorithm": [GREEDY, POPULAR, "fedcg"], "seed": [0, 1], "label": ("item", labels)},
        {"data": "movies", "k": 3, "clients": 9},
    )


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    environment = {"a long value": "y" * 400}
    pages = {
        "run": report.page(run_results(), {"data": {"partition": "z" * 200}}, environment),
        "single": report.page(make_results(("fedavg",), seeds=2, groups=True), {}, {}),
        "timed": report.page(make_results(groups=True, timed=True), {}, {}),
        "sweep": report.page(sweep_results(), {}, {}),
        "maximize pictures": maximization_page.page(maximization_results(True), {}, {}),
        "maximize titles": maximization_page.page(maximization_results(False), {}, {}),
    }
    return look(pages, WIDTHS, tmp_path_factory.mktemp("browser"))


@needs_browser
def test_pages_have_no_errors_and_load_nothing(seen):
    assert len(seen) == 6 * len(WIDTHS)
    for name, one in seen.items():
        assert one["problems"] == [], name


@needs_browser
@pytest.mark.parametrize("width", WIDTHS)
def test_pages_fit(seen, width):
    for name, one in seen.items():
        if name.endswith(f" {width}"):
            assert one["width"] == width, name
            assert one["beyond"] == one["beyondAfterwards"] == [], name


@needs_browser
def test_methods_are_shown_and_hidden(seen):
    for name, methods in {"run": 2, "sweep": 6}.items():
        did = seen[f"{name} 900"]["did"]
        assert did["methods"] == did["lines"] == did["dots"] == did["linesAgain"] == methods
        assert did["linesWithout"] == methods - 1
        assert did["pressed"] == "false"


@needs_browser
def test_a_client_is_described(seen):
    results, did = run_results(), seen["run 900"]["did"]
    assert (
        did["first"]
        == did["left"]
        == "Client 0, group {}: no test examples".format(results["group"].values[0, 0])
    )
    accuracy = 100 * results["test_accuracy"].values
    assert did["pointed"].endswith(f": {accuracy[0, 0, -1, 1]:.1f}%")
    participants = results["cohort_clients"].values
    assert did["pointedRounds"] == (participants[0, 0] == 1).any(axis=-1).sum()
    assert did["moved"].startswith("Client 3, ")
    assert did["focused"] == "3"
    assert did["stops"] == 1
    assert did["round"] == "2"
    assert did["chosen"].startswith("Client 3, group {}: {:.1f}%; {}, seed 1, round 2".format(
        results["group"].values[1, 3], accuracy[1, 1, 1, 3], "x" * 60
    ))  # fmt: skip
    assert did["chosenRounds"] == (participants[1, 1] == 3).any(axis=-1).sum()
    assert did["chosenRounds"] != (participants[1, 0] == 3).any(axis=-1).sum()  # The seed decides.
    owned = sorted(filter(None, results["train_examples"].values[1, 3]), reverse=True)
    assert did["classes"] == [str(count) for count in owned]


@needs_browser
def test_charts_of_groups_settings_and_owners_are_drawn(seen):
    assert seen["run 900"]["did"]["groups"] == 2
    assert seen["single 900"]["did"]["groups"] == 1
    sweep = seen["sweep 900"]["did"]
    assert (sweep["groups"], sweep["settings"], sweep["points"]) == (0, 2, 12)
    assert 100 <= sweep["owners"] <= 150
    assert sweep["open"] is True


@needs_browser
def test_charts_have_a_choice_of_their_axis(seen):
    did = seen["timed 900"]["did"]
    # The methods of this page have schedules of two kinds.
    assert did["axes"] == ["virtual time (s)", "time of clients (s)", "round"]
    assert did["groupAxes"] == did["axes"]
    assert did["linesByAxis"] == [2, 2, 2]
    assert seen["run 900"]["did"]["axes"] == []


@needs_browser
def test_charts_of_device_classes_are_drawn(seen):
    results = make_results(groups=True, timed=True)
    did = seen["timed 900"]["did"]
    assert (did["classCharts"], did["staleness"]) == (2, 4)
    assert did["shares"] == 8  # Two methods, two classes; results and weights.
    assert did["tasks"] == 2 * results.sizes["training_round"] * results.sizes["slot"]


@needs_browser
def test_selected_items_are_listed(seen):
    for name, pictures in {"maximize pictures": 3, "maximize titles": 0}.items():
        did = seen[f"{name} 900"]["did"]
        assert (did["lines"], did["items"], did["pictures"]) == (3, 3, pictures)
        titles = [f"A movie of a rather long name ({number})" for number in (0, 2, 3)]
        assert did["labels"] == titles


@needs_browser
def test_dark_mode_has_dark_colors(seen, tmp_path):
    page = report.page(make_results(), {}, {})
    dark = look({"run": page}, WIDTHS, tmp_path, "--blink-settings=preferredColorScheme=0")

    def brightness(color):
        return sum(map(int, re.findall(r"\d+", color)))

    for one, other in ((seen["run 900"], 1), (dark["run 900"], -1)):
        ink, paper = map(brightness, one["colors"])
        assert other * (paper - ink) > 400


@needs_browser
def test_values_of_charts_are_read_with_pointer_and_keys(seen):
    did, results = seen["run 900"]["did"], run_results()
    numbers = contents(results, np.full(2, np.nan))["level"]

    def text(method, place):
        at, *values = (column[place] for column in numbers[method])
        digits = (3 if abs(value) < 2 else 1 for value in values)
        mean, low, high = (f"{round(v, n):.15g}" for v, n in zip(values, digits, strict=True))
        name = str(results["algorithm"].values[method])
        return f"{name}, round {at}: {mean} (95% CI {low} to {high})"

    assert did["beforeFocus"] == did["afterLeaving"] == ""
    assert did["focusedValue"] == text(0, -2)  # Charts begin where methods differ.
    assert did["nextValue"] == did["pointedValue"] == text(0, -1)
    assert did["otherMethod"] == text(1, -1)


@needs_browser
def test_charts_are_downloaded_as_svg_without_a_style_sheet(seen):
    did = seen["run 900"]["did"]
    assert did["file"] == "accuracy.svg"
    root = ElementTree.fromstring(did["svg"])
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(" not in did["svg"]
    assert sum("data-method" in node.attrib for node in root.iter()) == 2


def test_every_chart_of_a_page_has_a_title_and_a_function():
    page = report.page(run_results(), {}, {})
    titles = dict(re.findall(r'<div class="chart" id="(\w+)" data-title="([^"]+)"', page))
    drawn = set(re.findall(r'^picture\("(\w+)"', page, re.MULTILINE))
    assert {"learning", "spread", "tradeoff", "busy", "groups", "cluster_agreement"} <= set(titles)
    assert set(titles) <= drawn


@pytest.mark.skipif(NODE is None, reason="there is no Node.js")
def test_functions_of_charts(tmp_path):
    """The nearest value, the value that a key leads to, and colors of a file."""
    script = resources.files("fedjax_fair.report") / "web" / "charts.js"
    numbers = json.dumps({"methods": ["a", "b"]})
    program = f"""
globalThis.document = {{ getElementById: () => ({{ textContent: {numbers!r} }}) }};
{script.read_text()}
const places = [["a", 0, 0], ["a", 9, 0], ["b", 0, 5], ["b", 9, 5]];
const points = places.map(([name, x, y]) => ({{ name, x, y }}));
const at = [[8, 1], [8, 4], [8, 4, "a"]].map((place) => nearest(points, ...place));
const keys = ["ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp", "Home", "End", "x"];
console.log(JSON.stringify({{
  nearest: [...at, nearest([], 0, 0)],
  moved: keys.map((key) => moved(points, 1, key)),
  resolved: resolved('<path stroke="var(--m0)"/>', () => " #123 "),
  rounded: [83.14159, 0.5, 12, -0.25].map(round),
  ticks: nice(0, 1, 5),
  rounds: [[10, 10], [10, 11], [0, 100]].map((ends) => ticks(roundAxis(...ends), 5)),
}}));
"""
    file = tmp_path / "charts.js"
    file.write_text(program)
    done = subprocess.run([str(NODE), file], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {
        "nearest": [1, 3, 1, -1],
        "moved": [1, 0, 3, 3, 0, 1, None],
        "resolved": '<path stroke="#123"/>',
        "rounded": ["83.1", "0.5", "12", "-0.25"],
        "ticks": [0, 0.2, 0.4, 0.6, 0.8, 1],
        "rounds": [[9, 10, 11], [10, 11], [0, 20, 40, 60, 80, 100]],
    }


# As much of a document as the charts use. Elements are counted instead of drawn.
STUB = """
const counts = {}, texts = [];
class Element {
  constructor(name) { Object.assign(this, { name, dataset: {}, clientWidth: 400, style: {} }); }
  setAttribute(key, value) {
    if (key.startsWith("data-")) counts[key] = (counts[key] ?? 0) + 1;
    if (/NaN|undefined/.test(value)) throw Error(`${this.name} ${key}=${value}`);
  }
  set textContent(text) { texts.push(text); }
  get textContent() { return numbers_; }
  append() {} replaceChildren() {} addEventListener() {} closest() { return null; }
}
globalThis.document = {
  documentElement: new Element("html"),
  getElementById: (name) => name === "legend" ? null : new Element(name),
  createElement: (name) => new Element(name), createElementNS: (_, name) => new Element(name),
};
globalThis.addEventListener = () => {};
"""


@pytest.mark.skipif(NODE is None, reason="there is no Node.js")
@pytest.mark.parametrize("evaluations", [1, 2, 10])
def test_charts_of_few_evaluations_have_marks(evaluations, tmp_path):
    results = make_results(evaluations=evaluations + 1, rounds=100, groups=True)
    page = report.page(results.isel(round=slice(1, None)), {}, {})
    (numbers,) = re.findall(r'id="numbers">(.*?)</script>', page)
    folder = resources.files("fedjax_fair.report") / "web"
    parts = [(folder / f"{name}.js").read_text() for name in ("charts", "run")]
    program = [f"const numbers_ = {numbers!r};", STUB, *parts]
    # Other charts need the settings of a sweep.
    program.append("numbers.settings = { names: [], columns: [], points: [[50, []]] }; drawAll();")
    program.append("console.log(JSON.stringify([counts, texts]));")
    (tmp_path / "page.js").write_text("\n".join(program))
    done = subprocess.run([str(NODE), tmp_path / "page.js"], capture_output=True, text=True)
    assert not done.stderr
    counts, texts = json.loads(done.stdout)
    # Accuracy, dissimilarity and two groups of each of two methods.
    assert counts.get("data-dot", 0) == (8 * evaluations if evaluations <= 3 else 0)
    assert counts["data-floor"] == 2
    assert "100" in texts
    assert "10.2" not in texts
