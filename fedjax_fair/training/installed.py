"""Whether the code of a method can change while the process runs.

Code of this package, the standard library and installed distributions does not change. A function
of a notebook, of a script or of a plugin may be defined again, or call a helper that is: what was
compiled for it must not be reused because it looks the same.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

import jax

__all__ = ["has_installed_code", "is_installed"]

_PACKAGE = Path(__file__).parents[1]
_ROOTS = tuple(
    f"{folder}/"
    for folder in {
        str(_PACKAGE),
        str(Path(jax.__file__).parents[1]),
        *(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")),
    }
)

# Not `builtins`: it is also the module of classes that are executed without a name of a module.
_BUILTIN = {*sys.builtin_module_names, "jaxlib"} - {"builtins", "__main__"}
# Files of functions that `dataclasses`, jaxtyping and beartype generate.
_GENERATED = ("<string>", "<@beartype")
_MADE_BY_CLASS_STATEMENT = 1 << 9  # Py_TPFLAGS_HEAPTYPE.


def is_installed(value: Any) -> bool:
    """Whether all classes and functions in a value are of installed code.

    Args:
        value: A round, a model, a metric, or a tuple of such values.

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
    return has_installed_code(code) and all(_is_installed(part, seen) for part in _parts(value))


def has_installed_code(value: types.FunctionType | types.ModuleType | type) -> bool:
    """Whether the code of a function, a module or a class is installed, whatever it refers to."""
    if isinstance(value, types.ModuleType):
        return value.__name__ in _BUILTIN or _is_installed_file(getattr(value, "__file__", None))
    if isinstance(value, types.FunctionType):
        file = value.__code__.co_filename
        if not file.startswith(_GENERATED):
            return _is_installed_file(file)
        if value.__globals__.keys() <= {"__builtins__"}:  # It refers to nothing that may change.
            return True
        return _is_installed_file(_file_of(value))
    if not value.__flags__ & _MADE_BY_CLASS_STATEMENT:  # Of the interpreter or an extension.
        return True
    # A class that is made by a function has the module of that function.
    return value.__module__ in _BUILTIN or _is_installed_file(_file_of(value))


def _parts(value: Any) -> list[Any]:
    """The values that a value is made of, as far as they may hold code."""
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        return [*cells, *defaults]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (tuple, list, set, frozenset)):
        return list(value)
    if dataclasses.is_dataclass(value):
        names = (field.name for field in dataclasses.fields(value))
        # A Flax module knows the module that it is part of.
        return [getattr(value, name, None) for name in names if name != "parent"]
    # Functions that JAX wraps, such as custom_jvp, know what they wrap.
    wrapped = getattr(value, "__wrapped__", None) if callable(value) else None
    return [] if wrapped is None else [wrapped]


def _is_filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _file_of(value: Any) -> str | None:
    if value.__module__ == "__main__":  # Of a session, whatever started it.
        return None
    return getattr(sys.modules.get(value.__module__), "__file__", None)


def _is_installed_file(file: str | None) -> bool:
    return file is not None and file.startswith(_ROOTS)
