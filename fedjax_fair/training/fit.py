"""Training of methods, from a ``Round`` to an ``xarray.Dataset``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import Mesh

from fedjax_fair.data.federated import FederatedData
from fedjax_fair.roles import ClientMetric, Metric
from fedjax_fair.rounds.base_round import BaseRound
from fedjax_fair.training.batch import RunBatch
from fedjax_fair.training.compiled_functions import CompiledFunctions
from fedjax_fair.training.fit_result import FitResult
from fedjax_fair.training.loop import (
    Callback,
    DivergenceError,
    Evaluation,
    MemoryLimitError,
    check_runs,
    run,
)
from fedjax_fair.training.options import OnNonfinite, TrainOptions
from fedjax_fair.training.split import split
from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "Callback", "DivergenceError", "Evaluation", "MemoryLimitError", "fit", "fit_batch", "train",
    "train_batch", "train_methods",
]  # fmt: skip

_EXAMPLE = "Round(model, selector, solver, aggregator)"

# XLA compiles a function on one core. The second of two methods ahead keeps another core busy while
# the first compiles, and both are compiled when the current one has trained.
_METHODS_AHEAD = 2


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
    """Trains a federated method and returns metrics of every client.

    Evaluations are before training, after every ``eval_every`` rounds and after the last one.

    Args:
        round: A `fedjax_fair.Round` or `fedjax_fair.Centralized`.
        data: The federated dataset. With partitions from ``data.stack``, one for each seed.
        rounds: Rounds to run.
        seeds: One run for each; it determines the initial model, cohorts and minibatches.
        eval_every: Rounds between evaluations.
        train_loss: Whether evaluations measure training losses, which reads all training examples.
        on_nonfinite: How to handle non-finite updates, which never reach the model. ``"raise"``
            ends the run, ``"skip_round"`` skips the round and warns at the end, ``"drop_client"``
            treats the client as not responding.
        callbacks: Called at the start, every evaluation and the end; any may stop the run.
        checkpoints: A folder for checkpoints, from which a second call continues. A larger
            ``rounds`` extends a finished run.
        metrics: Additional metrics, of clients' metrics or predictions.
        mesh: Devices from ``parallel.client_mesh`` or ``parallel.core_mesh``; by default one. All
            processes make the same call, with equal callbacks.

    Returns:
        An ``xarray.Dataset`` that ``fedjax_fair.results`` describes.

    Raises:
        ValueError: If the data or a setting is invalid, the checkpoints are of another run, or the
            selector returns a client that does not exist.
        DivergenceError: If an update of the global model was not finite, with ``"raise"``.

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
    return train(**locals()).dataset


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
    """Trains a federated method and returns metrics and models.

    Arguments and errors are those of ``fit``. A score ``best(evaluation) -> [seeds]`` keeps the
    model of each seed's highest score, or the first of equal ones, instead of the last model. Use
    validation examples (`data.hold_out`): selection by test metrics biases them. `FitResult` has an
    example.
    """
    checks.instance("round", round, BaseRound, _EXAMPLE)
    checks.seeds("seeds", seeds)
    if best is not None and round.is_personalized:
        raise ValueError("best: expected None, because clients have personalized models.")
    options = TrainOptions(rounds, eval_every, train_loss, on_nonfinite, metrics, best)
    with RunBatch(data, seeds, mesh) as batch:
        result = run(split([round]), batch, options, callbacks, checkpoints)
    return result._replace(model=round.model)


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
    """Trains a batch of methods of equal structure in one compiled function.

    Each run has a method and a seed, which may repeat. Methods may differ in fields annotated
    ``Number``, ``Integer`` or as arrays, which become a batch axis. Other arguments and errors are
    those of ``fit``; by default a run that diverges does not end the others.

    Returns:
        The dataset of ``fit``, with the runs along ``seed``.

    Raises:
        MemoryLimitError: If the runs would need more than ``memory_limit`` bytes.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = ff.data.load("digits")
        >>> methods = [
        ...     ff.Round(ff.models.logistic(10), ff.selectors.Uniform(10),
        ...              ff.solvers.SGD(rate, 10, epochs=1), ff.aggregators.Mean())
        ...     for rate in (0.05, 0.1)
        ... ]
        >>> runs = ff.fit_batch(methods, data, rounds=20, seeds=(0, 0))
        >>> runs.accuracy_mean_clients.isel(round=-1).shape
        (2,)
    """
    return train_batch(**locals()).dataset


def train_batch(
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
) -> FitResult:
    """Trains a batch of methods of equal structure, and returns metrics and models.

    Arguments and errors are those of ``fit_batch``.

    Returns:
        The result of ``train``, with the runs in place of seeds. Its network is that of the first
        method. If methods differ, it has no personalized models.
    """
    checks.seeds("seeds", seeds, different=False)
    if len(methods) != len(seeds):
        raise ValueError(
            f"methods: expected one for each of {len(seeds)} seeds, got {len(methods)}."
        )
    for method in methods:
        checks.instance("methods: one of them", method, BaseRound, _EXAMPLE)
    options = TrainOptions(
        rounds, eval_every, train_loss, on_nonfinite, metrics, memory_limit=memory_limit
    )
    with RunBatch(data, seeds, mesh) as batch:
        batch_of_methods = split(methods)
        result = run(batch_of_methods, batch, options, callbacks, checkpoints)
    # Personalized models are made with the settings of the first method.
    return result._replace(personalized=None) if batch_of_methods.per_run else result


def train_methods(
    methods: Mapping[str, BaseRound],
    data: FederatedData,
    *,
    rounds: int,
    seeds: Sequence[int],
    eval_every: int,
    on_nonfinite: OnNonfinite,
    callbacks: Callable[[str], Sequence[Callback]],
    checkpoints: Callable[[str], Path],
    mesh: Mesh | None = None,
) -> Iterator[tuple[str, FitResult]]:
    """Trains methods sequentially, and compiles the next ones while one trains.

    ``callbacks`` and ``checkpoints`` return the callbacks and the folder of a method by its name.
    Other arguments are those of ``train``.

    Yields:
        The name of each method and its result, in order.
    """
    options = TrainOptions(rounds, eval_every, True, on_nonfinite)
    names, functions = list(methods), dict[str, CompiledFunctions]()
    splits = {name: split([method]) for name, method in methods.items()}
    for method in splits.values():  # Later ones are compiled while the first one trains.
        check_runs(method, data)
    # All processes must compile and run in the same order.
    ahead = 0 if jax.process_count() > 1 else _METHODS_AHEAD

    with RunBatch(data, seeds, mesh) as batch:

        def trace(name: str) -> None:
            if name not in functions:
                functions[name] = CompiledFunctions(splits[name], batch, options)

        def functions_of(i: int) -> CompiledFunctions:
            trace(names[i])
            for name in names[i + 1 : i + 1 + ahead]:
                with suppress(Exception):  # Raised again when the method is next.
                    trace(name)
            return functions.pop(names[i])

        for i, name in enumerate(names):
            folder, functions_fn = checkpoints(name), partial(functions_of, i)
            result = run(splits[name], batch, options, callbacks(name), folder, functions_fn)
            yield name, result._replace(model=methods[name].model)
