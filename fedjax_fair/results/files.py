"""Files of results: written atomically, and checked for damage when read."""

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
    "add_file_name",
    "open",
    "save",
    "verify_checksum",
    "write_checksum",
    "write_text",
    "written_by_orbax",
]

_MARK = b"SHA-256:"
"""Separates a file from its checksum. Readers of HDF5 ignore what follows the end of its data."""

_CHECKSUM_FILE = "sha256"
"""Holds the checksum of its folder."""

_ORBAX_METADATA_BYTES = 2**20
"""Bytes that files of Orbax take in addition to the arrays; less than half was measured."""

_TIMEOUT_S = 1.0  # Threads that wait for more work do not end.


def save(dataset: xr.Dataset, path: str | Path) -> None:
    """Writes a Dataset as NetCDF, atomically.

    The file ends with its checksum, which other programs ignore.

    Raises:
        OSError: If it cannot be written; the message names it.
    """
    import h5netcdf
    from xarray.backends import H5NetCDFStore

    # On a full disk HDF5 itself prints hundreds of lines and may end the process.
    content = io.BytesIO()
    with h5netcdf.File(content, "w") as store:
        dataset.dump_to_store(H5NetCDFStore(store, mode="w"))
    data = content.getvalue()
    _write(Path(path), data + _MARK + hashlib.sha256(data).digest())


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
        # If this fails within h5netcdf, an incomplete object prints a traceback when it is deleted.
        with h5py.File(file, "r") as content:
            content.attrs.get("_nc3_strict")
        # The stored encoding would restrict what values can be written later, such as NaN.
        return xr.load_dataset(file, engine="h5netcdf").drop_encoding()
    except Exception as error:  # HDF5, h5py and xarray raise different ones.
        reason = " ".join(str(error).split())
        raise ValueError(f"path={str(file)!r}: expected undamaged results ({reason}).") from error


def write_text(path: Path, text: str) -> None:
    """Writes a text file, atomically.

    Raises:
        OSError: If it cannot be written; the message names it.
    """
    _write(path, text.encode())


@contextmanager
def add_file_name(path: Path) -> Iterator[None]:
    """Adds a file name to an ``OSError`` that lacks one, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def written_by_orbax(path: Path, num_bytes: int) -> Iterator[None]:
    """Converts failures of Orbax to one ``OSError`` with a file name.

    Args:
        path: Target, in an existing folder.
        num_bytes: Bytes of the arrays.

    Raises:
        OSError: If there is too little space, or a write fails.
    """
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
        raise OSError(f"{path}: {error}") from error
    finally:
        logger.disabled = was_disabled
    sys.stderr.write(printed.getvalue())


def _write(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.partial")
    with add_file_name(path):
        partial.write_bytes(content)
        partial.replace(path)


def write_checksum(folder: Path) -> None:
    """Writes the checksum of a complete folder into it."""
    write_text(folder / _CHECKSUM_FILE, _folder_checksum(folder))


def verify_checksum(folder: Path) -> None:
    """Compares a folder with its checksum, which an incomplete folder lacks.

    Raises:
        ValueError: If they differ.
    """
    file = folder / _CHECKSUM_FILE
    if file.exists() and file.read_text() != _folder_checksum(folder):
        raise ValueError("its files have changed since they were written")


def _folder_checksum(folder: Path) -> str:
    """SHA-256 over the names and contents of all files."""
    digest = hashlib.sha256()
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != _CHECKSUM_FILE)
    for path in sorted(files):
        digest.update(str(path.relative_to(folder)).encode() + b"\0")
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _check_intact(file: Path) -> None:
    """Compares a file with the checksum at its end; files of other programs have none."""
    size = os.path.getsize(file)
    digest = hashlib.sha256()
    with file.open("rb") as content:
        content.seek(max(0, size - len(_MARK) - digest.digest_size))
        _, mark, expected = content.read().partition(_MARK)
        if not mark:
            return
        content.seek(0)
        length = size - len(mark) - len(expected)
        while length and (block := content.read(min(length, 2**20))):
            digest.update(block)
            length -= len(block)
    if digest.digest() != expected:
        raise ValueError("its content has changed since it was written")
