"""The table of mutants in ``docs/testing.md`` agrees with the code and the tests.

Only nightly, since it names exact lines of the code, which a change may move.
"""

import ast

import pytest
from mutants import ROOT, read_mutants

MUTANTS = read_mutants()
pytestmark = pytest.mark.slow


def test_there_are_mutants():
    assert len(MUTANTS) > 50


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.file}: {mutant.wrong}")
def test_a_mutant_changes_one_place_and_names_a_test(mutant):
    source = (ROOT / mutant.source()).read_text()
    assert source.count(mutant.original) == 1
    ast.parse(source.replace(mutant.original, mutant.wrong))
    tests = ast.parse((ROOT / "tests" / mutant.test_file).read_text())
    names = {node.name for node in ast.walk(tests) if isinstance(node, ast.FunctionDef)}
    assert mutant.test in names
