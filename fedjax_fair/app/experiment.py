"""Execution of an experiment in a run folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fedjax_fair import results
from fedjax_fair.app.build import Experiment
from fedjax_fair.app.model_files import folder_name, save_model
from fedjax_fair.app.run_folder import MetricsLog, RunFolder, locked
from fedjax_fair.parallel import processes
from fedjax_fair.training.fit import Callback
from fedjax_fair.training.methods import train_methods

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["execute"]


def execute(
    experiment: Experiment,
    folder: RunFolder,
    callback_fn: Callable[[str], Sequence[Callback]] = lambda method: (),
) -> xr.Dataset:
    """Trains all methods and writes results, models, figures and report to the run folder.

    Methods train sequentially, while the next ones are compiled. A run that was interrupted
    continues from its checkpoints with the same results. Of several processes the main one writes;
    checkpoints need a shared folder.

    Args:
        experiment: The experiment.
        folder: Its run folder.
        callback_fn: Makes the callbacks of each method.

    Returns:
        The results of all methods, with the dimension ``algorithm``.

    Raises:
        DivergenceError: If a method diverges. Earlier methods are saved.
        ValueError: If another process uses the folder.
    """
    if not processes.is_main_process():
        return results.combine(_train(experiment, folder, None))
    with locked(folder.path):
        folder.extend(experiment.config.training.rounds)
        folder.environment()  # Warns about a damaged file before hours of training.
        _train(experiment, folder, callback_fn)
        combined = results.open(folder.results)
        draw(combined, folder)
        return combined


def _train(
    experiment: Experiment,
    folder: RunFolder,
    callback_fn: Callable[[str], Sequence[Callback]] | None,
) -> dict[str, xr.Dataset]:
    """Returns results by method; with callbacks, that is in the main process, also writes them."""
    training: Any = experiment.config.training
    done: dict[str, xr.Dataset] = {}
    for name, fitted in train_methods(
        experiment.rounds,
        experiment.data,
        rounds=training.rounds,
        seeds=training.seeds,
        eval_every=training.eval_every,
        on_nonfinite=training.on_nonfinite or "raise",
        callbacks=lambda name: (
            [MetricsLog(folder.metrics, name), *callback_fn(name)] if callback_fn else []
        ),
        checkpoints=lambda name: folder.checkpoints / folder_name(name),
        mesh=experiment.mesh,
    ):
        done[name] = fitted.dataset
        save_model(fitted.variables, folder.models / folder_name(name))
        if callback_fn:
            results.save(results.combine(done), folder.results)
    return done


def draw(dataset: xr.Dataset, folder: RunFolder) -> None:
    """Writes the standard figures and the report to the folder."""
    from fedjax_fair import report

    page = report.page(dataset, asdict(folder.config()), folder.environment())
    folder.write_figures(report.standard_figures(dataset), page)
