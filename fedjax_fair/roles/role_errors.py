"""Errors of custom roles: one line that names the role, its method and the line of its file."""

from __future__ import annotations

import inspect
import linecache
import logging
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import jax
from jax.core import Tracer

from fedjax_fair.utils.terminal import one_line
from fedjax_fair.utils.tree import Tree, child_fields

__all__ = [
    "NEEDS_VALUE",
    "RoleError",
    "describe_method",
    "explain_callback_errors",
    "explain_errors",
    "parameters_of",
]

NEEDS_VALUE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""Errors of JAX for code that needs the value of a traced array."""

_LIBRARIES = {"fedjax_fair", "jax", "jaxlib", "numpy", "optax", "flax", "jaxtyping", "beartype"}


class RoleError(ValueError):
    """A custom role raised an error or returned an invalid result."""

    @property
    def hint(self) -> str:
        """Advice to show more on the command line."""
        return " (--traceback prints the calls)" if self.__cause__ else ""


@contextmanager
def explain_errors(
    place: str = "", kinds: tuple[type[BaseException], ...] = (Exception, SystemExit)
) -> Iterator[None]:
    """Names the line of custom code that raises an error of some types.

    Args:
        place: What is called; by default the method of the role that contains the line.
        kinds: Types of exceptions.

    Raises:
        RoleError: Instead of such an error, if it comes from custom code.
    """
    try:
        yield
    except (RoleError, MemoryError):
        raise
    except kinds as error:
        if (message := _explanation(place, error)) is None:
            raise
        raise RoleError(message) from error


@contextmanager
def explain_callback_errors() -> Iterator[None]:
    """Names the line of a callback of JAX that raises an error while compiled functions run.

    Raises:
        RoleError: Instead of such an error.
    """
    # They print the calls that led to the error, which is raised as well.
    loggers = [logging.getLogger(f"jax._src.{name}") for name in ("callback", "debugging")]
    for logger in loggers:
        logger.addFilter(_ignore)
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        # "CpuCallback error calling callback: Traceback ...", or "... callback ... At: FILE(LINE)".
        if "callback" not in (text := str(error)).lower():
            raise
        calls = re.findall(r'File "(.+)", line (\d+)|^\s*(\S+\.py)\((\d+)\):', text, re.MULTILINE)
        lines = [(file or at_file, line or at_line) for file, line, at_file, at_line in calls]
        own = [place for place in lines if "site-packages" not in place[0]]
        *_, reason = text.partition("At:")[0].strip().splitlines()
        where = f", line {own[-1][1]} of {Path(own[-1][0]).name}" if own else ""
        raise RoleError(
            f"function that a callback of JAX calls{where}: {reason.strip()}"
        ) from error
    finally:
        for logger in loggers:
            logger.removeFilter(_ignore)


def _ignore(record: logging.LogRecord) -> bool:
    return False


def describe_method(role: Tree, method: str) -> str:
    """Returns the kind of a role, its class with the module of a custom one, and the method."""
    kinds = {"Selector", "Solver", "Aggregator", "Faults"} & {cls.__name__ for cls in _bases(role)}
    return " ".join([*map(str.lower, kinds), f"{_class_name(role)}.{method}"])


def parameters_of(role: Tree, method: str) -> str | None:
    """Returns the parameters of a method of the base class of a role, if it defines the method."""
    function = next((vars(cls)[method] for cls in _bases(role) if method in vars(cls)), None)
    if not inspect.isfunction(function):
        return None
    return ", ".join(inspect.signature(function).parameters)


def _bases(role: Tree) -> list[type]:
    return [cls for cls in type(role).__mro__ if cls.__module__ == "fedjax_fair.roles.interfaces"]


def _class_name(role: Tree) -> str:
    cls = type(role)
    is_custom = cls.__module__.partition(".")[0] not in ("fedjax_fair", "__main__")
    return f"{cls.__module__}.{cls.__name__}" if is_custom else cls.__name__


def _explanation(place: str, error: BaseException) -> str | None:
    """Describes an error that comes from custom code; None for other errors."""
    frames = [
        (frame, line)
        for frame, line in reversed(list(traceback.walk_tb(error.__traceback__)))
        # Dataclasses run generated code in the module of the class.
        if not _is_library(str(frame.f_globals.get("__name__")))
        and frame.f_code.co_filename != "<string>"
    ]
    # The line of a script or plugin says more than a line of a package that it calls.
    frames.sort(key=lambda item: "site-packages" in item[0].f_code.co_filename)
    if not isinstance(error, NEEDS_VALUE):
        is_check = isinstance(error, ValueError) and _innermost(error) == "fedjax_fair.utils.checks"
        if not frames or is_check:  # The message of a check names the argument.
            return None
        frame, line = frames[0]
        where = _where(place, frame, line)
        message = one_line(error) or f"`{_source(frame, line)}`"
        return f"{where}: {type(error).__name__}: {message}"
    for frame, line in frames:
        role: Any = frame.f_locals.get("self")
        text = _source(frame, line)
        for name in re.findall(r"\bself\.(\w+)", text) if isinstance(role, Tree) else ():
            if name in child_fields(role) and any(
                isinstance(leaf, Tracer) for leaf in jax.tree.leaves(getattr(role, name))
            ):
                where = _where(place or f"{_class_name(role)}.{frame.f_code.co_name}", frame, line)
                return (
                    f"{where}: `{text}` needs the value of {type(role).__name__}.{name}, which is "
                    "a traced scalar; use jnp.where, or annotate the field with another type, such "
                    "as float, to make it structure."
                )
    if not frames or not place:
        return None
    frame, line = frames[0]
    return (
        f"{_where(place, frame, line)}: `{_source(frame, line)}` needs the value of a traced "
        "array; use jnp.where in place of if, and jax.numpy in place of NumPy."
    )


def _innermost(error: BaseException) -> str:
    """Returns the module that raised an error."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__"))


def _is_library(module: str) -> bool:
    package = module.partition(".")[0]
    return package != "__main__" and (package in _LIBRARIES or package in sys.stdlib_module_names)


def _source(frame: FrameType, line: int) -> str:
    return linecache.getline(frame.f_code.co_filename, line).strip()


def _where(place: str, frame: FrameType, line: int) -> str:
    file = Path(frame.f_code.co_filename)
    return f"{place}, line {line}" + (f" of {file.name}" if file.suffix == ".py" else "")
