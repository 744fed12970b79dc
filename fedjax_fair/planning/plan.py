"""Memory and costs of a batch of runs of one method: compiled for a machine, or measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding
from jaxtyping import PyTree

from fedjax_fair.data.device_layout import to_device_layout
from fedjax_fair.data.federated import (
    FederatedData,
    map_arrays,
    partition_arrays,
    with_partition_arrays,
)
from fedjax_fair.numerics.target import tracing_for
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.parallel.cores import pad_to_multiple
from fedjax_fair.parallel.mesh import num_run_groups, shapes_on, shard_data, split_runs
from fedjax_fair.planning.machines import Machine, devices_of
from fedjax_fair.rounds.base_round import BaseRound
from fedjax_fair.rounds.round_state import RoundState
from fedjax_fair.training.batch import RunBatch
from fedjax_fair.training.compiled_runs import CompiledRuns
from fedjax_fair.training.jitted import make_functions
from fedjax_fair.training.memory_estimate import (
    Memory,
    array_bytes,
    device_bytes,
    free_memory,
    transient_bytes,
)
from fedjax_fair.training.stacked import stack_trees
from fedjax_fair.training.train_options import TrainOptions, evaluated_rounds

__all__ = [
    "AheadOfTime",
    "Plan",
    "compile_ahead",
    "measure_plan",
    "place",
    "place_data",
    "place_runs",
    "plan",
]

# The share of a device's memory that runs may take, as in a sweep; the runtime needs the rest.
_USABLE = 0.9
_LOWERED = {"gpu": "cuda"}


class AheadOfTime(NamedTuple):
    """A function that was compiled for shapes."""

    lowered: jax.stages.Lowered
    executable: jax.stages.Compiled
    compile_seconds: float


class Programs(NamedTuple):
    """The compiled functions of ``fit``, for cohorts of a size."""

    init: AheadOfTime
    steps: AheadOfTime
    evaluation: AheadOfTime
    cohort_size: int


class Plan(NamedTuple):
    """The memory and costs of a batch of runs.

    ``memory`` has bytes of one device by purpose. ``seconds`` are of a ``"round"``, an
    ``"evaluation"`` and in ``"total"``, without compilation, if they were measured. ``records`` are
    bytes on a separate host. ``work`` has the ``"flops"`` and ``"bytes"`` of a round by XLA's cost
    analysis, if none was run and the compiler has one.
    """

    runs: int
    rounds: int
    memory: dict[str, int]
    max_parallel_runs: int
    compile_seconds: float
    seconds: dict[str, float] | None = None
    records: int = 0
    work: dict[str, float] | None = None
    programs: Programs | None = None


def plan(
    machine: Machine,
    method: Sequence[BaseRound],
    seeds: tuple[int, ...],
    data: FederatedData,
    *,
    rounds: int,
    eval_every: int,
    train_loss: bool,
    mesh: Mesh | None = None,
) -> Plan:
    """Compiles the functions of ``fit`` for a machine, and reads their memory and costs.

    Call ``machines.prepare`` first. Arguments are as for ``fit``, but ``method`` may have
    one method for all runs.
    """
    runs, chunk, groups = len(seeds), min(eval_every, rounds), num_run_groups(mesh)
    stacked = stack_trees(method)
    model = stacked.field("model")
    functions = make_functions(stacked, mesh, train_loss=train_loss)
    if data.num_partitions is not None:
        data = with_partition_arrays(data, pad_to_multiple(partition_arrays(data), groups))
    with tracing_for(machine.platform):
        data_shapes = place_data(machine, mesh, data)
        per_run = np.asarray(seeds, np.uint32), stacked.per_run, model.per_run
        *run_shapes, model_shapes = place_runs(machine, mesh, pad_to_multiple(per_run, groups))
        init_arguments = tuple(run_shapes), stacked.shared, data_shapes
        state = place_runs(machine, mesh, jax.eval_shape(functions.init, *init_arguments))
        step_arguments = state, run_shapes[1], stacked.shared, data_shapes
        info = jax.eval_shape(lambda *arguments: functions.step(*arguments, 1)[1], *step_arguments)
    cohort = place_runs(machine, mesh, np.zeros(info.clients.shape[::2], np.int32))
    if stacked.first.is_personalized:
        evaluated = ((state, cohort), run_shapes[1]), stacked.shared
    else:
        seen = RoundState.of_model(state.variables, state.participation)
        evaluated = ((seen, cohort), model_shapes), model.shared
    init = compile_ahead(machine, functions.init, *init_arguments)
    steps = compile_ahead(machine, functions.step, *step_arguments, chunk)
    evaluation = compile_ahead(machine, functions.evaluate, *evaluated, data_shapes)
    compiled = init, steps, evaluation

    needed = [transient_bytes(one.executable) for one in compiled]
    needed[0] -= device_bytes(state)  # The outputs of the initialization are the states.
    memory = Memory(
        data=device_bytes(data_shapes),
        states=device_bytes((state, run_shapes)) - device_bytes(state.models_in_flight),
        in_flight=device_bytes(state.models_in_flight),
        temporaries=max(needed),
        model=array_bytes(stacked.shared),
    )
    records = rounds / chunk * tree_bytes(steps.lowered.out_info[1])
    records += len(evaluated_rounds(rounds, eval_every)) * tree_bytes(evaluation.lowered.out_info)
    costs = steps.executable.cost_analysis()
    return Plan(
        runs=runs,
        rounds=rounds,
        memory=memory.by_purpose(),
        max_parallel_runs=groups * memory.max_runs(-(-runs // groups), _USABLE * machine.memory),
        compile_seconds=sum(one.compile_seconds for one in compiled),
        records=int(records),
        # The loop over the rounds of a chunk counts once, as all loops.
        work=costs and {"flops": costs["flops"], "bytes": costs["bytes accessed"]},
        programs=Programs(*compiled, cohort.shape[-1]),
    )


def compile_ahead(machine: Machine, jitted: Any, *arguments: Any) -> AheadOfTime:
    """Compiles a jitted function for arguments that are shapes on the devices of a machine."""
    started = time.perf_counter()
    with tracing_for(machine.platform):
        traced = jitted.trace(*arguments)
    platform = "cpu" if machine.module is None else _LOWERED.get(machine.platform, machine.platform)
    lowered = traced.lower(lowering_platforms=(platform,))
    executable = lowered.compile()
    return AheadOfTime(lowered, executable, time.perf_counter() - started)


def place(machine: Machine, tree: PyTree) -> PyTree:
    """Returns the shapes of arrays on the first device of a machine."""
    return shapes_on(SingleDeviceSharding(devices_of(machine)[0]), tree)


def place_runs(machine: Machine, mesh: Mesh | None, tree: PyTree) -> PyTree:
    """Returns the shapes of arrays ``[runs, ...]``, split over the groups of a mesh if any."""
    return place(machine, tree) if mesh is None else split_runs(tree, mesh)


def place_data(machine: Machine, mesh: Mesh | None, data: FederatedData) -> FederatedData:
    """Returns the shapes of a federated dataset; call it while tracing for the machine."""
    if mesh is None:
        return map_arrays(data, lambda data: place(machine, to_device_layout(data)))
    return shard_data(data, mesh)


def measure_plan(
    method: Sequence[BaseRound],
    seeds: tuple[int, ...],
    data: FederatedData,
    *,
    rounds: int,
    eval_every: int,
    train_loss: bool,
    mesh: Mesh | None = None,
) -> Plan:
    """Measures two rounds and an evaluation on this machine, after one of each.

    Arguments are as for ``plan``.
    """
    started = time.perf_counter()
    with RunBatch(data, seeds, mesh) as batch:
        options = TrainOptions(rounds, 1, train_loss, "skip_round")
        functions = CompiledRuns(stack_trees(method), batch, options)
        memory = functions.memory()
        compile_seconds = time.perf_counter() - started

        state, init_seconds = _timed(functions.init)
        round_seconds = []
        for _ in range(3):
            (state, info), seconds = _timed(lambda state=state: functions.step(state, 1))
            round_seconds.append(seconds)
        cohort = jax.device_get(info.clients)[:, -1]
        evaluation_seconds = [
            _timed(lambda: functions.evaluate(state, cohort))[1] for _ in range(2)
        ]

    one_round = sum(round_seconds[1:]) / 2
    total = init_seconds + rounds * one_round
    total += len(evaluated_rounds(rounds, eval_every)) * evaluation_seconds[1]
    share = -(-len(seeds) // batch.groups)
    return Plan(
        runs=len(seeds),
        rounds=rounds,
        memory=memory.by_purpose(),
        max_parallel_runs=batch.groups * memory.max_runs(share, free_memory()),
        compile_seconds=compile_seconds,
        seconds={"round": one_round, "evaluation": evaluation_seconds[1], "total": total},
    )


def _timed(call: Callable):
    started = time.perf_counter()
    result = jax.block_until_ready(call())
    return result, time.perf_counter() - started
