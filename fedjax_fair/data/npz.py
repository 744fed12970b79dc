"""Files of named arrays: reading them without trust, and a cache of decoded data."""

from __future__ import annotations

import hashlib
import os
import stat
import uuid
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_fair.data.conversion import one_line
from fedjax_fair.utils.warning import warn

__all__ = ["cache_folder", "cached", "read_npz"]

FILE = "arrays.npz"
_KEY = "cache_key"
# MemoryError: a header that claims more than there is. NumPy commits no memory before it reads.
_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, KeyError),
    *(AttributeError, MemoryError, OSError, OverflowError, TypeError, ValueError),
)


def read_npz(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Reads all arrays of an ``.npz`` file, whose checksums it verifies, without pickles.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is damaged, another kind of file, or contains pickles.
    """
    with open(path, "rb") as file:
        if not zipfile.is_zipfile(file):  # NumPy would take it for an array or a pickle.
            raise ValueError(
                f"{path}: expected an .npz file of plain arrays, got another kind of file, or a "
                "damaged one; write it by np.savez, without objects."
            )
        file.seek(0)
        try:
            with np.load(file, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        except _DAMAGED as error:
            if "Object arrays" in str(error):
                raise ValueError(
                    f"{path}: expected plain arrays, got pickled objects, which can run code when "
                    "they are read; write a file that you trust again, one of PFLlib by "
                    "np.savez(path, **np.load(path, allow_pickle=True)['data'].item())."
                ) from None
            raise ValueError(
                f"{path}: expected an .npz file of plain arrays ({one_line(error)}); write it by "
                "np.savez, without objects."
            ) from error


def cache_folder(folder: Path) -> Path:
    """Returns the folder for data derived from a folder: a subfolder, or one in the user's cache.

    A folder that is read-only by its mode is not changed, even by a superuser.
    """
    import platformdirs

    if folder.stat().st_mode & stat.S_IWUSR and os.access(folder, os.W_OK):
        return folder / "decoded"
    digest = hashlib.blake2b(str(folder.resolve()).encode(), digest_size=8).hexdigest()
    name = f"{'-'.join(folder.parts[-2:])}-{digest}"
    return Path(platformdirs.user_cache_dir("fedjax_fair")) / name


# One `.npz` file, because NumPy verifies its checksums. `joblib.Memory` neither detects damage nor
# finds a shared read-only folder next to the data.
def cached(
    folder: Path, cache_key: str, make: Callable[[], Mapping[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Returns ``make()``, from a file if it exists, is intact and has the key.

    Args:
        folder: Folder of the file.
        cache_key: Identifies the data that the arrays depend on.
        make: Makes the arrays by name.

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
        saved = read_npz(folder / FILE)
        if str(saved.pop(_KEY)) == cache_key:
            return saved
    except (OSError, ValueError, KeyError):
        pass
    arrays = dict(make())
    content: Any = arrays | {_KEY: cache_key}
    # Other processes see a complete file or none.
    temporary = folder / f".{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                np.savez(file, **content)
            temporary.replace(folder / FILE)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        warn(f"could not write decoded data to {folder}: {error}")
    return arrays
