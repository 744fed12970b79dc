"""Programs of other simulators, each a process of a Python with pinned versions."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from experiments.benchmarks.timing import without_settings

__all__ = ["Worker"]

PROGRAMS = Path(__file__).parent / "programs"


class Worker:
    """A process that answers one request a line, in JSON.

    Args:
        name: Its requirements (``NAME.txt``) and its program (``NAME.py``) lie in ``programs``;
            without requirements it is run by this Python.
        cache: Where environments are kept.
        *command: What Python is to run instead of a program.
        interpreter: The Python to make the environment from.
    """

    def __init__(self, name: str, cache: Path, *command: str, interpreter: str = sys.executable):
        requirements = PROGRAMS / f"{name}.txt"
        has_any = requirements.exists()
        python = environment(requirements, cache, interpreter) if has_any else interpreter
        # -P: some programs bear the name of the package that they measure.
        program = command or ("-P", PROGRAMS / f"{name}.py")
        self.process = subprocess.Popen(
            [python, "-W", "ignore", *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=without_settings() | {"PYTHONPATH": str(PROGRAMS / "shared")},
        )

    def request(self, **message: Any) -> dict[str, Any]:
        """Sends a request and waits for the answer."""
        stdin: Any = self.process.stdin
        stdout: Any = self.process.stdout
        stdin.write(json.dumps(message) + "\n")
        stdin.flush()
        while line := stdout.readline():
            if line.startswith("{"):  # Peers print things of their own.
                return json.loads(line)
        raise RuntimeError(f"{self.process.args}: ended with status {self.process.wait()}.")

    def close(self) -> None:
        """Ends the process."""
        self.process.communicate()


def environment(requirements: Path, cache: Path, interpreter: str = sys.executable) -> Path:
    """The Python of an environment with these requirements, made at the first call."""
    named = b"" if interpreter == sys.executable else interpreter.encode()
    digest = hashlib.sha256(requirements.read_bytes() + named).hexdigest()[:8]
    folder = cache / f"{requirements.stem}-{digest}"
    python, done = folder / "bin" / "python", folder / "done"
    if not done.exists():
        subprocess.run([interpreter, "-m", "venv", "--clear", folder], check=True)
        install = [python, "-m", "pip", "install", "--quiet", "--requirement", requirements]
        subprocess.run(install, check=True)
        done.touch()
    return python
