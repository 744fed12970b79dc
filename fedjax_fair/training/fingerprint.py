"""What a run is made of, in words that can be kept and compared.

A method is functions that close over its settings. They are followed down to numbers, words and
arrays, so that a checkpoint can tell a run of another learning rate from its own, and say so.
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
from jax.core import Tracer

__all__ = ["describe", "differences"]

# How clients are laid out side by side changes rounding, not what is computed; what predictions are
# made of a model's outputs does not matter before it is trained.
_IRRELEVANT = {"clients_per_batch", "predict", "probabilities"}
_LIBRARY = __name__.partition(".")[0]


def describe(**parts: Any) -> dict[str, str]:
    """Every number, word, array and function that these are made of, by where it is.

    Args:
        **parts: Functions, containers, dataclasses, arrays, numbers, by name.

    Returns:
        A short text for each, arrays by their checksums. Objects of other kinds count by their type
        alone.

    Examples:
        >>> from fedjax_fair import solvers
        >>> described = describe(solver=solvers.sgd(0.1, batch_size=20, steps=5))
        >>> described["solver.solve.learning_rate"]
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
    elif isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
        found[place] = _name(value)
    elif id(value) not in seen:
        seen[id(value)] = value  # Kept, so that no other object gets its number.
        found[place] = _name(value if callable(value) else type(value))
        for name, part in _parts(value).items():
            if name not in _IRRELEVANT:
                _follow(f"{place}.{name}" if place else name, part, found, seen)


def _parts(value: Any) -> dict[str, Any]:
    """What an object is made of, by name."""
    if isinstance(value, types.MethodType):
        return {"object": value.__self__, "function": value.__func__}
    if isinstance(value, functools.partial):
        arguments = {str(place): argument for place, argument in enumerate(value.args)}
        return {"function": value.func} | arguments | value.keywords
    if isinstance(value, types.FunctionType):
        return _closure(value)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(value, dict):
        return {str(name): part for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return {str(place): part for place, part in enumerate(value)}
    if dataclasses.is_dataclass(value):
        names = (field.name for field in dataclasses.fields(value))
        return {name: getattr(value, name, None) for name in names if name != "parent"}
    return {}


def _closure(function: types.FunctionType) -> dict[str, Any]:
    parts: dict[str, Any] = dict(function.__kwdefaults__ or {})
    parts |= {f"default {place}": value for place, value in enumerate(function.__defaults__ or ())}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            parts[name] = cell.cell_contents
        except ValueError:  # A function that refers to itself before it is there.
            continue
    code = function.__code__
    ours = (function.__module__ or "").startswith(_LIBRARY)
    if not ours and "site-packages" not in code.co_filename:  # What is installed may be newer now.
        parts["code"] = hashlib.blake2b(code.co_code, digest_size=8).hexdigest()
        constants = (one for one in code.co_consts if not isinstance(one, types.CodeType))
        parts["constants"] = repr(tuple(constants))
    return parts


def _name(value: Any) -> str:
    module = getattr(value, "__module__", None) or getattr(type(value), "__module__", "")
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    return f"{module}.{name or type(value).__qualname__}"


def _array(value: Any) -> str:
    if isinstance(value, Tracer):
        return f"{value.dtype}{value.shape}"
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.ascontiguousarray(np.asarray(value))
    if array.ndim == 0:
        return repr(array.item())
    digest = hashlib.blake2b(array.view(np.uint8).data, digest_size=8).hexdigest()
    return f"{array.dtype}{list(array.shape)} {digest}"
