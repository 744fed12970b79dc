"""Experiment trackers: TensorBoard, Weights & Biases, MLflow.

Each is an extra of the same name and receives the values of ``metrics.jsonl``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from fedjax_fair.app.model_files import folder_name
from fedjax_fair.app.settings.suggestions import lookup
from fedjax_fair.training.loop import Callback, Evaluation

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["LOGGERS", "Logger", "LoggerCallback", "check_logger"]


class Logger(Protocol):
    """Logs the metrics of one method and seed."""

    def write(self, round: int, values: Mapping[str, float]) -> None:
        """Logs the metrics after a round, by name."""
        ...

    def close(self) -> None:
        """Ends the log after the last round."""
        ...


class _TensorBoard:
    """Writes event files to ``tensorboard/METHOD/SEED`` of the run folder."""

    def __init__(self, folder: Path, method: str, seed: int) -> None:
        path = folder / "tensorboard" / folder_name(method) / str(seed)
        self._writer = import_module("tensorboard.summary").Writer(str(path))
        self.close = self._writer.close

    def write(self, round: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step=round)
        self._writer.flush()  # TensorBoard reads the file during the run.


class _WandB:
    """Logs to a run of Weights & Biases; the runs of a run folder are a group.

    ``WANDB_PROJECT``, ``WANDB_MODE`` and other environment variables configure it.
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
        self.close = self._run.finish

    def write(self, round: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=round)


class _MLflow:
    """Logs to a run of MLflow, in the experiment with the name of the run folder.

    ``MLFLOW_TRACKING_URI`` is the server; by default a database in the current folder.
    """

    def __init__(self, folder: Path, method: str, seed: int) -> None:
        self._client: Any = import_module("mlflow").MlflowClient()
        experiment = self._client.get_experiment_by_name(folder.name)
        exists = experiment is not None
        id = experiment.experiment_id if exists else self._client.create_experiment(folder.name)
        name = f"{method}, seed {seed}"
        earlier = [run for run in self._client.search_runs([id]) if run.info.run_name == name]
        run = earlier[0] if earlier else self._client.create_run(id, run_name=name)
        self._id = run.info.run_id

    def write(self, round: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(self._id, name, value, step=round)

    def close(self) -> None:
        self._client.set_terminated(self._id)


LOGGERS: dict[str, Callable[[Path, str, int], Logger]] = {
    "tensorboard": _TensorBoard,
    "wandb": _WandB,
    "mlflow": _MLflow,
}
"""Loggers of a run folder, method and seed, by the name of package and extra."""


def check_logger(name: str) -> None:
    """Checks that a logger exists and its package is installed.

    Raises:
        ValueError: If there is no such logger.
        ImportError: If its package is missing.
    """
    lookup("log", name, LOGGERS)
    try:
        import_module(name)
    except ImportError:
        raise ImportError(
            f'log={name!r}: its package is missing; pip install "fedjax-fair[{name}]".'
        ) from None


class LoggerCallback(Callback):
    """Logs the evaluations of one method, with a logger of ``LOGGERS`` for each seed."""

    def __init__(self, name: str, folder: Path, method: str) -> None:
        self._open = lambda seed: LOGGERS[name](folder, method, seed)
        self._loggers: dict[int, Logger] = {}

    def on_start(self, rounds: int, seeds: tuple[int, ...]) -> None:
        """Opens the loggers."""
        self._loggers = {seed: self._open(seed) for seed in seeds}

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Logs finite values, because not every tracker accepts others."""
        for index, seed in enumerate(evaluation.seeds):
            values = {name: float(value[index]) for name, value in evaluation.summaries.items()}
            finite = {name: value for name, value in values.items() if math.isfinite(value)}
            self._loggers[seed].write(evaluation.round, finite)

    def on_end(self, results: xr.Dataset) -> None:
        """Closes the loggers."""
        for logger in self._loggers.values():
            logger.close()
