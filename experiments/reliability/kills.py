"""Commands that are killed, continued, and compared bit for bit with ones that were not.

A trial draws a command (`run`, `sweep`, `maximize`) and a moment: a time between start and end, or
one of the operations on files, at once or up to three milliseconds later. The process gets SIGKILL
then, and what the user would type follows.
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
    Whole,
    ends_as,
    run_folder,
    start,
    trials_of,
)

__all__ = ["trials"]


def trials(count: int, first: int = 0) -> Iterator[dict[str, Any]]:
    """The outcomes of some trials; each is a draw from its own number.

    Args:
        count: How many.
        first: Number of the first.

    Returns:
        ``trial``, ``command``, the ``moment``, whether it was ``killed`` then and not done already,
        whether there was a ``folder`` by then, and whether the results equal those of an
        uninterrupted command.
    """
    return trials_of(_trial, count, first)


def _trial(rng: np.random.Generator, command: str, expected: Whole, folder: Path) -> dict[str, Any]:
    if rng.random() < 0.5:
        at = rng.uniform(0, expected.seconds)
        when = f"after {at:.3f} s"
        ended = start(command, folder, kill_after=at)
    else:
        place = int(rng.integers(1, expected.operations + 1))
        delay = rng.choice([0.0, rng.uniform(0, 3e-3)])
        when = f"operation {place} of {expected.operations} + {1e3 * delay:.1f} ms"
        ended = start(command, folder, at=place, disturb=partial(_die, delay))
    there = run_folder(command, folder) is not None
    again = start(command, folder)
    return {
        "moment": when,
        "killed": ended.status == -signal.SIGKILL,
        "folder": there,
        "same": ends_as(expected, again, folder),
    }


def _die(delay: float) -> None:
    """Kills this process after some seconds."""
    kill = partial(os.kill, os.getpid(), signal.SIGKILL)
    if not delay:
        kill()
    sys.setswitchinterval(1e-4)  # Or the thread waits for up to five milliseconds for its turn.
    threading.Timer(delay, kill).start()
