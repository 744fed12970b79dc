"""Memory and time of a batch of runs of one method: estimated for a machine, or measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_fair.data.federated import FederatedData, partition_arrays, with_partition_arrays
from fedjax_fair.numerics.target import tracing_for
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.parallel.cores import pad_to_multiple
from fedjax_fair.parallel.mesh import num_run_groups
from fedjax_fair.planning.compilation import Compiled, compile_ahead, place_data, place_runs
from fedjax_fair.planning.costs import Cost
from fedjax_fair.planning.machines import Machine
from fedjax_fair.planning.trip_counts import TripCounts
from fedjax_fair.rounds.base_round import BaseRound
from fedjax_fair.training.batch import RunBatch
from fedjax_fair.training.compiled_functions import CompiledFunctions
from fedjax_fair.training.functions import make_functions
from fedjax_fair.training.memory import Memory, device_bytes, free_memory
from fedjax_fair.training.options import TrainOptions
from fedjax_fair.training.split import split

__all__ = ["Plan", "measure_plan", "plan", "seconds_of"]

# The share of a device's memory that runs may take, as in a sweep; the runtime needs the rest.
_USABLE = 0.9


class Plan(NamedTuple):
    """The memory and time of a batch of runs.

    ``memory`` has bytes of one device by purpose. ``seconds`` are of a ``"round"``, an
    ``"evaluation"`` and in ``"total"``, without compilation. ``records`` are bytes on a separate
    host. ``work`` is the cost of a round, if none was run.
    """

    runs: int
    rounds: int
    memory: dict[str, int]
    max_parallel_runs: int
    seconds: dict[str, float]
    compile_seconds: float
    records: int = 0
    work: Cost | None = None
    unknown_loops: int = 0


def plan(
    machine: Machine,
    methods: Sequence[BaseRound],
    seeds: tuple[int, ...],
    data: FederatedData,
    *,
    rounds: int,
    eval_every: int,
    train_loss: bool,
    mesh: Mesh | None = None,
    local_steps: Callable[[np.ndarray], np.ndarray] = lambda sizes: np.ones_like(sizes),
) -> Plan:
    """Compiles the functions of ``fit_batch`` for a machine, and reads their costs.

    Call ``machines.prepare`` first. Arguments are those of ``fit_batch``, but ``methods`` may have
    one method for all runs. ``local_steps`` maps the sizes of clients to their local steps.
    """
    runs, chunk, groups = len(seeds), min(eval_every, rounds), num_run_groups(mesh)
    method = split(methods)
    model = method.field("model")
    functions = make_functions(method, model, mesh, train_loss=train_loss)
    if data.num_partitions is not None:
        data = with_partition_arrays(data, pad_to_multiple(partition_arrays(data), groups))
    with tracing_for(machine.platform):
        data_shapes = place_data(machine, mesh, data)
        per_run = np.asarray(seeds, np.uint32), method.per_run, model.per_run
        *run_shapes, model_shapes = place_runs(machine, mesh, pad_to_multiple(per_run, groups))
        init_arguments = tuple(run_shapes), method.shared, data_shapes
        state = place_runs(machine, mesh, jax.eval_shape(functions.init, *init_arguments))
        step_arguments = state, run_shapes[1], method.shared, data_shapes
        info = jax.eval_shape(lambda *arguments: functions.step(*arguments, 1)[1], *step_arguments)
    cohort = place_runs(machine, mesh, np.zeros(info.clients.shape[::2], np.int32))
    trip_counts = TripCounts(machine, data, cohort.shape[-1], runs, local_steps, mesh)

    def compile_for(function: Any, *arguments: Any) -> Compiled:
        return compile_ahead(machine, function, *arguments, trip_count_fn=trip_counts.trip_count)

    init = compile_for(functions.init, *init_arguments)
    steps = compile_for(functions.step, *step_arguments, chunk)
    if method.first.is_personalized:
        evaluated = ((state, cohort), run_shapes[1]), method.shared
    else:
        evaluated = ((state.variables, state.participation, cohort), model_shapes), model.shared
    evaluation = compile_for(functions.evaluate, *evaluated, data_shapes)

    compiled = init, steps, evaluation
    # The outputs of the initialization are the states.
    needed = init.temporaries - device_bytes(state), steps.temporaries, evaluation.temporaries
    memory = Memory(
        data=device_bytes(data_shapes),
        states=device_bytes((state, run_shapes)),
        temporaries=max(needed),
    )
    records = rounds / chunk * tree_bytes(steps.results[1])
    records += _num_evaluations(rounds, eval_every) * tree_bytes(evaluation.results)
    work = steps.program.cost.times(1 / chunk)
    loops = [*steps.program.loops, *evaluation.program.loops]
    return Plan(
        runs=runs,
        rounds=rounds,
        memory=memory.by_purpose(),
        max_parallel_runs=groups * memory.max_runs(-(-runs // groups), _USABLE * machine.memory),
        seconds=seconds_of(
            init.seconds, steps.seconds / chunk, evaluation.seconds, rounds, eval_every
        ),
        compile_seconds=sum(one.compile_seconds for one in compiled),
        records=int(records),
        work=work,
        unknown_loops=sum(not loop.known for loop in loops),
    )


def measure_plan(
    methods: Sequence[BaseRound],
    seeds: tuple[int, ...],
    data: FederatedData,
    *,
    rounds: int,
    eval_every: int,
    train_loss: bool,
    mesh: Mesh | None = None,
) -> Plan:
    """Measures two rounds and an evaluation on this machine, after one of each.

    Arguments are those of ``plan``.
    """
    started = time.perf_counter()
    with RunBatch(data, seeds, mesh) as batch:
        options = TrainOptions(rounds, 1, train_loss, "skip_round")
        functions = CompiledFunctions(split(methods), batch, options)
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

    share = -(-len(seeds) // batch.groups)
    return Plan(
        runs=len(seeds),
        rounds=rounds,
        memory=memory.by_purpose(),
        max_parallel_runs=batch.groups * memory.max_runs(share, free_memory()),
        seconds=seconds_of(
            init_seconds, sum(round_seconds[1:]) / 2, evaluation_seconds[1], rounds, eval_every
        ),
        compile_seconds=compile_seconds,
    )


def _timed(call: Callable):
    started = time.perf_counter()
    result = jax.block_until_ready(call())
    return result, time.perf_counter() - started


def seconds_of(
    init: float, round: float, evaluation: float, rounds: int, eval_every: int
) -> dict[str, float]:
    """Returns the seconds of a round, an evaluation and complete runs, from those of one call."""
    total = init + rounds * round + _num_evaluations(rounds, eval_every) * evaluation
    return {"round": round, "evaluation": evaluation, "total": total}


def _num_evaluations(rounds: int, eval_every: int) -> int:
    return 1 + -(-rounds // eval_every)
