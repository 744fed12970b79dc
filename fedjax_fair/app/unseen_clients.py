"""Evaluation of unseen clients: clients that were held out of training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax

from fedjax_fair.analysis.unseen import evaluate_unseen, has_global_model, undefined_unseen
from fedjax_fair.app.build import metrics_of
from fedjax_fair.app.experiment_data import Experiment
from fedjax_fair.app.settings.named_methods import resolve_method

if TYPE_CHECKING:
    import xarray as xr

    from fedjax_fair.training.fit_result import FitResult

__all__ = ["add_unseen"]


def add_unseen(experiment: Experiment, name: str, fitted: FitResult) -> xr.Dataset:
    """Adds the metrics of unseen clients to the results of a method, if there are such clients.

    Variables are those of `evaluate_unseen` over ``(seed, unseen_client)``, with the learning rate
    and batch size of the method, and their means over clients.
    """
    unseen, seeds = experiment.unseen, experiment.config.training.seeds
    if unseen is None:
        return fitted.dataset
    metrics = metrics_of(experiment.config, experiment.data.num_classes)
    if has_global_model(experiment.rounds[name]):
        solver = resolve_method(experiment.config, name)[1].solver
        measured = evaluate_unseen(
            fitted.model,
            fitted.variables,
            [solver.learning_rate or 0.0] * len(seeds),
            unseen,
            seeds=seeds,
            batch_size=solver.batch_size or 1,
            metrics=metrics,
            # Of several processes only the main one evaluates.
            mesh=experiment.mesh if jax.process_count() == 1 else None,
        )
    else:
        measured = undefined_unseen(unseen, seeds, fitted.model, metrics)
    measured = measured.rename(client="unseen_client")
    for variable in list(measured):
        values = measured[variable]
        attributes = {
            "long_name": f"{values.attrs['long_name']}, mean over clients",
            "units": values.attrs["units"],
            "population": "unseen clients",
            "weighting": "uniform",
        }
        means = values.mean("unseen_client").assign_attrs(attributes)
        measured[f"{variable}_mean_clients"] = means
    return fitted.dataset.merge(measured)
