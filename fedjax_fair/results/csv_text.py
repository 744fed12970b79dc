"""CSV files that spreadsheets open: no text becomes a formula."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["from_cell", "to_csv"]

_FORMULA = r"[=+\-@\t\r]"
"""Characters with which a formula may begin (OWASP, CSV injection)."""


def to_csv(frame: pd.DataFrame, **options: Any) -> str:
    r"""Formats a table as CSV. An apostrophe precedes texts that could be formulas.

    Numbers keep their sign. ``options`` are further ones of ``DataFrame.to_csv``.

    Examples:
        >>> import pandas as pd
        >>> to_csv(pd.DataFrame({"method": ["=1+2", "fedavg"], "gap": ["-0.5", -1.5]}))
        "method,gap\n'=1+2,-0.5\nfedavg,-1.5\n"
    """
    texts = frame.map(_to_cell).rename(columns=_to_cell)
    return texts.to_csv(index=False, lineterminator="\n", **options)


def from_cell(text: Any) -> Any:
    """Inverts what `to_csv` does to a value."""
    is_marked = isinstance(text, str) and re.match(f"'+{_FORMULA}", text)
    return text[1:] if is_marked else text


def _to_cell(value: Any) -> Any:
    if not isinstance(value, str) or not re.match(f"'*{_FORMULA}.", value, re.DOTALL):
        return value
    with suppress(ValueError):
        float(value)
        return value
    return f"'{value}"
