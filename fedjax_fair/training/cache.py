"""Compiled programs kept on disk, so that a second process does not compile them again."""

from __future__ import annotations

import os
from pathlib import Path

import jax
import platformdirs

__all__ = ["enable_compilation_cache"]


def enable_compilation_cache(folder: str | Path | None = None) -> Path:
    """Keeps compiled programs on disk for later processes; the command line does so by itself.

    It turns on JAX's persistent compilation cache for programs of any size. Call it before the
    first ``fit``. A setting of the environment (``JAX_COMPILATION_CACHE_DIR``) takes precedence
    over the default folder.

    Args:
        folder: Where to keep them; by default ``programs`` in the user's cache folder.

    Returns:
        The folder.

    Raises:
        ValueError: If the folder is a file.

    Examples:
        >>> import fedjax_fair as ff
        >>> folder = ff.enable_compilation_cache()  # doctest: +SKIP
    """
    if folder is None and (given := os.environ.get("JAX_COMPILATION_CACHE_DIR")):
        return Path(given)
    if folder is None:
        folder = platformdirs.user_cache_path("fedjax_fair") / "programs"
    path = Path(folder).expanduser().absolute()
    if path.is_file():
        raise ValueError(f"folder={str(folder)!r}: expected a folder, found a file.")
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return path
