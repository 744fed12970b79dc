"""Arrays on disk that took long to make: read only if whole and current, otherwise made again."""

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
    """Where what is derived from a folder may be kept.

    Args:
        folder: The folder of the originals.

    Returns:
        A folder inside it if its mode lets its owner write (so that a data set made read-only stays
        as it is, even for a superuser) and we may; otherwise one in the user's cache, named after
        the full path, so that two copies of a data set do not meet.
    """
    import platformdirs

    if folder.stat().st_mode & stat.S_IWUSR and os.access(folder, os.W_OK):
        return folder / "decoded"
    full = str(folder.resolve())
    key = hashlib.blake2b(full.encode(), digest_size=8).hexdigest()
    return Path(platformdirs.user_cache_dir("fedjax_fair")) / f"{'-'.join(folder.parts[-2:])}-{key}"


def cached(
    folder: Path, cache_key: str, make: Callable[[], Mapping[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Returns ``make()``, from disk where possible.

    Every array is an ``.npy`` file; a manifest, written last, holds their checksums and the cache key.
    An array that is missing, damaged or made under another cache key is never returned.

    Args:
        folder: Where to keep the arrays.
        cache_key: What the arrays depend on; a change makes them anew.
        make: Makes the arrays. Names must be file names.

    Returns:
        The arrays. If they cannot be written, a warning says so and they are returned all the same.

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
        warnings.warn(f"could not keep decoded data in {folder}: {error}", stacklevel=2)
    return arrays


def _read(folder: Path, cache_key: str) -> dict[str, np.ndarray]:
    manifest = json.loads((folder / MANIFEST).read_text())
    if manifest["cache_key"] != cache_key:
        raise ValueError(f"{folder} is stale")
    arrays = {}
    for name, checksum in manifest["checksums"].items():
        if _checksum(folder / f"{name}.npy") != checksum:
            raise ValueError(f"{name}.npy in {folder} is damaged")
        arrays[name] = np.load(folder / f"{name}.npy", allow_pickle=False)
    return arrays


def _write(folder: Path, cache_key: str, arrays: Mapping[str, np.ndarray]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    checksums = {}
    for name, array in arrays.items():
        path = folder / f"{name}.npy"
        _replace(path, lambda file, array=array: np.save(file, array, allow_pickle=False))
        checksums[name] = _checksum(path)
    text = json.dumps({"cache_key": cache_key, "checksums": checksums})
    _replace(folder / MANIFEST, lambda file: file.write(text.encode()))


def _replace(path: Path, write: Callable[[Any], Any]) -> None:
    """Writes a file so that others see the old one or the new one, never half of it."""
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
