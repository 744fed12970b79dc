"""The host's loop over compiled chunks of rounds: evaluation, callbacks, checkpoints, results."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import jax
import numpy as np
from jaxtyping import Int

from fedjax_fair import checks, results
from fedjax_fair.base import ClientMetric, ClientMetrics, Metric, Variables
from fedjax_fair.simulate import RoundInfo
from fedjax_fair.training.batch import RunBatch
from fedjax_fair.training.best import BestModelTracker
from fedjax_fair.training.checkpoints import Checkpoints
from fedjax_fair.training.compiled_functions import CompiledFunctions
from fedjax_fair.training.custom_metrics import check_new
from fedjax_fair.training.diagnosis import (
    TrainingMonitor,
    check_participants,
    warn_of_clients,
    warn_of_divergence,
)
from fedjax_fair.training.explained import explained
from fedjax_fair.training.fingerprint import describe
from fedjax_fair.training.split import Split

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "Callback",
    "DivergenceError",
    "Evaluation",
    "MemoryLimitError",
    "OnNonfinite",
    "RunBatchResult",
    "TrainOptions",
    "compile_functions",
    "run",
]

OnNonfinite = Literal["raise", "drop_client", "skip_round"]


class DivergenceError(RuntimeError):
    """A run cannot go on: an update of the global model was not finite."""


class MemoryLimitError(RuntimeError):
    """Runs would take more memory than they may.

    Attributes:
        fits: The share of them that would fit, in [0, 1).
    """

    def __init__(self, needed: int, shared: int, limit: int) -> None:
        super().__init__(f"the runs need {needed:,} bytes, more than {limit:,}.")
        self.fits = max(0, limit - shared) / (needed - shared)


class Evaluation(NamedTuple):
    """What callbacks receive at every evaluation.

    Attributes:
        round: Rounds done so far.
        rounds: Rounds of the whole run.
        seeds: The seeds, in the order of the leading axes below.
        summaries: Value of each summary metric, ``[seeds]``.
        clients: Per-client metrics, leaves ``[seeds, clients]``.
        seconds: Wall-clock time since the start of ``fit``.
        info: What the rounds since the last evaluation recorded, leaves ``[seeds, rounds, ...]``;
            None before the first.
    """

    round: int
    rounds: int
    seeds: tuple[int, ...]
    summaries: dict[str, np.ndarray]
    clients: ClientMetrics
    seconds: float
    info: RoundInfo | None = None


class Callback:
    """Watches a run; override what is needed."""

    def on_start(self, rounds: int, seeds: tuple[int, ...]) -> None:
        """Called once, before anything is compiled."""

    def on_compiled(self, num_bytes: int) -> None:
        """Called once, before the first round, with the memory that the run takes at most."""

    def on_evaluation(self, evaluation: Evaluation) -> bool | None:
        """Called at every evaluation; returning True stops the run."""

    def on_end(self, results: xr.Dataset) -> None:
        """Called once, with the results that ``fit`` returns."""


class TrainOptions(NamedTuple):
    """When runs are evaluated and what ends them; ``fit`` and ``train`` describe each setting."""

    rounds: int
    eval_every: int
    train_loss: bool
    on_nonfinite: OnNonfinite
    metrics: Sequence[Metric | ClientMetric] = ()
    best: Callable[[Evaluation], Any] | None = None
    memory_limit: int | None = None

    def check_valid(self) -> None:
        """Raises a ``ValueError`` for a setting out of range."""
        checks.positive_int("rounds", self.rounds)
        checks.positive_int("eval_every", self.eval_every)
        checks.one_of("on_nonfinite", self.on_nonfinite, get_args(OnNonfinite))
        if self.memory_limit is not None:
            checks.non_negative_int("memory_limit", self.memory_limit)
        check_new(self.metrics)


class RunBatchResult(NamedTuple):
    """What a batch of runs comes to.

    Attributes:
        dataset: The results.
        variables: The last variables of every run, or the best, on the host.
        rounds: The rounds that they are of.
    """

    dataset: xr.Dataset
    variables: Variables
    rounds: Int[np.ndarray, " seeds"]


def compile_functions(method: Split, batch: RunBatch, options: TrainOptions) -> CompiledFunctions:
    """Traces the programs of a method, which are compiled in the background."""
    with explained():
        return CompiledFunctions(
            method,
            batch,
            min(options.eval_every, options.rounds),
            options.train_loss,
            drop_nonfinite=options.on_nonfinite == "drop_client",
            custom_metrics=options.metrics,
        )


def run(
    method: Split,
    batch: RunBatch,
    options: TrainOptions,
    callbacks: Sequence[Callback] = (),
    checkpoints: str | Path | None = None,
    programs: Callable[[], CompiledFunctions] | None = None,
) -> RunBatchResult:
    """Trains a method in all runs of a batch.

    Args:
        method: The rounds of the runs.
        batch: The runs.
        options: When they are evaluated and what ends them; valid.
        callbacks: Called at the start, every evaluation and the end.
        checkpoints: A folder for checkpoints.
        programs: Returns its programs, if those of several methods are compiled together.
    """
    seeds, data = batch.seeds, batch.given
    rounds, eval_every, best = options.rounds, options.eval_every, options.best
    on_nonfinite = options.on_nonfinite
    started = time.perf_counter()
    for callback in callbacks:
        callback.on_start(rounds, seeds)
    with _kept(method, batch, options, checkpoints) as store:
        kept = None if store is None else store.history
        history = results.History() if kept is None else kept
        if history.round > rounds:
            raise ValueError(
                f"rounds={rounds}: the checkpoints in {checkpoints} are of a run that has done "
                f"{history.round}."
            )
        compiled = compile_functions(method, batch, options) if programs is None else programs()
        needed, limit = compiled.num_bytes(rounds), options.memory_limit
        if limit is not None and needed > limit:
            raise MemoryLimitError(needed, compiled.shared_bytes, limit)
        for callback in callbacks:
            callback.on_compiled(needed)
        cohort_size = compiled.empty_cohort.shape[1]
        if compiled.same_cohort and not compiled.is_centralized and cohort_size < data.num_clients:
            warnings.warn(
                f"selector: every round has the same {cohort_size} of {data.num_clients} clients, "
                "because its cohort does not depend on key, state or context; draw with jax.random "
                "and the key, not with NumPy.",
                stacklevel=2,
            )
        state = compiled.init()
        monitor = TrainingMonitor(data, rounds, seeds)
        best_tracker = None if best is None else BestModelTracker(best, seeds)

        def record(cohort: Int[np.ndarray, "seeds cohort"], info: RoundInfo | None = None) -> bool:
            summaries, clients = jax.device_get(compiled.evaluate(state, cohort))
            done = int(jax.device_get(state.round)[0])
            history.add_evaluation(done, summaries, clients)
            if on_nonfinite != "skip_round":
                monitor.update(done, summaries, clients.test_loss)
            seconds = time.perf_counter() - started
            evaluation = Evaluation(done, rounds, seeds, summaries, clients, seconds, info)
            if best_tracker is not None:
                best_tracker.update(evaluation, compiled.unpad_runs(state.variables))
            stops = [callback.on_evaluation(evaluation) for callback in callbacks]
            return any(stop is True for stop in stops)

        stop = False
        if store is not None and kept is not None:
            kept_state = store.restore(compiled.unpad_runs(state), best_tracker)
            state = compiled.pad_runs(kept_state)
            if on_nonfinite != "skip_round":
                monitor.replay(history)
        else:
            stop = record(compiled.empty_cohort)
        while not stop and history.round < rounds:
            state, info = compiled.step(state, min(eval_every, rounds - history.round))
            recorded = jax.device_get(info)
            if not compiled.is_centralized:
                check_participants(recorded.clients, data.num_clients, history.round, seeds)
            if on_nonfinite == "raise":
                _check_finite(recorded, history.round, seeds, store)
            warn_of_clients(recorded.selector, history.round, seeds)
            history.add_rounds(recorded)
            stop = record(recorded.clients[:, -1], recorded)
            if store is not None and (stop or history.round == rounds or store.due):
                store.save(compiled.unpad_runs(state), history, best_tracker)

    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), state.variables
    )
    dataset = results.to_dataset(history, seeds, data, shapes, compiled.bytes_up, options.metrics)
    warn_of_divergence(dataset)
    for callback in callbacks:
        callback.on_end(dataset)
    if best_tracker is not None and best_tracker.kept is not None:
        return RunBatchResult(dataset, best_tracker.kept["variables"], best_tracker.kept["rounds"])
    last = np.full(len(seeds), history.round, np.int64)
    return RunBatchResult(dataset, jax.device_get(compiled.unpad_runs(state.variables)), last)


def _kept(
    method: Split,
    batch: RunBatch,
    options: TrainOptions,
    folder: str | Path | None,
) -> AbstractContextManager[Checkpoints | None]:
    """The checkpoints of these runs, of which a folder may hold some; None without a folder."""
    if folder is None:
        return nullcontext()
    settings: dict[str, Any] = {
        "eval_every": options.eval_every,
        "train_loss": options.train_loss,
        "drop_nonfinite": options.on_nonfinite == "drop_client",
    }
    if options.best is not None:
        settings["best"] = options.best
    if options.metrics:
        settings["metrics"] = tuple(options.metrics)
    data = batch.given._replace(name="")  # What it is called does not matter.
    stacked = method.stacked
    fields = {field.name: getattr(stacked, field.name) for field in dataclasses.fields(stacked)}
    described = describe(method=type(stacked), **fields, data=data, **settings)
    return Checkpoints(folder, batch.seeds, described, options.rounds, options.eval_every)


def _check_finite(
    info: RoundInfo,
    done: int,
    seeds: tuple[int, ...],
    store: Checkpoints | None,
) -> None:
    """Raises if any round of a chunk produced an update that was not finite."""
    bad = ~np.asarray(info.finite)
    if not bad.any():
        return
    first = int(np.argmax(bad.any(axis=0)))
    runs = np.flatnonzero(bad[:, first])
    diverged = [seeds[run] for run in runs]
    sent = info.nonfinite[runs[0], first]
    clients = np.unique(info.clients[runs[0], first][sent]).tolist()
    kept = None if store is None else store.latest
    saved = "no checkpoint was kept" if kept is None else f"the last checkpoint is of round {kept}"
    raise DivergenceError(
        f"the update of round {done + first} is not finite for seeds {diverged}, of clients "
        f"{clients} with seed {diverged[0]} (a smaller learning rate may help, or "
        "on_nonfinite='drop_client'; with secure aggregation a number may have been beyond max_abs_value); "
        f"{saved}."
    )
