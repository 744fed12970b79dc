"""Warnings that point to the line of the caller."""

from __future__ import annotations

import os
import sys
import warnings

__all__ = ["warn"]

_PACKAGE = os.path.dirname(__file__) + os.sep


def warn(message: str) -> None:
    """Warns with the file and line of the innermost call from outside the package.

    Python 3.12 has ``skip_file_prefixes`` for this.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
