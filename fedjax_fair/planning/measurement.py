"""What a batch of runs would take on the machine at hand, from two rounds of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import jax
from jax.sharding import Mesh

from fedjax_fair.data.federated import FederatedData
from fedjax_fair.planning.plan import Plan, total_seconds
from fedjax_fair.simulate import BaseRound
from fedjax_fair.training.batch import RunBatch
from fedjax_fair.training.compiled_functions import CompiledFunctions
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
    free: int,
    mesh: Mesh | None = None,
) -> Plan:
    """Runs three rounds, and two evaluations, of which the first of each is not counted.

    Args:
        methods: One for all runs, or that of each, as for ``fit_batch``.
        seeds: The seed of each run.
        data: The federation.
        rounds: Rounds of each run.
        eval_every: Rounds between evaluations.
        train_loss: Whether evaluations measure training losses.
        free: Bytes that runs may take.
        mesh: Devices or cores.
    """
    started = time.perf_counter()
    with RunBatch(data, seeds, mesh) as batch:
        programs = CompiledFunctions(split(methods), batch, 1, train_loss)
        needed = programs.num_bytes(rounds)
        compile_seconds = time.perf_counter() - started

        state, of_init = _timed(programs.init)
        (state, info), _ = _timed(lambda: programs.step(state, 1))
        spent = 0.0
        for _ in range(2):
            (state, info), took = _timed(lambda own=state: programs.step(own, 1))
            spent += took
        cohort = jax.device_get(info.clients)[:, -1]
        _timed(lambda: programs.evaluate(state, cohort))
        _, of_evaluation = _timed(lambda: programs.evaluate(state, cohort))

    of_data = programs.shared_bytes
    needed -= of_data
    seconds = {"round": spent / 2, "evaluation": of_evaluation}
    seconds["total"] = total_seconds(of_init, seconds, rounds, eval_every)
    return Plan(
        runs=len(seeds),
        rounds=rounds,
        memory={"data": of_data, "runs": needed},
        max_parallel_runs=max(0, (free - of_data) * len(seeds) // needed),
        seconds=seconds,
        compile_seconds=compile_seconds,
    )


def _timed(call: Callable):
    started = time.perf_counter()
    result = jax.block_until_ready(call())
    return result, time.perf_counter() - started
