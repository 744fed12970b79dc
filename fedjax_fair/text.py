"""Names that others chose, as they are safe to show."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: object) -> str:
    r"""The text on one line, with escapes for what a terminal or a reader would not see as a mark.

    Examples:
        >>> printable("naïve\x1b[2J\n")
        'naïve\\x1b[2J\\n'
    """
    return "".join(
        mark if mark.isprintable() else mark.encode("unicode_escape").decode("ascii")
        for mark in str(text)
    )
