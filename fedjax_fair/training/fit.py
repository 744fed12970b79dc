"""Training of methods, from a ``Round`` to metrics and models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from fedjax_fair.data.federated import FederatedData
from fedjax_fair.roles import ClientMetric, Metric
from fedjax_fair.rounds.base_round import BaseRound
from fedjax_fair.training.batch import RunBatch
from fedjax_fair.training.fit_result import FitResult
from fedjax_fair.training.loop import Callback, Evaluation, train_loop
from fedjax_fair.training.stacked import stack_trees
from fedjax_fair.training.train_options import OnNonfinite, TrainOptions
from fedjax_fair.utils import checks
from fedjax_fair.utils.jax_version import check_jax

__all__ = ["fit"]

_EXAMPLE = "Round(model, selector, solver, aggregator)"


def fit(
    method: BaseRound | Sequence[BaseRound],
    data: FederatedData,
    *,
    rounds: int,
    seeds: Sequence[int] = (0,),
    eval_every: int = 10,
    train_loss: bool = True,
    on_nonfinite: OnNonfinite | None = None,
    callbacks: Sequence[Callback] = (),
    checkpoints: str | Path | None = None,
    allow_changed_code: bool = False,
    metrics: Sequence[Metric | ClientMetric] = (),
    best: str | Callable[[Evaluation], Any] | None = None,
    memory_limit: int | None = None,
    until_seconds: float | None = None,
    mesh: Mesh | None = None,
) -> FitResult:
    """Trains a federated method, or several of equal structure in one compiled function.

    Evaluations are before training, after every ``eval_every`` rounds and after the last one.

    Args:
        method: A `fedjax_fair.Round` or `fedjax_fair.Centralized`, which trains once for each seed;
            or a list with one for each seed. Methods of a list may differ in fields annotated
            ``Number``, ``Integer`` or as arrays, which become a batch axis.
        data: The federated dataset. With partitions from ``data.stack``, one for each seed.
        rounds: Rounds to run.
        seeds: One run for each; it determines the initial model, cohorts and minibatches. With a
            list of methods, seeds may repeat.
        eval_every: Rounds between evaluations.
        train_loss: Whether evaluations measure training losses, which reads all training examples.
        on_nonfinite: How to handle non-finite updates, which never reach the model. ``"raise"``,
            the default of one method, ends all runs. ``"skip_round"``, the default of a list, skips
            the round and warns at the end. ``"drop_client"`` treats the client as not responding.
        callbacks: Called at the start, every evaluation and the end. A callback that returns True
            from ``on_evaluation`` stops the run.
        checkpoints: A folder for checkpoints, from which a second call continues. A larger
            ``rounds`` extends a finished run.
        allow_changed_code: Whether ``checkpoints`` may be of a run whose code of your own has
            changed since then.
        metrics: Additional metrics, of clients' metrics or predictions. Tables and comparisons show
            a `ClientMetric` first, before those of the task.
        best: A summary metric, such as ``"validation_accuracy_mean_clients"``, or a score
            ``best(evaluation) -> [seeds]``, of which higher is better. The result has the model of
            each seed's best evaluation, or the first of equal ones, instead of the last model. Use
            validation examples (`data.hold_out`): selection by test metrics biases them.
        memory_limit: Bytes that the runs may need.
        until_seconds: Virtual seconds after which the runs end: at the first evaluation at which
            all have passed them, or after ``rounds`` rounds. The method needs a schedule.
        mesh: Devices from ``parallel.client_mesh`` or ``parallel.core_mesh``; by default one. With
            several processes, every process must call ``fit`` with the same arguments.

    Returns:
        Metrics of every client as ``dataset``, which ``fedjax_fair.results`` describes, and the
        models. With a list of methods, the runs are along ``seed``, and the network is the one of
        the first method.

    Raises:
        ValueError: If the data or a setting is invalid, the methods differ in structure, the
            checkpoints are of another run, or the selector returns a client that does not exist.
        DivergenceError: If an update of the global model was not finite, with ``"raise"``.
        MemoryLimitError: If the runs would need more than ``memory_limit`` bytes.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = ff.data.load("digits")
        >>> fedavg = ff.Round(
        ...     model=ff.models.logistic(data.num_classes),
        ...     selector=ff.selectors.Uniform(cohort_size=10),
        ...     solver=ff.solvers.SGD(learning_rate=0.1, batch_size=10, epochs=1),
        ...     aggregator=ff.aggregators.Mean(),
        ... )
        >>> result = ff.fit(fedavg, data, rounds=20, seeds=(0, 1))
        >>> dict(result.dataset.test_accuracy.sizes)
        {'seed': 2, 'round': 3, 'client': 50}
        >>> methods = [
        ...     fedavg.replace(solver=ff.solvers.SGD(rate, batch_size=10, epochs=1))
        ...     for rate in (0.05, 0.1)
        ... ]
        >>> result = ff.fit(methods, data, rounds=20, seeds=(0, 0))
        >>> result.dataset.accuracy_mean_clients.isel(round=-1).shape
        (2,)
    """
    is_list = isinstance(method, Sequence)
    check_jax()
    checks.seeds("seeds", seeds, different=not is_list)
    if is_list and len(method) != len(seeds):
        raise ValueError(
            f"method: expected one for each of {len(seeds)} seeds, got {len(method)}; repeat "
            "methods or seeds."
        )
    methods = method if is_list else [method]
    for each in methods:
        checks.instance("method: one of them" if is_list else "method", each, BaseRound, _EXAMPLE)
    if best is not None and methods[0].is_personalized:
        raise ValueError(
            "best: expected None, because clients have personalized models; remove it."
        )
    on_nonfinite = on_nonfinite or ("skip_round" if is_list else "raise")
    options = TrainOptions(
        *(rounds, eval_every, train_loss, on_nonfinite, metrics, best, memory_limit),
        allow_changed_code=allow_changed_code,
        until_seconds=until_seconds,
    )
    with RunBatch(data, seeds, mesh) as batch:
        stacked = stack_trees(methods)
        result = train_loop(stacked, batch, options, callbacks, checkpoints)
    return result._replace(model=methods[0].model)
