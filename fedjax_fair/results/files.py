"""Results in files: written whole or not at all, and never read where they are damaged."""

from __future__ import annotations

import errno
import hashlib
import io
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "naming",
    "open",
    "save",
    "verify_checksum",
    "write_checksum",
    "write_text",
    "written_by_orbax",
]

_MARK = b"SHA-256:"
"""Stands between a file and its digest. Readers of HDF5 ignore what follows the end of its data."""

_SIGNATURE = "sha256"
"""Holds the digest of the folder that it lies in."""

_FILES_OF_ORBAX = 2**20
"""Bytes that its files take beside the arrays; some hundred of them take less than half."""

_TIMEOUT_S = 1.0  # Seconds. A thread that waits for more work does not end.


def save(dataset: xr.Dataset, path: str | Path) -> None:
    """Writes a Dataset as NetCDF; a reader never sees half a file.

    The file ends with a digest of itself, so that ``open`` notices any damage; other programs read
    it as they read any NetCDF.

    Raises:
        OSError: If it cannot be written; the message names it.
    """
    import h5netcdf
    from xarray.backends import H5NetCDFStore

    path = Path(path)
    # HDF5 itself, on a disk that fills up, prints hundreds of lines and may end the process.
    content = io.BytesIO()
    with h5netcdf.File(content, "w") as store:
        dataset.dump_to_store(H5NetCDFStore(store, mode="w"))
    whole = content.getvalue()
    _write(path, whole + _MARK + hashlib.sha256(whole).digest())


def open(path: str | Path) -> xr.Dataset:
    """Reads results.

    Args:
        path: A run folder, or a ``results.nc``.

    Returns:
        The Dataset, in memory.

    Raises:
        ValueError: If there are no results, or the file is damaged.
    """
    import h5py
    import xarray as xr

    path = Path(path)
    file = path / "results.nc" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"path={str(path)!r}: expected a run folder or a results.nc file.")
    try:
        _check_intact(file)
        # Where these fail, h5netcdf leaves half an object that prints a traceback when it goes.
        with h5py.File(file, "r") as content:
            content.attrs.get("_nc3_strict")
        # How numbers were stored says nothing about what they may become, such as NaN.
        return xr.load_dataset(file, engine="h5netcdf").drop_encoding()
    except Exception as error:  # HDF5, h5py and xarray each have their own.
        reason = " ".join(str(error).split())
        raise ValueError(f"path={str(file)!r}: expected undamaged results ({reason}).") from error


def write_text(path: Path, text: str) -> None:
    """Writes a file that a reader sees whole or not at all.

    Raises:
        OSError: If it cannot be written; the message names it.
    """
    _write(path, text.encode())


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds a name to an error of the system that lacks one, as those of a full disk do."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def written_by_orbax(path: Path, num_bytes: int) -> Iterator[None]:
    """Raises what keeps Orbax from writing as one error with a name.

    Orbax writes in threads, of which several fail on a full disk, some later than the one that ends
    the writing, and each logs and prints tracebacks. So whether there is room is checked first, and
    where threads fail nevertheless they are joined, and what they print is dropped.

    Args:
        path: Where it writes, in a folder that exists.
        num_bytes: Bytes of the arrays.

    Raises:
        OSError: If there is no room, or a write fails.
    """
    usage = shutil.disk_usage(path.parent)
    if usage.total and usage.free < num_bytes + _FILES_OF_ORBAX:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    others, printed = set(threading.enumerate()), io.StringIO()
    logger = logging.getLogger("absl")
    before, logger.disabled = logger.disabled, True
    try:
        with redirect_stderr(printed), naming(path):
            try:
                yield
            except Exception:
                time.sleep(_TIMEOUT_S)  # For threads that Python does not know.
                for thread in set(threading.enumerate()) - others:
                    thread.join(_TIMEOUT_S)
                raise
    except OSError:
        raise
    except Exception as error:  # Orbax raises whatever a failure leads to.
        raise OSError(f"{path}: {error}") from error
    finally:
        logger.disabled = before
    sys.stderr.write(printed.getvalue())


def _write(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.partial")
    with naming(path):
        partial.write_bytes(content)
        partial.replace(path)


def write_checksum(folder: Path) -> None:
    """Leaves a digest of its files in a folder that is complete."""
    write_text(folder / _SIGNATURE, _folder_digest(folder))


def verify_checksum(folder: Path) -> None:
    """Compares a folder to its digest, which one that was just being written lacks.

    Raises:
        ValueError: If they differ.
    """
    signed = folder / _SIGNATURE
    if signed.exists() and signed.read_text() != _folder_digest(folder):
        raise ValueError("its files have changed since they were written")


def _folder_digest(folder: Path) -> str:
    """SHA-256 over the names and contents of all files."""
    digest = hashlib.sha256()
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != _SIGNATURE)
    for path in sorted(files):
        digest.update(str(path.relative_to(folder)).encode() + b"\0")
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _check_intact(file: Path) -> None:
    """Compares a file to the digest at its end; files that others wrote have none."""
    size = os.path.getsize(file)
    with file.open("rb") as content:
        content.seek(max(0, size - len(_MARK) - hashlib.sha256().digest_size))
        _, mark, digest = content.read().partition(_MARK)
    if mark and digest != _digest(file, size - len(mark) - len(digest)):
        raise ValueError("its content has changed since it was written")


def _digest(file: Path, length: int) -> bytes:
    """SHA-256 of the first bytes of a file."""
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while length and (block := content.read(min(length, 2**20))):
            digest.update(block)
            length -= len(block)
    return digest.digest()
