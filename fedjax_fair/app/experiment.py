"""Execution of an experiment in a run folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from fedjax_fair import results
from fedjax_fair.app.experiment_data import Experiment
from fedjax_fair.app.guarantees import BYZANTINE, add_epsilon, describe_guarantees, guarantee
from fedjax_fair.app.model_files import folder_name, save_model, save_personalized
from fedjax_fair.app.run_folder import MetricsLog, RunFolder, locked
from fedjax_fair.app.settings.config_files import as_dict
from fedjax_fair.app.settings.usage import format_settings
from fedjax_fair.app.unseen import add_unseen
from fedjax_fair.parallel import processes
from fedjax_fair.training.fit import Callback, train_methods

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["execute"]


def execute(
    experiment: Experiment,
    folder: RunFolder,
    callback_fn: Callable[[str], Sequence[Callback]] = lambda method: (),
) -> xr.Dataset:
    """Trains all methods and writes results, models, figures and report to the run folder.

    An interrupted run continues from its checkpoints with the same results. Of several processes
    the main one writes; checkpoints need a shared folder.

    Args:
        experiment: The experiment.
        folder: Its run folder.
        callback_fn: Makes the callbacks of each method.

    Returns:
        The results, with the dimension ``algorithm``.

    Raises:
        DivergenceError: If a method diverges. Earlier methods are saved.
        ValueError: If another process uses the folder.
    """
    is_main, config = processes.is_main_process(), experiment.config
    training, num_clients = config.training, experiment.data.num_clients
    privacy = {
        name: guarantee(name, round_fn, config, num_clients)
        for name, round_fn in experiment.rounds.items()
    }
    attrs = {"settings": format_settings(config, num_clients=num_clients)}
    known = {name: [value] for name, value in privacy.items() if value is not None}
    if known:
        attrs["privacy"] = describe_guarantees(known, config, num_clients)
    if config.faults.byzantine:
        attrs["byzantine"] = BYZANTINE
    done: dict[str, xr.Dataset] = {}
    with locked(folder.path) if is_main else nullcontext():
        if is_main:
            folder.extend(training.rounds, num_clients)
            folder.environment()  # Warns about a damaged file before hours of training.
        for name, fitted in train_methods(
            experiment.rounds,
            experiment.data,
            rounds=training.rounds or 0,
            seeds=training.seeds,
            eval_every=training.eval_every or 1,
            on_nonfinite=training.on_nonfinite or "raise",
            callbacks=lambda name: (
                [MetricsLog(folder.metrics, name, list(experiment.rounds)), *callback_fn(name)]
                if is_main
                else []
            ),
            checkpoints=lambda name: folder.checkpoints / folder_name(name),
            mesh=experiment.mesh,
        ):
            measured = add_unseen(experiment, name, fitted) if is_main else fitted.dataset
            done[name] = add_epsilon(measured, privacy[name]).assign_attrs(attrs)
            save_model(fitted.variables, folder.models / folder_name(name))
            save_personalized(fitted, folder.models / folder_name(name))
            if is_main:
                results.save(results.combine(done), folder.results)
        if not is_main:
            return results.combine(done)
        combined = results.open(folder.results)
        draw(combined, folder)
        return combined


def draw(dataset: xr.Dataset, folder: RunFolder) -> None:
    """Writes the standard figures and the report to the folder."""
    from fedjax_fair import report

    page = report.page(
        dataset, as_dict(folder.config(), dataset.sizes["client"]), folder.environment()
    )
    folder.write_figures(report.standard_figures(dataset), page)
