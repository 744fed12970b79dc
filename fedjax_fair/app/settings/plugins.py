"""Methods, data sources and machines of installed packages and of files.

A package lists them in the groups ``fedjax_fair.methods``, ``fedjax_fair.sources`` and
``fedjax_fair.machines`` of its entry points:

    [project.entry-points."fedjax_fair.methods"]
    newest = "my_package:newest"

A file, for ``--plugin``, has them in ``METHODS`` (`fedjax_fair.app.settings.method.Method` by
name),
``SOURCES`` (`fedjax_fair.data.Source`) and ``MACHINES`` (`fedjax_fair.planning.machines.Machine`).
The registry adds methods and sources when it is imported.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from fedjax_fair.app.settings.constructors import settings_of
from fedjax_fair.app.settings.method import Method, Range
from fedjax_fair.utils.terminal import error_prefix, one_line

if TYPE_CHECKING:
    from fedjax_fair.data import Source

__all__ = ["add_sources", "collect", "load", "loaded", "methods_of"]

_FROM_CONFIGURATION = ("cohort_size", "learning_rate", "batch_size")
"""Parameters that need no default, because every configuration has a value."""

# A run folder contains no code: `resume` needs `--plugin` again, since a folder from elsewhere
# should not run code.
_files: dict[Path, dict[str, dict[str, Any]]] = {}


def load(file: str) -> None:
    """Runs a Python file and stores its methods, data sources and machines.

    The file may import modules of its folder.

    Raises:
        ValueError: If it raises an error, has none of ``METHODS``, ``SOURCES`` and ``MACHINES``,
            an entry is invalid, or the registry has been imported already.

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
    if "fedjax_fair.app.settings.registry" in sys.modules:
        raise ValueError(f"plugin={file!r}: expected to be loaded before app.registry is imported.")
    module = _run(path, file)
    tables = {kind: getattr(module, kind) for kind in _CHECKS if hasattr(module, kind)}
    origin = f"plugin={file!r}"
    if not tables or not all(isinstance(table, Mapping) for table in tables.values()):
        raise ValueError(
            f"plugin={file!r}: expected METHODS, a dict of methods by name, SOURCES, a dict of "
            "data sources by name, or MACHINES, a dict of machines by name."
        )
    with _named_errors(origin):  # A mapping may compute its values.
        entries = {kind: dict(table) for kind, table in tables.items()}
    for kind, table in entries.items():
        for name, value in table.items():
            _CHECKS[kind](name, value, origin)
    _files[path] = entries


def loaded() -> list[Path]:
    """Returns the files that have been loaded."""
    return list(_files)


def methods_of(file: str) -> dict[str, Method]:
    """Returns the methods of a loaded file by name; none if it is not loaded."""
    return dict(_files.get(Path(file).absolute(), {}).get("METHODS", {}))


def add_sources() -> dict[str, Source]:
    """Adds the data sources of packages and files to those of the package, and returns them.

    The package's data is imported only if there are any.

    Raises:
        ValueError: As for `collect`.
    """
    if not (added := collect("sources", [])):
        return {}
    from fedjax_fair.data.sources.named_sources import SOURCES

    SOURCES.update(collect("sources", SOURCES))
    return added


def collect(
    kind: Literal["methods", "sources", "machines"], taken: Collection[str]
) -> dict[str, Any]:
    """Returns the methods, data sources or machines of packages and files by name.

    Raises:
        ValueError: If an entry of a package is invalid, or a name is ``taken`` by another one.
    """
    entries: list[tuple[str, str, Any]] = []
    for point in metadata.entry_points(group=f"fedjax_fair.{kind}"):
        origin = f"entry point {point.name!r} = {point.value!r}"
        with _named_errors(origin):
            value = point.load()
        _CHECKS[kind.upper()](point.name, value, origin)
        entries.append((origin, point.name, value))
    for path, tables in _files.items():
        table = tables.get(kind.upper(), {})
        entries += [(f"plugin={str(path)!r}", name, value) for name, value in table.items()]
    collected: dict[str, Any] = {}
    for origin, name, value in entries:
        if name in taken or name in collected:
            raise ValueError(
                f"{origin}: {name!r}: expected a name that no other {kind.removesuffix('s')} has."
            )
        collected[name] = value
    return collected


def _run(path: Path, file: str) -> ModuleType:
    """Imports a file as the module of its name."""
    from fedjax_fair.roles.role_errors import RoleError

    if path.stem in sys.modules or not path.stem.isidentifier():
        raise ValueError(
            f"plugin={file!r}: expected a file name that no module has; rename the file."
        )
    spec: Any = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # Where dataclasses look up their module.
    sys.path.append(str(path.parent))
    try:
        with _named_errors(f"plugin={file!r}"):
            spec.loader.exec_module(module)
    except RoleError:
        del sys.modules[path.stem]
        raise
    return module


@contextmanager
def _named_errors(origin: str) -> Iterator[None]:
    """Names a plugin in any error of its code."""
    from fedjax_fair.roles.role_errors import RoleError, explain_errors

    try:
        with explain_errors(origin):
            yield
    except RoleError:
        raise
    except (Exception, SystemExit) as error:
        number = getattr(error, "lineno", None)  # Of a SyntaxError.
        line = f", line {number}" if number else ""
        raise RoleError(f"{origin}{line}: {type(error).__name__}: {one_line(error)}") from error


def _check_method(name: Any, method: Any, origin: str) -> None:
    """Checks what the registry and the configuration rely on."""
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"{origin}: {name!r}: expected a name of letters, digits and underscores.")
    if not isinstance(method, Method):
        raise ValueError(f"{origin}: {name}={method!r}: expected a Method.")
    if len(method.ranges) > 2:
        raise ValueError(
            f"{origin}: {name}.ranges has {len(method.ranges)} settings: expected at most two."
        )
    for setting, values in method.ranges.items():
        where = f"{origin}: {name}.ranges: {setting}"
        if not isinstance(values, Range):
            raise ValueError(f"{where}={values!r}: expected a Range.")
        values.check(where)
    from fedjax_fair.roles import Aggregator, Selector, Solver
    from fedjax_fair.schedules import Schedule
    from fedjax_fair.server_optimizers import ServerOptimizer

    roles = (
        *(("selector", Selector), ("solver", Solver), ("schedule", Schedule)),
        *(("aggregator", Aggregator), ("server_optimizer", ServerOptimizer)),
    )
    for role, base in roles:
        if (role_class := getattr(method, role)) is not None:
            needless = {*_FROM_CONFIGURATION, *method.linked_settings}
            needless |= {"solver"} & {role}  # A solver that wraps another one.
            _check_role(role_class, base, f"{origin}: {name}.{role}", needless)


def _check_role(role_class: Any, base: type, where: str, without_default: set[str]) -> None:
    """Checks that a class is of a role, and that its parameters have annotations and defaults."""
    from fedjax_fair.utils.printing import format_value

    is_other_class = isinstance(role_class, type) and not issubclass(role_class, base)
    if not callable(role_class) or is_other_class:
        raise ValueError(
            f"{where}={format_value(role_class)}: expected a class derived from {base.__name__}."
        )
    with _named_errors(where):
        parameters = inspect.signature(role_class).parameters.values()
    for parameter in parameters:
        if parameter.annotation is parameter.empty:
            raise ValueError(
                f"{where}: {parameter.name}: expected an annotation, such as int or float."
            )
        if parameter.default is parameter.empty and parameter.name not in without_default:
            raise ValueError(f"{where}: {parameter.name}: expected a default.")
    with _named_errors(where):
        settings_of(role_class)


def _check_source(name: Any, source: Any, origin: str) -> None:
    from fedjax_fair.data import Source

    if not isinstance(name, str):
        raise ValueError(f"{origin}: {name!r}: expected a string as the name of a data source.")
    if not isinstance(source, Source):
        raise ValueError(f"{origin}: {name}={source!r}: expected a data.Source.")


def _check_machine(name: Any, machine: Any, origin: str) -> None:
    from fedjax_fair.planning.machines import Machine
    from fedjax_fair.utils import checks

    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
        raise ValueError(
            f"{origin}: {name!r}: expected a name of letters, digits, '-', '_' or '.'."
        )
    if not isinstance(machine, Machine):
        raise ValueError(f"{origin}: {name}={machine!r}: expected a planning.machines.Machine.")
    with error_prefix(f"{origin}: {name}: "):
        checks.positive("memory", machine.memory)


_CHECKS: dict[str, Callable[[Any, Any, str], None]] = {
    "METHODS": _check_method,
    "SOURCES": _check_source,
    "MACHINES": _check_machine,
}
