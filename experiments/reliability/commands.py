"""Small commands in separate processes: started, disturbed, continued, and compared.

A command (`run`, `sweep`, `maximize`, runs of methods with client state) is a fork of a process
that has imported all modules and not started JAX. It can be disturbed after some time, or at an
operation on files (opening for writing, renaming, creating or removing).
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, NoReturn

import numpy as np
import xarray as xr

from fedjax_fair import data, report, results
from fedjax_fair.app import cli, experiment
from fedjax_fair.report import maximization_page
from fedjax_fair.training import checkpoints

__all__ = [
    "COMMANDS",
    "STATEFUL_COMMANDS",
    "Ended",
    "Undisturbed",
    "contents",
    "ends_as",
    "run_folder",
    "run_undisturbed",
    "start",
    "trials_of",
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
# Of ten clients six are drawn in each of four rounds, so that later rounds read stored states.
_STATEFUL = [
    "run", "digits", *_TINY[:3], "--selector.cohort-size=6", "--training.rounds=4",
    "--training.eval-every=1", "--training.seeds=0:2",
]  # fmt: skip
STATEFUL_COMMANDS: dict[str, list[str]] = {
    "scaffold": [*_STATEFUL, "--methods", "scaffold"],
    "ditto": [*_STATEFUL, "--methods", "ditto"],
    "ditto, top-k": [*_STATEFUL, "--methods", "ditto", "--communication.top-k=0.3"],
}
WRITES = {"os.rename", "os.mkdir", "os.remove", "os.truncate", "os.rmdir"}


class Ended(NamedTuple):
    """Exit of a command.

    Attributes:
        status: Its exit status; negative numbers are signals.
        error: Its standard error.
        operations: Number of its operations on files in its folder; 0 after a signal.
    """

    status: int
    error: str
    operations: int


class Undisturbed(NamedTuple):
    """An undisturbed command.

    Attributes:
        contents: Its results, as `contents` reads them.
        seconds: Its duration.
        operations: Number of its operations on files.
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
    """Starts a command in a folder, or continues it as a user would.

    Args:
        command: One of ``COMMANDS`` or ``STATEFUL_COMMANDS``.
        folder: Its folder.
        at: Number of the operation on files before which ``disturb`` is called, from 1.
        disturb: Function to call, in the process of the command.
        kill_after: Seconds after which the process is killed.
    """
    existing = run_folder(command, folder)
    arguments = [*(COMMANDS | STATEFUL_COMMANDS)[command], "--output", str(folder)]
    if existing is not None and command != "sweep":
        arguments = ["resume", str(existing)]
    (errors, write_errors), (counted, count) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.dup2(write_errors, 2)
        _be_the_command(arguments, folder, count, at, disturb)
    os.close(write_errors)
    os.close(count)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    with os.fdopen(errors, errors="replace") as lines, os.fdopen(counted) as number:
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
    checkpoints.SAVE_INTERVAL_S = 0.0  # The runs are shorter than the default.
    num_operations = 0

    def watch(event: str, given: tuple[Any, ...]) -> None:
        nonlocal num_operations
        writes = event in WRITES or (event == "open" and given[2] & (os.O_WRONLY | os.O_RDWR))
        if not writes or not str(given[0]).startswith(str(folder)):
            return
        num_operations += 1
        if disturb is not None and num_operations == at:
            disturb()

    sys.addaudithook(watch)
    status = 1
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            status = cli.main(arguments)
    except BaseException:
        traceback.print_exc()
    for thread in set(threading.enumerate()) - {threading.current_thread()}:
        if not thread.daemon:  # Python joins these at its exit.
            thread.join()
    gc.collect()  # Errors in finalizers are printed now.
    os.write(count, str(num_operations).encode())
    sys.stderr.flush()
    os._exit(status)


def _draw_nothing() -> None:
    """Omits figures and pages, which take most of the time."""
    experiment.draw = lambda dataset, folder: None
    maximization_page.figures = lambda compared: {}
    report.page = maximization_page.page = lambda *given: ""


def run_folder(command: str, folder: Path) -> Path | None:
    """Returns the folder of a run, if it exists."""
    if command == "sweep":
        return folder if folder.exists() else None
    made = [path for path in folder.glob("*") if not path.name.startswith(".")]
    return made[0] if made else None


def run_undisturbed(
    folder: Path, commands: Iterable[str] = tuple(COMMANDS)
) -> dict[str, Undisturbed]:
    """Runs commands without disturbance, in subfolders.

    Raises:
        AssertionError: If a command fails.
    """
    _preload()
    found = {}
    for command in commands:
        first = start(command, folder / command)
        started = time.monotonic()  # The first run compiled.
        again = start(command, folder / f"{command}-again")
        assert first.status == again.status == 0, (first, again)
        seconds = time.monotonic() - started
        found[command] = Undisturbed(contents(folder / command), seconds, first.operations)
    return found


def trials_of(
    trial: Callable[[np.random.Generator, str, Undisturbed, Path], dict[str, Any]],
    count: int,
    first: int,
    commands: Sequence[str] = tuple(COMMANDS),
) -> Iterator[dict[str, Any]]:
    """Runs trials of the commands in turn; random numbers are determined by the trial's number.

    Args:
        trial: ``trial(rng, command, expected, folder)`` returns the outcome, given the undisturbed
            command and an empty folder.
        count: Number of trials.
        first: Number of the first.
        commands: Names of the commands.

    Yields:
        ``trial``, ``command``, and the outcome.
    """
    with TemporaryDirectory() as name:
        undisturbed = run_undisturbed(Path(name), commands)
        for number in range(first, first + count):
            command = commands[number % len(commands)]
            rng, folder = np.random.default_rng(number), Path(name) / str(number)
            outcome = trial(rng, command, undisturbed[command], folder)
            yield {"trial": number, "command": command} | outcome


def contents(folder: Path) -> tuple[bytes, ...]:
    """Returns the results in a folder, and the log without times, as bytes."""
    (file,) = folder.rglob("results.nc")
    dataset = results.open(file)
    lines = []
    for log in folder.rglob("metrics.jsonl"):
        for line in log.read_text().splitlines():
            values = {name: value for name, value in json.loads(line).items() if name != "seconds"}
            lines.append(json.dumps(values))
    return (*_bytes(dataset), "\n".join(sorted(lines)).encode())


def _bytes(dataset: xr.Dataset) -> list[bytes]:
    names = sorted(name for name in map(str, dataset.variables) if "seconds" not in name)
    texts = [f"{name}{dataset[name].dims}{dataset[name].dtype}".encode() for name in names]
    values = [dataset[name].values for name in names]
    return texts + [v.tobytes() if v.dtype != object else repr(v).encode() for v in values]


def ends_as(expected: Undisturbed, ended: Ended, folder: Path) -> bool:
    """Returns whether a command succeeded with the results of an undisturbed one."""
    return not ended.status and contents(folder) == expected.contents


def _preload() -> None:
    """Imports the modules of the commands without starting JAX."""
    import netCDF4  # noqa: F401
    import orbax.checkpoint  # noqa: F401

    data.load("digits")
