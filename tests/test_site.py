"""The site has every page and every public name."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
from mkdocs.utils.yaml import yaml_load

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import formulas  # noqa: E402
import site_pages  # noqa: E402

NAV = list(site_pages.pages(yaml_load((ROOT / "mkdocs.yml").read_text("utf8"))["nav"]))
MODULES = [page[len("api/") : -len(".md")] for page in NAV if page.startswith("api/")]


def test_every_page_is_in_the_navigation():
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/*.md")}
    notebooks = {f"notebooks/{path.name}" for path in ROOT.glob("notebooks/*.ipynb")}
    assert pages | notebooks <= set(NAV)


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/*.md")), ids=lambda path: path.stem)
def test_code_blocks_name_only_a_language(page):
    """The site shows a block with other words after its language as text."""
    fences = [line for line in page.read_text().splitlines() if line.startswith("```")]
    assert not [line for line in fences if " " in line]


def test_every_public_module_has_a_page():
    import fedjax_fair

    packages = {path.parent.name for path in ROOT.glob("fedjax_fair/*/__init__.py")}
    public = {f"fedjax_fair.{name}" for name in packages & set(fedjax_fair.__all__)}
    assert public < set(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_names_are_documented_where_they_are_defined(module):
    imported = importlib.import_module(module)
    own = {name for name in imported.__all__ if not isinstance(getattr(imported, name), ModuleType)}
    origins = site_pages.public_names(module)
    assert set(origins) == own
    for name, origin in origins.items():
        home, _, defined = origin.rpartition(".")
        assert getattr(importlib.import_module(home), defined) is getattr(imported, name)


def test_formulas_are_drawn():
    text = "A.\n\n.. math:: a * b\n\nWith :math:`\\alpha` and\n\n.. math::\n\n    c\n    d"
    drawn = formulas.render_formulas(text)
    assert drawn.count("<math") == 3
    assert drawn.count('display="block"') == 2
    assert "math:" not in drawn
    assert "*" not in drawn
