"""Rows of BlazeFL, whose Python the user names: free-threaded for threads, any for processes."""

from __future__ import annotations

import os
import subprocess
from typing import NamedTuple

__all__ = ["ROWS", "Row", "find_interpreter", "missing_reason"]


class Row(NamedTuple):
    """A way to run BlazeFL.

    Attributes:
        mode: Argument of the program ``blazefl_peer``.
        variable: Environment variable with the path of the Python to run it.
        free_threaded: Whether this Python must be free-threaded; otherwise it must not be.
    """

    mode: str
    variable: str
    free_threaded: bool

    @property
    def expected(self) -> str:
        """The Python that is required, in words."""
        build = "a free-threaded CPython" if self.free_threaded else "a CPython with the GIL"
        return f"the path of {build}, 3.14 or newer"


ROWS = {
    "blazefl_threads": Row("threads", "PYTHON314T", free_threaded=True),
    "blazefl_gil": Row("gil", "PYTHON314", free_threaded=False),
    "blazefl_processes": Row("processes", "PYTHON314", free_threaded=False),
}
_CHECK = (
    "import sys, sysconfig; "
    "print(sys.version_info >= (3, 14), bool(sysconfig.get_config_var('Py_GIL_DISABLED')))"
)


def missing_reason(peer: str) -> str | None:
    """Returns why a peer is skipped, or None if it is not."""
    row = ROWS.get(peer)
    if row is None or os.environ.get(row.variable):
        return None
    return f"{peer}: skipped, because {row.variable} is not set; expected {row.expected}."


def find_interpreter(peer: str) -> str:
    """Returns the path of the Python of a row.

    Raises:
        ValueError: If the environment variable does not name such a Python.
    """
    row = ROWS[peer]
    path = os.environ.get(row.variable, "")
    try:
        check = subprocess.run([path, "-c", _CHECK], capture_output=True, text=True, check=True)
        answer = check.stdout.split()
    except (OSError, subprocess.CalledProcessError):
        answer = []
    if answer != ["True", str(row.free_threaded)]:
        raise ValueError(f"{row.variable}={path}: expected {row.expected}.")
    return path
