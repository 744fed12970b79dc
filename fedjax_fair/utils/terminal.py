"""Formatting of text and of errors for a terminal."""

from __future__ import annotations

import shlex
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = [
    "align_rows",
    "error_prefix",
    "escape_control_chars",
    "format_columns",
    "one_line",
    "resume_command",
]

_MIN_TEXT = 40
"""Columns of text next to a name."""


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


def one_line(error: BaseException) -> str:
    r"""Returns the message of an error of other code on one line, also if it cannot be printed.

    Examples:
        >>> one_line(ValueError("expected\n  a number"))
        'expected a number'
    """
    try:
        return " ".join(str(error).split())
    except Exception:  # Of a `__str__` of the user.
        return "its message cannot be printed"


@contextmanager
def error_prefix(prefix: str) -> Iterator[None]:
    """Begins the message of a ``ValueError`` with what it is about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{prefix}{error}") from None


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


def align_rows(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns a line for each row of cells, the first column flush left and the others right.

    Examples:
        >>> align_rows([("client", "examples"), ("a", "12")])
        ['client  examples', 'a             12']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]


def format_columns(rows: Mapping[str, object], indent: str = "") -> str:
    """Formats names and texts in two columns, wrapped to the width of the terminal.

    In a narrow terminal texts are below their names.
    """
    escaped = {
        escape_control_chars(name): escape_control_chars(text) for name, text in rows.items()
    }
    columns = shutil.get_terminal_size().columns
    width = max(map(len, escaped))
    start = len(indent) + width + 2
    is_narrow = columns < start + _MIN_TEXT
    start = len(indent) + 2 if is_narrow else start
    lines = []
    for name, text in escaped.items():
        first = f"{indent}{name:<{width}}  "
        wrapped = textwrap.wrap(
            text,
            columns,
            initial_indent=" " * start if is_narrow else first,
            subsequent_indent=" " * start,
            replace_whitespace=False,  # Spaces align columns in the text.
            break_long_words=False,  # Users copy paths.
            break_on_hyphens=False,
        )
        lines += [f"{indent}{name}", *wrapped] if is_narrow else wrapped or [first]
    return "\n".join(lines)
