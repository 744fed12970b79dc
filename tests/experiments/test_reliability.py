"""A few trials of the guarantees, and the committed outcomes."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import jax
import pandas as pd
import pytest

from experiments.reliability import bits, disks, fuzz, fuzz_configurations, fuzz_partitions
from experiments.reliability.__main__ import KINDS
from experiments.reliability.commands import COMMANDS, Ended, contents
from fedjax_fair.app import cli
from fedjax_fair.app.run_folder import MetricsLog
from fedjax_fair.app.settings.config import Config, TimingConfig

PAGES = Path(__file__).parents[2] / "docs" / "reliability"


@pytest.mark.parametrize("what", sorted(KINDS))
def test_every_committed_trial_passed(what):
    rows = pd.read_csv(PAGES / f"{what}.csv")
    assert rows["trial"].tolist() == list(range(len(rows)))
    assert rows["passed"].all()


def test_a_run_goes_on_after_its_disk_was_full(tmp_path, monkeypatch, capsys, without_figures):
    """From the log of the second evaluation on, there is no room for a checkpoint."""
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


def test_errors_of_missing_files_and_columns_are_rejections():
    timing = TimingConfig(table="no such file.csv")
    assert not fuzz_configurations.judge(Config(methods=("fedavg",), timing=timing))
    settings = {"clients": 2, "by": ("no such column",)}
    assert not fuzz_partitions.judge(fuzz_partitions.Case("dirichlet", settings, (9, 9), 0))


def in_a_process(module, program):
    program = f"from experiments.reliability import {module}\n{program}"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=PAGES.parents[1])


@pytest.mark.slow
def test_commands_on_full_disks_can_be_continued():
    """In a process of its own, which forks before JAX has started."""
    in_a_process("disks", "assert all(row['passed'] for row in disks.trials(3))")


@pytest.mark.slow
def test_many_random_cases_are_rejected_or_valid():
    # Flax's norms promote bfloat16 to float32, which strict arithmetic refuses.
    with jax.numpy_dtype_promotion("standard"):
        rows = list(fuzz.trials(len(fuzz.KINDS)))
    assert not [row["failure"] for row in rows if not row["passed"]]


@pytest.mark.slow
def test_flipped_bits_are_detected():
    assert all(row["passed"] for row in bits.trials(4, 1))


@pytest.mark.slow
def test_killed_commands_can_be_continued():
    """In a process of its own, which forks before JAX has started."""
    in_a_process("kills", "assert all(row['passed'] for row in kills.trials(6))")
