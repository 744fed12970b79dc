"""The jitted functions of a batch of runs: initial state, chunks of rounds, evaluations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from fedjax_fair import metrics, simulate
from fedjax_fair.base import ClientMetric, Metric
from fedjax_fair.client_evaluation import evaluate
from fedjax_fair.data.federated import FederatedData, partition_arrays, with_partition_arrays
from fedjax_fair.numerics import target
from fedjax_fair.parallel import cores
from fedjax_fair.parallel.mesh import is_run_on_one_device, over_mesh
from fedjax_fair.training.inspection import is_installed
from fedjax_fair.training.split import Split, Structure

__all__ = ["Functions", "make_functions", "over_runs", "reuse_if_installed"]


class Functions(NamedTuple):
    """The jitted functions of a batch of runs of one method.

    ``shared`` and ``per_run`` are the leaves of a `Split`, of the model in ``evaluate``:

    * ``init((seeds, per_run), shared, data) -> state``
    * ``step(state, per_run, shared, data, length) -> (state, info)``, which donates the state
    * ``evaluate(((variables, participation, cohort), per_run), shared, data)
      -> (summaries, clients)``
    """

    init: Any
    step: Any
    evaluate: Any


def make_functions(
    method: Split,
    model: Split,
    mesh: Mesh | None = None,
    *,
    one_run_per_core: bool = False,
    train_loss: bool,
    drop_nonfinite: bool = False,
    custom_metrics: Sequence[Metric | ClientMetric] = (),
) -> Functions:
    """Returns the functions of a method.

    Methods of equal structure whose code is installed share them, and what JAX compiles. Others,
    such as those of a notebook, are traced again, because a function that they call may have been
    defined again.
    """
    custom_metrics = tuple(custom_metrics)
    make_training = reuse_if_installed(_training, method.first)
    make_evaluation = reuse_if_installed(_evaluation, (model.first, custom_metrics))
    init, step = make_training(method.structure, mesh, one_run_per_core, drop_nonfinite)
    return Functions(
        init,
        step,
        make_evaluation(model.structure, mesh, one_run_per_core, train_loss, custom_metrics),
    )


def reuse_if_installed(cached: Any, value: Any) -> Callable[..., Any]:
    """Returns a factory of jitted functions that call ``value``; cached if no code can change."""
    return cached if is_installed(value) else cached.__wrapped__


@lru_cache(maxsize=64)
def _training(
    structure: Structure, mesh: Mesh | None, one_run_per_core: bool, drop_nonfinite: bool
) -> tuple[Any, Any]:
    mapped = partial(over_runs, mesh=mesh, one_run_per_core=one_run_per_core)

    def init(runs, shared, data):
        def init_run(run, data):
            seed, leaves = run
            return structure.fill(shared, leaves).init(jax.random.key(seed), data)

        return mapped(init_run)(runs, data)

    def step(state, per_run, shared, data, length):
        def step_run(run, data):
            state, leaves = run
            round = structure.fill(shared, leaves)
            return simulate.run(round, state, data, length, drop_nonfinite=drop_nonfinite)

        return mapped(step_run)((state, per_run), data)

    return jax.jit(init), jax.jit(step, static_argnums=4, donate_argnums=0)


@lru_cache(maxsize=64)
def _evaluation(
    structure: Structure,
    mesh: Mesh | None,
    one_run_per_core: bool,
    train_loss: bool,
    custom_metrics: tuple[Metric | ClientMetric, ...],
) -> Any:
    client_metrics = [metric for metric in custom_metrics if isinstance(metric, ClientMetric)]
    custom_summaries = tuple(metric for metric in custom_metrics if isinstance(metric, Metric))

    def evaluate_runs(runs, shared, data):
        def evaluate_run(run, data):
            (variables, participation, cohort), leaves = run
            clients = evaluate(
                structure.fill(shared, leaves),
                variables,
                data,
                participation,
                cohort,
                train_loss=train_loss,
                custom=client_metrics,
            )
            summaries = metrics.summaries_of(
                groups=data.groups is not None, validation=data.validation is not None
            )
            summaries += custom_summaries
            return {metric.name: metric.function(clients) for metric in summaries}, clients

        return over_runs(evaluate_run, mesh, one_run_per_core=one_run_per_core)(runs, data)

    return jax.jit(evaluate_runs)


def over_runs(
    function: Callable, mesh: Mesh | None = None, *, one_run_per_core: bool = False
) -> Callable:
    """Maps over the leading axis of the first argument, and over the partitions of the data.

    An accelerator vmaps over runs. A CPU loops over them, which is faster because the models of one
    run fit into the cache. Devices that share runs loop too, because a vmap would wait for the
    worst assignment of a cohort to devices.
    """

    def run_with_partition(run, data):
        arguments, partition = run
        return function(
            arguments, data if partition is None else with_partition_arrays(data, partition)
        )

    def over(runs, data):
        if is_run_on_one_device(mesh) and not target.current().is_cpu:
            return jax.vmap(run_with_partition, (0, None))(runs, data)
        return jax.lax.map(lambda run: run_with_partition(run, data), runs)

    if mesh is not None:
        over = cores.over_runs(over, mesh) if one_run_per_core else over_mesh(over, mesh)

    def mapped(runs, data: FederatedData):
        return over((runs, None if data.num_partitions is None else partition_arrays(data)), data)

    return mapped
