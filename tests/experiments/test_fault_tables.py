"""Tables of faults equal those computed from their committed runs."""

import shutil
from pathlib import Path

import pytest

from experiments import faults

PAGES = Path(__file__).parents[2] / "docs" / "reliability"
TABLES = sorted(path.name.removesuffix("-runs.csv") for path in PAGES.glob("*-runs.csv"))


@pytest.mark.parametrize("what", TABLES)
def test_tables_equal_those_of_their_runs(what, tmp_path):
    file = shutil.copy(PAGES / f"{what}-runs.csv", tmp_path)
    faults.write_table(what, Path(file))
    assert (tmp_path / f"{what}.md").read_text() == (PAGES / f"{what}.md").read_text()


def test_every_fault_is_combined_with_every_method():
    dropout = [(name, attack) for name, attack, *_ in faults.programs("dropout", 10)]
    assert dropout == [(name, "none") for name in faults.SELECTORS]
    tried = [(name, attack, levels) for name, attack, levels, _ in faults.programs("byzantine", 10)]
    assert len(set(tried)) == len(faults.AGGREGATORS) * (1 + len(faults.ATTACKS))
    assert {levels for _, attack, levels in tried if attack == "none"} == {(0.0,)}
