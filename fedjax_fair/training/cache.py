"""JAX's persistent compilation cache, with a default folder."""

from __future__ import annotations

import os
from pathlib import Path

import jax
import platformdirs

__all__ = ["enable_compilation_cache"]


def enable_compilation_cache(folder: str | Path | None = None) -> Path:
    """Turns on JAX's persistent compilation cache for functions of any size.

    Call it before the first ``fit``; the command line does so.

    Args:
        folder: Where to store executables; by default ``JAX_COMPILATION_CACHE_DIR``, or a folder
            in the user's cache.

    Returns:
        The folder.

    Raises:
        ValueError: If the folder is a file.
    """
    if folder is None:
        if configured := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
            return Path(configured)
        folder = platformdirs.user_cache_path("fedjax_fair") / "programs"
    path = Path(folder).expanduser().absolute()
    if path.is_file():
        raise ValueError(f"folder={str(folder)!r}: expected a folder, found a file.")
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return path
