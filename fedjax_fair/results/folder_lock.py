"""Locks of folders that one process and one thread may write to at a time."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from fedjax_fair.results.files import write_text

__all__ = ["is_locked", "locked"]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks a folder in the context, at most until this process ends.

    Raises:
        ValueError: If another process or thread has locked it.
    """
    lock, holder = FileLock(folder / ".lock"), folder / ".holder"
    try:
        lock.acquire(blocking=False)
    except Timeout:
        name = ""
        with suppress(OSError):  # It is written after the lock is acquired.
            name = f" ({holder.read_text()})"
        raise ValueError(
            f"folder={str(folder)!r} is used by another process or thread{name}; wait for its end, "
            "or use another folder."
        ) from None
    try:
        started = f"{datetime.now():%H:%M:%S}"
        write_text(holder, f"{os.getpid()} on {platform.node()}, since {started}")
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def is_locked(folder: Path) -> bool:
    """Returns whether a process has locked a folder."""
    try:
        with FileLock(folder / ".lock").acquire(blocking=False):
            return False
    except Timeout:
        return True
    except OSError:  # Of others, who have the right to read only.
        return False
