"""Descriptions of runs as strings, to verify that a checkpoint belongs to a run.

A method is described by the fields of its roles ("selector.mu": "1.0"). Classes and functions that
are not installed are also described by their code and the globals that they use.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import hashlib
import importlib.util
import inspect
import operator
import os
import re
import types
from collections.abc import Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_fair.data.federated import FederatedData
from fedjax_fair.rounds.base_round import BaseRound
from fedjax_fair.training.inspection import has_installed_code, is_installed_module, parts_of
from fedjax_fair.utils.tree import Tree

__all__ = ["describe", "describe_run", "differences", "numeric_settings"]

# The number of clients per vmap batch changes rounding only; predictions do not affect training.
_IRRELEVANT = {"clients_per_batch", "predict", "probabilities"}

_PLAIN = (
    *(types.NoneType, types.EllipsisType, bool, int, float, complex, str, bytes),
    *(range, slice, PurePath, re.Pattern, np.dtype, Decimal, Fraction, date, time, timedelta),
    *(operator.itemgetter, operator.attrgetter, operator.methodcaller),
)

_JAX_SETTINGS = (
    *("enable_x64", "explicit_x64_dtypes", "default_matmul_precision"),
    *("threefry_partitionable", "default_prng_impl", "random_seed_offset"),
    *("high_dynamic_range_gumbel", "softmax_custom_jvp", "allow_f16_reductions"),
    *("disable_most_optimizations", "optimization_level", "exec_time_optimization_effort"),
)
_VARIABLES = ("NVIDIA_TF32_OVERRIDE", "LIBTPU_INIT_ARGS")
# Flags that change no arithmetic: number of devices, their waiting and memory, and files.
_IRRELEVANT_FLAGS = re.compile(
    "--xla_(force_host_platform_device_count|cpu_collective|dump|hlo_profile|gpu_cuda_data_dir"
    "|(cpu|gpu)_.*(timeout|parallel|threads))"
)


def numeric_settings() -> dict[str, str]:
    """Returns the settings of JAX and XLA that change the results of a computation.

    Names are those of environment variables. The numbers of devices and cores are not among them.

    Examples:
        >>> numeric_settings()["JAX_ENABLE_X64"]
        'False'
    """
    settings = {
        f"JAX_{name.upper()}": str(getattr(jax.config, f"jax_{name}", None))
        for name in _JAX_SETTINGS
    }
    # The last of several values of a flag counts.
    flags = {flag.partition("=")[0]: flag for flag in os.environ.get("XLA_FLAGS", "").split()}
    relevant = (flag for name, flag in flags.items() if not _IRRELEVANT_FLAGS.match(name))
    return settings | {
        "XLA_FLAGS": repr(" ".join(sorted(relevant))),
        **{name: repr(os.environ.get(name, "")) for name in _VARIABLES},
    }


def describe_run(method: BaseRound, data: FederatedData, **settings: Any) -> dict[str, str]:
    """Describes a run by its method (or stacked methods), dataset, and settings also of JAX."""
    roles = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
    data = data.without_names()._replace(name="")  # Names do not matter.
    return describe(method=type(method), **roles, data=data, **settings) | numeric_settings()


def describe(**values: Any) -> dict[str, str]:
    """Describes all scalars, strings, arrays and functions in some values, by their paths.

    Arrays are described by checksums, and objects of installed classes that are neither containers
    nor dataclasses by their type alone.

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
    value = _without_type_checks(value)
    if isinstance(value, _PLAIN) and not isinstance(value, Enum):
        described[path] = repr(value)
    elif isinstance(value, (np.ndarray, np.generic, jax.Array)):
        described[path] = _array(value)
    elif isinstance(value, types.ModuleType) or (
        isinstance(value, type) and has_installed_code(value)
    ):
        described[path] = _name(value)
    elif id(value) in seen:
        described[path] = f"the same as {seen[id(value)][0]}"
    else:
        seen[id(value)] = path, value  # Kept, so that no other object gets the same id.
        is_dataclass = dataclasses.is_dataclass(value) and not isinstance(value, type)
        described[path] = _name(value if callable(value) and not is_dataclass else type(value))
        is_tree = isinstance(value, Tree) or (isinstance(value, type) and issubclass(value, Tree))
        for name, part in _parts(value).items():
            if not (is_tree and name in _IRRELEVANT):
                _describe(f"{path}.{name}" if path else name, part, described, seen)
        if not isinstance(value, (types.FunctionType, type)):
            # Whether two values are one object may differ between processes, except for code.
            del seen[id(value)]


def _without_type_checks(value: Any) -> Any:
    """Removes the decorators of jaxtyping and beartype."""

    def has_effect(function: Any) -> bool:
        file = getattr(getattr(function, "__code__", None), "co_filename", "")
        return "jaxtyping" not in file and not file.startswith("<@beartype")

    return inspect.unwrap(value, stop=has_effect) if callable(value) else value


def _parts(value: Any) -> dict[str, Any]:
    """Returns the parts of a value, including its code where that is not installed.

    Installed code is left out, because another version may resume a run.
    """
    if isinstance(value, types.FunctionType):
        return parts_of(value) | ({} if has_installed_code(value) else _code_of_function(value))
    if isinstance(value, type):
        return _code_of_class(value)
    return parts_of(value) | ({} if has_installed_code(type(value)) else {"class": type(value)})


def _code_of_class(kind: type) -> dict[str, Any]:
    """Returns the bases and members of a class, of special members only its own functions.

    The methods that JAX and ``dataclasses`` add have the code of these libraries.
    """
    parts: dict[str, Any] = {"bases": kind.__bases__}
    for name, member in vars(kind).items():
        part = member.func if isinstance(member, functools.cached_property) else member
        part = getattr(part, "fget", None) or getattr(part, "__func__", None) or part
        is_function = isinstance(part, types.FunctionType) and not has_installed_code(part)
        if is_function or not name.startswith("__"):
            parts[name] = part
    return parts


def _code_of_function(function: types.FunctionType) -> dict[str, Any]:
    """Returns a checksum of a function's code, its attributes, and the globals that it uses."""
    codes = _nested_codes(function.__code__)
    digest = hashlib.blake2b(digest_size=8)
    for code in codes:
        constants = [_constant(one) for one in code.co_consts if not inspect.iscode(one)]
        digest.update(code.co_code + repr((code.co_names, *constants)).encode())
    names = {name for code in codes for name in code.co_names}
    modules = {name: module for code in codes for name, module in _imports(code, function)}
    namespace = function.__globals__ | modules
    return {
        "code": digest.hexdigest(),
        **vars(function),
        **dict(_used(names | modules.keys(), namespace, "global ")),
    }


def _constant(value: Any) -> Any:
    """Sorts a set, whose order differs between processes."""
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value


def _used(names: set[str], namespace: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yields the variables of a namespace with some names; also those of modules in it."""
    for name in sorted(names & namespace.keys()):
        value = namespace[name]
        yield prefix + name, value
        if isinstance(value, types.ModuleType) and not has_installed_code(value):
            yield from _used(names - {name}, vars(value), f"{prefix}{name}.")


def _imports(
    code: types.CodeType, function: types.FunctionType
) -> Iterator[tuple[str, types.ModuleType]]:
    """Yields the modules that code imports when it is called, if they are not installed."""
    instructions = list(dis.get_instructions(code))
    for i, instruction in enumerate(instructions):
        if instruction.opname == "IMPORT_NAME":
            name, variables = instruction.argval, function.__globals__
            level, names = instructions[i - 2].argval, instructions[i - 1].argval
            try:
                full_name = importlib.util.resolve_name(
                    "." * level + name, variables.get("__package__")
                )
                if not is_installed_module(full_name.partition(".")[0]):
                    yield full_name, __import__(name, variables, None, names or (), level)
            except Exception:  # Raised again when the function is called.
                continue


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
    if array.ndim == 0 or array.dtype.hasobject:
        return repr(array.tolist())
    digest = hashlib.blake2b(array.view(np.uint8).data, digest_size=8).hexdigest()
    return f"{array.dtype}{list(array.shape)} {digest}"
