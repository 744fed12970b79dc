"""Texts for a terminal: names that others chose, and columns."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping

__all__ = ["escape_control_chars", "format_columns"]


def escape_control_chars(text: object) -> str:
    r"""The text on one line, with escapes for what a terminal or a reader would not see as a mark.

    Examples:
        >>> escape_control_chars("naïve\x1b[2J\n")
        'naïve\\x1b[2J\\n'
    """
    return "".join(
        mark if mark.isprintable() else mark.encode("unicode_escape").decode("ascii")
        for mark in str(text)
    )


def format_columns(rows: Mapping[str, object], indent: str = "") -> str:
    """Names beside texts, which are broken where the terminal ends."""
    shown = {escape_control_chars(name): escape_control_chars(text) for name, text in rows.items()}
    width = max(map(len, shown))
    columns = max(40, shutil.get_terminal_size().columns - width - len(indent) - 2)
    lines = []
    for name, text in shown.items():
        # Spaces that align a second column stay.
        broken = textwrap.wrap(
            text,
            columns,
            replace_whitespace=False,
            break_long_words=False,  # Paths are copied.
            break_on_hyphens=False,
        ) or [""]
        lines += [f"{indent}{name:<{width}}  {broken[0]}"]
        lines += [f"{indent}{'':<{width}}  {line}" for line in broken[1:]]
    return "\n".join(lines)
