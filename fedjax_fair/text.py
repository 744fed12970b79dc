"""Formatting of text for a terminal."""

from __future__ import annotations

import shlex
import shutil
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = ["escape_control_chars", "format_columns", "resume_command"]


def escape_control_chars(text: object) -> str:
    r"""Formats a value on one line, with escapes for characters that are not printable.

    Examples:
        >>> escape_control_chars("naïve\x1b[2J\n")
        'naïve\\x1b[2J\\n'
    """
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in str(text)
    )


def resume_command(folder: str | Path, plugins: Iterable[Path] = ()) -> str:
    """Formats the command that continues a run, on one line.

    Examples:
        >>> resume_command("-my runs/1")
        "fedjax-fair resume './-my runs/1'"
    """
    # "./" keeps a folder from being read as an option.
    words = ["fedjax-fair", "resume", f"{'./' * str(folder).startswith('-')}{folder}"]
    for file in plugins:
        words += ["--plugin", str(file)]
    return escape_control_chars(shlex.join(words))


def format_columns(rows: Mapping[str, object], indent: str = "") -> str:
    """Formats names and texts in two columns, wrapped to the width of the terminal."""
    escaped = {
        escape_control_chars(name): escape_control_chars(text) for name, text in rows.items()
    }
    width = max(map(len, escaped))
    start = len(indent) + width + 2
    lines = []
    for name, text in escaped.items():
        first = f"{indent}{name:<{width}}  "
        lines += textwrap.wrap(
            text,
            max(40 + start, shutil.get_terminal_size().columns),
            initial_indent=first,
            subsequent_indent=" " * start,
            replace_whitespace=False,  # Spaces align columns in the text.
            break_long_words=False,  # Users copy paths.
            break_on_hyphens=False,
        ) or [first]
    return "\n".join(lines)
