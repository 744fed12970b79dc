"""Caches of executables: in this process by the text of lowered functions, and on disk.

A method of a notebook is traced again in every call, because a helper that it uses may have
changed. If the lowered text is equal, the executable is reused.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import jax
import platformdirs

__all__ = ["call", "clear", "compile_in", "enable_compilation_cache"]

_MAX_EXECUTABLES = 64

_by_text: OrderedDict[Hashable, Future[Any]] = OrderedDict()
# JAX keeps lowered functions. One that was seen before need not be printed again.
_by_lowering: WeakKeyDictionary[Any, dict[Hashable, Future[Any]]] = WeakKeyDictionary()
_lock = Lock()


def compile_in(
    threads: Executor,
    lowered: Any,
    devices: Hashable = None,
    options: Mapping[str, str | bool] | None = None,
) -> Future[Any]:
    """Compiles ``jax.jit(...).lower(...)`` in a thread, or reuses an executable with the same text.

    Functions with Python callbacks or with constants that are not part of the text are always
    compiled.
    """
    option_key = tuple(sorted((options or {}).items()))
    lowering = getattr(lowered, "_lowering", None)
    with _lock:
        by_options = _by_lowering.setdefault(lowering, {}) if lowering is not None else {}
        future = by_options.get(option_key)
        if future is None or not _is_usable(future):
            key = _key(lowered, lowering, devices, option_key)
            future = None if key is None else _by_text.get(key)
            if future is None or not _is_usable(future):
                future = threads.submit(lowered.compile, dict(options) if options else None)
            if key is not None:
                _by_text[key] = future
                _by_text.move_to_end(key)
                while len(_by_text) > _MAX_EXECUTABLES:
                    _by_text.popitem(last=False)
            by_options[option_key] = future
    return future


def call(jitted: Any, *arguments: Any) -> Any:
    """Calls a jitted function with an executable from ``compile_in``."""
    with ThreadPoolExecutor(1) as thread:
        executable = compile_in(thread, jitted.lower(*arguments)).result()
    return executable(*arguments)


def clear() -> None:
    """Forgets all executables, as ``jax.clear_caches`` does for the caches of JAX."""
    with _lock:
        _by_text.clear()
        _by_lowering.clear()


# The library does not call this on import, because importing it must not change settings of JAX for
# other code in the process.
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
        raise ValueError(
            f"folder={str(folder)!r}: expected a folder, found a file; choose another path."
        )
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return path


def _is_usable(future: Future[Any]) -> bool:
    return not future.cancelled() and not (future.done() and future.exception() is not None)


def _key(lowered: Any, lowering: Any, devices: Hashable, options: Hashable) -> Hashable | None:
    """Returns what equal executables have in common; None if that is unknown."""
    try:
        kept_arguments = tuple(sorted(lowering.compile_args["kept_var_idx"]))
    except (AttributeError, KeyError, TypeError):  # An internal name of JAX, which may change.
        return None
    if getattr(jax.config, "jax_use_simplified_jaxpr_constants", False):
        return None
    text = lowered.as_text()
    if "callback" in text:
        return None
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    # The text omits unused arguments, whose shapes are checked in a call.
    shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(lowered.args_info))
    device = str(getattr(jax.config, "jax_default_device", None))
    trees = lowered.in_tree, lowered.out_tree
    return digest, shapes, *trees, kept_arguments, devices, device, options
