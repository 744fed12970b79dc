"""Notebooks run, their assertions hold, and what readers see was made from their text."""

import runpy
from pathlib import Path

import jax
import jupytext
import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
TEXTS = sorted(FOLDER.glob("*.py"))


def test_there_are_notebooks():
    assert TEXTS


# Two of them quickly, and all of them where there is time.
WITH_DATA = ("08_group_fairness",)
SHARED = Path(__file__).parents[2] / "shared" / "data"
QUICK = ("01_first_federation", "05_private_facility_location")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, marks=() if text.stem in QUICK else pytest.mark.slow, id=text.stem)
        for text in TEXTS
    ],
)
def test_every_cell_runs(text, capsys, monkeypatch):
    if text.stem in WITH_DATA:
        if not SHARED.is_dir():
            pytest.skip(f"no data sets in {SHARED}")
        monkeypatch.setenv("TFDS_DATA_DIR", str(SHARED))
    # Readers run notebooks with JAX as it comes.
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        runpy.run_path(str(text))


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.stem)
def test_what_readers_see_is_up_to_date(text):
    shown = jupytext.read(text.with_suffix(".ipynb"))
    source = jupytext.read(text)
    assert [cell.source for cell in shown.cells] == [cell.source for cell in source.cells]
    code = [cell for cell in shown.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code), "made by `make notebooks`"
