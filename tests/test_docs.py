"""Tests that code of README and docs runs, and that pages list what they should."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest
import xarray as xr

from fedjax_fair.app import method_page
from fedjax_fair.app.settings.registry import METHODS
from fedjax_fair.metrics import (
    CENTRAL_SUMMARIES,
    CLIENT_GROUP_SUMMARIES,
    SENSITIVE_GROUP_SUMMARIES,
    SEQUENCE_SUMMARIES,
    SUMMARIES,
    definitions,
    speed,
)
from fedjax_fair.metrics.sensitive_group_metrics import PERPLEXITY_PARITY
from fedjax_fair.results.comparison import default_metrics
from fedjax_fair.results.tables import sweep_columns

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [page for page in PAGES if "```python" in page.read_text()]
ADDITIONS = ROOT / "docs" / "how-to-add-an-algorithm.md"


def test_there_are_pages():
    assert ADDITIONS in PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_python_blocks_run(page):
    """Blocks marked ``py`` instead of ``python`` are parts of files."""
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    # Schedules of optax mix integers and floats.
    with jax.numpy_dtype_promotion("standard" if page.stem == "own-models" else "strict"):
        for block in blocks:
            exec(compile(block, str(page), "exec"), names)
    if page == ADDITIONS:
        assert names["run"].accuracy_mean_clients.isel(round=-1).min() > 0.3  # Chance is 0.1.


def test_methods_page_is_current():
    """It has a row for each method, and the conditions that are refused."""
    page = (ROOT / "docs" / "methods.md").read_text("utf8")
    begin, end = (
        "<!-- tables of `fedjax-fair methods --format markdown` -->\n",
        "<!-- end of tables -->",
    )
    tables = page.partition(begin)[2].partition(end)[0]
    assert tables == method_page.tables(), "Replace the tables of docs/methods.md."
    assert all(f"| `{name}` |" in tables for name in METHODS)


def test_metrics_page_is_current():
    page = (ROOT / "docs" / "metrics.md").read_text("utf8")
    command = "fedjax-fair metrics --format markdown > docs/metrics.md"
    assert page == definitions.page(), f"Regenerate it: {command}"


def test_metrics_and_headings_of_tables_are_defined():
    """Once each: a term does not replace a metric."""
    every = SUMMARIES + CLIENT_GROUP_SUMMARIES + SEQUENCE_SUMMARIES + SENSITIVE_GROUP_SUMMARIES
    every += (*CENTRAL_SUMMARIES, PERPLEXITY_PARITY)
    registered = {metric.name for metric in every} | speed.DEFINITIONS.keys()
    assert definitions.columns().keys() == registered | definitions.TERMS.keys()
    assert not registered & definitions.TERMS.keys()
    names = ("accuracy_mean_clients", "accuracy_worst_10pct", "client_dissimilarity")
    names += ("accuracy_standard_deviation", "validation_accuracy_mean_clients")
    values = dict.fromkeys((*names, "group_accuracy_gap"), ("algorithm", [0.5]))
    dataset = xr.Dataset(values, {"algorithm": ["fedavg"]})
    headings = {*sweep_columns(dataset).values(), *default_metrics(dataset)[1].values()}
    assert headings <= definitions.TERMS.keys()


PROGRAM = """
import json
import jax.numpy as jnp
import fedjax_fair as ff
from fedjax_fair import submodular
from fedjax_fair.app.cli import main

options = ["--data.clients=10", "--model.name=logistic", "--solver.steps=2", "--training.rounds=2"]
options += ["--training.seeds", "0", "--output", "runs"]
methods = ["highest_loss:pool=10", "median_size:limit=2", "highest_loss+median_size:pool=10"]
assert main(["run", *options, "--methods", *methods]) == 0
(folder,) = __import__("pathlib").Path("runs").iterdir()
results = ff.results.open(folder)
wine = ff.data.load("wine", ff.data.iid(6))
chosen = submodular.greedy(submodular.CappedCount(5, 2), 3)
print(json.dumps({
    "methods": results.algorithm.values.tolist(),
    "info": [name for name in ("selection_highest_loss", "aggregation_capped") if name in results],
    "range": bool((results.accuracy_range == results.test_accuracy.max("client")
                   - results.test_accuracy.min("client")).all()),
    "wine": [wine.num_clients, int(wine.train.sizes.sum() + wine.test.sizes.sum())],
    "value": float(chosen.value),
}))
"""


def test_following_the_page_adds_what_it_says(tmp_path):
    """On a copy of the package, in a process of its own.

    The line above a block names its file: GitHub does not show what follows the language.
    """
    shutil.copytree(ROOT / "fedjax_fair", tmp_path / "fedjax_fair")
    touched: dict[str, set[str]] = {}
    chapter = ""
    page = ADDITIONS.read_text()
    place = r"(New file|In) `([^`\n]+)`(?:, below `([^`\n]+?)(?: \.\.\.)?`)?:\n\n"
    additions = re.findall(rf"^## (.+?)$|{place}```py\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    assert sum(not title for title, *_ in additions) == page.count("```py\n")
    for title, kind, path, after, text in additions:
        if title:
            chapter = title
            continue
        touched.setdefault(chapter, set()).add(path)
        file = tmp_path / path
        if kind == "New file":
            assert not file.exists()
            file.write_text(text)
            continue
        lines = file.read_text().splitlines(keepends=True)
        (place,) = (i for i, line in enumerate(lines) if line.strip().startswith(after))
        file.write_text("".join([*lines[: place + 1], text, *lines[place + 1 :]]))
    assert len(touched) == 5
    assert max(map(len, touched.values())) <= 3
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "methods": [
            "highest_loss:pool=10", "median_size:limit=2", "highest_loss+median_size:pool=10",
        ],
        "info": ["selection_highest_loss", "aggregation_capped"],
        "range": True,
        "wine": [6, 178],
        "value": 2.0,
    }  # fmt: skip
