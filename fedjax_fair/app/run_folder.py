"""Run folders: files of a run, which can be continued.

=================  =================================================================
``config.json``    The resolved configuration.
``env.json``       Versions, device and git commit.
``metrics.jsonl``  One line per evaluation, method and seed.
``checkpoints/``   The latest state of each method.
``models/``        The trained models of each method, for ``fedjax_fair.load_model``.
``results.nc``     The results of finished methods, as one Dataset.
``plots/``         Figures drawn from ``results.nc``.
``report.html``    Everything a person wants to see, on one page.
=================  =================================================================
"""

from __future__ import annotations

import itertools
import json
import math
import os
import platform
import subprocess
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from filelock import FileLock, Timeout

from fedjax_fair import metrics
from fedjax_fair.app import settings
from fedjax_fair.app.config import Config, Maximize
from fedjax_fair.results.files import add_file_name, write_text
from fedjax_fair.training.fit import Callback, Evaluation

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

__all__ = ["MetricsLog", "RunFolder", "environment", "locked"]

SUMMARY_NAMES = [metric.name for metric in metrics.ALL_SUMMARIES]
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
        self.models = self.path / "models"
        self.results = self.path / "results.nc"
        self.plots = self.path / "plots"
        self.report = self.path / "report.html"
        if not self._config.is_file():
            raise ValueError(f"run={str(path)!r}: expected a run folder, with a config.json in it.")

    @classmethod
    def create(cls, config: Config | Maximize, name: str) -> RunFolder:
        """Creates a folder under ``config.output``, named after the time and ``name``.

        It is renamed into place once it has its configuration.
        """
        parent = Path(config.output)
        parent.mkdir(parents=True, exist_ok=True)
        unfinished = parent / f".unfinished-{uuid.uuid4().hex}"
        unfinished.mkdir()
        write_text(unfinished / "env.json", _as_text(environment()))
        settings.save(config, unfinished / "config.json")
        stem = f"{datetime.now():%Y%m%d-%H%M%S}-{name}"
        for number in itertools.count(1):
            path = parent / (stem if number == 1 else f"{stem}-{number}")
            try:
                unfinished.rename(path)
            except OSError:
                if not path.exists():
                    raise
            else:
                return cls(path)
        raise AssertionError

    @property
    def _config(self) -> Path:
        return self.path / "config.json"

    def config(self) -> Config | Maximize:
        """Reads the configuration of the run."""
        return settings.load(self._config)

    def extend(self, rounds: int | None) -> None:
        """Stores the number of rounds, which the next start continues to."""
        config = self.config()
        if isinstance(config, Config) and config.training.rounds != rounds:
            settings.save(settings.change(config, "training", "rounds", rounds), self._config)

    def write_figures(self, figures: Mapping[str, Figure], page: str) -> None:
        """Writes figures by name, and the report."""
        self.plots.mkdir(exist_ok=True)
        for name, figure in figures.items():
            figure.savefig(self.plots / f"{name}.png", dpi=150)
        write_text(self.report, page)

    def environment(self) -> dict[str, Any]:
        """Reads the environment in which the run was started; rewrites a damaged file."""
        file = self.path / "env.json"
        try:
            return dict(json.loads(file.read_text(encoding="utf8")))
        except (OSError, ValueError, TypeError, RecursionError):
            warnings.warn(f"{file} is missing or damaged; written again.", stacklevel=2)
            current = environment()
            write_text(file, _as_text(current))
            return current


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks a folder for this process; a crash releases it.

    Raises:
        ValueError: If another process has locked it.
    """
    lock, holder = FileLock(folder / ".lock"), folder / ".holder"
    try:
        lock.acquire(blocking=False)
    except Timeout:
        name = f" ({holder.read_text()})" if holder.exists() else ""
        raise ValueError(f"folder={str(folder)!r} is used by another process{name}.") from None
    try:
        started = f"{datetime.now():%H:%M:%S}"
        write_text(holder, f"{os.getpid()} on {platform.node()}, since {started}")
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def _as_text(values: dict[str, Any]) -> str:
    return json.dumps(values, indent=2) + "\n"


def environment() -> dict[str, Any]:
    """Returns versions, device and commit, on which results may depend.

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
    """Returns the commit of the checkout of this file, marked if it has changes."""

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

    Lines that exist are not written again, and an incomplete last line is removed. At the end
    missing lines are written without a time, and those of other evaluations are removed.

    Args:
        path: The file, ``metrics.jsonl``.
        method: Name of the method.

    Raises:
        ValueError: If the file has a damaged line.
    """

    def __init__(self, path: Path, method: str) -> None:
        self._path = path
        self._method = method
        self._written = {_identity(line) for line in _complete_lines(path)}

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Writes new lines."""
        for index, seed in enumerate(evaluation.seeds):
            summaries = {name: value[index] for name, value in evaluation.summaries.items()}
            self._write(seed, evaluation.round, round(evaluation.seconds, 3), summaries)

    def on_end(self, results: xr.Dataset) -> None:
        """Completes the file."""
        lines = _complete_lines(self._path)
        valid = [
            line
            for line in lines
            if line["algorithm"] != self._method or line["round"] in results["round"].values
        ]
        if len(valid) < len(lines):
            write_text(self._path, "".join(json.dumps(line) + "\n" for line in valid))
        names = [name for name in SUMMARY_NAMES if name in results]
        for seed in results["seed"].values.tolist():
            for done in results["round"].values.tolist():
                if (self._method, seed, done) not in self._written:
                    cell = results.sel(seed=seed, round=done)
                    self._write(seed, done, None, {name: cell[name].item() for name in names})

    def _write(
        self, seed: int, done: int, seconds: float | None, summaries: dict[str, Any]
    ) -> None:
        line = {"algorithm": self._method, "seed": seed, "round": done, "seconds": seconds}
        if _identity(line) in self._written:
            return
        self._written.add(_identity(line))
        line |= {name: _number(value) for name, value in summaries.items()}
        with add_file_name(self._path), self._path.open("a") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")


def _identity(line: dict[str, Any]) -> tuple[str, int, int]:
    return line["algorithm"], line["seed"], line["round"]


def _number(value: Any) -> float | None:
    """Replaces NaN and infinities, which JSON does not have, by None."""
    return float(value) if math.isfinite(value) else None


def _complete_lines(path: Path) -> list[dict[str, Any]]:
    """Reads the lines of a file, and removes what follows the last newline."""
    if not path.exists():
        return []
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    lines = []
    for number, text in enumerate(content[:end].splitlines(), start=1):
        try:
            line = json.loads(text)
            kinds = [type(part) for part in _identity(line)]
            if kinds != [str, int, int]:
                raise TypeError
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ValueError(
                f"path={str(path)!r}: line {number} is damaged; expected JSON with algorithm, seed "
                "and round. Delete the file to write it again."
            ) from None
        lines.append(line)
    os.truncate(path, end)
    return lines
