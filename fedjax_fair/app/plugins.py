"""Methods and data sources of installed packages and of files.

A package lists them in the groups ``fedjax_fair.methods`` and ``fedjax_fair.sources`` of its entry
points:

    [project.entry-points."fedjax_fair.methods"]
    newest = "my_package:newest"

A file, for ``--plugin``, has them in ``METHODS`` and ``SOURCES``, by name. A method is a
`fedjax_fair.app.method.Method`, whose settings become options, settings after the name, and axes
of sweeps. A data source is a `fedjax_fair.data.Source`. The registry adds them when it is imported.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from fedjax_fair.app.method import Method
from fedjax_fair.data import Source

__all__ = ["load", "loaded", "methods", "sources"]

GROUP = "fedjax_fair.methods"
_FROM_CONFIGURATION = ("cohort_size", "learning_rate", "batch_size")
"""Parameters that need no default, because every configuration has a value."""

_files: dict[Path, dict[str, dict[str, Any]]] = {}


def load(file: str) -> None:
    """Runs a Python file and stores its methods and data sources for the registry.

    Args:
        file: The file. It may import modules of its folder.

    Raises:
        ValueError: If it cannot be run, has neither ``METHODS`` nor ``SOURCES``, an entry is
            invalid, or the registry has been imported already.

    Examples:
        >>> load("my_methods.txt")
        Traceback (most recent call last):
        ValueError: plugin='my_methods.txt': expected a Python file.
    """
    path = Path(file).absolute()
    if path in _files:
        return
    if path.suffix != ".py" or not path.is_file():
        raise ValueError(f"plugin={file!r}: expected a Python file.")
    if "fedjax_fair.app.registry" in sys.modules:
        raise ValueError(f"plugin={file!r}: expected to be loaded before app.registry is imported.")
    module = _run(path, file)
    tables = {kind: getattr(module, kind) for kind in _CHECKS if hasattr(module, kind)}
    if not tables or not all(isinstance(table, Mapping) for table in tables.values()):
        raise ValueError(
            f"plugin={file!r}: expected METHODS, a dict of methods by name, or SOURCES, a dict of "
            "data sources by name."
        )
    for kind, table in tables.items():
        for name, value in table.items():
            _CHECKS[kind](name, value, f"plugin={file!r}")
    _files[path] = {kind: dict(table) for kind, table in tables.items()}


def loaded() -> list[Path]:
    """Returns the files that have been loaded."""
    return list(_files)


def methods(taken: Collection[str]) -> dict[str, Method]:
    """Returns the methods of packages and files by name.

    Args:
        taken: Names of other methods.

    Raises:
        ValueError: If a method of a package cannot be imported or is invalid, or a name is taken.
    """
    return _collect("METHODS", GROUP, taken)


def sources(taken: Collection[str]) -> dict[str, Source]:
    """Returns the data sources of packages and files by name; see `methods`."""
    return _collect("SOURCES", "fedjax_fair.sources", taken)


def _collect(kind: str, group: str, taken: Collection[str]) -> dict[str, Any]:
    entries: list[tuple[str, str, Any]] = []
    for point in metadata.entry_points(group=group):
        origin = f"entry point {point.name!r} = {point.value!r}"
        try:
            value = point.load()
        except Exception as error:
            raise ValueError(f"{origin}: {type(error).__name__}: {error}") from None
        _CHECKS[kind](point.name, value, origin)
        entries.append((origin, point.name, value))
    for path, tables in _files.items():
        table = tables.get(kind, {})
        entries += [(f"plugin={str(path)!r}", name, value) for name, value in table.items()]
    collected: dict[str, Any] = {}
    for origin, name, value in entries:
        if name in taken or name in collected:
            noun = kind.lower().removesuffix("s")
            raise ValueError(f"{origin}: {name!r}: expected a name that no other {noun} has.")
        collected[name] = value
    return collected


def _run(path: Path, file: str) -> ModuleType:
    """Imports a file as the module of its name."""
    if path.stem in sys.modules or not path.stem.isidentifier():
        raise ValueError(f"plugin={file!r}: expected a file name that no module has.")
    spec: Any = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # Where dataclasses look up their module.
    sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[path.stem]
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        line = lines[-1] if lines else getattr(error, "lineno", None)
        raise ValueError(f"plugin={file!r}: line {line}: {type(error).__name__}: {error}") from None
    return module


def _check_method(name: Any, method: Any, origin: str) -> None:
    """Checks what the registry and the configuration rely on."""
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"{origin}: {name!r}: expected a name of letters, digits and underscores.")
    if not isinstance(method, Method):
        raise ValueError(f"{origin}: {name}={method!r}: expected a Method.")
    without_default = {*_FROM_CONFIGURATION, *method.from_solver}
    for role in ("selector", "solver", "aggregator"):
        role_class = getattr(method, role)
        if role_class is None:
            continue
        if not callable(role_class):
            raise ValueError(
                f"{origin}: {name}.{role}={role_class!r}: expected a class, such as selectors.Full."
            )
        for setting in inspect.signature(role_class).parameters.values():
            where = f"{origin}: {name}.{role}: {setting.name}"
            if setting.annotation is setting.empty:
                raise ValueError(f"{where}: expected an annotation, such as int or float.")
            if setting.default is setting.empty and setting.name not in without_default:
                raise ValueError(f"{where}: expected a default.")


def _check_source(name: Any, source: Any, origin: str) -> None:
    if not isinstance(name, str):
        raise ValueError(f"{origin}: {name!r}: expected a string as the name of a data source.")
    if not isinstance(source, Source):
        raise ValueError(f"{origin}: {name}={source!r}: expected a data.Source.")


_CHECKS: dict[str, Callable[[Any, Any, str], None]] = {
    "METHODS": _check_method,
    "SOURCES": _check_source,
}
