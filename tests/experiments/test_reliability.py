"""What is tried many times over, a few times; and what the committed counts say."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from experiments.reliability import bits, inputs
from experiments.reliability.__main__ import KEPT, KINDS

PAGES = Path(__file__).parents[2] / "docs" / "reliability"


@pytest.mark.parametrize("what", sorted(KINDS))
def test_every_committed_trial_kept_its_promise(what):
    rows = pd.read_csv(PAGES / f"{what}.csv")
    assert rows["trial"].tolist() == list(range(len(rows)))
    assert rows[KEPT[what]].all()


def test_some_bad_inputs_are_answered_well(as_users_call, tmp_path):
    every = list(inputs.cases(tmp_path))
    assert len(every) >= 400
    for case in every[::97]:
        assert inputs.outcome(case) == "good", case


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (ValueError("x=1: expected 2"), "good"),
        (ValueError("expected 2"), "misleading"),
        (KeyError("x"), "traceback"),
        (TimeoutError(), "hang"),
        (inputs.Accepted(), "accepted"),
        ("x is wrong", "good"),
        ("something is wrong", "misleading"),
        (None, "accepted"),
    ],
    ids=repr,
)
def test_outcomes_are_told_apart(said, expected):
    def call():
        if isinstance(said, BaseException):
            raise said
        return said

    assert inputs.outcome(inputs.Case("", "", ("x",), call)) == expected


@pytest.mark.slow
def test_flipped_bits_are_noticed():
    assert all(row["kept"] for row in bits.trials(4, 1))


@pytest.mark.slow
def test_killed_commands_end_as_they_would_have():
    """In a process of its own, which forks before JAX has started."""
    program = (
        "from experiments.reliability import kills\n"
        "assert all(row['same'] for row in kills.trials(6))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=PAGES.parents[1])
