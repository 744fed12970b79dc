"""Run folders: everything a run leaves behind, and all that is needed to continue it.

=================  =================================================================
``config.json``    The resolved configuration.
``env.json``       Versions, device and git commit.
``metrics.jsonl``  One line per evaluation, method and seed, written as they happen.
``checkpoints/``   The latest state of each method.
``results.nc``     The results of the methods that are done, as one Dataset.
``plots/``         Figures drawn from ``results.nc``.
``report.html``    Everything a person wants to see, on one page.
=================  =================================================================
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_fair.app import settings
from fedjax_fair.app.config import Config, Maximize
from fedjax_fair.training.fit import Callback, Evaluation

__all__ = ["MetricsLog", "RunFolder", "environment"]

PACKAGES = ("fedjax-fair", "jax", "jaxlib", "flax", "optax", "numpy")


class RunFolder:
    """The paths of one run.

    Args:
        path: The folder.

    Raises:
        ValueError: If it holds no ``config.json``.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.results = self.path / "results.nc"
        self.plots = self.path / "plots"
        self.report = self.path / "report.html"
        if not self._config.is_file():
            raise ValueError(f"run={str(path)!r}: expected a run folder, with a config.json in it.")

    @classmethod
    def create(cls, config: Config | Maximize, name: str) -> RunFolder:
        """Makes a new folder under ``config.output``, named after the time and ``name``."""
        path = _unused(Path(config.output), f"{datetime.now():%Y%m%d-%H%M%S}-{name}")
        (path / "env.json").write_text(json.dumps(environment(), indent=2) + "\n")
        settings.save(config, path / "config.json")
        return cls(path)

    @property
    def _config(self) -> Path:
        return self.path / "config.json"

    def config(self) -> Config:
        """Reads the configuration of the run."""
        return settings.load(self._config)

    def environment(self) -> dict[str, Any]:
        """Reads what the run was started with."""
        return json.loads((self.path / "env.json").read_text())


def _unused(parent: Path, name: str) -> Path:
    """Makes a folder that was not there before, whoever else tries the same name."""
    parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = parent / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


def environment() -> dict[str, Any]:
    """What a result may depend on besides its configuration.

    Examples:
        >>> sorted(environment())
        ['device', 'device_count', 'git_commit', 'platform', 'python', 'versions']
    """
    return {
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": jax.devices()[0].device_kind,
        "device_count": jax.device_count(),
        "git_commit": _git_commit(),
    }


def _git_commit() -> str | None:
    """The commit of the checkout that this file is tracked in, marked if it has changed since."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        return None


class MetricsLog(Callback):
    """Appends a line of JSON for every evaluation and seed of one method.

    A resumed run repeats the evaluations after its checkpoint; a line that is there already is not
    written twice, and half a line, left by a run that was killed, is dropped.

    Args:
        path: The file, ``metrics.jsonl``.
        method: Name of the method.
    """

    def __init__(self, path: Path, method: str) -> None:
        self._path = path
        self._method = method
        self._written = {_identity(line) for line in _complete_lines(path)}

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Writes what is new."""
        lines = [self._line(evaluation, index) for index in range(len(evaluation.seeds))]
        new = [line for line in lines if _identity(line) not in self._written]
        with self._path.open("a") as file:
            file.writelines(json.dumps(line, allow_nan=False) + "\n" for line in new)

    def _line(self, evaluation: Evaluation, index: int) -> dict[str, Any]:
        return {
            "algorithm": self._method,
            "seed": evaluation.seeds[index],
            "round": evaluation.round,
            "seconds": round(evaluation.seconds, 3),
            **{name: _number(value[index]) for name, value in evaluation.summaries.items()},
        }


def _identity(line: dict[str, Any]) -> tuple[str, int, int]:
    return line["algorithm"], line["seed"], line["round"]


def _number(value: np.floating) -> float | None:
    """A number that JSON knows; NaN and infinities become null."""
    return float(value) if math.isfinite(value) else None


def _complete_lines(path: Path) -> list[dict[str, Any]]:
    """Reads the lines of a file and cuts off what comes after the last newline."""
    if not path.exists():
        return []
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    os.truncate(path, end)
    return [json.loads(line) for line in content[:end].splitlines()]
