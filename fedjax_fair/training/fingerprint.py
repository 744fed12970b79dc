"""Descriptions of runs as strings, to verify that a checkpoint belongs to a run.

A method is described by the fields of its roles ("selector.mu": "1.0"). Classes and functions that
are not installed are also described by checksums of their files and of the files that these import
("file my_methods.py"), in a notebook by their source text and the global variables that they use.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import importlib.util
import inspect
import operator
import os
import re
import sys
import types
from collections.abc import Iterator
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path, PurePath
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_fair.data.federated import FederatedData
from fedjax_fair.rounds.base_round import BaseRound
from fedjax_fair.training.inspection import has_installed_code, is_installed_file, parts_of
from fedjax_fair.utils.tree import Tree

__all__ = ["describe", "describe_run", "differences", "is_code", "numeric_settings"]

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

_MODULES = re.compile(r"^(fedjax_fair|ff)\.([a-z]\w*\.)*")


def numeric_settings() -> dict[str, str]:
    """Returns the settings of JAX and XLA that change the results of a computation.

    Names are environment variables. The numbers of devices and cores are left out.

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
    central_test = data.central_test
    data = data.without_names()._replace(name="", central_test=central_test)  # Names do not matter.
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


def differences(
    current: dict[str, str], recorded: dict[str, str], *, allow_changed_code: bool = False
) -> list[tuple[str, str, str]]:
    """Returns where two descriptions differ: the path and both strings; changed code comes last.

    A missing path counts as None, the value of a setting that did not exist in an older run.
    Classes and functions of the package are equal if their names are, wherever they are defined.
    """
    paths = sorted(current.keys() | recorded.keys(), key=lambda path: (is_code(path), path))
    pairs = [(path, current.get(path, "None"), recorded.get(path, "None")) for path in paths]
    if allow_changed_code:
        pairs = [pair for pair in pairs if not is_code(pair[0])]
    return [pair for pair in pairs if _without_modules(pair[1]) != _without_modules(pair[2])]


def is_code(path: str) -> bool:
    """Returns whether a path of a description is of code that is not installed."""
    return path.startswith(("file ", "source "))


def _describe(path: str, value: Any, described: dict[str, str], seen: dict[int, Any]) -> None:
    value = _without_type_checks(value)
    if isinstance(value, _PLAIN) and not isinstance(value, Enum):
        described[path] = repr(value)
    elif isinstance(value, (types.ModuleType, type)):
        described[path] = _name(value)
        _describe_code(path, value, described, seen)
    elif hasattr(value, "__array__"):  # Of NumPy, JAX or pandas.
        described[path] = _array(value)
    elif id(value) in seen:
        described[path] = f"the same as {seen[id(value)][0]}"
    else:
        seen[id(value)] = path, value  # Kept, so that no other object gets the same id.
        is_function = isinstance(value, types.FunctionType)
        described[path] = _name(
            value if callable(value) and not dataclasses.is_dataclass(value) else type(value)
        )
        _describe_code(path, value if is_function else type(value), described, seen)
        for name, part in (parts_of(value) | (vars(value) if is_function else {})).items():
            if not (isinstance(value, Tree) and name in _IRRELEVANT):
                _describe(f"{path}.{name}" if path else name, part, described, seen)
        if not is_function:
            # Whether two values are one object may differ between processes, except for code.
            del seen[id(value)]


def _without_type_checks(value: Any) -> Any:
    """Removes the decorators of jaxtyping and beartype."""

    def has_effect(function: Any) -> bool:
        file = getattr(getattr(function, "__code__", None), "co_filename", "")
        return "jaxtyping" not in file and not file.startswith("<@beartype")

    return inspect.unwrap(value, stop=has_effect) if callable(value) else value


def _describe_code(path: str, code: Any, described: dict[str, str], seen: dict[Any, Any]) -> None:
    """Describes a module, class or function that is not installed by its files or its source.

    Installed code is left out, because another version may resume a run.
    """
    if has_installed_code(code):
        return
    path = path if path.startswith("source ") else f"source {path}"
    is_function = isinstance(code, types.FunctionType)
    module: Any = code
    if not isinstance(code, types.ModuleType):
        name = code.__globals__.get("__name__") if is_function else code.__module__
        module = sys.modules.get(name or "")
    is_main = getattr(module, "__name__", "__main__") == "__main__"  # A notebook or a script.
    if not is_main and module.__spec__ and module.__spec__.has_location:
        if module.__name__ not in seen:
            seen[module.__name__] = path, module
            described |= _files(module.__name__)
        if is_function and code.__name__ == "<lambda>":  # Others of the file have the same name.
            column = max(column or 0 for _, _, column, _ in code.__code__.co_positions())
            described[path] = f"line {code.__code__.co_firstlineno}, column {column}"
    elif is_function:
        described[path] = _digest(_source(code).encode())
        names = {name for one in _nested_codes(code.__code__) for name in one.co_names}
        for name in sorted(names & code.__globals__.keys()):
            _describe(f"{path}.global {name}", code.__globals__[name], described, seen)
    if isinstance(code, type) and id(code) not in seen:
        seen[id(code)] = path, code
        for name, part in _members(code).items():
            _describe(f"{path}.{name}", part, described, seen)


def _members(kind: type) -> dict[str, Any]:
    """Returns the bases and members of a class, of special members only its own functions."""
    parts: dict[str, Any] = {"bases": kind.__bases__, "metaclass": type(kind)}
    for name, member in vars(kind).items():
        part = member.func if isinstance(member, functools.cached_property) else member
        part = getattr(part, "fget", None) or getattr(part, "__func__", None) or part
        is_own = inspect.isfunction(part) and part.__code__.co_filename != "<string>"
        if not name.startswith("__") or (is_own and not has_installed_code(part)):
            parts[name] = part
    return parts


def _source(function: Any) -> str:
    try:
        return inspect.getsource(function)
    except OSError:
        raise ValueError(
            f"{_name(function)}: its source text is not available, so that checkpoints cannot tell "
            "whether it has changed; expected code of a file or notebook. Define it in a file, and "
            "import it."
        ) from None


def _files(module: str) -> dict[str, str]:
    """Returns checksums of the files of a module and of what it imports, unless installed."""
    found: dict[str, str] = {}
    waiting = [module]
    while waiting:
        parts = waiting.pop().split(".")
        for depth in range(1, len(parts) + 1):
            try:
                spec = importlib.util.find_spec(".".join(parts[:depth]))
            except Exception:  # Raised again when it is imported.
                break
            if spec is None or is_installed_file(spec.origin):
                break
            if not spec.has_location or spec.origin is None:
                continue
            file = Path(spec.origin)
            path = f"file {'/'.join(file.parts[-depth - (file.stem == '__init__') :])}"
            if path not in found:
                found[path] = _digest(file.read_bytes())
                waiting += _imported(file, spec.parent)
    return found


def _imported(file: Path, package: str | None) -> Iterator[str]:
    """Yields the names of what a file imports, which may be modules."""
    if file.suffix != ".py":
        return
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _digest(content: Any) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _nested_codes(code: types.CodeType) -> list[types.CodeType]:
    """Returns a code object and the code objects of the functions defined in it."""
    nested = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return [code, *(inner for one in nested for inner in _nested_codes(one))]


def _name(value: Any) -> str:
    """Returns the public name of a class or function, which remains when its module is moved."""
    module = getattr(value, "__module__", None) or getattr(type(value), "__module__", "")
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    name = name or type(value).__qualname__
    package, *rooms = module.split(".")
    if package != "fedjax_fair":
        return f"{module}.{name}"
    for depth in range(len(rooms)):
        room = ".".join(rooms[:depth])
        if name in getattr(sys.modules[f"{package}.{room}".strip(".")], "__all__", ()):
            return f"ff.{room}.{name}".replace("..", ".")
    return f"ff.{name}"


def _without_modules(description: str) -> str:
    """Removes the modules of a name of the package, also in descriptions by module path."""
    return _MODULES.sub("ff.", description)


def _array(value: Any) -> str:
    value = value if isinstance(value, jax.Array) else np.asarray(value)
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.ascontiguousarray(np.asarray(value))
    if array.ndim == 0 or array.dtype.hasobject:
        return repr(array.tolist())
    return f"{array.dtype}{list(array.shape)} {_digest(array.view(np.uint8).data)}"
