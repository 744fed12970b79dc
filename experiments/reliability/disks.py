"""Commands whose disk fills up, continued once there is room, and compared bit for bit.

A trial draws a command (`run`, `sweep`, `maximize`), one of its operations on files, and a number
of bytes: from that operation on no file grows beyond so many. That is a limit of the process
(``RLIMIT_FSIZE``), which needs no privileges, unlike a small file system of its own, and holds in
the libraries that write results and checkpoints too, which a patch of Python's functions would not
reach. What is written then fails as on a full disk, with "File too large" for "No space left on
device". The command has to end in one line that says so, with status 2; what the user would type
then follows without the limit.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.reliability.commands import (
    Ended,
    Whole,
    ends_as,
    start,
    trials_of,
)

__all__ = ["REASON", "full_disk", "says_why", "trials"]

REASON = os.strerror(errno.EFBIG)
_MAX_ROOM_BYTES = 8192  # Bytes; most files of these commands are larger or nearly so.


def trials(count: int, first: int = 0) -> Iterator[dict[str, Any]]:
    """The outcomes of some trials; each is a draw from its own number.

    Args:
        count: How many.
        first: Number of the first.

    Returns:
        ``trial``, ``command``, the ``moment``, whether the disk was ``full`` for it, whether it
        ``said`` so, whether the results are the ``same`` as those of an undisturbed command, and
        whether both promises were ``kept``.
    """
    return trials_of(_trial, count, first)


def _trial(rng: np.random.Generator, command: str, expected: Whole, folder: Path) -> dict[str, Any]:
    place = int(rng.integers(1, expected.operations + 1))
    room = int(rng.integers(_MAX_ROOM_BYTES)) if rng.random() < 0.5 else 0
    ended = start(command, folder, at=place, disturb=partial(_limit, room))
    full = ended.status != 0  # What is small may still fit.
    said = says_why(ended, folder) if full else not ended.said
    same = ends_as(expected, start(command, folder), folder)
    return {
        "moment": f"operation {place} of {expected.operations}, {room} bytes",
        "full": full,
        "said": said,
        "same": same,
        "kept": said and same,
    }


def says_why(ended: Ended, folder: Path) -> bool:
    """Whether a command ended in one line that says what is wrong where, with status 2."""
    lines = ended.said.splitlines()
    found = ended.status == 2 and len(lines) == 1
    return found and REASON in lines[0] and str(folder) in lines[0]


@contextlib.contextmanager
def full_disk(room: int = 0) -> Iterator[None]:
    """In a ``with`` statement, this process can make no file larger than some bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    _limit(room)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _limit(room: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
