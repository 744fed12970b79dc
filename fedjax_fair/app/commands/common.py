"""Helpers of several commands."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedjax_fair.app.run_folder import RunFolder
from fedjax_fair.app.settings import plugins
from fedjax_fair.app.terminal.termination import Terminated
from fedjax_fair.utils.terminal import escape_control_chars, resume_command

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "interrupt_hint",
    "print_output_paths",
    "resumable",
    "save_figure",
]


@contextlib.contextmanager
def interrupt_hint(hint: str, place_fn: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Adds a hint to an interruption, which the command line prints, and where the work stands."""
    try:
        yield
    except (KeyboardInterrupt, Terminated) as end:
        end.add_note(hint + place_fn())
        raise


def resumable(
    folder: RunFolder, place_fn: Callable[[], str] = lambda: ""
) -> contextlib.AbstractContextManager[None]:
    """Hints at the command that continues a run when it is interrupted."""
    return interrupt_hint(f"`{resume_command(folder.path, plugins.loaded())}` continues", place_fn)


def print_output_paths(**paths: Path) -> None:
    """Prints where files are, by what they hold."""
    for name, path in paths.items():
        print(f"{name}: {escape_control_chars(path)}")


def save_figure(draw: Callable[[], Figure], path: Path) -> None:
    """Writes what ``draw`` returns to the file of the option ``--plot``.

    Raises:
        ValueError: If the file has no format of figures, or cannot be written.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    formats = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in formats:
        raise ValueError(
            f"plot={str(path)!r}: expected a file name that ends with .{', .'.join(formats)}."
        )
    try:
        draw().savefig(path, dpi=150)
    except OSError as error:
        raise ValueError(f"plot={str(path)!r}: {error.strerror or error}.") from None
