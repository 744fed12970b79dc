"""Methods from outside the package: of installed packages, and of files.

A package names its methods in the group ``fedjax_fair.methods`` of its entry points:

    [project.entry-points."fedjax_fair.methods"]
    newest = "my_package:newest"

A file, for ``--plugin``, has them in ``METHODS``, by name. Either way they are a
`fedjax_fair.app.method.Method`, whose settings become options, settings behind the name, and axes
of sweeps. The registry is made of what is there when it is imported.
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
"""Parameters that need no default, as every configuration has a value."""

_files: dict[Path, dict[str, Method]] = {}


def load(file: str) -> None:
    """Runs a Python file and keeps its methods for the registry.

    Args:
        file: The file. Modules beside it can be imported from it.

    Raises:
        ValueError: If it cannot be run, has no ``METHODS``, one of them is not as expected, or the
            registry has been made already.

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
        raise ValueError(f"plugin={file!r}: expected it before methods were first looked up.")
    own = getattr(_run(path, file), "METHODS", None)
    if not isinstance(own, Mapping):
        raise ValueError(f"plugin={file!r}: expected METHODS, a dict of methods by name.")
    for name, method in own.items():
        _check_method(name, method, f"plugin={file!r}")
    _files[path] = dict(own)


def loaded() -> list[Path]:
    """The files whose methods are known."""
    return list(_files)


def methods(taken: Collection[str]) -> dict[str, Method]:
    """All methods from outside, by name.

    Args:
        taken: Names that they may not have.

    Raises:
        ValueError: If a package has one that cannot be imported or is not as expected, or a name is
            taken.
    """
    found: dict[str, Method] = {}

    def add(origin: str, own: Mapping[str, Method]) -> None:
        for name in own:
            if name in taken or name in found:
                raise ValueError(f"{origin}: {name!r}: expected a name that no other method has.")
        found.update(own)

    for point in metadata.entry_points(group=GROUP):
        origin = f"entry point {point.name!r} = {point.value!r}"
        try:
            method = point.load()
        except Exception as error:
            raise ValueError(f"{origin}: {type(error).__name__}: {error}") from None
        _check_method(point.name, method, origin)
        add(origin, {point.name: method})
    for path, own in _files.items():
        add(f"plugin={str(path)!r}", own)
    return found


def _run(path: Path, file: str) -> ModuleType:
    """The module that a file is, under its own name."""
    if path.stem in sys.modules or not path.stem.isidentifier():
        raise ValueError(f"plugin={file!r}: expected a file name that no module has.")
    spec: Any = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # As dataclasses look up their module there.
    sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[path.stem]
        own = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == str(path)
        ]
        line = own[-1].lineno if own else getattr(error, "lineno", None)
        raise ValueError(f"plugin={file!r}: line {line}: {type(error).__name__}: {error}") from None
    return module


def _check_method(name: Any, method: Any, origin: str) -> None:
    """Judges what the registry and the configuration rely on."""
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"{origin}: {name!r}: expected a name of letters, digits and underscores.")
    if not isinstance(method, Method):
        raise ValueError(f"{origin}: {name}={method!r}: expected a Method.")
    given = {*_FROM_CONFIGURATION, *method.from_solver}
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
            if setting.default is setting.empty and setting.name not in given:
                raise ValueError(f"{where}: expected a default.")
