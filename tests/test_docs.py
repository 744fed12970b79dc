"""The code in the pages of ``docs`` runs."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs"
PAGES = sorted(page for page in FOLDER.glob("*.md") if "```python" in page.read_text("utf8"))


def test_there_are_pages():
    assert PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_python_blocks_run(page):
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text("utf8"), re.DOTALL):
        exec(compile(block, str(page), "exec"), names)
    if page.stem == "how-to-add-an-algorithm":
        assert names["run"].accuracy_mean_clients.isel(round=-1).min() > 0.5
