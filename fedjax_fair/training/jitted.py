"""The jitted functions of a batch of runs: initial state, chunks of rounds, evaluations."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fedjax_fair import metrics
from fedjax_fair.data.federated import FederatedData, partition_arrays, with_partition_arrays
from fedjax_fair.evaluation.clients import evaluate
from fedjax_fair.numerics import target
from fedjax_fair.numerics.labels import are_sequences
from fedjax_fair.parallel.mesh import is_run_on_one_device, over_mesh
from fedjax_fair.roles import PERSONALIZED, ClientMetric, Metric, Model
from fedjax_fair.rounds.base_round import BaseRound
from fedjax_fair.rounds.client_state import Store
from fedjax_fair.training.executable_cache import cache_by_shape
from fedjax_fair.training.inspection import is_installed
from fedjax_fair.training.stacked import Stacked, StackedDef

__all__ = [
    "Functions",
    "make_evaluation",
    "make_functions",
    "over_runs",
    "reuse_if_installed",
    "summary_metrics",
]


class Functions(NamedTuple):
    """The jitted functions of a batch of runs of one method.

    ``shared`` and ``per_run`` are the leaves of a `Stacked`, of the model in ``evaluate``:

    * ``init((seeds, per_run), shared, data) -> state``
    * ``step(state, per_run, shared, data, length) -> (state, info)``, which donates the state
    * ``evaluate(((state, cohort), per_run), shared, data) -> (summaries, clients)`` of the model
      and of `RoundState.of_model`; with personalized models of the method and its state
    """

    init: Any
    step: Any
    evaluate: Any


def make_functions(
    method: Stacked,
    mesh: Mesh | None = None,
    *,
    shapes: Hashable = (),
    train_loss: bool,
    drop_nonfinite: bool = False,
    skip_nonfinite: bool = False,
    custom_metrics: Sequence[Metric | ClientMetric] = (),
) -> Functions:
    """Returns the functions of a method.

    Methods of equal structure whose code is installed share them, for equal ``shapes`` of their
    arguments. Others, such as those of a notebook, are traced again, because a function that they
    call may have been defined again.
    """
    make_training = reuse_if_installed(_training, method.first, shapes)
    init, step = make_training(method.structure, mesh, drop_nonfinite, skip_nonfinite)
    evaluation = make_evaluation(
        method if method.first.is_personalized else method.field("model"),
        mesh,
        shapes=shapes,
        train_loss=train_loss,
        custom_metrics=custom_metrics,
    )
    return Functions(init, step, evaluation)


def make_evaluation(
    evaluated: Stacked,
    mesh: Mesh | None = None,
    *,
    shapes: Hashable = (),
    train_loss: bool,
    custom_metrics: Sequence[Metric | ClientMetric] = (),
) -> Any:
    """Returns the function ``evaluate`` of a model, or of a method with personalized models."""
    custom_metrics = tuple(custom_metrics)
    make = reuse_if_installed(_evaluation, (evaluated.first, custom_metrics), shapes)
    return make(evaluated.structure, mesh, train_loss, custom_metrics)


def reuse_if_installed(cached: Any, value: Any, shapes: Hashable = ()) -> Callable[..., Any]:
    """Returns a factory of jitted functions that call ``value``; cached if no code can change.

    ``cached`` is from `cache_by_shape`.
    """
    # Code of a notebook, script or plugin may change while the process runs, which the structure of
    # a method does not show. Such a method is traced again in each `fit`; an executable of the same
    # text is reused (`executable_cache`), in 0.4 to 1.2 s instead of 2 to 11 s. Functions with
    # callbacks into Python are always compiled, because the text does not contain the function that
    # is called.
    return partial(cached, shapes) if is_installed(value) else cached.__wrapped__


@cache_by_shape
def _training(
    structure: StackedDef,
    mesh: Mesh | None,
    drop_nonfinite: bool,
    skip_nonfinite: bool,
) -> tuple[Any, Any]:
    mapped = partial(over_runs, mesh=mesh)

    def init(runs, shared, data):
        def init_run(run, data, store, shared):
            seed, leaves = run
            state = structure.fill(shared, leaves).init(jax.random.key(seed), data)
            return state._replace(clients=()), state.clients

        state, store = mapped(init_run)(runs, data, shared=shared)
        return state._replace(clients=store)

    def step(state, per_run, shared, data, length):
        def step_run(run, data, store, shared):
            state, leaves = run
            method = structure.fill(shared, leaves)
            # A scan as in `fedjax_fair.run`, here for fewer calls between `fit` and a solver.
            state, info = jax.lax.scan(
                lambda state, _: method.step(state, data, drop_nonfinite, skip_nonfinite),
                state._replace(clients=store),
                length=length,
            )
            return (state._replace(clients=()), info), state.clients

        runs = state._replace(clients=()), per_run
        (state, info), store = mapped(step_run)(runs, data, state.clients, shared)
        return state._replace(clients=store), info

    return jax.jit(init), jax.jit(step, static_argnums=4, donate_argnums=0)


@cache_by_shape
def _evaluation(
    structure: StackedDef,
    mesh: Mesh | None,
    train_loss: bool,
    custom_metrics: tuple[Metric | ClientMetric, ...],
) -> Any:
    def evaluate_run(run, data, store, shared):
        (state, cohort), leaves = run
        evaluated, personalization = structure.fill(shared, leaves), {}
        if isinstance(evaluated, BaseRound):
            personalization = {
                "personalized": evaluated.personalize(state._replace(clients=store), data),
                "has_global_model": evaluated.has_global_model,
            }
            evaluated = evaluated.model
        clients = evaluate(
            evaluated,
            state.variables,
            data,
            state.participation,
            cohort,
            train_loss=train_loss,
            custom=metrics.quantities.client_metrics(evaluated.task, custom_metrics),
            **personalization,
        )
        summaries = summary_metrics(evaluated, data, custom_metrics)
        values = {metric.name: metric.function(clients) for metric in summaries}
        if clients.personalized is not None:
            values |= {
                f"{PERSONALIZED}{metric.name}": metric.function(clients.personalized)
                for metric in summaries
                if metric.is_of_model
            }
        return (values, clients), store

    def evaluate_runs(runs, shared, data):
        (state, cohort), leaves = runs
        runs = (state._replace(clients=()), cohort), leaves
        mapped = over_runs(evaluate_run, mesh)
        return mapped(runs, data, state.clients, shared)[0]

    return jax.jit(evaluate_runs)


def summary_metrics(
    model: Model, data: FederatedData, custom: Sequence[Metric | ClientMetric]
) -> Sequence[Metric]:
    """Returns the metrics of every evaluation, of which ``custom`` are the user's."""
    return metrics.summaries_of(
        client_groups=data.groups is not None,
        validation=data.validation is not None,
        sequences=are_sequences(data.test.labels),
        sensitive_classes=data.num_classes if data.sensitive_names else None,
        task=model.task,
        custom=custom,
    )


def over_runs(function: Callable, mesh: Mesh | None = None) -> Callable:
    """Maps over the leading axis of the first argument, and over the partitions of the data.

    An accelerator vmaps over runs. A CPU and devices that share runs loop over them.

    Args:
        function: ``function(run, data, store, shared) -> (result, store)``, with the clients' state
            of a run, or ``()``, and arrays that all runs share.
        mesh: Devices; None for one.

    Returns:
        ``mapped(runs, data, store=(), shared=()) -> (results, store)``.
    """

    # The models of one run fit into the cache of a CPU. On devices that share runs, a vmap would
    # wait for the worst assignment of a cohort to devices.
    def over(runs, data_and_shared, store):
        data, shared = data_and_shared

        def call(run, store=store):
            arguments, partition = run
            with_partition = (
                with_partition_arrays(data, partition) if partition is not None else data
            )
            return function(arguments, with_partition, store, shared)

        if is_run_on_one_device(mesh) and not target.current().is_cpu:
            return jax.vmap(call)(runs, store)
        if not isinstance(store, Store):
            return jax.lax.map(call, runs)

        # A map over stores would copy them; a scan that carries all of them works in place.
        def body(arrays, run):
            run, index = run
            result, new = call(run, store.replace(arrays=arrays, run=index))
            return new.arrays, result

        indices = jnp.arange(jax.tree.leaves(runs)[0].shape[0], dtype=jnp.int32)
        arrays, results = jax.lax.scan(body, store.arrays, (runs, indices))
        return results, store.replace(arrays=arrays)

    if mesh is not None:
        over = over_mesh(over, mesh)

    def mapped(runs, data: FederatedData, store: Store | tuple[()] = (), shared: Any = ()):
        partitions = None if data.num_partitions is None else partition_arrays(data)
        return over((runs, partitions), (data, shared), store)

    return mapped
