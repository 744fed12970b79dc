"""Small commands in processes of their own: started, disturbed, continued, and compared.

A command (`run`, `sweep`, `maximize`) is a fork of a process that has imported everything and
started nothing. It may be disturbed after some time, or at one of its operations on files (opening
for writing, renaming, making or removing).
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, NoReturn

import numpy as np
import xarray as xr

from fedjax_fair import data, report, results
from fedjax_fair.app import cli, experiment, maximize
from fedjax_fair.report import maximization_page
from fedjax_fair.training import checkpoints

__all__ = [
    "COMMANDS",
    "Ended",
    "Whole",
    "contents",
    "ends_as",
    "run_folder",
    "start",
    "trials_of",
    "whole",
]

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
              "--runs-per-batch", "1"],
    "maximize": ["maximize", "exemplars", "--clients", "10", "--k", "3", "--rounds", "4",
                 "--cohort-size", "4", "--seeds", "0"],
}  # fmt: skip
WRITES = {"os.rename", "os.mkdir", "os.remove", "os.truncate", "os.rmdir"}


class Ended(NamedTuple):
    """How a command ended.

    Attributes:
        status: Its exit status; a negative one is that of the signal that ended it.
        said: What it wrote to the standard error.
        operations: Its operations on files below its folder; 0 if a signal ended it.
    """

    status: int
    said: str
    operations: int


class Whole(NamedTuple):
    """A command that nothing disturbed.

    Attributes:
        contents: What it left, as `contents` reads it.
        seconds: How long it takes.
        operations: Its operations on files.
    """

    contents: tuple[bytes, ...]
    seconds: float
    operations: int


def start(
    command: str,
    folder: Path,
    *,
    at: int | None = None,
    disturb: Callable[[], None] | None = None,
    kill_after: float | None = None,
) -> Ended:
    """Starts a command in a folder, or what a user types there to go on.

    Args:
        command: One of ``COMMANDS``.
        folder: Where it works.
        at: The operation on files, counted from 1, before which ``disturb`` is called.
        disturb: What is called then, in the process of the command.
        kill_after: Seconds after which the process is killed.
    """
    there = run_folder(command, folder)
    arguments = [*COMMANDS[command], "--output", str(folder)]
    if there is not None and command != "sweep":
        arguments = ["resume", str(there)]
    (said, say), (counted, count) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.dup2(say, 2)
        _be_the_command(arguments, folder, count, at, disturb)
    os.close(say)
    os.close(count)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    with os.fdopen(said, errors="replace") as lines, os.fdopen(counted) as number:
        text, operations = lines.read(), number.read()
    _, status = os.waitpid(child, 0)
    return Ended(os.waitstatus_to_exitcode(status), text, int(operations or 0))


def _be_the_command(
    arguments: list[str],
    folder: Path,
    count: int,
    at: int | None,
    disturb: Callable[[], None] | None,
) -> NoReturn:
    _draw_nothing()
    checkpoints.SAVE_INTERVAL_S = 0.0  # Runs are short, and are to be ended between checkpoints.
    done = 0

    def watch(event: str, given: tuple[Any, ...]) -> None:
        nonlocal done
        writes = event in WRITES or (event == "open" and given[2] & (os.O_WRONLY | os.O_RDWR))
        if not writes or not str(given[0]).startswith(str(folder)):
            return
        done += 1
        if disturb is not None and done == at:
            disturb()

    sys.addaudithook(watch)
    status = 1
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            status = cli.main(arguments)
    except BaseException:
        traceback.print_exc()
    for thread in set(threading.enumerate()) - {threading.current_thread()}:
        if not thread.daemon:  # Those that Python waits for at its end.
            thread.join()
    gc.collect()  # What complains when it is given up does so now.
    os.write(count, str(done).encode())
    sys.stderr.flush()
    os._exit(status)


def _draw_nothing() -> None:
    """Leaves out figures and pages, which would take most of the time, and come last."""
    experiment.draw = lambda dataset, folder: None
    maximize.figures = lambda compared: {}
    report.page = maximization_page.page = lambda *given: ""


def run_folder(command: str, folder: Path) -> Path | None:
    """Where a command works, if that is there already."""
    if command == "sweep":
        return folder if folder.exists() else None
    made = [path for path in folder.glob("*") if not path.name.startswith(".")]
    return made[0] if made else None


def whole(folder: Path) -> dict[str, Whole]:
    """Every command, undisturbed, in folders below one.

    Raises:
        AssertionError: If one fails.
    """
    _preload()
    found = {}
    for command in COMMANDS:
        first = start(command, folder / command)
        started = time.monotonic()  # Not while programs are compiled for the first time.
        again = start(command, folder / f"{command}-again")
        assert first.status == again.status == 0, (first, again)
        seconds = time.monotonic() - started
        found[command] = Whole(contents(folder / command), seconds, first.operations)
    return found


def trials_of(
    trial: Callable[[np.random.Generator, str, Whole, Path], dict[str, Any]], count: int, first: int
) -> Iterator[dict[str, Any]]:
    """Tries commands in turn; what is drawn follows from a trial's number.

    Args:
        trial: ``trial(rng, command, expected, folder)``, with what the command leaves undisturbed
            and a folder of the trial's own: its outcome.
        count: How many.
        first: Number of the first.

    Yields:
        ``trial``, ``command``, and the outcome.
    """
    with TemporaryDirectory() as name:
        undisturbed = whole(Path(name))
        for number in range(first, first + count):
            command = list(COMMANDS)[number % len(COMMANDS)]
            rng, folder = np.random.default_rng(number), Path(name) / str(number)
            outcome = trial(rng, command, undisturbed[command], folder)
            yield {"trial": number, "command": command} | outcome


def contents(folder: Path) -> tuple[bytes, ...]:
    """Every number of the results in a folder, and the log without its times."""
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


def ends_as(expected: Whole, ended: Ended, folder: Path) -> bool:
    """Whether a command that was continued ended well, with the results of an undisturbed one."""
    return not ended.status and contents(folder) == expected.contents


def _preload() -> None:
    """Imports what commands need, and starts no device."""
    import h5netcdf  # noqa: F401
    import orbax.checkpoint  # noqa: F401

    data.load("digits")
