"""Caches of executables: in this process by the text of lowered functions, and on disk.

A method of a notebook is traced again in every call, because a helper that it uses may have
changed. If the lowered text is equal, the executable is reused.

A `fit` of new shapes keeps 40 MB and 820 memory maps of 3 executables, of which Linux allows 65,530
maps. So only the latest ones are kept, of a method for `MAX_SHAPES` shapes of data. JAX keeps what
belongs to a jitted function as long as the function exists, so that shapes have own functions.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import jax
import platformdirs

from fedjax_fair.utils.jax_version import check_jax
from fedjax_fair.utils.warning import warn

__all__ = ["cache_by_shape", "call", "clear", "compile_in", "enable_compilation_cache", "trimmed"]

MAX_SHAPES = 3
"""Latest shapes of a method whose functions are kept."""

_MAX_FUNCTIONS = 20
"""Latest functions of each kind that are kept, of all methods and shapes."""

_MAX_EXECUTABLES = 64

_latest: OrderedDict[Hashable, tuple[Hashable, Future[Any]]] = OrderedDict()
_by_text: WeakValueDictionary[Hashable, Future[Any]] = WeakValueDictionary()
# JAX keeps lowered functions. One that was seen before need not be printed again.
_by_lowering: WeakKeyDictionary[Any, dict[Hashable, Future[Any]]] = WeakKeyDictionary()
_lock = Lock()

_MAX_COMPILED = 30
"""Compilations until the caches of JAX are cleared, which keep 5 MB of a `fit` of new shapes."""


class _Counts:
    """Compilations since the last clearing and since the last trimming, and open batches."""

    compiled = untrimmed = batches = 0


def cache_by_shape(make: Callable[..., Any]) -> Any:
    """Caches jitted functions that ``make(structure, ...)`` returns, the latest ones.

    The result takes the shapes of the arguments of the functions first. Of equal other arguments,
    it keeps `MAX_SHAPES`.
    """
    made: OrderedDict[tuple[Hashable, Hashable], Any] = OrderedDict()

    @wraps(make)
    def cached(shapes: Hashable, *arguments: Any) -> Any:
        key = arguments, shapes
        with _lock:
            if key not in made:
                made[key] = make(*arguments)
            made.move_to_end(key)
            _drop_oldest(made, [key for key in made if key[0] == arguments], _MAX_FUNCTIONS)
            return made[key]

    return cached


def _drop_oldest(latest: OrderedDict[Any, Any], alike: list[Any], most: int) -> None:
    """Keeps `MAX_SHAPES` alike entries and ``most`` in all; lists are oldest first."""
    if len(alike) > MAX_SHAPES:
        del latest[alike[0]]
    if len(latest) > most:
        latest.popitem(last=False)


def compile_in(
    threads: Executor,
    lowered: Any,
    devices: Hashable = None,
    options: Mapping[str, Any] | None = None,
    group: Hashable = None,
) -> Future[Any]:
    """Compiles ``jax.jit(...).lower(...)`` in a thread, or reuses an executable with the same text.

    Functions with Python callbacks or with constants that are not part of the text are always
    compiled. Of a ``group`` of functions that differ in shapes, the latest are kept.
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
                _Counts.compiled += 1
                _Counts.untrimmed += 1
            if key is not None:
                _by_text[key] = future
                _latest[key] = group, future
                _latest.move_to_end(key)
                alike = [] if group is None else [k for k, (g, _) in _latest.items() if g == group]
                _drop_oldest(_latest, alike, _MAX_EXECUTABLES)
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
        _latest.clear()
        _by_text.clear()
        _by_lowering.clear()
        _Counts.compiled = 0


@contextmanager
def trimmed() -> Iterator[None]:
    """Returns memory to the system after compilations in the context.

    It belongs to dropped functions, and 250 MB to the compiler, which the C library would keep.
    """
    with _lock:
        _Counts.batches += 1
    try:
        yield
    finally:
        with _lock:
            _Counts.batches -= 1
            has_compiled, _Counts.untrimmed = _Counts.untrimmed > 0, 0
            clears = _Counts.compiled > _MAX_COMPILED and not _Counts.batches
            if clears:
                _Counts.compiled = 0
        if clears:  # Executables stay, and are found by their text.
            jax.clear_caches()
        if has_compiled:
            # No collection of garbage: functions and arrays of a `fit` are in no cycles.
            with suppress(OSError, AttributeError):  # Of another C library than that of GNU.
                ctypes.CDLL(None).malloc_trim(0)


# The library does not call this on import, because importing it must not change settings of JAX for
# other code in the process.
def enable_compilation_cache(folder: str | Path | None = None) -> Path:
    """Turns on JAX's persistent compilation cache for functions of any size.

    Call it before the first ``fit``; the command line does so. A folder that cannot be written is a
    warning; what it has is still read.

    Args:
        folder: Where to store executables; by default ``JAX_COMPILATION_CACHE_DIR``, or a folder
            in the user's cache.

    Returns:
        The folder.

    Raises:
        ValueError: If the folder is a file.
    """
    check_jax()
    configured = os.environ.get("JAX_COMPILATION_CACHE_DIR") if folder is None else None
    if configured and "://" in configured:  # In a cloud.
        return Path(configured)
    folder = folder or configured or platformdirs.user_cache_path("fedjax_fair") / "programs"
    path = Path(folder).expanduser().absolute()
    if path.is_file() and not configured:
        raise ValueError(
            f"folder={str(folder)!r}: expected a folder, found a file; choose another path."
        )
    if not configured:
        jax.config.update("jax_compilation_cache_dir", str(path))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        warn(
            f"folder={str(path)!r}: new functions are not kept in the compilation cache "
            f"({error.strerror}); choose a folder that can be written, in a shell with "
            "JAX_COMPILATION_CACHE_DIR."
        )
        jax.config.update("jax_persistent_cache_min_compile_time_secs", math.inf)
        jax.config.update("jax_enable_compilation_cache", path.is_dir())
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
