"""The host's loop over compiled chunks of rounds: evaluations, callbacks, checkpoints, results."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from fedjax_fair import results
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.faults.injection import check_faults
from fedjax_fair.metrics.quantities import ACCURACY, Quantity, quantities_of
from fedjax_fair.numerics.labels import are_sequences
from fedjax_fair.roles import ClientMetrics, Variables
from fedjax_fair.roles.role_errors import explain_callback_errors
from fedjax_fair.rounds.base_round import BaseRound
from fedjax_fair.rounds.round_state import RoundInfo, RoundState
from fedjax_fair.schedules import Asynchronous
from fedjax_fair.training.batch import RunBatch
from fedjax_fair.training.best import BestModelTracker, score_by_name
from fedjax_fair.training.central_evaluation import make_central_evaluation
from fedjax_fair.training.checkpoints import Checkpoints
from fedjax_fair.training.compiled_runs import CompiledRuns
from fedjax_fair.training.diagnosis import (
    TrainingMonitor,
    check_participants,
    warn_of_clients,
    warn_of_divergence,
    warn_of_reference_error,
    warn_of_repeated_clients,
)
from fedjax_fair.training.fingerprint import describe_run
from fedjax_fair.training.fit_result import FitResult
from fedjax_fair.training.jitted import summary_metrics
from fedjax_fair.training.memory_estimate import Memory
from fedjax_fair.training.stacked import Stacked
from fedjax_fair.training.train_options import TrainOptions, evaluated_rounds
from fedjax_fair.utils.warning import warn

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "Callback",
    "DivergenceError",
    "Evaluation",
    "MemoryLimitError",
    "check_runs",
    "devices_of",
    "train_loop",
]


class DivergenceError(RuntimeError):
    """An update of the global model was not finite."""


class MemoryLimitError(RuntimeError):
    """Runs need more memory than they may take; ``fits`` is the share that would fit."""

    def __init__(self, memory: Memory, limit: int) -> None:
        super().__init__(f"the runs need {memory.total:,} bytes, more than {limit:,}.")
        self.fits = max(0, limit - memory.shared) / (memory.total - memory.shared)


class Evaluation(NamedTuple):
    """An evaluation, as callbacks receive it.

    Attributes:
        round: Rounds done so far, of ``rounds``.
        summaries: Value of each summary metric, ``[seeds]``.
        clients: Per-client metrics, leaves ``[seeds, clients]``.
        seconds: Wall-clock time since the start of ``fit``.
        info: Diagnostics of the rounds since the last evaluation, leaves ``[seeds, rounds, ...]``;
            None in the first one.
        quantities: What clients are measured by, the most important one first.
    """

    round: int
    rounds: int
    seeds: tuple[int, ...]
    summaries: dict[str, np.ndarray]
    clients: ClientMetrics
    seconds: float
    info: RoundInfo | None = None
    quantities: tuple[Quantity, ...] = (ACCURACY,)


class Callback:
    """Base class of callbacks, with methods that do nothing."""

    def on_start(self, rounds: int, seeds: tuple[int, ...]) -> None:
        """Called once, before anything is compiled."""

    def on_compiled(self, num_bytes: int) -> None:
        """Called once, before the first round, with an estimate of the memory that runs need."""

    def on_evaluation(self, evaluation: Evaluation) -> bool | None:
        """Called at every evaluation; returning True stops the run."""

    def on_end(self, results: xr.Dataset) -> None:
        """Called once, with the dataset of the `FitResult`."""


def _rounds_of(method: Stacked) -> Iterator[BaseRound]:
    for leaves in zip(*method.per_run, strict=True) if method.per_run else [()]:
        yield method.structure.fill(method.shared, leaves)


def check_runs(method: Stacked, data: FederatedData) -> None:
    """Checks the faults and the schedules of a method's runs, before anything is compiled.

    Raises:
        ValueError: If one does not fit the number of clients.
    """
    for round in _rounds_of(method):
        check_faults(round, data.num_clients)
        if round.schedule is not None:
            round.schedule.times.check(data.num_clients)


@explain_callback_errors()
def train_loop(
    method: Stacked,
    batch: RunBatch,
    options: TrainOptions,
    callbacks: Sequence[Callback] = (),
    checkpoints: str | Path | None = None,
    functions_fn: Callable[[], CompiledRuns] | None = None,
) -> FitResult:
    """Trains a method in all runs of a batch.

    ``functions_fn`` returns its compiled functions; by default they are compiled here.
    """
    seeds, data, rounds = batch.seeds, batch.host_data, options.rounds
    check_runs(method, data)
    started = time.perf_counter()
    for callback in callbacks:
        callback.on_start(rounds, seeds)
    best, model = options.best, method.first.model
    if options.until_seconds is not None and method.first.schedule is None:
        raise ValueError(
            f"until_seconds={options.until_seconds}: expected None, because the method has no "
            "schedule; add schedule=schedules.Synchronous(...) or remove it."
        )
    if isinstance(best, str):
        best = score_by_name(best, summary_metrics(model, data, options.metrics))
    with _open_checkpoints(method, batch, options, checkpoints) as store:
        resumed = store and store.history
        history = resumed or results.History()
        if history.round > rounds:
            raise ValueError(
                f"rounds={rounds}: the checkpoints in {checkpoints} are of a run that has done "
                f"{history.round}; pass at least as many, or use another folder."
            )
        functions = (functions_fn or partial(CompiledRuns, method, batch, options))()
        for round in _rounds_of(method):
            round.check_tasks(data, functions.traffic)
        # Callbacks start before compilation, which they may report; a sweep that exceeds its limit
        # ends here and chooses a smaller batch.
        # The compiler reports this memory. An estimate before compilation would have to know the
        # temporaries of every network and selector.
        memory = functions.memory()
        if options.memory_limit is not None and memory.total > options.memory_limit:
            raise MemoryLimitError(memory, options.memory_limit)
        for callback in callbacks:
            callback.on_compiled(memory.total)
        functions.warn_of_constant_cohort()
        state = functions.init()
        has_global_model = method.first.has_global_model
        monitor = TrainingMonitor(data, rounds, seeds, has_global_model)
        # Runs that skip rounds are warned of at the end.
        is_monitored = options.on_nonfinite != "skip_round"
        best_tracker = best and BestModelTracker(best, len(seeds))
        quantities = quantities_of(
            model.task, options.metrics, sequences=are_sequences(data.test.labels)
        )

        measure_centrally = make_central_evaluation(
            batch.place_shared(method), data, options.metrics
        )

        def evaluate(
            cohort: Int[np.ndarray, "seeds cohort"], info: RoundInfo | None = None
        ) -> bool:
            """Evaluates, records, and returns whether a callback stops the run."""
            summaries, clients = jax.device_get(functions.evaluate(state, cohort))
            if measure_centrally is not None:
                summaries |= measure_centrally(functions.unpad_runs(state.variables))
            round = int(jax.device_get(state.round)[0])
            history.add_evaluation(round, summaries, clients)
            if is_monitored:
                measured = clients if has_global_model else clients.personalized
                monitor.update(round, summaries, measured.test_loss, clients.class_accuracy)
            seconds = time.perf_counter() - started
            evaluation = Evaluation(
                round, rounds, seeds, summaries, clients, seconds, info, quantities
            )
            if best_tracker is not None:
                best_tracker.update(evaluation, functions.unpad_runs(state.variables))
            stops = [callback.on_evaluation(evaluation) for callback in callbacks]
            return any(stop is True for stop in stops)

        def is_late() -> bool:
            """Returns whether all runs have passed the virtual time at which they end."""
            if options.until_seconds is None:
                return False
            clock = functions.unpad_runs(state.schedule.clock)
            return bool((clock.as_seconds() >= options.until_seconds).all())

        # A resumed run does not repeat the evaluation of its checkpoint, but its warnings.
        if store is not None and resumed:
            state = functions.from_saved(
                state, lambda template: store.restore(template, best_tracker)
            )
            if is_monitored:
                monitor.replay(history)
            stop = is_late()
        else:
            stop = evaluate(functions.empty_cohort)
        # Compiled functions cannot raise, so the host checks the diagnostics of each chunk.
        evaluated = evaluated_rounds(rounds, options.eval_every)
        for end in evaluated[evaluated > history.round].tolist():
            if stop:
                break
            state, info = functions.step(state, end - history.round)
            info = jax.device_get(info)
            if not functions.is_centralized:
                check_participants(info.clients, data.num_clients, history.round, seeds)
            if options.on_nonfinite == "raise":
                _check_finite(info, history.round, batch, store)
            warn_of_clients(info.selector, history.round, seeds, data)
            monitor.check_rounds(info, history.round)
            history.add_rounds(info)
            stop = evaluate(info.clients[:, -1], info) or is_late()
            if store is not None and (stop or end == rounds or store.due):
                store.save(functions.to_saved(state), history, best_tracker)

    num_trained = sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(state.variables.params))
    devices = devices_of(method)
    dataset = results.to_dataset(
        history, seeds, data, functions.traffic, options.metrics, model, num_trained, devices
    )
    warn_of_divergence(dataset)
    warn_of_reference_error(dataset)
    if options.until_seconds is not None:
        _warn_of_early_end(dataset, options.until_seconds)
    warn_of_repeated_clients(dataset)
    for callback in callbacks:
        callback.on_end(dataset)
    if best_tracker is not None and best_tracker.best is not None:
        _, trained_rounds, variables = best_tracker.best
    else:
        trained_rounds = np.full(len(seeds), history.round, np.int64)
        variables = jax.device_get(functions.unpad_runs(state.variables))
    personalized = None
    if method.first.is_personalized and best_tracker is None:
        saved = functions.to_saved(state)
        # In client order, because devices may have the rows of their clients only.
        clients = state.clients and state.clients.replace(arrays=saved.clients)
        states = saved.state._replace(clients=clients)
        personalized = _personalized_models(method, states, data)
    model, encoding = method.first.model, data.encoding
    return FitResult(dataset, variables, model, trained_rounds, personalized, encoding)


def devices_of(method: Stacked) -> results.Devices | None:
    """Returns the devices of the clients in all runs; None without a schedule."""
    schedule = method.first.schedule
    if schedule is None:
        return None
    times = method.field("schedule").field("times")
    # Runs of a batch may have other devices.
    runs = list(zip(*times.per_run, strict=True)) or [()]
    classes = np.stack([times.structure.fill(times.shared, run).device_class for run in runs])
    is_asynchronous = isinstance(schedule, Asynchronous)
    are_equal = bool((classes == classes[0]).all())
    return results.Devices(
        schedule.times.class_names, classes[0] if are_equal else classes, is_asynchronous
    )


def _personalized_models(
    method: Stacked, states: RoundState, data: FederatedData
) -> Callable[[int, int], Variables]:
    """Returns a function from the index of a run and a client to its model.

    It keeps the last states on the host.
    """
    key_data = jax.device_get(jax.random.key_data(states.key))
    implementation = jax.random.key_impl(states.key)
    states = jax.device_get(states._replace(key=()))

    @jax.jit
    def model_of(key, shared, settings, state, data, client):
        round = method.structure.fill(shared, settings)
        state = state._replace(key=jax.random.wrap_key_data(key, impl=implementation))
        return round.personalize(state, data)(client)

    def personalized(run: int, client: int) -> Variables:
        state, partition = jax.tree.map(lambda leaf: leaf[run], states), data.partition(run)
        settings = tuple(leaf[run] for leaf in method.per_run)
        arguments = key_data[run], method.shared, settings, state, partition, np.int32(client)
        return jax.device_get(model_of(*arguments))

    return personalized


def _open_checkpoints(
    method: Stacked, batch: RunBatch, options: TrainOptions, folder: str | Path | None
) -> AbstractContextManager[Checkpoints | None]:
    """Opens the checkpoints of these runs; None without a folder."""
    if folder is None:
        return nullcontext()
    description = describe_run(
        method.stacked,
        batch.host_data,
        eval_every=options.eval_every,
        train_loss=options.train_loss,
        drop_nonfinite=options.on_nonfinite == "drop_client",
        best=options.best,
        metrics=tuple(options.metrics),
    )
    return Checkpoints(
        folder,
        batch.seeds,
        description,
        options.rounds,
        options.eval_every,
        allow_changed_code=options.allow_changed_code,
    )


def _warn_of_early_end(dataset: xr.Dataset, until_seconds: float) -> None:
    reached = dataset.virtual_time.isel(round=-1)
    early = reached < until_seconds
    if early.any():
        each = ", ".join(
            f"seed {seed} at {seconds:.6g} s"
            for seed, seconds in zip(dataset.seed.values[early], reached.values[early], strict=True)
        )
        warn(
            f"until_seconds={until_seconds:g}: after {dataset.sizes['training_round']} rounds "
            f"{each}; pass more rounds."
        )


def _check_finite(
    info: RoundInfo, first_round: int, batch: RunBatch, store: Checkpoints | None
) -> None:
    """Raises if the update of a round in a chunk was not finite."""
    seeds = batch.seeds
    nonfinite = ~np.asarray(info.finite)
    if not nonfinite.any():
        return
    round = int(np.argmax(nonfinite.any(axis=0)))
    runs = np.flatnonzero(nonfinite[:, round])
    diverged = [seeds[run] for run in runs]
    sent, weights = info.nonfinite[runs[0], round], info.weights[runs[0], round]
    ids = np.unique(info.clients[runs[0], round][sent])
    # The id is -1 in centralized training.
    clients = batch.host_data.label_clients(ids[ids >= 0].tolist())
    secure = "with secure aggregation a value may be beyond max_abs_value"
    if clients:
        cause = (
            f", of clients {clients} with seed {diverged[0]} (a smaller learning rate may help, or "
            f"on_nonfinite='drop_client'; {secure})"
        )
    elif np.isfinite(weights).all():
        cause = f" (a smaller learning rate may help; {secure})"
    else:
        cause = (
            f", because the weights of the cohort are {weights.tolist()} with seed {diverged[0]}; "
            "expected finite numbers from the selector and the aggregator"
        )
    latest = None if store is None else store.latest
    saved = (
        "no checkpoint exists" if latest is None else f"the last checkpoint is of round {latest}"
    )
    raise DivergenceError(
        f"the update of round {first_round + round} is not finite for seeds {diverged}{cause}; "
        f"{saved}."
    )
