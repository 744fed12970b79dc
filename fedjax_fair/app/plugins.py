"""Methods of other packages and of files.

A package names methods in the group ``fedjax_fair.methods`` of its entry points:

    [project.entry-points."fedjax_fair.methods"]
    newest = "my_package:newest"

A file for ``--plugin`` has a dict ``METHODS``. Each is a `fedjax_fair.app.method.Method`. Plugins
must be loaded before the registry is imported.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Collection, Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from fedjax_fair.app.method import Method

__all__ = ["load", "loaded", "methods"]

GROUP = "fedjax_fair.methods"
_FROM_CONFIGURATION = ("cohort_size", "learning_rate", "batch_size")
"""Parameters that need no default, because every configuration has a value."""

_files: dict[Path, dict[str, Method]] = {}


def load(file: str) -> None:
    """Runs a Python file and stores its methods for the registry.

    Args:
        file: The file. It may import modules of its folder.

    Raises:
        ValueError: If it cannot be run, has no ``METHODS`` or an invalid one, or the registry has
            been imported.

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
    methods = getattr(_run(path, file), "METHODS", None)
    if not isinstance(methods, Mapping):
        raise ValueError(f"plugin={file!r}: expected METHODS, a dict of methods by name.")
    for name, method in methods.items():
        _check_method(name, method, f"plugin={file!r}")
    _files[path] = dict(methods)


def loaded() -> list[Path]:
    """Returns the files that were loaded."""
    return list(_files)


def methods(taken: Collection[str]) -> dict[str, Method]:
    """Returns the methods of all plugins by name.

    Args:
        taken: Names of other methods.

    Raises:
        ValueError: If an entry point is invalid, or a name is taken.
    """
    sources: list[tuple[str, Mapping[str, Method]]] = []
    for point in metadata.entry_points(group=GROUP):
        origin = f"entry point {point.name!r} = {point.value!r}"
        try:
            method = point.load()
        except Exception as error:
            raise ValueError(f"{origin}: {type(error).__name__}: {error}") from None
        _check_method(point.name, method, origin)
        sources.append((origin, {point.name: method}))
    sources += [(f"plugin={str(path)!r}", by_name) for path, by_name in _files.items()]
    methods: dict[str, Method] = {}
    for origin, by_name in sources:
        for name in by_name:
            if name in taken or name in methods:
                raise ValueError(f"{origin}: {name!r}: expected a name that no other method has.")
        methods |= by_name
    return methods


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
