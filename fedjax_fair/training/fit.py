"""Training of a method, from a ``Round`` to an ``xarray.Dataset``."""

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
    run,
)
from fedjax_fair.training.options import OnNonfinite, TrainOptions
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

_EXAMPLE = "Round(model, selector, solver, aggregator)"


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

    All seeds share one compiled function for the rounds between two evaluations. Evaluations are
    before training, after every ``eval_every`` rounds and after the last one.

    Args:
        round: A `fedjax_fair.Round` or `fedjax_fair.Centralized`.
        data: The federated dataset. With partitions from ``data.stack``, one for each seed.
        rounds: Rounds to run.
        seeds: One run for each; it determines the initial model, cohorts and minibatches.
        eval_every: Rounds between evaluations.
        train_loss: Whether evaluations measure training losses, which reads all training examples.
        on_nonfinite: How to handle non-finite updates, which never reach the model. ``"raise"``
            ends the run, ``"skip_round"`` leaves the model unchanged and warns at the end,
            ``"drop_client"`` treats the client as not responding.
        callbacks: Called at the start, every evaluation and the end; any may stop the run.
        checkpoints: A folder for checkpoints, written at the end and at most twice a minute. A
            second call continues from it. A larger ``rounds`` extends a finished run.
        metrics: Additional metrics, of clients' metrics or predictions.
        mesh: Devices from ``parallel.client_mesh`` or cores from ``parallel.core_mesh``; by default
            one device. All processes make the same call, with equal callbacks.

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

    It takes the arguments of ``fit``, and ``best(evaluation) -> [seeds]``, a score of which larger
    is better. With it the model of each seed is that of its best evaluation (the first of equal
    ones) instead of the last. Use validation examples (`data.hold_out`), because the test metrics
    of a model that was selected by them are biased.

    Returns:
        The dataset of ``fit``, the variables of every seed, and the network.

    Raises:
        ValueError: As ``fit``; or if ``best`` does not return a score for each seed.
        DivergenceError: As ``fit``.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = ff.data.load("digits")
        >>> fedavg = ff.Round(ff.models.logistic(10), ff.selectors.Uniform(10),
        ...                   ff.solvers.SGD(0.1, 10, epochs=1), ff.aggregators.Mean())
        >>> result = train(fedavg, data, rounds=20, seeds=(0, 1))
        >>> result.predict(data.test.features[:3]).shape
        (2, 3)
    """
    checks.instance("round", round, BaseRound, _EXAMPLE)
    checks.seeds("seeds", seeds)
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
    ``Number``, ``Integer`` or as arrays, which become a batch axis. ``memory_limit`` is in bytes.
    Other arguments are those of ``fit``; by default a run that diverges does not end the others.

    Returns:
        The dataset of ``fit``, with the runs along ``seed``.

    Raises:
        ValueError: As ``fit``.
        DivergenceError: As ``fit``.
        MemoryLimitError: If the runs would need more than ``memory_limit``, before any starts.

    Examples:
        A sweep over a hyperparameter of a custom selector:

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
        ...     ff.Round(ff.models.logistic(10), Loudest(10, penalty),
        ...              ff.solvers.SGD(0.1, 10, epochs=1), ff.aggregators.Mean())
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
        checks.instance("methods: one of them", method, BaseRound, _EXAMPLE)
    options = TrainOptions(
        rounds, eval_every, train_loss, on_nonfinite, metrics, memory_limit=memory_limit
    )
    with RunBatch(data, seeds, mesh) as batch:
        return run(split(methods), batch, options, callbacks, checkpoints).dataset
