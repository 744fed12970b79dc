"""Commands that are killed, continued, and compared bit for bit with ones that were not.

A trial draws a command (`run`, `sweep`, `maximize`) and a moment: a time between start and end, or
one of the operations on files (opening for writing, renaming, making or removing), at once or up to
three milliseconds later. The process gets SIGKILL then, and what the user would type follows.
Commands are forks of a process that has imported everything and started nothing.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import xarray as xr

from fedjax_fair import results
from fedjax_fair.app import cli, experiment
from fedjax_fair.training import checkpoints

__all__ = ["COMMANDS", "Trial", "trials"]

_TINY = [
    "--data.clients=10",
    "--model.name=logistic",
    "--solver.steps=2",
    "--selector.cohort-size=3",
    "--training.rounds=3",
    "--training.eval-every=1",
    "--training.seeds=0",
]
COMMANDS: dict[str, list[str]] = {
    "run": ["run", "digits", *_TINY, "--methods", "fedavg"],
    "sweep": ["sweep", "digits", "prox=0,0.1", *_TINY, "--methods", "fedprox",
              "--points-per-batch", "1"],
    "maximize": ["maximize", "exemplars", "--clients", "10", "--k", "3", "--rounds", "4",
                 "--cohort", "4", "--seeds", "0"],
}  # fmt: skip
WRITES = {"os.rename", "os.mkdir", "os.remove", "os.truncate", "os.rmdir"}

Trial = dict[str, Any]


def trials(count: int, first: int = 0):
    """The outcomes of some trials; each is a draw from its own number.

    Args:
        count: How many.
        first: Number of the first.

    Yields:
        ``trial``, ``command``, the ``moment``, whether it was ``killed`` then and not done already,
        whether there was a ``folder`` by then, and whether the results equal those of an
        uninterrupted command.
    """
    _preload()
    with TemporaryDirectory() as name:
        whole = {}
        for command in COMMANDS:
            folder = Path(name) / command
            operations, _ = _run(command, folder, count_into=folder.with_suffix(".count"))
            started = time.monotonic()  # Not while programs are compiled for the first time.
            _run(command, folder.with_suffix(".again"))
            whole[command] = (_read(folder), time.monotonic() - started, operations)
        for number in range(first, first + count):
            yield _trial(number, Path(name) / str(number), whole)


def _trial(number: int, folder: Path, whole: dict[str, Any]) -> Trial:
    rng = np.random.default_rng(number)
    command = list(COMMANDS)[number % len(COMMANDS)]
    expected, seconds, operations = whole[command]
    if rng.random() < 0.5:
        at = rng.uniform(0, seconds)
        when = f"after {at:.3f} s"
        _, killed = _run(command, folder, kill_after=at)
    else:
        place, delay = int(rng.integers(1, operations + 1)), rng.choice([0.0, rng.uniform(0, 3e-3)])
        when = f"operation {place} of {operations} + {1e3 * delay:.1f} ms"
        _, killed = _run(command, folder, kill_at=(place, delay))
    there = _run_folder(command, folder) is not None
    _run(command, folder)
    return {
        "trial": number,
        "command": command,
        "moment": when,
        "killed": killed,
        "folder": there,
        "same": _read(folder) == expected,
    }


def _run_folder(command: str, folder: Path) -> Path | None:
    """Where a command works, if that is there already."""
    if command == "sweep":
        return folder if folder.exists() else None
    made = [path for path in folder.glob("*") if not path.name.startswith(".")]
    return made[0] if made else None


def _run(command: str, folder: Path, **killed: Any) -> tuple[int, bool]:
    """Starts a command, or continues it, in a process of its own.

    Returns:
        Operations on files, if they are counted, and whether it was killed before its end.
    """
    there = _run_folder(command, folder)
    arguments = [*COMMANDS[command], "--output", str(folder)]
    if there is not None and command != "sweep":
        arguments = ["resume", str(there)]
    counted = killed.pop("count_into", None)
    after = killed.pop("kill_after", None)
    child = os.fork()
    if not child:
        _be_the_command(arguments, folder, counted, **killed)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if after is None and "kill_at" not in killed and os.waitstatus_to_exitcode(status):
        raise AssertionError(f"{arguments} ended with status {status}.")
    return int(counted.read_text()) if counted is not None else 0, os.WIFSIGNALED(status)


def _be_the_command(
    arguments: list[str],
    folder: Path,
    counted: Path | None,
    kill_at: tuple[int, float] | None = None,
) -> None:
    """Never returns."""
    experiment.draw = lambda dataset, folder: None  # Figures would take most of the time.
    checkpoints.SECONDS_BETWEEN = 0.0  # Runs are short, and are to be killed between checkpoints.
    done = 0

    def watch(event: str, given: tuple[Any, ...]) -> None:
        nonlocal done
        writes = event in WRITES or (event == "open" and given[2] & (os.O_WRONLY | os.O_RDWR))
        if not writes or not str(given[0]).startswith(str(folder)):
            return
        done += 1
        if kill_at is not None and done == kill_at[0]:
            if not kill_at[1]:
                os.kill(os.getpid(), signal.SIGKILL)
            signal.setitimer(signal.ITIMER_REAL, kill_at[1])  # Its signal kills as well.

    sys.addaudithook(watch)
    status = 1
    with contextlib.suppress(BaseException):
        with contextlib.redirect_stdout(io.StringIO()):
            status = cli.main(arguments)
        if counted is not None:
            counted.write_text(str(done))
    os._exit(status)


def _read(folder: Path) -> tuple[bytes, ...]:
    """Every number of the results, and the log without its times."""
    (file,) = folder.rglob("results.nc")
    dataset = results.open(file)
    lines = []
    for log in folder.rglob("metrics.jsonl"):
        for line in log.read_text().splitlines():
            kept = {name: value for name, value in json.loads(line).items() if name != "seconds"}
            lines.append(json.dumps(kept))
    return (*_bytes(dataset), "\n".join(sorted(lines)).encode())


def _bytes(dataset: xr.Dataset) -> list[bytes]:
    names = sorted(name for name in map(str, dataset.variables) if "seconds" not in name)
    texts = [f"{name}{dataset[name].dims}{dataset[name].dtype}".encode() for name in names]
    values = [dataset[name].values for name in names]
    return texts + [own.tobytes() if own.dtype != object else repr(own).encode() for own in values]


def _preload() -> None:
    """Imports what commands need, and starts no device."""
    import h5netcdf  # noqa: F401
    import orbax.checkpoint  # noqa: F401

    from fedjax_fair import report  # noqa: F401
