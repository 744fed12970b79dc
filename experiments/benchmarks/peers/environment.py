"""A Python environment for a peer, made from a file of pinned versions."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["Worker"]

PROGRAMS = Path(__file__).parent / "programs"


class Worker:
    """A process of a peer's own Python that answers one request a line, in JSON.

    Args:
        name: Its requirements (``NAME.txt``) and its program (``NAME.py``) lie in ``programs``.
        cache: Where environments are kept.
    """

    def __init__(self, name: str, cache: Path):
        python = _environment(PROGRAMS / f"{name}.txt", cache)
        self.process = subprocess.Popen(
            # -P: a program here bears the name of the package that it measures.
            [python, "-P", "-W", "ignore", PROGRAMS / f"{name}.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Sends a request and waits for the answer."""
        stdin: Any = self.process.stdin
        stdout: Any = self.process.stdout
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        while line := stdout.readline():
            if line.startswith("{"):  # Peers print things of their own.
                return json.loads(line)
        raise RuntimeError(f"{self.process.args}: ended with status {self.process.wait()}.")

    def close(self) -> None:
        """Ends the process."""
        self.process.communicate()


def _environment(requirements: Path, cache: Path) -> Path:
    """The Python of an environment with these requirements, made at the first call."""
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:8]
    folder = cache / f"{requirements.stem}-{digest}"
    python, done = folder / "bin" / "python", folder / "done"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        install = [python, "-m", "pip", "install", "--quiet", "--requirement", requirements]
        subprocess.run(install, check=True)
        done.touch()
    return python
