"""Compiled programs of the process, by their text.

A method that was defined in a notebook is traced again at every call, because a helper that it uses
may have changed. If the text of the program has not, the program is not compiled again.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import jax

__all__ = ["call", "clear", "compile_in"]

_MAX_PROGRAMS = 64

_by_text: OrderedDict[Hashable, Future[Any]] = OrderedDict()
# A lowered program that JAX keeps need not be printed again.
_by_program: WeakKeyDictionary[Any, dict[Hashable, Future[Any]]] = WeakKeyDictionary()
_lock = Lock()


def compile_in(
    threads: Executor,
    lowered: Any,
    devices: Hashable = None,
    options: Mapping[str, str | bool] | None = None,
) -> Future[Any]:
    """Starts to compile a program, unless one of the same text is compiled already.

    Programs that call back into Python, whose functions are not part of the text, and programs
    whose constants are kept apart from it are always compiled.

    Args:
        threads: Where to compile.
        lowered: From ``jax.jit(...).lower(...)``.
        devices: The devices that it is compiled for.
        options: Of the compiler.
    """
    given = tuple(sorted((options or {}).items()))
    program = getattr(lowered, "_lowering", None)
    with _lock:
        known = _by_program.setdefault(program, {}) if program is not None else {}
        future = known.get(given)
        if future is None or not _is_usable(future):
            key = _key(lowered, program, devices, given)
            future = None if key is None else _by_text.get(key)
            if future is None or not _is_usable(future):
                future = threads.submit(lowered.compile, dict(options) if options else None)
            if key is not None:
                _by_text[key] = future
                _by_text.move_to_end(key)
                while len(_by_text) > _MAX_PROGRAMS:
                    _by_text.popitem(last=False)
            known[given] = future
    return future


def call(jitted: Any, *arguments: Any) -> Any:
    """Calls a jitted function, compiled unless a program of the same text is compiled already."""
    with ThreadPoolExecutor(1) as thread:
        program = compile_in(thread, jitted.lower(*arguments)).result()
    return program(*arguments)


def clear() -> None:
    """Forgets all compiled programs, as ``jax.clear_caches`` does for those of JAX."""
    with _lock:
        _by_text.clear()
        _by_program.clear()


def _is_usable(future: Future[Any]) -> bool:
    return not future.cancelled() and not (future.done() and future.exception() is not None)


def _key(lowered: Any, program: Any, devices: Hashable, options: Hashable) -> Hashable | None:
    """What programs have in common that can stand for each other; None where that is not known."""
    try:
        kept = tuple(sorted(program.compile_args["kept_var_idx"]))
    except (AttributeError, KeyError, TypeError):  # Not known to this version of JAX.
        return None
    if getattr(jax.config, "jax_use_simplified_jaxpr_constants", False):
        return None
    text = lowered.as_text()
    if "callback" in text:
        return None
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    # The text leaves out arguments that are not used, which are checked when it is called.
    shapes = tuple((one.shape, str(one.dtype)) for one in jax.tree.leaves(lowered.args_info))
    default = str(getattr(jax.config, "jax_default_device", None))
    return digest, shapes, lowered.in_tree, lowered.out_tree, kept, devices, default, options
