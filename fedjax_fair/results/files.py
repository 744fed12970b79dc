"""Files of results, written atomically and checked for damage, and locks of their folders."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import logging
import math
import os
import platform
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from fedjax_fair import metrics
from fedjax_fair.metrics import speed
from fedjax_fair.results.task_metrics import primary
from fedjax_fair.roles import PERSONALIZED
from fedjax_fair.utils.terminal import one_line, resume_command

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "add_file_name",
    "check_orbax_path",
    "corrected_log",
    "format_line",
    "is_locked",
    "locked",
    "open",
    "read_evaluations",
    "read_log",
    "save",
    "verify_checksum",
    "write_bytes",
    "write_checksum",
    "write_text",
    "written_by_orbax",
]

# Of 60 flipped bits in a checkpoint of Orbax, 9 raised one of four exceptions and three changed
# arrays silently; checksums of HDF5 cover neither metadata nor strings. So files and checkpoints
# have digests, and the newest intact one of two checkpoints is read.
_MARK = b"SHA-256:"
"""Separates a file from its checksum. Readers of HDF5 ignore what follows the end of its data."""

_HDF5 = b"\x89HDF\r\n\x1a\n"
"""Signature of HDF5; the version of the superblock follows."""

_END_ADDRESS = {0: 40, 1: 44, 2: 28, 3: 28}
"""Place of the address of the end of the file by version (HDF5 File Format Specification, II.A)."""

_NETCDF_LOCK = threading.Lock()
"""The NetCDF library fails in two threads at a time."""

_CHECKSUM_FILE = "sha256"
"""Holds the checksum of its folder, and the names of the files that it covers."""

_ORBAX_METADATA_BYTES = 2**20
"""Bytes that files of Orbax take in addition to the arrays; less than half was measured."""

_TIMEOUT_S = 1.0  # Threads that wait for more work do not end.


# By netCDF4 in memory: with h5netcdf, opening a file with 60 variables took 0.29 s instead of 0.03
# s, and saving it 0.26 s instead of 0.07 s.
def save(dataset: xr.Dataset, path: str | Path) -> None:
    """Writes a Dataset as NetCDF, atomically.

    The file ends with its checksum, which other programs ignore.

    Raises:
        OSError: If it cannot be written; the message names it.
    """
    import netCDF4
    from xarray.backends import NetCDF4DataStore

    # In memory, because HDF5 itself prints hundreds of lines on a full disk.
    with _NETCDF_LOCK:
        store = netCDF4.Dataset("results.nc", "w", memory=1)
        dataset.dump_to_store(NetCDF4DataStore(store))
        data = bytes(store.close())
    # The NetCDF library allocates zeros after the end of HDF5. Without them readers refuse any
    # truncated file, also one that has lost its checksum.
    data = data[: _end_of_hdf5(data)]
    write_bytes(Path(path), data + _MARK + hashlib.sha256(data).digest())


def open(path: str | Path) -> xr.Dataset:
    """Reads results.

    Args:
        path: A run folder, or a ``results.nc``.

    Returns:
        The Dataset, in memory.

    Raises:
        ValueError: If there are no results, or the file is damaged; of an unfinished run with the
            command that continues it.
    """
    import netCDF4
    import xarray as xr
    from xarray.backends import NetCDF4DataStore

    path = Path(path)
    file = path / "results.nc" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"path={str(path)!r}: {_missing(path)}.")
    try:
        # Readers get the bytes: they would expand "~" in a path, or open a URL.
        content = file.read_bytes()
        _check_intact(content)
        with _NETCDF_LOCK:
            store = netCDF4.Dataset("results.nc", memory=content)
            dataset = xr.load_dataset(NetCDF4DataStore(store))
        # The stored encoding would restrict what values can be written later, such as NaN.
        return dataset.drop_encoding()
    except Exception as error:  # HDF5 and xarray raise different ones.
        reason = one_line(error)
        raise ValueError(f"path={str(file)!r}: expected undamaged results ({reason}).") from error


def _missing(folder: Path) -> str:
    """Explains a folder without results, and how to get them."""
    if (folder / "config.json").is_file():
        log = read_log(folder / "metrics.jsonl")
        done = f", after round {log[-1][0][2]} of {log[-1][0][0]!r}" if log else ""
        return f"this run is unfinished{done}; `{resume_command(folder)}` continues it"
    if (folder / "sweep.json").is_file():
        return "this sweep is unfinished; the same `fedjax-fair sweep` command continues it"
    runs = sorted(path.parent.name for path in folder.glob("*/config.json"))
    hint = f", such as {str(folder / runs[-1])!r}" if runs else ""
    hint += "; ~ is not expanded" if str(folder).startswith("~") else ""
    return f"expected a run folder or a results.nc file{hint}"


def write_text(path: Path, text: str) -> None:
    """Writes a text file, atomically.

    Raises:
        OSError: If it cannot be written; the message names it.
    """
    write_bytes(path, text.encode())


@contextmanager
def add_file_name(path: Path) -> Iterator[None]:
    """Adds a file name to an ``OSError`` that lacks one, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def check_orbax_path(path: str | Path, name: str = "path") -> None:
    """Raises ValueError for paths that Orbax reads as patterns or divides at another place."""
    if any(char in Path(path).absolute().as_posix() for char in "*?[\\"):
        raise ValueError(
            f"{name}={str(path)!r}: expected a path without *, ?, [ and backslashes, which Orbax "
            "cannot use."
        )


@contextmanager
def written_by_orbax(path: Path, num_bytes: int) -> Iterator[None]:
    """Converts failures of Orbax to one ``OSError`` with a file name.

    Args:
        path: Target, in an existing folder.
        num_bytes: Bytes of the arrays.

    Raises:
        OSError: If there is too little space, or a write fails.
        ValueError: As `check_orbax_path`.
    """
    check_orbax_path(path)
    # On a full disk several threads of Orbax fail, some late, and print tracebacks. The free space
    # is therefore checked first; if threads fail anyway, they are joined, and their output dropped.
    usage = shutil.disk_usage(path.parent)
    if usage.total and usage.free < num_bytes + _ORBAX_METADATA_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    threads_before, printed = set(threading.enumerate()), io.StringIO()
    logger = logging.getLogger("absl")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        with redirect_stderr(printed), add_file_name(path):
            try:
                yield
            except Exception:
                time.sleep(_TIMEOUT_S)  # For threads that Python does not know.
                for thread in set(threading.enumerate()) - threads_before:
                    thread.join(_TIMEOUT_S)
                raise
    except OSError:
        raise
    except Exception as error:  # Orbax raises whatever a failure leads to.
        raise OSError(f"{path}: {one_line(error)}") from error
    finally:
        logger.disabled = was_disabled
    sys.stderr.write(printed.getvalue())


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file, atomically; raises as ``write_text``."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    # Another process may write the same file. File systems limit names to 255 bytes.
    partial = path.with_name(f".{path.name[:50]}.{uuid.uuid4().hex}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        error.filename, error.filename2 = str(path), None
        raise


def write_checksum(folder: Path) -> None:
    """Writes the checksum of a complete folder into it."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != _CHECKSUM_FILE)
    names = sorted(path.relative_to(folder).as_posix() for path in files)
    write_text(folder / _CHECKSUM_FILE, "\n".join([_checksum(folder, names), *names]))


def verify_checksum(folder: Path) -> None:
    """Compares a folder with its checksum, which an incomplete folder lacks.

    Files that were added later, such as those of a file manager, are ignored.

    Raises:
        ValueError: If they differ.
    """
    file = folder / _CHECKSUM_FILE
    if not file.exists():
        return
    expected, *names = file.read_text(encoding="utf8").split("\n")
    if _checksum(folder, names) != expected:
        raise ValueError("its files have changed since they were written")


def _checksum(folder: Path, names: list[str]) -> str:
    """SHA-256 over the names and contents of files; a missing one counts as empty."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(name.encode() + b"\0")
        digest.update((folder / name).read_bytes() if (folder / name).is_file() else b"")
    return digest.hexdigest()


def _end_of_hdf5(content: bytes) -> int | None:
    """Returns the end of an HDF5 file by its header; None for other files."""
    header = content[: len(_HDF5) + 1]
    place = _END_ADDRESS.get(header[-1]) if header[:-1] == _HDF5 else None
    return None if place is None else int.from_bytes(content[place : place + 8], "little")


def _check_intact(content: bytes) -> None:
    """Compares a file with the checksum at its end; files of other programs have none.

    After the end of HDF5, they may have zeros.
    """
    size = len(_MARK) + hashlib.sha256().digest_size
    start = max(len(content) - size, 0) if (end := _end_of_hdf5(content)) is None else end
    tail = content[start:]
    if len(tail) == size and tail.startswith(_MARK):
        is_intact = hashlib.sha256(memoryview(content)[:start]).digest() == tail[len(_MARK) :]
    else:
        is_intact = end is None or not tail.strip(b"\0")
    if not is_intact:
        raise ValueError("its content has changed since it was written")


Place = tuple[str, int, int]
"""Method, seed and round."""

_PLACE = {"algorithm": str, "seed": int, "round": int}
_SUMMARY_NAMES = {
    f"{prefix}{metric.name}"
    for metric in metrics.ALL_SUMMARIES
    for prefix in ("", PERSONALIZED)
    if metric.is_of_model or not prefix
}


def format_line(place: Place, seconds: float | None, summaries: Mapping[str, Any]) -> str:
    """Formats the summary metrics of an evaluation; NaN and infinities become null."""
    values = {name: float(summaries[name]) for name in sorted(summaries)}
    finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
    about = dict(zip(_PLACE, place, strict=True)) | {"seconds": seconds}
    return json.dumps(about | finite, allow_nan=False)


def read_log(path: Path) -> list[tuple[Place, dict[str, Any], str]]:
    """Reads the complete lines of a log: places, values and texts.

    Raises:
        ValueError: If a line is damaged.
    """
    if not path.exists():
        return []
    lines = []
    for number, content in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            values = json.loads(content)
            place = tuple(values[name] for name in _PLACE)
            if [type(part) for part in place] != list(_PLACE.values()):
                raise TypeError
            lines.append((place, values, content.decode()))
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ValueError(
                f"path={str(path)!r}: line {number} is damaged; expected JSON with algorithm, seed "
                "and round. Delete the file to write it again."
            ) from None
    return lines


def corrected_log(path: Path, algorithm: str, results: xr.Dataset) -> tuple[list[str], int]:
    """Returns the lines that a log should have, given the results of a method.

    Lines of other methods are unchanged. Missing and changed lines of the method are replaced, with
    unknown time; repeated lines and those of other evaluations are omitted.

    Returns:
        The lines, and the number of changed or repeated ones.
    """
    names = [
        str(name)
        for name, values in results.items()
        if name in _SUMMARY_NAMES
        # Metrics of the user; those of virtual time follow from the records of all rounds.
        or (
            "better" in values.attrs
            and set(values.dims) == {"round", "seed"}
            and name not in speed.DEFINITIONS
        )
    ]
    columns = {name: results[name].transpose("round", "seed").values for name in names}
    expected = {
        (algorithm, seed, done): {name: values[i, j] for name, values in columns.items()}
        for i, done in enumerate(results["round"].values.tolist())
        for j, seed in enumerate(results["seed"].values.tolist())
    }
    correct: dict[Place, str] = {}
    num_wrong, before, after = 0, [], []
    for place, values, text in read_log(path):
        if place[0] != algorithm:
            (after if correct else before).append(text)
        elif place in expected:
            seconds = values.get("seconds")
            is_time = seconds is None or (isinstance(seconds, float) and 0 <= seconds < math.inf)
            is_correct = is_time and text == format_line(place, seconds, expected[place])
            if is_correct and place not in correct:
                correct[place] = text
            else:
                num_wrong += 1
    lines = [
        correct.get(place) or format_line(place, None, summaries)
        for place, summaries in expected.items()
    ]
    return before + lines + after, num_wrong


def read_evaluations(path: Path) -> xr.Dataset:
    """Reads a log as a Dataset over ``algorithm``, ``seed`` and ``round``; NaN for missing lines.

    Raises:
        ValueError: If a line is damaged, or none has an accuracy.
    """
    import pandas as pd

    rows = {}
    for place, values, _ in read_log(path):
        summaries = {name: values[name] for name in values.keys() - {*_PLACE, "seconds"}}
        rows[place] = {k: v if isinstance(v, float) else math.nan for k, v in summaries.items()}
    index = pd.MultiIndex.from_tuples(rows, names=list(_PLACE))
    methods = list(dict.fromkeys(place[0] for place in rows))
    frame = pd.DataFrame(list(rows.values()), index).dropna(axis="columns", how="all")
    # A method of personalized models alone has no others.
    level = primary({str(name).removeprefix(PERSONALIZED): frame[name] for name in frame}).mean
    if level not in frame and f"{PERSONALIZED}{level}" not in frame:
        raise ValueError(
            f"path={str(path)!r}: expected evaluations with {level}; "
            "pass the metrics.jsonl of a run."
        )
    return frame.to_xarray().sel(algorithm=methods)


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
