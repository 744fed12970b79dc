"""A short track in place of the embedded one, also for commands in other processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

METHODS = ("fedavg", "fine_tuned", "local_converged", "fedbn")
"""Methods of the track, of which `fedbn` cannot run."""

# The track is known only after plugins are loaded, which register their methods first.
_PROGRAM = """
import contextlib, io, json, sys
import pytest
from fedjax_fair.app.settings import plugins
from fedjax_fair.app.cli import main

def call(arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(arguments)
    print(json.dumps([status, out.getvalue(), err.getvalue()]), file=sys.__stdout__, flush=True)

job = json.load(sys.stdin)
for arguments in job["unloaded"]:
    call(arguments)
if job["unloaded"]:
    sys.exit()
for file in job["files"]:
    plugins.load(file)
import short_track
from fedjax_fair.benchmark import report
short_track.shorten(pytest.MonkeyPatch())
report.write_figures = lambda *_: None  # They take longer than training.
for arguments in job["commands"]:
    call(arguments)
"""


class Outcome(NamedTuple):
    """Exit status and output of a command."""

    status: int
    out: str
    err: str


def make_track(methods: Sequence[str] = METHODS) -> Any:
    """Returns a track of one federated dataset with three blocks."""
    from fedjax_fair.benchmark import protocol

    return protocol.Track(("groups",), tuple(methods), num_blocks=3)


def shorten(patch: Any) -> None:
    """Makes the embedded track one short federated dataset with three blocks."""
    from fedjax_fair.benchmark import protocol

    shorten_training(patch, "groups")
    patch.setitem(protocol.TRACKS, "embedded", make_track())


def shorten_training(patch: Any, name: str) -> None:
    """Makes training on a federated dataset four rounds long."""
    from fedjax_fair.benchmark import federations

    whole = federations.FEDERATIONS[name]
    training = replace(whole.config.training, rounds=4, eval_every=2)
    short = whole._replace(config=replace(whole.config, training=training))
    patch.setitem(federations.FEDERATIONS, name, short)


_FINISHED: dict[tuple[str, str, int], Path] = {}
"""Folders of finished programs by federated dataset, method and number of blocks."""


@contextmanager
def finished(
    folder: Path, track: Any, show: Callable[[str], None] = lambda line: None
) -> Iterator[Path]:
    """Runs a track of short federated datasets in place of the embedded one.

    Programs that this process has run for another folder are copied.
    """
    from fedjax_fair.benchmark import protocol, runner

    with pytest.MonkeyPatch.context() as patch:
        for name in (*track.federations, *track.variants):
            shorten_training(patch, name)
        patch.setitem(protocol.TRACKS, "embedded", track)
        planned = runner.plan("embedded", folder)
        folders = {
            (*unit.folder.parts[-2:], track.num_blocks): unit.folder for unit in planned.units
        }
        for name in folders.keys() & _FINISHED.keys():
            shutil.copytree(_FINISHED[name], folders[name])
        runner.run(planned, folder, show=show)
        _FINISHED.update(folders)
        yield folder


def write_tables(folder: Path) -> None:
    """Writes the tables of a report, without its page and figures, which take longer."""
    from fedjax_fair.benchmark import collected, published

    published.write(collected.collect(folder), folder / "report")


def start(
    folder: Path,
    commands: Sequence[list[str]] = (),
    files: Sequence[str] = (),
    unloaded: Sequence[list[str]] = (),
    prefix: Sequence[str] = (),
) -> subprocess.Popen[str]:
    """Starts a process that runs commands in a folder, with plugins and the short track.

    Reports have no figures.

    Args:
        folder: Working directory.
        commands: Arguments of the commands.
        files: Plugins that are loaded before them.
        unloaded: Arguments of commands that run instead, without the short track.
        prefix: A program that starts Python, with its arguments.
    """
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])
    }
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", _PROGRAM], cwd=folder, env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps({"unloaded": unloaded, "files": files, "commands": commands}))
    process.stdin.close()
    process.stdin = None
    return process


def finish(process: subprocess.Popen[str]) -> list[Outcome]:
    """Waits for a process, and returns the outcome of each command."""
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return [Outcome(*json.loads(line)) for line in out.splitlines()]
