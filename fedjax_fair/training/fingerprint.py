"""Descriptions of runs as strings, to verify that a checkpoint belongs to a run.

A method is described by the fields of its roles ("selector.mu": "1.0"). Classes and functions that
are not installed are also described by their code and the globals that they use.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_fair.training.inspection import has_installed_code, parts_of

__all__ = ["describe", "differences"]

# The number of clients per vmap batch changes rounding only; predictions do not affect training.
_IRRELEVANT = {"clients_per_batch", "predict", "probabilities"}


def describe(**values: Any) -> dict[str, str]:
    """Describes all scalars, strings, arrays and functions in some values, by their paths.

    Arrays are described by checksums, objects of other kinds by their type alone.

    Examples:
        >>> from fedjax_fair import solvers
        >>> described = describe(solver=solvers.SGD(0.1, batch_size=20, steps=5))
        >>> described["solver.learning_rate"]
        '0.1'
    """
    described: dict[str, str] = {}
    _describe("", values, described, {})
    return described


def differences(current: dict[str, str], recorded: dict[str, str]) -> list[tuple[str, str, str]]:
    """Returns where two descriptions differ: the path and both strings.

    A missing path counts as None, the value of a setting that did not exist in an older run.
    """
    paths = sorted(current.keys() | recorded.keys())
    pairs = [(path, current.get(path, "None"), recorded.get(path, "None")) for path in paths]
    return [pair for pair in pairs if pair[1] != pair[2]]


def _describe(path: str, value: Any, described: dict[str, str], seen: dict[int, Any]) -> None:
    value = inspect.unwrap(value) if callable(value) else value  # Ignores decorators.
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        described[path] = repr(value)
    elif isinstance(value, (np.ndarray, np.generic, jax.Array)):
        described[path] = _array(value)
    elif isinstance(value, (types.ModuleType, types.BuiltinFunctionType)) or (
        isinstance(value, type) and has_installed_code(value)
    ):
        described[path] = _name(value)
    elif id(value) not in seen:
        seen[id(value)] = value  # Kept, so that no other object gets the same id.
        has_name = callable(value) and not _has_fields(value)
        described[path] = _name(value if has_name else type(value))
        for name, part in _parts(value).items():
            if name not in _IRRELEVANT:
                _describe(f"{path}.{name}" if path else name, part, described, seen)


def _parts(value: Any) -> dict[str, Any]:
    """Returns the parts of a value, including its code where that is not installed."""
    if isinstance(value, types.FunctionType):
        # Installed code is left out, because another version may resume a run.
        return parts_of(value) | ({} if has_installed_code(value) else _code_of_function(value))
    if isinstance(value, type):
        return _code_of_class(value)
    if isinstance(value, (set, frozenset)):  # Their order differs between processes.
        return {}
    needs_class = _has_fields(value) and not has_installed_code(type(value))
    return parts_of(value) | ({"class": type(value)} if needs_class else {})


def _has_fields(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _code_of_class(kind: type) -> dict[str, Any]:
    """Returns the functions and constants of a class and its bases that are not installed.

    The methods that JAX and ``dataclasses`` add have the code of these libraries.
    """
    parts: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base is object or has_installed_code(base):
            continue
        for name, member in vars(base).items():
            function = getattr(member, "fget", None) or getattr(member, "__func__", None) or member
            is_function = isinstance(
                function, types.FunctionType
            ) and not function.__name__.startswith("__")
            is_constant = isinstance(member, (bool, int, float, str)) and not name.startswith("__")
            if is_function or is_constant:
                parts[name] = function
    return parts


def _code_of_function(function: types.FunctionType) -> dict[str, Any]:
    """Returns a checksum of a function's code, and the globals that it uses.

    Of modules that are not installed, the attributes it uses are included.
    """
    codes = _nested_codes(function.__code__)
    digest = hashlib.blake2b(digest_size=8)
    for code in codes:
        constants = (one for one in code.co_consts if not isinstance(one, types.CodeType))
        digest.update(code.co_code + repr((code.co_names, *constants)).encode())
    parts: dict[str, Any] = {"code": digest.hexdigest()}
    names = {name for code in codes for name in code.co_names}
    for name in sorted(names & function.__globals__.keys()):
        value = parts[f"global {name}"] = function.__globals__[name]
        if isinstance(value, types.ModuleType) and not has_installed_code(value):
            used = sorted(names & vars(value).keys())
            parts |= {f"global {name}.{one}": vars(value)[one] for one in used}
    return parts


def _nested_codes(code: types.CodeType) -> list[types.CodeType]:
    """Returns a code object and those of the functions defined in it."""
    nested = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return [code, *(inner for one in nested for inner in _nested_codes(one))]


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
