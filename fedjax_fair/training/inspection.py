"""Inspection of values for code that can change while the process runs.

Installed code does not change. A function of a notebook, a script or a plugin may be defined again,
or call a helper that is: what was compiled for it must not be reused because it looks the same.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import jax

__all__ = ["has_installed_code", "is_installed", "is_installed_file", "parts_of"]

_PACKAGE = Path(__file__).parents[1]
_ROOTS = tuple(
    f"{folder}/"
    for folder in {
        str(_PACKAGE),
        str(Path(jax.__file__).parents[1]),
        *(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")),
    }
)

# Not `builtins`, which is also the module of classes that are executed without a module name.
_BUILTIN = {*sys.builtin_module_names, "jaxlib"} - {"builtins", "__main__"}
# Files of functions that `dataclasses`, jaxtyping and beartype generate.
_GENERATED = ("<string>", "<@beartype")
_CREATED_BY_CLASS_STATEMENT = 1 << 9  # Py_TPFLAGS_HEAPTYPE.


def is_installed(value: Any) -> bool:
    """Returns whether all classes and functions in a value have installed code.

    Examples:
        >>> from fedjax_fair import solvers
        >>> is_installed(solvers.SGD(0.1, 10, steps=5))
        True
        >>> is_installed(solvers.SGD(lambda round: 0.1, 10, steps=5))
        False
    """
    return _is_installed(value, set())


def _is_installed(value: Any, seen: set[int]) -> bool:
    if id(value) in seen:
        return True
    seen.add(id(value))
    if isinstance(value, (types.ModuleType, type)):
        return has_installed_code(value)
    code = value if isinstance(value, types.FunctionType) else type(value)
    parts = parts_of(value).values()
    return has_installed_code(code) and all(_is_installed(part, seen) for part in parts)


def has_installed_code(value: types.FunctionType | types.ModuleType | type) -> bool:
    """Returns whether the code of a function, module or class is installed.

    What it refers to is not inspected.
    """
    if isinstance(value, types.ModuleType):
        return value.__name__ in _BUILTIN or is_installed_file(getattr(value, "__file__", None))
    if isinstance(value, types.FunctionType):
        file = value.__code__.co_filename
        if not file.startswith(_GENERATED):
            return is_installed_file(file)
        if value.__globals__.keys() <= {"__builtins__"}:  # It refers to nothing that may change.
            return True
        return is_installed_file(_file_of(value))
    if not value.__flags__ & _CREATED_BY_CLASS_STATEMENT:  # Of the interpreter or an extension.
        return True
    # A class that a function creates has the module of that function.
    return value.__module__ in _BUILTIN or is_installed_file(_file_of(value))


def parts_of(value: Any) -> dict[str, Any]:
    """Returns the values that a value consists of, by name.

    These are fields, elements, and the defaults and captured variables of functions.
    """
    if isinstance(value, types.FunctionType):
        defaults = {f"default {i}": one for i, one in enumerate(value.__defaults__ or ())}
        return defaults | (value.__kwdefaults__ or {}) | _captured(value)
    if isinstance(value, types.MethodType):
        return {"object": value.__self__, "function": value.__func__}
    if isinstance(value, types.BuiltinMethodType):  # Of a module, or for example `{}.get`.
        return {} if isinstance(value.__self__, types.ModuleType) else {"object": value.__self__}
    if isinstance(value, functools.partial):
        arguments = {str(i): argument for i, argument in enumerate(value.args)}
        return {"function": value.func} | arguments | value.keywords
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(value, Mapping) and not isinstance(value, WeakKeyDictionary):
        return {str(name): part for name, part in value.items()}
    if isinstance(value, (set, frozenset)):  # Their order differs between processes.
        value = sorted(value, key=repr)
    if isinstance(value, (list, tuple, deque)):
        return {str(i): part for i, part in enumerate(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value))
        # A Flax module has a field for the module that it is part of.
        return {name: getattr(value, name, None) for name in names if name != "parent"}
    if isinstance(value, types.SimpleNamespace) or not has_installed_code(type(value)):
        state: Any = object.__getstate__(value)  # A dict, a dict and one of slots, or None.
        attributes, slots = state if isinstance(state, tuple) else (state, None)
        return (attributes or {}) | (slots or {})
    # Functions that JAX wraps have attributes for the wrapped function and for its derivatives.
    names = ("__wrapped__", "jvp", "fwd", "bwd") if callable(value) else ()
    wrapped = {name.strip("_"): getattr(value, name, None) for name in names}
    return {name: part for name, part in wrapped.items() if part is not None}


def _captured(function: types.FunctionType) -> dict[str, Any]:
    """Returns the variables that a function captures from the functions around it."""
    captured = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            captured[name] = cell.cell_contents
        except ValueError:  # A recursive function that is not yet assigned.
            continue
    return captured


def _file_of(value: Any) -> str | None:
    if value.__module__ == "__main__":  # A session, whatever started it.
        return None
    return getattr(sys.modules.get(value.__module__), "__file__", None)


def is_installed_file(file: str | None) -> bool:
    """Returns whether a file is of Python, an installed distribution or this package."""
    return file is not None and file.startswith(_ROOTS)
