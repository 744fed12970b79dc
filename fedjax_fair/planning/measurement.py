"""Memory and time of a batch of runs on this machine, measured in a few rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import jax
from jax.sharding import Mesh

from fedjax_fair.data.federated import FederatedData
from fedjax_fair.planning.plan import Plan, seconds_of
from fedjax_fair.simulate import BaseRound
from fedjax_fair.training.batch import RunBatch
from fedjax_fair.training.compiled_functions import CompiledFunctions
from fedjax_fair.training.memory import free_memory
from fedjax_fair.training.options import TrainOptions
from fedjax_fair.training.split import split

__all__ = ["measure_plan"]


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
    """Measures two rounds and an evaluation, after one of each. Arguments are those of ``plan``."""
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
