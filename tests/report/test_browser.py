"""Pages in a browser: they load, fit, and do what is asked of them, without any error."""

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from synthetic import make_results

from fedjax_fair import report
from fedjax_fair.report import maximization_page
from fedjax_fair.submodular.federated.comparison import GREEDY, POPULAR

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
WIDTHS = (360, 900, 1600)
SCRIPT = Path(__file__).with_name("browser.js")

pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")


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


def look(pages, folder, *options):
    """What the script saw, by page and width."""
    document = folder / "pages.html"
    texts = json.dumps(pages).replace("<", "\\u003c")
    document.write_text(
        f"<body><script>const pages = {texts}, widths = {list(WIDTHS)};\n"
        f"{SCRIPT.read_text()}</script></body>"
    )
    home = folder / "home"
    command = [
        str(BROWSER), "--headless", "--disable-gpu", "--no-sandbox", "--disable-dev-shm-usage",
        "--window-size=1700,1000", "--hide-scrollbars", "--virtual-time-budget=30000",
        f"--user-data-dir={home}",
        *options, "--dump-dom", document.as_uri(),
    ]  # fmt: skip
    environment = os.environ | {"HOME": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    body = re.search(r"<body>(.*)</body>", done.stdout, re.DOTALL)
    assert body, done.stderr[-2000:]
    return json.loads(html.unescape(body[1]))


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    environment = {"a long value": "y" * 400}
    pages = {
        "run": report.page(run_results(), {"data": {"partition": "z" * 200}}, environment),
        "single": report.page(make_results(("fedavg",), seeds=2, groups=True), {}, {}),
        "sweep": report.page(sweep_results(), {}, {}),
        "maximize pictures": maximization_page.page(maximization_results(True), {}, {}),
        "maximize titles": maximization_page.page(maximization_results(False), {}, {}),
    }
    return look(pages, tmp_path_factory.mktemp("browser"))


def test_nothing_fails_and_nothing_is_loaded(seen):
    assert len(seen) == 5 * len(WIDTHS)
    for name, one in seen.items():
        assert one["problems"] == [], name


@pytest.mark.parametrize("width", WIDTHS)
def test_pages_fit(seen, width):
    for name, one in seen.items():
        if name.endswith(f" {width}"):
            assert one["width"] == width, name
            assert one["beyond"] == one["beyondAfterwards"] == [], name


def test_methods_are_shown_and_hidden(seen):
    for name, methods in {"run": 2, "sweep": 6}.items():
        did = seen[f"{name} 900"]["did"]
        assert did["methods"] == did["lines"] == did["dots"] == did["linesAgain"] == methods
        assert did["linesWithout"] == methods - 1
        assert did["pressed"] == "false"


def test_a_client_is_described(seen):
    results, did = run_results(), seen["run 900"]["did"]
    assert (
        did["first"]
        == did["left"]
        == "Client 0, group {}: no test examples".format(results["group"].values[0, 0])
    )
    accuracy = 100 * results["test_accuracy"].values
    assert did["pointed"].endswith(f": {accuracy[0, 0, -1, 1]:.1f} %")
    participants = results["cohort_clients"].values
    assert did["pointedRounds"] == (participants[0, 0] == 1).any(axis=-1).sum()
    assert did["moved"].startswith("Client 3, ")
    assert did["focused"] == "3"
    assert did["stops"] == 1
    assert did["round"] == "2"
    assert did["chosen"].startswith("Client 3, group {}: {:.1f} %; {}, seed 1, round 2".format(
        results["group"].values[1, 3], accuracy[1, 1, 1, 3], "x" * 60
    ))  # fmt: skip
    assert did["chosenRounds"] == (participants[1, 1] == 3).any(axis=-1).sum()
    assert did["chosenRounds"] != (participants[1, 0] == 3).any(axis=-1).sum()  # The seed decides.
    owned = sorted(filter(None, results["train_examples"].values[1, 3]), reverse=True)
    assert did["classes"] == [str(count) for count in owned]


def test_what_results_hold_is_drawn(seen):
    assert seen["run 900"]["did"]["groups"] == 2
    assert seen["single 900"]["did"]["groups"] == 1
    sweep = seen["sweep 900"]["did"]
    assert (sweep["groups"], sweep["settings"], sweep["points"]) == (0, 2, 12)
    assert 100 <= sweep["owners"] <= 150
    assert sweep["open"] is True


def test_chosen_items_are_shown(seen):
    for name, pictures in {"maximize pictures": 3, "maximize titles": 0}.items():
        did = seen[f"{name} 900"]["did"]
        assert (did["lines"], did["items"], did["pictures"]) == (3, 3, pictures)
        titles = [f"A movie of a rather long name ({number})" for number in (0, 2, 3)]
        assert did["labels"] == titles


def test_dark_is_dark(seen, tmp_path):
    page = report.page(make_results(), {}, {})
    dark = look({"run": page}, tmp_path, "--blink-settings=preferredColorScheme=0")

    def brightness(color):
        return sum(map(int, re.findall(r"\d+", color)))

    for one, other in ((seen["run 900"], 1), (dark["run 900"], -1)):
        ink, paper = map(brightness, one["colors"])
        assert other * (paper - ink) > 400
