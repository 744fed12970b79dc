"""A cache of arrays: ``.npy`` files, and a manifest, written last, with checksums and a key.

Arrays that are missing, damaged or of another key are not used.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import uuid
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["cache_folder", "cached"]

MANIFEST = "manifest.json"


def cache_folder(folder: Path) -> Path:
    """Returns the folder for data derived from a folder.

    A subfolder if the folder is writable, also by its mode, so that a superuser does not change a
    read-only data set; otherwise a folder in the user's cache, named after the full path.
    """
    import platformdirs

    if folder.stat().st_mode & stat.S_IWUSR and os.access(folder, os.W_OK):
        return folder / "decoded"
    digest = hashlib.blake2b(str(folder.resolve()).encode(), digest_size=8).hexdigest()
    name = f"{'-'.join(folder.parts[-2:])}-{digest}"
    return Path(platformdirs.user_cache_dir("fedjax_fair")) / name


def cached(
    folder: Path, cache_key: str, make: Callable[[], Mapping[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Returns ``make()``, from disk if possible.

    Args:
        folder: Folder of the arrays.
        cache_key: Identifies the data that the arrays depend on.
        make: Makes the arrays. Names must be file names.

    Returns:
        The arrays. If they cannot be written, a warning is issued.

    Examples:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> cached(folder, "v1", lambda: {"x": np.arange(3)})["x"].tolist()
        [0, 1, 2]
        >>> cached(folder, "v1", lambda: {"x": np.zeros(3)})["x"].tolist()
        [0, 1, 2]
    """
    try:
        return _read(folder, cache_key)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        arrays = dict(make())
    try:
        _write(folder, cache_key, arrays)
    except OSError as error:
        warnings.warn(f"could not write decoded data to {folder}: {error}", stacklevel=2)
    return arrays


def _read(folder: Path, cache_key: str) -> dict[str, np.ndarray]:
    manifest = json.loads((folder / MANIFEST).read_text())
    if manifest["cache_key"] != cache_key:
        raise ValueError
    arrays = {}
    for name, checksum in manifest["checksums"].items():
        if _checksum(folder / f"{name}.npy") != checksum:
            raise ValueError
        arrays[name] = np.load(folder / f"{name}.npy", allow_pickle=False)
    return arrays


def _write(folder: Path, cache_key: str, arrays: Mapping[str, np.ndarray]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    checksums = {}
    for name, array in arrays.items():
        path = folder / f"{name}.npy"
        _replace(path, lambda file, array=array: np.save(file, array, allow_pickle=False))
        checksums[name] = _checksum(path)
    manifest = json.dumps({"cache_key": cache_key, "checksums": checksums})
    _replace(folder / MANIFEST, lambda file: file.write(manifest.encode()))


def _replace(path: Path, write: Callable[[Any], Any]) -> None:
    """Writes a file atomically: other processes see the old or the new one."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            write(file)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
