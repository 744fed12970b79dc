"""Commands on a full disk, continued with enough space, and compared bit for bit.

A trial has a random command (`run`, `sweep`, `maximize`), operation on files, and file size limit
from that operation on. The limit of the process (``RLIMIT_FSIZE``) needs no privileges, and also
holds in the libraries that write results and checkpoints. Writes fail as on a full disk, with "File
too large" for "No space left on device". The command must end in one line with the reason and
status 2, and continue without the limit.
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

from experiments.reliability.commands import Ended, Undisturbed, ends_as, start, trials_of

__all__ = ["REASON", "full_disk", "has_reason", "trials"]

REASON = os.strerror(errno.EFBIG)
_MAX_FILE_BYTES = 8192  # Most files of these commands are about as large or larger.


def trials(count: int, first: int = 0) -> Iterator[dict[str, Any]]:
    """Returns the outcomes of ``count`` trials from number ``first`` on.

    Columns: ``trial``, ``command``, ``moment``, ``full`` (whether a write failed), ``named``
    (whether the error has reason and path), ``same`` (whether results equal those of an undisturbed
    command), ``passed`` (both).
    """
    return trials_of(_trial, count, first)


def _trial(
    rng: np.random.Generator, command: str, expected: Undisturbed, folder: Path
) -> dict[str, Any]:
    place = int(rng.integers(1, expected.operations + 1))
    room = int(rng.integers(_MAX_FILE_BYTES)) if rng.random() < 0.5 else 0
    ended = start(command, folder, at=place, disturb=partial(_limit, room))
    full = ended.status != 0  # Small files may fit.
    named = has_reason(ended, folder) if full else not ended.error
    same = ends_as(expected, start(command, folder), folder)
    return {
        "moment": f"operation {place} of {expected.operations}, {room} bytes",
        "full": full,
        "named": named,
        "same": same,
        "passed": named and same,
    }


def has_reason(ended: Ended, folder: Path) -> bool:
    """Returns whether a command ended with status 2 and one line with reason and path."""
    lines = ended.error.splitlines()
    is_one_line = ended.status == 2 and len(lines) == 1
    return is_one_line and REASON in lines[0] and str(folder) in lines[0]


@contextlib.contextmanager
def full_disk(num_bytes: int = 0) -> Iterator[None]:
    """Limits the size of files that this process writes, in a ``with`` statement."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    _limit(num_bytes)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _limit(num_bytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
