"""The functions that a batch of runs compiles: initial state, chunks of rounds, evaluations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from fedjax_fair import metrics, simulate
from fedjax_fair.base import ClientMetric, Metric, Model
from fedjax_fair.client_evaluation import evaluate
from fedjax_fair.data.federated import FederatedData, partition_arrays, with_partition_arrays
from fedjax_fair.numerics import target
from fedjax_fair.parallel import cores
from fedjax_fair.parallel.mesh import is_run_on_one_device, over_mesh
from fedjax_fair.training.installed import is_installed
from fedjax_fair.training.split import Split, Structure

__all__ = ["Functions", "functions", "over_runs", "reusing"]


class Functions(NamedTuple):
    """What is compiled for a batch of runs of one method, jitted.

    Attributes:
        init: ``init((seeds, own), shared, data) -> state``, with the numbers of the method.
        step: ``step(state, own, shared, data, length) -> (state, info)``, ``length`` rounds; the
            state that it gets is gone.
        evaluate: ``evaluate(((variables, participation, cohort), own), shared, data) -> (summaries,
            clients)``, with the numbers of the model.
    """

    init: Any
    step: Any
    evaluate: Any


def functions(
    method: Split,
    model: Split,
    mesh: Mesh | None = None,
    *,
    one_run_per_core: bool = False,
    train_loss: bool,
    drop_nonfinite: bool = False,
    custom_metrics: Sequence[Metric | ClientMetric] = (),
) -> Functions:
    """The functions of a method.

    Methods of equal structure whose code is installed share them, and what JAX compiles of them.
    Those of other code, such as that of a notebook, are traced again, because a function that
    they call may have been defined anew.

    Args:
        method: The rounds.
        model: Their models.
        mesh: Devices that clients are assigned to, or cores, or None for one device.
        one_run_per_core: Whether each core makes runs of its own.
        train_loss: Whether evaluations measure training losses.
        drop_nonfinite: As for ``simulate.run``.
        custom_metrics: Measured besides at every evaluation.
    """
    metrics_of_user = tuple(custom_metrics)
    training = reusing(_training, method.first)
    evaluation = reusing(_evaluation, (model.first, metrics_of_user))
    init, step = training(method.structure, mesh, one_run_per_core, drop_nonfinite)
    evaluate = evaluation(model.structure, mesh, one_run_per_core, train_loss, metrics_of_user)
    return Functions(init, step, evaluate)


def reusing(cached: Any, value: Any) -> Callable[..., Any]:
    """Returns a function that makes jitted ones, which reuses them if no code can have changed.

    Args:
        cached: The function, decorated with ``functools.lru_cache``.
        value: What the jitted functions call.
    """
    return cached if is_installed(value) else cached.__wrapped__


@lru_cache(maxsize=64)
def _training(
    structure: Structure, mesh: Mesh | None, one_run_per_core: bool, drop_nonfinite: bool
) -> tuple[Any, Any]:
    mapped = partial(over_runs, mesh=mesh, one_run_per_core=one_run_per_core)

    def init(own, shared, data):
        def one(own, data):
            seed, numbers = own
            return structure.fill(shared, numbers).init(jax.random.key(seed), data)

        return mapped(one)(own, data)

    def step(state, own, shared, data, length):
        def one(own, data):
            state, numbers = own
            round = structure.fill(shared, numbers)
            return simulate.run(round, state, data, length, drop_nonfinite=drop_nonfinite)

        return mapped(one)((state, own), data)

    return jax.jit(init), jax.jit(step, static_argnums=4, donate_argnums=0)


@lru_cache(maxsize=64)
def _evaluation(
    structure: Structure,
    mesh: Mesh | None,
    one_run_per_core: bool,
    train_loss: bool,
    custom_metrics: tuple[Metric | ClientMetric, ...],
) -> Any:
    def evaluate(evaluated, shared, data):
        def one(evaluated, data):
            measured, numbers = evaluated
            model = structure.fill(shared, numbers)
            return _evaluate(model, train_loss, custom_metrics, measured, data)

        return over_runs(one, mesh, one_run_per_core=one_run_per_core)(evaluated, data)

    return jax.jit(evaluate)


def over_runs(
    function: Callable, mesh: Mesh | None = None, *, one_run_per_core: bool = False
) -> Callable:
    """Maps over the leading axis of the first argument, and over the partitions of the data.

    Runs are side by side on an accelerator. On a CPU one after another is faster, because a batch
    of models falls out of the cache. Where devices share a run they follow each other too: side by
    side, all would wait for the run whose cohort is assigned worst.
    """
    side_by_side = is_run_on_one_device(mesh)

    def one_run(run, data):
        batch, arrays = run
        return function(batch, data if arrays is None else with_partition_arrays(data, arrays))

    def over(runs, data):
        if side_by_side and not target.current().is_cpu:
            return jax.vmap(one_run, (0, None))(runs, data)
        return jax.lax.map(lambda run: one_run(run, data), runs)

    if mesh is not None:
        over = cores.over_runs(over, mesh) if one_run_per_core else over_mesh(over, mesh)

    def mapped(batch, data):
        return over((batch, None if data.num_partitions is None else partition_arrays(data)), data)

    return mapped


def _evaluate(
    model: Model,
    train_loss: bool,
    custom_metrics: Sequence[Metric | ClientMetric],
    evaluated: tuple,
    data: FederatedData,
):
    variables, participation, cohort = evaluated
    custom = [metric for metric in custom_metrics if isinstance(metric, ClientMetric)]
    clients = evaluate(
        model, variables, data, participation, cohort, train_loss=train_loss, custom=custom
    )
    summaries = metrics.summaries_of(
        groups=data.groups is not None, validation=data.validation is not None
    )
    summaries += tuple(metric for metric in custom_metrics if isinstance(metric, Metric))
    return {metric.name: metric.function(clients) for metric in summaries}, clients
