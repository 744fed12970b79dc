"""A sweep as one program, as separate processes and as a loop over one compiled run.

    python -m experiments.benchmarks.peers.sweeps

SubTrunc on the digits with ten seeds and eight weights of its bonus. Seconds are those of whole
processes, from start to end, with nothing compiled before. Of the separate ones a few are run and
the rest are taken to last as long. With the name of a program it runs that alone and prints
how much of its time XLA compiled.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_fair as ff
from experiments.benchmarks.timing import CompileTimes, environment, print_header, without_settings
from fedjax_fair.app.build import build
from fedjax_fair.app.config import Config
from fedjax_fair.app.presets import PRESETS, resolve
from fedjax_fair.app.sweep import sweep
from fedjax_fair.evaluation.clients import client_performance
from fedjax_fair.rounds.round import run

SEEDS = range(10)
LAMS = [0.01, 0.05, 0.1, 0.25, 0.5, 0.95, 2.0, 5.0]
SINGLES = 3


def configuration() -> Config:
    config = PRESETS["digits"].config
    # All programs train on all examples.
    return replace(
        config, methods=("subtrunc",), data=replace(config.data, validation_fraction=0.0)
    )


def as_a_sweep() -> None:
    sweep(configuration(), seeds=tuple(SEEDS), lam=LAMS)


def as_one_point() -> None:
    sweep(configuration(), seeds=(0,), lam=[0.5])


def as_a_loop() -> None:
    """One compiled run, with the same evaluations, for each point after the other."""
    config: Any = resolve(configuration())  # Any: once resolved, no number is missing.
    solver, selector, training = config.solver, config.selector, config.training
    data = jax.device_put(build(config).data)
    model = ff.models.mlp(data.num_classes, hidden=config.model.hidden)

    @jax.jit
    def whole_run(key, lam, data):
        round = ff.Round(
            model,
            ff.selectors.SubTrunc(selector.cohort_size, lam, selector.b),
            ff.solvers.SGD(solver.learning_rate, solver.batch_size, epochs=solver.epochs),
            ff.aggregators.Mean(),
        )

        def chunk(state, _):
            state, info = run(round, state, data, training.eval_every)
            return state, (info, client_performance(model, state.variables, data.test))

        chunks = training.rounds // training.eval_every
        return jax.lax.scan(chunk, round.init(key, data), length=chunks)[1]

    for lam in LAMS:
        for seed in SEEDS:
            jax.device_get(whole_run(jax.random.key(seed), jnp.float32(lam), data))


PROGRAMS = {"sweep": as_a_sweep, "loop": as_a_loop, "point": as_one_point}


def seconds_of(program: str) -> float:
    """Wall-clock time of a process of its own."""
    command = [sys.executable, "-m", "experiments.benchmarks.peers.sweeps", program]
    start = time.perf_counter()
    subprocess.run(command, check=True, env=without_settings(), stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def tell_compilation(program: str) -> None:
    """Runs a program here and prints its seconds, and those in which XLA compiled."""
    compiling = CompileTimes()
    start = time.perf_counter()
    PROGRAMS[program]()
    whole = time.perf_counter() - start
    print(f"{program}: {whole:.1f} s, of which compiling {sum(compiling):.1f} s")


def compare(repeats: int) -> dict[str, list[float]]:
    """Seconds of every repetition; of a point, all that were run."""
    seconds: dict[str, list[float]] = {program: [] for program in PROGRAMS}
    for _ in range(repeats):
        for program in PROGRAMS:
            times = SINGLES if program == "point" else 1
            seconds[program] += [seconds_of(program) for _ in range(times)]
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="A sweep beside its points")
    parser.add_argument("program", nargs="?", choices=PROGRAMS, help="run only this")
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    if options.program:
        tell_compilation(options.program)
        return
    print(environment())
    seconds = compare(options.repeats)
    whole, loop, point = (np.median(seconds[name]) for name in ("sweep", "loop", "point"))
    runs = len(SEEDS) * len(LAMS)
    print_header("| s | sweep, times its seconds")
    print(f"| sweep | {whole:.0f} | 1 |")
    print(f"| loop over a compiled run | {loop:.0f} | {whole / loop:.2f} |")
    print(
        f"| {runs} processes of {point:.1f} s | {runs * point:.0f} | {whole / (runs * point):.2f} |"
    )


if __name__ == "__main__":
    main()
