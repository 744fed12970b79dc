"""Runs of a method, from a ``Round`` to an ``xarray.Dataset``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax.sharding import Mesh

from fedjax_fair import checks
from fedjax_fair.base import ClientMetric, Metric
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.simulate import BaseRound
from fedjax_fair.training.batch import RunBatch
from fedjax_fair.training.fit_result import FitResult
from fedjax_fair.training.loop import (
    Callback,
    DivergenceError,
    Evaluation,
    MemoryLimitError,
    OnNonfinite,
    TrainOptions,
    run,
)
from fedjax_fair.training.split import split

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "Callback",
    "DivergenceError",
    "Evaluation",
    "MemoryLimitError",
    "fit",
    "fit_batch",
    "train",
]


def fit(
    round: BaseRound,
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
        round: The method: a `fedjax_fair.Round` or `fedjax_fair.Centralized`. Equal ones, other
            numbers in its fields and as many other seeds reuse what was compiled.
        data: The federation; it is validated first. With partitions from ``data.stack``, each seed
            gets the one in its place.
        rounds: Rounds to run.
        seeds: One run each: initial model, cohorts and minibatches follow from it.
        eval_every: Rounds between evaluations.
        train_loss: Whether evaluations measure every client's training loss too; that reads all
            training examples.
        on_nonfinite: What an update does that holds NaN or an infinity. One of the model never
            reaches it. With ``"raise"`` it ends the run, with ``"skip_round"`` the model stays as it was
            in that round, the run goes on, and a warning at its end counts such rounds. With
            ``"drop_client"`` a client that sends such an update counts as one that has not answered: the
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
        DivergenceError: If an update of the global model was not finite, with ``"raise"``; it
            names round, seeds and clients.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = ff.data.load("digits")
        >>> fedavg = ff.Round(
        ...     model=ff.models.logistic(data.num_classes),
        ...     selector=ff.selectors.Uniform(cohort_size=10),
        ...     solver=ff.solvers.SGD(learning_rate=0.1, batch_size=10, epochs=1),
        ...     aggregator=ff.aggregators.Mean(),
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
    round: BaseRound,
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
) -> FitResult:
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
        A ``FitResult``: the Dataset of ``fit``, the variables of every seed, and the model.

    Raises:
        ValueError: As ``fit``; or if ``best`` does not give a number for each seed.
        DivergenceError: As ``fit``.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = ff.data.load("digits")
        >>> fedavg = ff.Round(
        ...     model=ff.models.logistic(data.num_classes),
        ...     selector=ff.selectors.Uniform(cohort_size=10),
        ...     solver=ff.solvers.SGD(learning_rate=0.1, batch_size=10, epochs=1),
        ...     aggregator=ff.aggregators.Mean(),
        ... )
        >>> fitted = train(fedavg, data, rounds=20, seeds=(0, 1))
        >>> fitted.predict(data.test.features[:3]).shape
        (2, 3)
    """
    checks.instance("round", round, BaseRound, "Round(model, selector, solver, aggregator)")
    checks.seeds("seeds", seeds)
    if best is not None:
        checks.function("best", best, "from an Evaluation to a number for each seed")
    options = TrainOptions(rounds, eval_every, train_loss, on_nonfinite, metrics, best)
    options.check_valid()
    with RunBatch(data, seeds, mesh) as batch:
        trained = run(split([round]), batch, options, callbacks, checkpoints)
    return FitResult(trained.dataset, trained.variables, round.model, trained.rounds)


def fit_batch(
    methods: Sequence[BaseRound],
    data: FederatedData,
    *,
    rounds: int,
    seeds: Sequence[int],
    eval_every: int = 10,
    train_loss: bool = True,
    on_nonfinite: OnNonfinite = "skip_round",
    callbacks: Sequence[Callback] = (),
    checkpoints: str | Path | None = None,
    memory_limit: int | None = None,
    metrics: Sequence[Metric | ClientMetric] = (),
    mesh: Mesh | None = None,
) -> xr.Dataset:
    """Runs a batch of settings of one method in one compiled program.

    This is what `fedjax_fair.sweep` does to methods that have a name. Called directly, it sweeps
    over the numbers of any role, a selector of one's own among them.

    Args:
        methods: The method of each run. They differ in numbers alone (fields annotated ``Number``,
            ``Integer`` or as arrays), which become a batch axis.
        data: As for ``fit``, with a partition for each run if there are several.
        rounds: As for ``fit``.
        seeds: The seed of each run, as many as methods; they may repeat.
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
        DivergenceError: As ``fit``.
        MemoryLimitError: If the runs would take more than ``memory_limit``; none has started.

    Examples:
        A selector of one's own, swept over the penalty of a client's size:

        >>> import jax
        >>> import jax.numpy as jnp
        >>> import fedjax_fair as ff
        >>> class Loudest(ff.Selector):
        ...     cohort_size: int
        ...     penalty: ff.Number = 0.0
        ...
        ...     def select(self, key, state, context):
        ...         sizes = context.sizes.astype(jnp.float32)
        ...         utility = context.losses(context.variables) - self.penalty * sizes
        ...         _, clients = jax.lax.top_k(utility, self.cohort_size)
        ...         weights = jnp.full(self.cohort_size, 1 / self.cohort_size)
        ...         return ff.Cohort(clients, weights), state, {}
        >>> data = ff.data.load("digits")
        >>> methods = [
        ...     ff.Round(
        ...         model=ff.models.logistic(data.num_classes),
        ...         selector=Loudest(10, penalty),
        ...         solver=ff.solvers.SGD(learning_rate=0.1, batch_size=10, epochs=1),
        ...         aggregator=ff.aggregators.Mean(),
        ...     )
        ...     for penalty in (0.0, 0.01, 0.1)
        ... ]
        >>> runs = ff.fit_batch(methods, data, rounds=5, seeds=(0, 0, 0))
        >>> runs.accuracy_mean_clients.isel(round=-1).shape
        (3,)
    """
    checks.seeds("seeds", seeds, different=False)
    if len(methods) != len(seeds):
        raise ValueError(
            f"methods: expected one for each of {len(seeds)} seeds, got {len(methods)}."
        )
    for method in methods:
        example = "Round(model, selector, solver, aggregator)"
        checks.instance("methods: one of them", method, BaseRound, example)
    options = TrainOptions(
        rounds, eval_every, train_loss, on_nonfinite, metrics, memory_limit=memory_limit
    )
    options.check_valid()
    with RunBatch(data, seeds, mesh) as batch:
        return run(split(methods), batch, options, callbacks, checkpoints).dataset
