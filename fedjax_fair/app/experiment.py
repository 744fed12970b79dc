"""Runs an experiment in its folder, from the start or from where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fedjax_fair import results
from fedjax_fair.app.build import Experiment
from fedjax_fair.app.model_files import folder_name, save_model
from fedjax_fair.app.run_folder import MetricsLog, RunFolder, locked
from fedjax_fair.parallel import processes
from fedjax_fair.results.files import write_text
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
    """Trains every method and leaves everything in the folder.

    Methods train one after another, the next ones compiled meanwhile. What the folder's checkpoints
    hold is not computed again, so that calling this once more continues a run that was interrupted,
    and ends with the same results. Of several processes the first writes; checkpoints need a folder
    that all of them see.

    Args:
        experiment: What to run, from ``fedjax_fair.app.build``.
        folder: Where to leave it; its configuration is the experiment's.
        callback_fn: Makes callbacks for each method, for example to show progress.

    Returns:
        The results of all methods, with the dimension ``algorithm``.

    Raises:
        DivergenceError: If a method diverges. The methods before it are saved.
        ValueError: If another process is working in the folder.
    """
    if not processes.is_main_process():
        return results.combine(_train(experiment, folder, None))
    with locked(folder.path):
        folder.extend(experiment.config.training.rounds)
        folder.environment()  # What is lost is noticed before hours of training.
        _train(experiment, folder, callback_fn)
        combined = results.open(folder.results)
        draw(combined, folder)
        return combined


def _train(
    experiment: Experiment,
    folder: RunFolder,
    callback_fn: Callable[[str], Sequence[Callback]] | None,
) -> dict[str, xr.Dataset]:
    """Results by method; the process that watches writes them too."""
    training: Any = experiment.config.training  # Resolved: the number of rounds is there.
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
    """Draws the standard figures into the folder, and all of the run on one page."""
    from fedjax_fair import report

    folder.plots.mkdir(exist_ok=True)
    for name, figure in report.standard_figures(dataset).items():
        figure.savefig(folder.plots / f"{name}.png", dpi=150)
    page = report.page(dataset, asdict(folder.config()), folder.environment())
    write_text(folder.report, page)
