"""Tests that code of README and docs runs, and that pages list what they should."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedjax_fair.app.build import server_view
from fedjax_fair.app.registry import METHODS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [page for page in PAGES if "```python" in page.read_text()]
ADDITIONS = ROOT / "docs" / "how-to-add-an-algorithm.md"


def test_there_are_pages():
    assert ADDITIONS in PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_python_blocks_run(page):
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(compile(block, str(page), "exec"), names)
    if page == ADDITIONS:
        assert names["run"].accuracy_mean_clients.isel(round=-1).min() > 0.3  # Chance is 0.1.


@pytest.mark.parametrize("name", METHODS)
def test_methods_page_has_every_method(name):
    """A row per method, with its weighting and what the server sees."""
    method = METHODS[name]
    page = (ROOT / "docs" / "methods.md").read_text()
    (row,) = re.findall(rf"^\| `{name}` \|.*$", page, re.MULTILINE)
    cells = [cell.strip() for cell in row.split("|")]
    assert server_view(method) in cells
    if method.aggregator is None and method.centralized_fn is None:
        assert method.weighting in cells


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
    """On a copy of the package, in a process of its own."""
    shutil.copytree(ROOT / "fedjax_fair", tmp_path / "fedjax_fair")
    touched: dict[str, set[str]] = {}
    chapter = ""
    pattern = r"^## (.+?)$|```python (file|into)=(\S+)(?: after=(.+?))?\n(.*?)```"
    for title, kind, path, after, text in re.findall(
        pattern, ADDITIONS.read_text(), re.DOTALL | re.MULTILINE
    ):
        if title:
            chapter = title
            continue
        touched.setdefault(chapter, set()).add(path)
        file = tmp_path / path
        if kind == "file":
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
