"""Warnings that point to the line of the caller."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings

__all__ = ["warn"]

# A context manager that decorates a function stands between the package's frames.
_INSIDE = os.path.dirname(os.path.dirname(__file__)) + os.sep, contextlib.__file__


def warn(message: str) -> None:
    """Warns with the file and line of the innermost call from outside the package.

    Python 3.12 has ``skip_file_prefixes`` for this.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_code.co_filename.startswith(_INSIDE) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
