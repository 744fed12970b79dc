"""Execution of an experiment in a run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import jax
from jax.sharding import Mesh

from fedjax_fair import results
from fedjax_fair.analysis.simulate import expected_parity
from fedjax_fair.analysis.unseen import evaluate_unseen, has_global_model, undefined_unseen
from fedjax_fair.app.build import metrics_of
from fedjax_fair.app.experiment_data import Experiment
from fedjax_fair.app.guarantees import add_epsilon, attributes_of, guarantee
from fedjax_fair.app.model_files import (
    folder_name,
    save_base,
    save_model,
    save_personalized,
)
from fedjax_fair.app.run_folder import MetricsLog, RunFolder
from fedjax_fair.app.settings.config_files import as_dict
from fedjax_fair.app.settings.named_methods import resolve_method
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.parallel import processes
from fedjax_fair.results.files import locked
from fedjax_fair.rounds.base_round import BaseRound
from fedjax_fair.rounds.round import Round
from fedjax_fair.training.batch import RunBatch
from fedjax_fair.training.compiled_runs import CompiledRuns
from fedjax_fair.training.fit_result import FitResult
from fedjax_fair.training.loop import Callback, check_runs, train_loop
from fedjax_fair.training.stacked import stack_trees
from fedjax_fair.training.train_options import TrainOptions

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["describe_place", "execute", "train_methods"]

# XLA compiles a function on one core. The second of two methods ahead keeps another core busy while
# the first compiles, and both are compiled when the current one has trained.
_METHODS_AHEAD = 2


def execute(
    experiment: Experiment,
    folder: RunFolder,
    callback_fn: Callable[[str], Sequence[Callback]] = lambda method: (),
    *,
    allow_changed_code: bool = False,
) -> xr.Dataset:
    """Trains all methods and writes results, models, figures and report to the run folder.

    An interrupted run continues from its checkpoints with the same results. Of several processes
    the main one writes; checkpoints need a shared folder.

    Args:
        experiment: The experiment.
        folder: Its run folder.
        callback_fn: Makes the callbacks of each method.
        allow_changed_code: Whether code of plugins may have changed since the checkpoints.

    Returns:
        The results, with the dimension ``algorithm``.

    Raises:
        DivergenceError: If a method diverges. Earlier methods are saved.
        ValueError: If another process uses the folder, or the data have changed.
    """
    is_main, config = processes.is_main_process(), experiment.config
    training, num_clients = config.training, experiment.data.num_clients
    privacy = {
        name: guarantee(name, round_fn, config, num_clients)
        for name, round_fn in experiment.rounds.items()
    }
    attrs = attributes_of(config, privacy.items(), num_clients)
    done: dict[str, xr.Dataset] = {}
    with locked(folder.path) if is_main else nullcontext():
        if is_main:
            folder.extend(training.rounds, num_clients)
            folder.check_record(data=experiment.data, unseen=experiment.unseen)
            if experiment.data.encoding is not None:
                folder.write_encoding(experiment.data.encoding)
        options = TrainOptions(
            rounds=training.rounds or 0,
            eval_every=training.eval_every or 1,
            train_loss=True,
            on_nonfinite=training.on_nonfinite or "raise",
            metrics=metrics_of(config, experiment.data.num_classes),
            allow_changed_code=allow_changed_code,
            until_seconds=config.schedule.until_seconds,
        )
        for name, fitted in train_methods(
            experiment.rounds,
            experiment.data,
            training.seeds,
            options,
            callbacks=lambda name: (
                [MetricsLog(folder.metrics, name, list(experiment.rounds)), *callback_fn(name)]
                if is_main
                else []
            ),
            checkpoints=lambda name: folder.checkpoints / folder_name(name),
            mesh=experiment.mesh,
        ):
            measured = fitted.dataset
            if is_main:
                measured = _add_expected_parity(
                    experiment, name, _add_unseen(experiment, name, fitted)
                )
            done[name] = add_epsilon(measured, privacy[name]).assign_attrs(attrs)
            path, base = folder.models / folder_name(name), None
            if is_main:
                base = save_base(fitted.model, experiment.data, folder.models)
            save_model(fitted.variables, path, base)
            save_personalized(fitted, path)
            if is_main:
                results.save(results.combine(done), folder.results)
        if not is_main:
            return results.combine(done)
        combined = results.open(folder.results)
        draw(combined, folder)
        return combined


def train_methods(
    methods: Mapping[str, BaseRound],
    data: FederatedData,
    seeds: Sequence[int],
    options: TrainOptions,
    *,
    callbacks: Callable[[str], Sequence[Callback]],
    checkpoints: Callable[[str], Path],
    mesh: Mesh | None = None,
) -> Iterator[tuple[str, FitResult]]:
    """Trains methods sequentially, and compiles the next ones while one trains.

    ``callbacks`` and ``checkpoints`` return the callbacks and the folder of a method by its name.

    Yields:
        The name of each method and its result, in order.
    """
    names, functions = list(methods), dict[str, CompiledRuns]()
    stacked = {name: stack_trees([method]) for name, method in methods.items()}
    for method in stacked.values():  # Later ones are compiled while the first one trains.
        check_runs(method, data)
    # All processes must compile and run in the same order.
    ahead = 0 if jax.process_count() > 1 else _METHODS_AHEAD

    with RunBatch(data, seeds, mesh) as batch:

        def trace(name: str) -> None:
            if name not in functions:
                functions[name] = CompiledRuns(stacked[name], batch, options)

        def functions_of(i: int) -> CompiledRuns:
            trace(names[i])
            for name in names[i + 1 : i + 1 + ahead]:
                with suppress(Exception):  # Raised again when the method is next.
                    trace(name)
            return functions.pop(names[i])

        for i, name in enumerate(names):
            folder, functions_fn = checkpoints(name), partial(functions_of, i)
            result = train_loop(
                stacked[name], batch, options, callbacks(name), folder, functions_fn
            )
            yield name, result._replace(model=methods[name].model)


def _add_unseen(experiment: Experiment, name: str, fitted: FitResult) -> xr.Dataset:
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


def _add_expected_parity(experiment: Experiment, name: str, dataset: xr.Dataset) -> xr.Dataset:
    """Adds the parity of device classes that chance allows, if the method has a schedule."""
    round = experiment.rounds[name]
    if not isinstance(round, Round) or round.schedule is None:
        return dataset
    expected = expected_parity(
        round,
        experiment.data,
        rounds=dataset.sizes["training_round"],
        eval_every=experiment.config.training.eval_every or 1,
    )
    return dataset.assign(expected)


def describe_place(experiment: Experiment, folder: RunFolder) -> str:
    """Describes which method and round a run continues from; empty if all are done."""
    ended = folder.ended_methods(experiment.config.schedule.until_seconds)
    for name in [name for name in experiment.rounds if name not in ended]:
        steps = (folder.checkpoints / folder_name(name)).glob("[0-9]*")
        done = max((int(step.name) for step in steps if step.name.isdecimal()), default=0)
        if done < (experiment.config.training.rounds or 0):
            return f" {name} from round {done}"
    return ""


def draw(dataset: xr.Dataset, folder: RunFolder) -> None:
    """Writes the standard figures and the report to the folder."""
    from fedjax_fair import report

    page = report.page(
        dataset, as_dict(folder.config(), dataset.sizes["client"]), folder.environment()
    )
    folder.write_figures(report.standard_figures(dataset), page)
