"""Evaluations for tools that show experiments: TensorBoard, Weights & Biases, MLflow.

Each is an extra of the same name. What they are given is what ``metrics.jsonl`` holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from fedjax_fair.app.settings import lookup
from fedjax_fair.training.fit import Callback, Evaluation

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["LOGGERS", "Log", "LoggerCallback", "require"]


class Log(Protocol):
    """Takes the numbers of one method and seed."""

    def write(self, round: int, values: Mapping[str, float]) -> None:
        """Takes the values after a round, by name."""
        ...

    def close(self) -> None:
        """Called once, after the last round."""
        ...


class _TensorBoard:
    """Event files in ``tensorboard/METHOD/SEED`` of the run folder."""

    def __init__(self, folder: Path, method: str, seed: int) -> None:
        writer = import_module("tensorboard.summary").Writer
        self._writer = writer(str(folder / "tensorboard" / quote(method, safe="=,+:") / str(seed)))

    def write(self, round: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step=round)
        self._writer.flush()  # People look while it runs.

    def close(self) -> None:
        self._writer.close()


class _WandB:
    """A run of its own in Weights & Biases; all of a run folder are one group.

    Its environment variables say where it goes: ``WANDB_PROJECT``, ``WANDB_MODE`` and others.
    """

    def __init__(self, folder: Path, method: str, seed: int) -> None:
        self._run = import_module("wandb").init(
            dir=str(folder),
            group=folder.name,
            name=f"{method}, seed {seed}",
            id=quote(f"{folder.name}-{method}-{seed}", safe="").replace("%", "_"),
            resume="allow",
            reinit="create_new",
            config={"method": method, "seed": seed},
        )

    def write(self, round: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=round)

    def close(self) -> None:
        self._run.finish()


class _MLflow:
    """A run of its own in the experiment that is named after the run folder.

    ``MLFLOW_TRACKING_URI`` says where it goes; without it, a database in the current folder.
    """

    def __init__(self, folder: Path, method: str, seed: int) -> None:
        client: Any = import_module("mlflow").MlflowClient()
        known = client.get_experiment_by_name(folder.name)
        of = client.create_experiment(folder.name) if known is None else known.experiment_id
        self._client, name = client, f"{method}, seed {seed}"
        before = [run for run in client.search_runs([of]) if run.info.run_name == name]
        self._id = (before[0] if before else client.create_run(of, run_name=name)).info.run_id

    def write(self, round: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(self._id, name, value, step=round)

    def close(self) -> None:
        self._client.set_terminated(self._id)


LOGGERS: dict[str, Callable[[Path, str, int], Log]] = {
    "tensorboard": _TensorBoard,
    "wandb": _WandB,
    "mlflow": _MLflow,
}
"""Makes the log of a run folder, method and seed, by the name of its package and extra."""


def require(name: str) -> None:
    """Makes sure that a log can be written, before anything runs.

    Raises:
        ValueError: If there is no such log.
        ImportError: If its package is not installed.
    """
    lookup("log", name, LOGGERS)
    try:
        import_module(name)
    except ImportError:
        raise ImportError(
            f'log={name!r}: expected its package, pip install "fedjax-fair[{name}]".'
        ) from None


class LoggerCallback(Callback):
    """Writes the evaluations of one method to logs, one log a seed.

    Args:
        name: Which, of `LOGGERS`.
        folder: The run folder.
        method: Name of the method.
    """

    def __init__(self, name: str, folder: Path, method: str) -> None:
        self._open = lambda seed: LOGGERS[name](folder, method, seed)
        self._logs: dict[int, Log] = {}

    def on_start(self, rounds: int, seeds: tuple[int, ...]) -> None:
        """Opens the logs."""
        self._logs = {seed: self._open(seed) for seed in seeds}

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Writes what is finite; not every tool knows what is not."""
        for index, seed in enumerate(evaluation.seeds):
            own = {name: float(value[index]) for name, value in evaluation.summaries.items()}
            finite = {name: value for name, value in own.items() if math.isfinite(value)}
            self._logs[seed].write(evaluation.round, finite)

    def on_end(self, results: xr.Dataset) -> None:
        """Closes the logs."""
        for log in self._logs.values():
            log.close()
