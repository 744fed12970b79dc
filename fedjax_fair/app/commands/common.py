"""Helpers of several commands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import tyro

from fedjax_fair.app import plugins
from fedjax_fair.app.run_folder import RunFolder
from fedjax_fair.app.termination import Terminated
from fedjax_fair.utils.terminal import escape_control_chars, resume_command

__all__ = [
    "Name",
    "RunPath",
    "fields_of",
    "interrupt_hint",
    "print_output_paths",
    "resumable",
]

RunPath = Annotated[str, tyro.conf.arg(metavar="RUN")]
Name = Annotated[str, tyro.conf.arg(metavar="NAME")]


@contextlib.contextmanager
def interrupt_hint(hint: str) -> Iterator[None]:
    """Adds a hint to an interruption, which the command line prints."""
    try:
        yield
    except (KeyboardInterrupt, Terminated) as end:
        end.add_note(hint)
        raise


def resumable(folder: RunFolder) -> contextlib.AbstractContextManager[None]:
    """Hints at the command that continues a run when it is interrupted."""
    return interrupt_hint(f"`{resume_command(folder.path, plugins.loaded())}` continues")


def print_output_paths(**paths: Path) -> None:
    """Prints where files are, by what they hold."""
    for name, path in paths.items():
        print(f"{name}: {escape_control_chars(path)}")


def fields_of(kind: Any, settings: Any) -> dict[str, Any]:
    """Returns those fields of an object that a dataclass has."""
    return {item.name: getattr(settings, item.name) for item in fields(kind)}
