"""Warnings that point to the line of the caller."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from contextvars import ContextVar

__all__ = ["subject", "warn"]

# A context manager that decorates a function stands between the package's frames.
_INSIDE = os.path.dirname(os.path.dirname(__file__)) + os.sep, contextlib.__file__

_subject: ContextVar[str] = ContextVar("subject", default="")


@contextlib.contextmanager
def subject(name: str) -> Iterator[None]:
    """Begins the warnings of this thread with a name, such as that of the method that trains.

    Examples:
        >>> with warnings.catch_warnings(record=True, action="always") as found:
        ...     with subject("fedavg on digits"):
        ...         warn("the loss is not finite.")
        >>> str(found[0].message)
        'fedavg on digits: the loss is not finite.'
    """
    token = _subject.set(f"{name}: ")
    try:
        yield
    finally:
        _subject.reset(token)


def warn(message: str) -> None:
    """Warns with the file and line of the innermost call from outside the package.

    Python 3.12 has ``skip_file_prefixes`` for this.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_code.co_filename.startswith(_INSIDE) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(_subject.get() + message, stacklevel=level)
