"""Commands that are killed, continued, and compared bit for bit with undisturbed ones.

A trial has a command (`run`, `sweep`, `maximize`; or a run with client state) and a random moment
of SIGKILL: a time between start and end, or an operation on files, immediately or up to three
milliseconds later.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.reliability.commands import (
    STATEFUL_COMMANDS,
    Undisturbed,
    ends_as,
    run_folder,
    start,
    trials_of,
)

__all__ = ["stateful_trials", "trials"]


def trials(count: int, first: int = 0) -> Iterator[dict[str, Any]]:
    """Returns the outcomes of ``count`` trials from number ``first`` on.

    Columns: ``trial``, ``command``, ``moment``, ``killed`` (not completed before), ``folder``
    (whether it existed), ``passed`` (whether results equal those of an undisturbed command).
    """
    return trials_of(_trial, count, first)


def stateful_trials(count: int, first: int = 0) -> Iterator[dict[str, Any]]:
    """Returns outcomes as ``trials`` does, of runs whose clients have states."""
    return trials_of(_trial, count, first, tuple(STATEFUL_COMMANDS))


def _trial(
    rng: np.random.Generator, command: str, expected: Undisturbed, folder: Path
) -> dict[str, Any]:
    if rng.random() < 0.5:
        at = rng.uniform(0, expected.seconds)
        when = f"after {at:.3f} s"
        ended = start(command, folder, kill_after=at)
    else:
        place = int(rng.integers(1, expected.operations + 1))
        delay = rng.choice([0.0, rng.uniform(0, 3e-3)])
        when = f"operation {place} of {expected.operations} + {1e3 * delay:.1f} ms"
        ended = start(command, folder, at=place, disturb=partial(_die, delay))
    has_folder = run_folder(command, folder) is not None
    again = start(command, folder)
    return {
        "moment": when,
        "killed": ended.status == -signal.SIGKILL,
        "folder": has_folder,
        "passed": ends_as(expected, again, folder),
    }


def _die(delay: float) -> None:
    """Kills this process after ``delay`` seconds."""
    kill = partial(os.kill, os.getpid(), signal.SIGKILL)
    if not delay:
        kill()
    sys.setswitchinterval(1e-4)  # By default a thread may wait for five milliseconds.
    threading.Timer(delay, kill).start()
