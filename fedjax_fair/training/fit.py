"""The host's loop over compiled chunks of rounds: evaluation, callbacks, checkpoints, results."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int, PyTree

from fedjax_fair import checks, results
from fedjax_fair.base import ClientMetric, ClientMetrics, Metric, Variables
from fedjax_fair.data.federated import FederatedData, validate
from fedjax_fair.simulate import Round, RoundInfo
from fedjax_fair.training.best import Best
from fedjax_fair.training.checkpoints import Checkpoints
from fedjax_fair.training.diagnosis import (
    Doubts,
    require_members,
    warn_of_clients,
    warn_of_divergence,
)
from fedjax_fair.training.fingerprint import describe
from fedjax_fair.training.fitted import Fitted
from fedjax_fair.training.own_metrics import require_new
from fedjax_fair.training.programs import Programs

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "Callback",
    "Evaluation",
    "MemoryLimitError",
    "SimulationError",
    "fit",
    "fit_batch",
    "train",
]

OnNonfinite = Literal["raise", "drop", "keep"]


class SimulationError(RuntimeError):
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


def fit(
    round: Round,
    data: FederatedData,
    *,
    rounds: int,
    seeds: Sequence[int] = (0,),
    eval_every: int = 10,
    train_loss: bool = True,
    on_nonfinite: OnNonfinite = "raise",
    callbacks: Sequence[Callback] = (),
    checkpoints: str | Path | None = None,
    metrics: Sequence[Metric | ClientMetric] = (),
    mesh: Mesh | None = None,
) -> xr.Dataset:
    """Runs a federated method and returns what it did to every client.

    The rounds between two evaluations are one compiled program, which all seeds share. The model is
    evaluated before training, after every ``eval_every`` rounds and after the last one; where
    ``eval_every`` does not divide ``rounds``, the shorter last chunk is compiled for itself.

    Args:
        round: The method, from ``simulate.make_round``.
        data: The federation; it is validated first. With partitions from ``data.stack``, each seed
            gets the one in its place.
        rounds: Rounds to run.
        seeds: One run each: initial model, cohorts and minibatches follow from it.
        eval_every: Rounds between evaluations.
        train_loss: Whether evaluations measure every client's training loss too; that reads all
            training examples.
        on_nonfinite: What an update does that holds NaN or an infinity. One of the model never
            reaches it. With ``"raise"`` it ends the run, with ``"keep"`` the model stays as it was
            in that round, the run goes on, and a warning at its end counts such rounds. With
            ``"drop"`` a client that sends such an update counts as one that has not answered: the
            others' weights are renormalized, and without others the model stays. Results say whose
            updates they were (``cohort_nonfinite``).
        callbacks: Called at the start, every evaluation and the end; any may stop the run.
        checkpoints: A folder for checkpoints, written at the end and after evaluations that are
            half a minute apart. If it holds one already, the run continues from there and ends
            exactly as an uninterrupted one. A finished run is extended by a larger ``rounds``.
        metrics: What evaluations measure besides: a `Metric` is a number of what is known of all
            clients, a `ClientMetric` a number of each client's predictions
            (`fedjax_fair.metrics.predictions`).
        mesh: Devices to assign the clients to, and the runs to groups of them, from
            ``parallel.client_mesh``, or the cores of ``parallel.core_mesh``; by default all are on
            one device. With several processes each makes the same call and gets the same results,
            and callbacks must return the same.

    Returns:
        An ``xarray.Dataset``; ``fedjax_fair.results`` describes it.

    Raises:
        ValueError: If the data or a setting is invalid, the checkpoints are of another run, or the
            selector names a client that does not exist.
        SimulationError: If an update of the global model was not finite, with ``"raise"``; it
            names round, seeds and clients.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = ff.data.load("digits")
        >>> fedavg = ff.make_round(
        ...     model=ff.models.logistic(data.num_classes),
        ...     selector=ff.selectors.uniform(cohort_size=10),
        ...     solver=ff.solvers.sgd(learning_rate=0.1, batch_size=10, epochs=1),
        ...     aggregator=ff.aggregators.mean(),
        ... )
        >>> run = fit(fedavg, data, rounds=20, seeds=(0, 1))
        >>> dict(run.test_accuracy.sizes)
        {'seed': 2, 'round': 3, 'client': 50}
    """
    return train(
        round,
        data,
        rounds=rounds,
        seeds=seeds,
        eval_every=eval_every,
        train_loss=train_loss,
        on_nonfinite=on_nonfinite,
        callbacks=callbacks,
        checkpoints=checkpoints,
        metrics=metrics,
        mesh=mesh,
    ).dataset


def train(
    round: Round,
    data: FederatedData,
    *,
    rounds: int,
    seeds: Sequence[int] = (0,),
    eval_every: int = 10,
    train_loss: bool = True,
    on_nonfinite: OnNonfinite = "raise",
    callbacks: Sequence[Callback] = (),
    checkpoints: str | Path | None = None,
    metrics: Sequence[Metric | ClientMetric] = (),
    mesh: Mesh | None = None,
    best: Callable[[Evaluation], Any] | None = None,
) -> Fitted:
    """Runs a federated method as ``fit`` does, and returns the trained models too.

    Args:
        round: As for ``fit``, with all that follows.
        data: The federation.
        rounds: Rounds to run.
        seeds: One run each.
        eval_every: Rounds between evaluations.
        train_loss: Whether evaluations measure training losses.
        on_nonfinite: What an update does that is not finite.
        callbacks: Called at the start, every evaluation and the end.
        checkpoints: A folder for checkpoints.
        metrics: What evaluations measure besides.
        mesh: Devices or cores.
        best: ``best(evaluation) -> [seeds]``, a score of which larger is better. The model of each
            seed is then that of its best evaluation (of several the first), not of the last one.
            Choose by what is not reported: on validation examples (`data.hold_out`).

    Returns:
        A ``Fitted``: the Dataset of ``fit``, the variables of every seed, and the model.

    Raises:
        ValueError: As ``fit``; or if ``best`` does not give a number for each seed.
        SimulationError: As ``fit``.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = ff.data.load("digits")
        >>> fedavg = ff.make_round(
        ...     model=ff.models.logistic(data.num_classes),
        ...     selector=ff.selectors.uniform(cohort_size=10),
        ...     solver=ff.solvers.sgd(learning_rate=0.1, batch_size=10, epochs=1),
        ...     aggregator=ff.aggregators.mean(),
        ... )
        >>> fitted = train(fedavg, data, rounds=20, seeds=(0, 1))
        >>> fitted.predict(data.test.features[:3]).shape
        (2, 3)
    """
    checks.instance("round", round, Round, "make_round(model, selector, solver, aggregator)")
    checks.seeds("seeds", seeds)
    if best is not None:
        checks.function("best", best, "from an Evaluation to a number for each seed")
    dataset, variables, kept = _run(
        lambda _: round,
        (),
        data,
        rounds=rounds,
        seeds=tuple(seeds),
        eval_every=eval_every,
        train_loss=train_loss,
        on_nonfinite=on_nonfinite,
        callbacks=callbacks,
        checkpoints=checkpoints,
        metrics=metrics,
        mesh=mesh,
        best=best,
    )
    return Fitted(dataset, variables, round.model, kept)


def fit_batch(
    make: Callable[[PyTree], Round],
    points: PyTree,
    data: FederatedData,
    *,
    rounds: int,
    seeds: Sequence[int],
    eval_every: int = 10,
    train_loss: bool = True,
    on_nonfinite: OnNonfinite = "keep",
    callbacks: Sequence[Callback] = (),
    checkpoints: str | Path | None = None,
    memory_limit: int | None = None,
    metrics: Sequence[Metric | ClientMetric] = (),
    mesh: Mesh | None = None,
) -> xr.Dataset:
    """Runs a batch of settings of one method in one compiled program.

    This is what `fedjax_fair.sweep` does to methods that have a name. Called directly, it sweeps
    over anything that a function of traced numbers can make, a selector of one's own among it.

    Args:
        make: ``make(point) -> Round``; called while JAX traces, so that a point's numbers must be
            of the kind that may be traced.
        points: Numbers of every run, leaves ``[runs]``.
        data: As for ``fit``, with a partition for each run if there are several.
        rounds: As for ``fit``.
        seeds: The seed of each run; they may repeat.
        eval_every: As for ``fit``.
        train_loss: As for ``fit``.
        on_nonfinite: As for ``fit``; by default one run does not end the others, as some will
            diverge on a grid of step sizes.
        callbacks: As for ``fit``.
        checkpoints: As for ``fit``.
        memory_limit: Bytes that the runs may take, by an estimate from the compiled programs.
        metrics: As for ``fit``.
        mesh: As for ``fit``.

    Returns:
        What ``fit`` returns, with the runs along ``seed``.

    Raises:
        ValueError: As ``fit``.
        SimulationError: As ``fit``.
        MemoryLimitError: If the runs would take more than ``memory_limit``; none has started.

    Examples:
        A selector of one's own, swept over the price of a client's size:

        >>> import jax.numpy as jnp
        >>> import fedjax_fair as ff
        >>> data = ff.data.load("digits")
        >>> def method(price):
        ...     def worth(context):
        ...         losses = context.losses(context.variables)
        ...         return ff.submodular.modular(losses - price * context.sizes.astype(jnp.float32))
        ...     return ff.make_round(
        ...         model=ff.models.logistic(data.num_classes),
        ...         selector=ff.selectors.submodular(worth, cohort_size=10),
        ...         solver=ff.solvers.sgd(learning_rate=0.1, batch_size=10, epochs=1),
        ...         aggregator=ff.aggregators.mean(),
        ...     )
        >>> prices = np.array([0.0, 0.01, 0.1], np.float32)
        >>> runs = ff.fit_batch(method, prices, data, rounds=5, seeds=(0, 0, 0))
        >>> runs.accuracy_mean_clients.isel(round=-1).shape
        (3,)
    """
    return _run(
        make,
        points,
        data,
        rounds=rounds,
        seeds=seeds,
        eval_every=eval_every,
        train_loss=train_loss,
        on_nonfinite=on_nonfinite,
        callbacks=callbacks,
        checkpoints=checkpoints,
        memory_limit=memory_limit,
        metrics=metrics,
        mesh=mesh,
    )[0]


def _run(
    make: Callable[[PyTree], Round],
    points: PyTree,
    data: FederatedData,
    *,
    rounds: int,
    seeds: Sequence[int],
    eval_every: int,
    train_loss: bool,
    on_nonfinite: OnNonfinite,
    callbacks: Sequence[Callback],
    checkpoints: str | Path | None,
    memory_limit: int | None = None,
    metrics: Sequence[Metric | ClientMetric] = (),
    mesh: Mesh | None = None,
    best: Callable[[Evaluation], Any] | None = None,
) -> tuple[xr.Dataset, Variables, Int[np.ndarray, " seeds"]]:
    """Results, and the last variables of every run, or the best, with their rounds."""
    checks.function("make", make, "from a point to a Round")
    checks.positive_int("rounds", rounds)
    checks.positive_int("eval_every", eval_every)
    checks.seeds("seeds", seeds, different=False)
    checks.one_of("on_nonfinite", on_nonfinite, get_args(OnNonfinite))
    drop = on_nonfinite == "drop"
    if memory_limit is not None:
        checks.non_negative_int("memory_limit", memory_limit)
    require_new(metrics)
    seeds = tuple(map(int, seeds))
    validate(data)
    if not np.asarray(data.test.sizes).any():
        raise ValueError(
            "data.test: no client has test examples; expected some, as evaluations need them "
            "(from_arrays holds out test_fraction of each client's)."
        )
    if data.num_partitions not in (None, len(seeds)):
        raise ValueError(f"{seeds=}: expected one for each of {data.num_partitions} partitions.")
    started = time.perf_counter()
    for callback in callbacks:
        callback.on_start(rounds, seeds)

    if checkpoints is None:
        keep = nullcontext()
    else:
        schedule: dict[str, Any] = {
            "eval_every": eval_every,
            "train_loss": train_loss,
            "drop_nonfinite": drop,
        }
        if best is not None:
            schedule["best"] = best
        if metrics:
            schedule["metrics"] = tuple(metrics)
        own = data._replace(name="")  # What it is called does not matter.
        described = describe(method=make, points=points, data=own, **schedule)
        keep = Checkpoints(checkpoints, seeds, described, rounds, eval_every)
    with keep as store:
        kept = None if store is None else store.history
        history = results.History() if kept is None else kept
        if history.round > rounds:
            raise ValueError(
                f"rounds={rounds}: the checkpoints in {checkpoints} are of a run that has done "
                f"{history.round}."
            )
        length = min(eval_every, rounds)
        programs = Programs(
            make,
            points,
            seeds,
            data,
            length,
            train_loss,
            mesh,
            drop_nonfinite=drop,
            own_metrics=metrics,
        )
        needed = programs.num_bytes(rounds)
        if memory_limit is not None and needed > memory_limit:
            raise MemoryLimitError(needed, programs.shared_bytes, memory_limit)
        for callback in callbacks:
            callback.on_compiled(needed)
        cohort_size = programs.empty_cohort.shape[1]
        if programs.same_cohort and not programs.pooled and cohort_size < data.num_clients:
            warnings.warn(
                f"selector: every round has the same {cohort_size} of {data.num_clients} clients, "
                "because its cohort does not depend on key, state or context; draw with jax.random "
                "and the key, not with NumPy.",
                stacklevel=2,
            )
        state = programs.init()
        doubts = Doubts(data, rounds, seeds)
        finest = None if best is None else Best(best, seeds)

        def record(cohort: Int[np.ndarray, "seeds cohort"], info: RoundInfo | None = None) -> bool:
            summaries, clients = jax.device_get(programs.evaluate(state, cohort))
            done = int(jax.device_get(state.round)[0])
            history.add_evaluation(done, summaries, clients)
            if on_nonfinite != "keep":
                doubts.see(done, summaries, clients.test_loss)
            seconds = time.perf_counter() - started
            evaluation = Evaluation(done, rounds, seeds, summaries, clients, seconds, info)
            if finest is not None:
                finest.see(evaluation, programs.without_repetitions(state.variables))
            stops = [callback.on_evaluation(evaluation) for callback in callbacks]
            return any(stop is True for stop in stops)

        stop = False
        if store is not None and kept is not None:
            kept_state = store.restore(programs.without_repetitions(state), finest)
            state = programs.with_repetitions(kept_state)
            if on_nonfinite != "keep":
                doubts.recall(history)
        else:
            stop = record(programs.empty_cohort)
        while not stop and history.round < rounds:
            state, info = programs.step(state, min(eval_every, rounds - history.round))
            recorded = jax.device_get(info)
            if not programs.pooled:
                require_members(recorded.clients, data.num_clients, history.round, seeds)
            if on_nonfinite == "raise":
                _require_finite(recorded, history.round, seeds, store)
            warn_of_clients(recorded.selector, history.round, seeds)
            history.add_rounds(recorded)
            stop = record(recorded.clients[:, -1], recorded)
            if store is not None and (stop or history.round == rounds or store.due):
                store.save(programs.without_repetitions(state), history, finest)

    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), state.variables
    )
    dataset = results.to_dataset(history, seeds, data, shapes, programs.bytes_up, metrics)
    warn_of_divergence(dataset)
    for callback in callbacks:
        callback.on_end(dataset)
    if finest is not None and finest.kept is not None:
        return dataset, finest.kept["variables"], finest.kept["rounds"]
    last = np.full(len(seeds), history.round, np.int64)
    return dataset, jax.device_get(programs.without_repetitions(state.variables)), last


def _require_finite(
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
    raise SimulationError(
        f"the update of round {done + first} is not finite for seeds {diverged}, of clients "
        f"{clients} with seed {diverged[0]} (a smaller learning rate may help, or "
        "on_nonfinite='drop'; with secure aggregation a number may have been beyond the limit); "
        f"{saved}."
    )
