"""What a batch of runs of one method would take on a machine: memory and time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from fedjax_fair.data.federated import FederatedData, partition_arrays, with_partition_arrays
from fedjax_fair.numerics.target import tracing_for
from fedjax_fair.parallel.cores import pad_to_multiple
from fedjax_fair.parallel.mesh import num_run_groups
from fedjax_fair.planning.compilation import Compiled, compile_ahead
from fedjax_fair.planning.machines import Machine
from fedjax_fair.planning.places import bytes_of, federation_on, runs_on
from fedjax_fair.planning.trip_counts import TripCounts
from fedjax_fair.simulate import BaseRound
from fedjax_fair.training.functions import functions
from fedjax_fair.training.split import split

__all__ = ["Plan", "Work", "plan", "total_seconds"]

# Of a device's memory, as a sweep that chooses its batches; the rest is the runtime's.
_USABLE = 0.9


class Work(NamedTuple):
    """What the compiled program of a round consists of.

    Attributes:
        cycles: As a TPU's compiler estimates them; None for other devices.
        kernels: Instructions that a device starts.
        flops: Floating-point operations in products.
        fp32_flops: Those of them that keep the precision of float32.
        bytes: Moved from and to the memory of the device.
        collectives: Instructions that wait for other devices.
        collective_bytes: Bytes that those give, on a device.
        unknown_loops: Loops, with those of an evaluation, whose length is not known; each counts as
            one trip.
    """

    cycles: float | None
    kernels: float
    flops: float
    fp32_flops: float
    bytes: float
    collectives: float
    collective_bytes: float
    unknown_loops: int


class Plan(NamedTuple):
    """What a batch of runs takes.

    Attributes:
        runs: How many, in all.
        rounds: Rounds of each.
        memory: Bytes of one device by what they are for.
        max_parallel_runs: Runs that would fit at once, an estimate from those that were compiled.
        seconds: Of a round, of an evaluation, and of the whole without compiling.
        compile_seconds: Seconds of compiling on the machine at hand.
        records: Bytes that the host keeps of all rounds and evaluations, where that is another.
        work: Of a round, where no round was run.
    """

    runs: int
    rounds: int
    memory: dict[str, int]
    max_parallel_runs: int
    seconds: dict[str, float]
    compile_seconds: float
    records: int = 0
    work: Work | None = None


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
    """Compiles what ``fit_batch`` would run on a machine, and reads what it costs.

    Args:
        machine: From ``machines.find``, after ``machines.prepare``.
        methods: One for all runs, or that of each, as for ``fit_batch``.
        seeds: The seed of each run.
        data: The federation.
        rounds: Rounds of each run.
        eval_every: Rounds between evaluations.
        train_loss: Whether evaluations measure training losses.
        mesh: Of devices of the machine, from ``client_mesh``, or None for the first.
        local_steps: From the sizes of clients to the local steps of each, where these depend on
            them.
    """
    runs, chunk, groups = len(seeds), min(eval_every, rounds), num_run_groups(mesh)
    method = split(methods)
    model = method.of("model")
    parts = functions(method, model, mesh, train_loss=train_loss)
    if data.num_partitions is not None:
        data = with_partition_arrays(data, pad_to_multiple(partition_arrays(data), groups))
    with tracing_for(machine.platform):
        shapes = federation_on(machine, mesh, data)
        filled = pad_to_multiple((np.asarray(seeds, np.uint32), method.own, model.own), groups)
        *own, of_model = runs_on(machine, mesh, filled)
        own, shared = tuple(own), method.shared
        state = runs_on(machine, mesh, jax.eval_shape(parts.init, own, shared, shapes))
    cohorts = _cohorts(machine, parts.step, (state, own[1], shared, shapes))
    cohort = runs_on(machine, mesh, np.zeros(cohorts, np.int32))
    trip_counts = TripCounts(machine, data, cohorts[-1], runs, local_steps, mesh)

    def compile_for(function: Any, *arguments: Any) -> Compiled:
        return compile_ahead(machine, function, *arguments, trip_count_fn=trip_counts.trip_count)

    init = compile_for(parts.init, own, shared, shapes)
    steps = compile_for(parts.step, state, own[1], shared, shapes, chunk)
    measured = (state.variables, state.participation, cohort), of_model
    evaluation = compile_for(parts.evaluate, measured, model.shared, shapes)

    of_data, of_states = bytes_of(shapes), bytes_of((state, own))
    temporaries = max(program.temporaries for program in (init, steps, evaluation))
    evaluations = 1 + -(-rounds // eval_every)
    chunks, measures = _num_bytes(steps.results[1]), _num_bytes(evaluation.results)
    records = rounds / chunk * chunks + evaluations * measures
    each = (of_states + temporaries) / -(-runs // groups)
    seconds = {"round": steps.seconds / chunk, "evaluation": evaluation.seconds}
    seconds["total"] = total_seconds(init.seconds, seconds, rounds, eval_every)
    cost = steps.program.cost.times(1 / chunk)._asdict()
    loops = [*steps.program.loops, *evaluation.program.loops]
    if machine.clock_hz is None:
        cost["cycles"] = None
    return Plan(
        runs=runs,
        rounds=rounds,
        memory={"data": of_data, "states": of_states, "temporaries": temporaries},
        max_parallel_runs=groups * max(0, int((_USABLE * machine.memory - of_data) / each)),
        seconds=seconds,
        compile_seconds=sum(program.compile_seconds for program in (init, steps, evaluation)),
        records=int(records),
        work=Work(**cost, unknown_loops=sum(not loop.known for loop in loops)),
    )


def total_seconds(init: float, seconds: dict[str, float], rounds: int, eval_every: int) -> float:
    """Seconds of runs from their start to their end.

    Args:
        init: Of the initial state.
        seconds: Of a ``"round"`` and of an ``"evaluation"``.
        rounds: How many.
        eval_every: Rounds between evaluations, of which one more comes first.
    """
    evaluations = 1 + -(-rounds // eval_every)
    return init + rounds * seconds["round"] + evaluations * seconds["evaluation"]


def _cohorts(machine: Machine, step: Any, arguments: tuple) -> tuple[int, int]:
    """Runs, and slots of a cohort, which only tracing tells."""
    with tracing_for(machine.platform):
        info = jax.eval_shape(lambda *arguments: step(*arguments, 1)[1], *arguments)
    return info.clients.shape[0], info.clients.shape[-1]


def _num_bytes(tree: PyTree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
