"""The functions that a batch of runs compiles: initial state, chunks of rounds, evaluations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
from jaxtyping import PyTree

from fedjax_fair import metrics, simulate
from fedjax_fair.base import ClientMetric, Metric, Model
from fedjax_fair.client_evaluation import evaluate
from fedjax_fair.data.federated import FederatedData, ownership, with_ownership
from fedjax_fair.numerics import target
from fedjax_fair.parallel import cores
from fedjax_fair.parallel.mesh import is_run_on_one_device, over_mesh
from fedjax_fair.simulate import Round

__all__ = ["Functions", "functions", "over_runs"]


class Functions(NamedTuple):
    """What is compiled for a batch of runs of one method, jitted.

    Attributes:
        init: ``init((seeds, points), data) -> state``.
        step: ``step(state, points, data, length) -> (state, info)``, ``length`` rounds; the state
            that it gets is gone.
        evaluate: ``evaluate((variables, participation, cohort), data) -> (summaries, clients)``.
    """

    init: Any
    step: Any
    evaluate: Any


def functions(
    make: Callable[[PyTree], Round],
    model: Model,
    mesh: Mesh | None = None,
    *,
    run_a_core: bool = False,
    train_loss: bool,
    drop_nonfinite: bool = False,
    own_metrics: Sequence[Metric | ClientMetric] = (),
) -> Functions:
    """The functions of a method.

    Methods with the same model share the function that evaluates it, and what JAX compiles of it.

    Args:
        make: ``make(point) -> Round``.
        model: The model of its rounds.
        mesh: Devices that clients are assigned to, or cores, or None for one device.
        run_a_core: Whether each core makes runs of its own.
        train_loss: Whether evaluations measure training losses.
        drop_nonfinite: As for ``simulate.run``.
        own_metrics: Measured besides at every evaluation.
    """
    mapped = partial(over_runs, mesh=mesh, run_a_core=run_a_core)

    def init(own, data):
        seed, point = own
        return make(point).init(jax.random.key(seed), data)

    def step(state, points, data, length):
        def one(own, data):
            state, point = own
            round = make(point)
            return simulate.run(round, state, data, length, drop_nonfinite=drop_nonfinite)

        return mapped(one)((state, points), data)

    measured = model, mesh, run_a_core, train_loss, tuple(own_metrics)
    try:
        evaluation = _evaluation(*measured)
    except TypeError:  # A part of the user's own that has no hash: nothing is shared.
        evaluation = _evaluation.__wrapped__(*measured)
    return Functions(
        jax.jit(mapped(init)),
        jax.jit(step, static_argnums=3, donate_argnums=0),
        evaluation,
    )


@lru_cache(maxsize=8)  # Of the models that an experiment compares.
def _evaluation(
    model: Model,
    mesh: Mesh | None,
    run_a_core: bool,
    train_loss: bool,
    own_metrics: tuple[Metric | ClientMetric, ...],
) -> Any:
    measure = partial(_evaluate, model, train_loss, own_metrics)
    return jax.jit(over_runs(measure, mesh, run_a_core=run_a_core))


def over_runs(
    function: Callable, mesh: Mesh | None = None, *, run_a_core: bool = False
) -> Callable:
    """Maps over the leading axis of the first argument, and over the partitions of the data.

    Runs are side by side on an accelerator. On a CPU one after another is faster, because a batch
    of models falls out of the cache. Where devices share a run they follow each other too: side by
    side, all would wait for the run whose cohort is assigned worst.
    """
    side_by_side = is_run_on_one_device(mesh)

    def one_run(run, data):
        batch, owned = run
        return function(batch, data if owned is None else with_ownership(data, owned))

    def over(runs, data):
        if side_by_side and not target.current().is_cpu:
            return jax.vmap(one_run, (0, None))(runs, data)
        return jax.lax.map(lambda run: one_run(run, data), runs)

    if mesh is not None:
        over = cores.over_runs(over, mesh) if run_a_core else over_mesh(over, mesh)

    def mapped(batch, data):
        return over((batch, None if data.num_partitions is None else ownership(data)), data)

    return mapped


def _evaluate(
    model: Model,
    train_loss: bool,
    own_metrics: Sequence[Metric | ClientMetric],
    evaluated: tuple,
    data: FederatedData,
):
    variables, participation, cohort = evaluated
    own = [metric for metric in own_metrics if isinstance(metric, ClientMetric)]
    clients = evaluate(
        model, variables, data, participation, cohort, train_loss=train_loss, own=own
    )
    summaries = metrics.summaries_of(
        groups=data.groups is not None, validation=data.validation is not None
    )
    summaries += tuple(metric for metric in own_metrics if isinstance(metric, Metric))
    return {metric.name: metric.function(clients) for metric in summaries}, clients
