"""What several commands do."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import tyro

from fedjax_fair.app import plugins
from fedjax_fair.app.run_folder import RunFolder
from fedjax_fair.app.termination import Terminated
from fedjax_fair.text import escape_control_chars

__all__ = [
    "Name",
    "RunPath",
    "fields_of",
    "interrupt_hint",
    "plain",
    "print_output_paths",
    "resumable",
]

RunPath = Annotated[str, tyro.conf.arg(metavar="RUN")]
Name = Annotated[str, tyro.conf.arg(metavar="NAME")]


@contextlib.contextmanager
def interrupt_hint(text: str) -> Iterator[None]:
    """What to type after an end from outside."""
    try:
        yield
    except (KeyboardInterrupt, Terminated) as end:
        end.add_note(text)
        raise


def resumable(folder: RunFolder) -> contextlib.AbstractContextManager[None]:
    """Says after an end from outside how the run goes on."""
    words = ["resume", str(folder.path)]
    for file in plugins.loaded():
        words += ["--plugin", str(file)]
    return interrupt_hint(f"`fedjax-fair {shlex.join(words)}` continues")


def print_output_paths(**files: Path) -> None:
    """Prints where files are, by what they hold."""
    for name, path in files.items():
        print(f"{name}: {escape_control_chars(path)}")


def fields_of(kind: Any, settings: Any) -> dict[str, Any]:
    """Those fields of settings that a dataclass has, by name."""
    return {item.name: getattr(settings, item.name) for item in fields(kind)}


def plain(kind: Any, typed: Any) -> Any:
    """What a run is made of, without what is typed beside it."""
    return kind(**fields_of(kind, typed))
