"""Describes a run as strings, to verify that a checkpoint belongs to it.

A method is described by the fields of its roles ("selector.mu": "1.0") and, where its code is not
installed, by the code of its classes and functions and of the globals that these use.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_fair.training.installed import has_installed_code

__all__ = ["describe", "differences"]

# How clients are laid out side by side changes rounding, not what is computed; what predictions are
# made of a model's outputs does not matter before it is trained.
_IRRELEVANT = {"clients_per_batch", "predict", "probabilities"}


def describe(**parts: Any) -> dict[str, str]:
    """Every number, word, array and function that these are made of, by where it is.

    Args:
        **parts: Functions, containers, dataclasses, arrays, numbers, by name.

    Returns:
        A short text for each, arrays by their checksums. Objects of other kinds count by their type
        alone.

    Examples:
        >>> from fedjax_fair import solvers
        >>> described = describe(solver=solvers.SGD(0.1, batch_size=20, steps=5))
        >>> described["solver.learning_rate"]
        '0.1'
    """
    found: dict[str, str] = {}
    _follow("", parts, found, {})
    return found


def differences(own: dict[str, str], other: dict[str, str]) -> list[tuple[str, str, str]]:
    """Where two descriptions differ: the place, and what is there in each.

    What is not there counts as None, which is what a setting is in a run of before it existed.
    """
    places = sorted(own.keys() | other.keys())
    gaps = [(place, own.get(place, "None"), other.get(place, "None")) for place in places]
    return [gap for gap in gaps if gap[1] != gap[2]]


def _follow(place: str, value: Any, found: dict[str, str], seen: dict[int, Any]) -> None:
    value = inspect.unwrap(value) if callable(value) else value  # What a decorator hides.
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        found[place] = repr(value)
    elif isinstance(value, (np.ndarray, np.generic, jax.Array)):
        found[place] = _array(value)
    elif isinstance(value, (types.ModuleType, types.BuiltinFunctionType)) or (
        isinstance(value, type) and has_installed_code(value)
    ):
        found[place] = _name(value)
    elif id(value) not in seen:
        seen[id(value)] = value  # Kept, so that no other object gets its number.
        found[place] = _name(value if callable(value) and not _has_fields(value) else type(value))
        for name, part in _parts(value).items():
            if name not in _IRRELEVANT:
                _follow(f"{place}.{name}" if place else name, part, found, seen)


def _has_fields(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _parts(value: Any) -> dict[str, Any]:
    """What an object is made of, by name."""
    if isinstance(value, types.MethodType):
        return {"object": value.__self__, "function": value.__func__}
    if isinstance(value, functools.partial):
        arguments = {str(place): argument for place, argument in enumerate(value.args)}
        return {"function": value.func} | arguments | value.keywords
    if isinstance(value, types.FunctionType):
        return _parts_of_function(value)
    if isinstance(value, type):
        return _parts_of_class(value)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(value, dict):
        return {str(name): part for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return {str(place): part for place, part in enumerate(value)}
    if _has_fields(value):
        names = (field.name for field in dataclasses.fields(value))
        parts = {name: getattr(value, name, None) for name in names if name != "parent"}
        return parts if has_installed_code(type(value)) else parts | {"class": type(value)}
    return {}


def _parts_of_class(kind: type) -> dict[str, Any]:
    """The functions and constants of a class whose code is not installed, with those of its bases.

    What JAX and ``dataclasses`` add to a class has the code of these libraries.
    """
    parts: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base is object or has_installed_code(base):
            continue
        for name, one in vars(base).items():
            function = getattr(one, "fget", None) or getattr(one, "__func__", None) or one
            written = isinstance(function, types.FunctionType) and not function.__name__.startswith(
                "__"
            )
            constant = isinstance(one, (bool, int, float, str)) and not name.startswith("__")
            if written or constant:
                parts[name] = function
    return parts


def _parts_of_function(function: types.FunctionType) -> dict[str, Any]:
    parts: dict[str, Any] = dict(function.__kwdefaults__ or {})
    parts |= {f"default {place}": value for place, value in enumerate(function.__defaults__ or ())}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            parts[name] = cell.cell_contents
        except ValueError:  # A function that refers to itself before it is there.
            continue
    if has_installed_code(function):  # What is installed may be newer now.
        return parts
    codes = _codes(function.__code__)
    digest = hashlib.blake2b(digest_size=8)
    for code in codes:
        constants = (one for one in code.co_consts if not isinstance(one, types.CodeType))
        digest.update(code.co_code + repr((code.co_names, *constants)).encode())
    parts["code"] = digest.hexdigest()
    return parts | _globals(function, {name for code in codes for name in code.co_names})


def _codes(code: types.CodeType) -> list[types.CodeType]:
    """A code object and those of the functions that are defined in it."""
    nested = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return [code, *(inner for one in nested for inner in _codes(one))]


def _globals(function: types.FunctionType, names: set[str]) -> dict[str, Any]:
    """The globals that a function uses, and what it uses of modules whose code is not installed."""
    parts = {}
    for name in sorted(names & function.__globals__.keys()):
        value = parts[f"global {name}"] = function.__globals__[name]
        if isinstance(value, types.ModuleType) and not has_installed_code(value):
            used = sorted(names & vars(value).keys())
            parts |= {f"global {name}.{one}": vars(value)[one] for one in used}
    return parts


def _name(value: Any) -> str:
    module = getattr(value, "__module__", None) or getattr(type(value), "__module__", "")
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    return f"{module}.{name or type(value).__qualname__}"


def _array(value: Any) -> str:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.ascontiguousarray(np.asarray(value))
    if array.ndim == 0:
        return repr(array.item())
    digest = hashlib.blake2b(array.view(np.uint8).data, digest_size=8).hexdigest()
    return f"{array.dtype}{list(array.shape)} {digest}"
