"""A few trials of the guarantees, and the committed outcomes."""

import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import strategies as st

from experiments.reliability import bits, disks, fuzz, fuzz_files, fuzz_partitions, inputs
from experiments.reliability.__main__ import KINDS
from experiments.reliability.commands import COMMANDS, Ended, contents
from fedjax_fair import data
from fedjax_fair.app import cli, experiment
from fedjax_fair.app.run_folder import MetricsLog
from fedjax_fair.app.settings.fields import settings_of

PAGES = Path(__file__).parents[2] / "docs" / "reliability"


@pytest.mark.parametrize("what", sorted(KINDS))
def test_every_committed_trial_passed(what):
    rows = pd.read_csv(PAGES / f"{what}.csv")
    assert rows["trial"].tolist() == list(range(len(rows)))
    assert rows["passed"].all()


def test_some_invalid_inputs_have_good_answers(as_users_call, tmp_path):
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
def test_outcomes_are_distinguished(said, expected):
    def call():
        if isinstance(said, BaseException):
            raise said
        return said

    assert inputs.outcome(inputs.Case("", "", ("x",), call)) == expected


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (Ended(2, f"[Errno 27] {disks.REASON}: '/runs/7/results.nc'\n", 3), True),
        (Ended(2, f"[Errno 27] {disks.REASON}\n", 3), False),
        (Ended(2, "something is wrong: '/runs/7/results.nc'\n", 3), False),
        (Ended(2, f"a line\n[Errno 27] {disks.REASON}: '/runs/7/results.nc'\n", 3), False),
        (Ended(1, f"[Errno 27] {disks.REASON}: '/runs/7/results.nc'\n", 3), False),
        (Ended(0, "", 3), False),
    ],
)
def test_the_answer_to_a_full_disk(ended, expected):
    assert disks.has_reason(ended, Path("/runs/7")) == expected


def test_a_run_goes_on_after_its_disk_was_full(tmp_path, monkeypatch, capsys):
    """From the log of the second evaluation on, there is no room for a checkpoint."""
    monkeypatch.setattr(experiment, "draw", lambda dataset, folder: None)
    command = [*COMMANDS["run"], "--quiet", "--output"]
    assert cli.main([*command, str(tmp_path / "undisturbed")]) == 0
    write, limit = MetricsLog.on_evaluation, ExitStack()

    def fill_up(log, evaluation):
        write(log, evaluation)
        if evaluation.round == 2:
            limit.enter_context(disks.full_disk())

    monkeypatch.setattr(MetricsLog, "on_evaluation", fill_up)
    with limit:
        status = cli.main([*command, str(tmp_path / "full")])
    (folder,) = (tmp_path / "full").iterdir()
    ended = Ended(status, capsys.readouterr().err, 0)
    assert disks.has_reason(ended, folder / "checkpoints"), ended
    monkeypatch.setattr(MetricsLog, "on_evaluation", write)
    assert cli.main(["resume", str(folder), "--quiet"]) == 0
    assert contents(tmp_path / "full") == contents(tmp_path / "undisturbed")


@pytest.mark.parametrize("name", sorted(set(fuzz.KINDS) - {"sweep.json", "part of a sweep"}))
def test_random_cases_are_rejected_by_name_or_valid(name, as_users_call):
    executions = 3 if name == "configuration" else 10
    counts, failure = fuzz.execute(fuzz.KINDS[name], executions, seed=0)
    assert not failure
    assert counts.total() == executions


def test_failures_are_counted():
    def judge(number):
        if number > 600:
            raise KeyError(number)
        return number > 300

    kind = fuzz.Kind(st.integers(0, 900), judge)
    counts, failure = fuzz.execute(kind, 100, seed=0)
    assert counts.total() == 100
    assert min(counts[None], counts[True], counts[False]) > 10
    assert re.fullmatch(r"([6-9]\d\d): KeyError: \1", failure)
    assert fuzz.execute(kind, 100, seed=0) == (counts, failure)
    assert fuzz.execute(kind, 100, seed=1) != (counts, failure)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (fuzz_files.Case("results.nc", [("flip", 40, 1)]), "something else"),
        (fuzz_files.Case("config.json", [("cut", 9)]), "ValueError: nothing"),
    ],
)
def test_wrong_readers_are_detected(case, said, monkeypatch):
    """A reader of wrong values, and one that does not name the file."""

    def anything(folder):
        if case.reader == "config.json":
            raise ValueError("nothing")
        return xr.Dataset({"accuracy": 1.0})

    fuzz_files.judge(case)  # Writes the files with the correct reader.
    reader = fuzz_files.READERS[case.reader]._replace(read=anything)
    monkeypatch.setitem(fuzz_files.READERS, case.reader, reader)
    with pytest.raises(AssertionError, match=said):
        fuzz_files.judge(case)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda part: part._replace(order=np.append(part.order[:-1], part.order[0])),
        lambda part: part._replace(sizes=part.sizes + 1),
        lambda part: part._replace(unassigned=np.array([0], np.int32)),
        lambda part: part._replace(
            sizes=part.sizes - np.array([1, -1, 0]), groups=np.zeros(3, np.int32)
        ),
        lambda part: part._replace(groups=np.zeros(2, np.int32)),
    ],
)
def test_wrong_partitions_are_detected(wrong, monkeypatch):
    case = fuzz_partitions.Case("iid", {"clients": 3}, (4, 5), 0)
    assert fuzz_partitions.judge(case)

    iid = fuzz_partitions.PARTITIONERS["iid"]

    def spoiled(clients):
        made = data.iid(clients)
        return made._replace(split=lambda *given, **more: wrong(made.split(*given, **more)))

    monkeypatch.setitem(fuzz_partitions.PARTITIONERS, "iid", spoiled)
    monkeypatch.setattr(fuzz_partitions, "settings_of", lambda constructor: settings_of(iid))
    with pytest.raises(AssertionError):
        fuzz_partitions.judge(case)


def in_a_process(module, program):
    program = f"from experiments.reliability import {module}\n{program}"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=PAGES.parents[1])


@pytest.mark.slow
def test_commands_on_full_disks_can_be_continued():
    """In a process of its own, which forks before JAX has started."""
    in_a_process("disks", "assert all(row['passed'] for row in disks.trials(3))")


@pytest.mark.slow
def test_many_random_cases_are_rejected_or_valid():
    assert all(row["passed"] for row in fuzz.trials(len(fuzz.KINDS)))


@pytest.mark.slow
def test_flipped_bits_are_detected():
    assert all(row["passed"] for row in bits.trials(4, 1))


@pytest.mark.slow
def test_killed_commands_can_be_continued():
    """In a process of its own, which forks before JAX has started."""
    in_a_process("kills", "assert all(row['passed'] for row in kills.trials(6))")
