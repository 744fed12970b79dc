"""Time and memory of the benchmark by federated dataset, for the estimate of ``--dry-run``.

    python -m experiments.benchmarks.benchmark_costs --data-dir FOLDER

Each figure is measured in a new process without a compilation cache: the time of four methods, and
the memory of as many as are kept compiled at a time, with two rounds, on whose number memory does
not depend. For datasets of the track large, plans have the memory of a run on another device, and
``accelerators.estimates`` lower bounds of the time of all runs. What the file has is kept.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Int

from experiments.benchmarks.accelerators.estimates import seconds_of_runs
from experiments.benchmarks.timing import in_new_process
from experiments.common import append_rows, has_rows, read_rows
from fedjax_fair.app.devices import mesh_of
from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.named_methods import resolve_method
from fedjax_fair.benchmark import runner, tuning
from fedjax_fair.benchmark.federations import FEDERATIONS, Federation
from fedjax_fair.benchmark.protocol import SETTINGS, TRACKS
from fedjax_fair.benchmark.unit import configuration, is_done, make_rounds
from fedjax_fair.planning import machines
from fedjax_fair.planning.plan import plan

TIMED = ("fedavg", "divfl", "scaffold", "ditto")
KEPT = (
    *TIMED,
    *("centralized", "local_converged", "fine_tuned", "unionfl", "equitable", "fedrep"),
    *("q_fedavg", "scaffold+fedadam"),
)
"""Twelve methods; among them are the largest states: gradients, control variates and models of all
clients."""

PLANNED_FOR = "h200"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", help="folder of the standard track's datasets")
    parser.add_argument("--output", type=Path, default=Path("fedjax_fair/benchmark/costs.csv"))
    options = parser.parse_args()
    for track, chosen in TRACKS.items():
        for name in (*chosen.federations, *chosen.variants):
            if FEDERATIONS[name].variant_of is not None:
                continue
            known = read_rows(options.output)
            if has_rows(known, federation=name):
                continue
            arguments = track, name, options.data_dir
            if chosen.one_run_at_a_time:
                row = in_new_process(plan_all, *arguments)
            else:
                row = {
                    "seconds": in_new_process(seconds_per_method, *arguments),
                    "gigabytes": in_new_process(gigabytes, *arguments),
                    "planned_for": "",
                }
            row = {"federation": name, **row}
            append_rows(known, pd.DataFrame([row]), options.output, digits=3)
            print(row, flush=True)


def seconds_per_method(track: str, name: str, data_dir: str | None) -> float:
    """Returns the mean time of a method, compilation included."""
    with tempfile.TemporaryDirectory() as folder:
        planned = runner.plan(track, Path(folder), TIMED, [name])
        started = time.perf_counter()
        run(planned, Path(folder), data_dir)
        return (time.perf_counter() - started) / len(TIMED)


def gigabytes(track: str, name: str, data_dir: str | None) -> float:
    """Returns the largest memory of this process."""
    with tempfile.TemporaryDirectory() as folder:
        planned = runner.plan(track, Path(folder), KEPT, [name])
        units = [unit._replace(federation=shortened(unit.federation)) for unit in planned.units]
        run(planned._replace(units=units), Path(folder), data_dir)
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kibibytes * 1024 / 1e9


def plan_all(track: str, name: str, data_dir: str | None) -> dict[str, Any]:
    """Returns the mean time of a method, the memory of the one that needs most, and the device."""
    machine = machines.find(PLANNED_FOR)
    machines.prepare(machine)
    planned = runner.plan(track, Path(), federations=[name])
    seeds = [of_phase[0] for of_phase in planned.track.seeds.values()]
    loaded = planned.units[0].federation.load(data_dir, seeds)
    data = {phase: loaded.of_runs([i]) for i, phase in enumerate(planned.track.seeds)}
    # With one window; criteria that choose the same setting share its final runs.
    num_runs = (2 + SETTINGS) * planned.track.num_blocks
    seconds, needed = [], []
    for unit in planned.units:
        config = configuration(unit)
        ranges = resolve_method(config, unit.method)[0].ranges
        settings = tuning.range_settings(ranges, planned.track.num_blocks)
        mesh, seen = mesh_of(1, machines.devices_of(machine)), data["tuning"].seen
        eval_every = config.training.eval_every or 1
        made = plan(
            machine,
            make_rounds(unit, config, settings[:1], data),
            (0,),
            seen,
            rounds=config.training.rounds or 0,
            eval_every=eval_every,
            train_loss=False,
            mesh=mesh,
        )
        steps = partial(local_steps, config, unit.method)
        one_run = seconds_of_runs(machine, made, seen, steps, eval_every, mesh)
        seconds.append(num_runs * one_run)
        needed.append(sum(made.memory.values()) / 1e9)
        print(unit.method, made._replace(programs=None), one_run, flush=True)
        if not made.max_parallel_runs:
            raise RuntimeError(f"{unit.method}: a run does not fit on {machine.name}.")
    mean = sum(seconds) / len(seconds)
    return {"seconds": mean, "gigabytes": max(needed), "planned_for": machine.name}


def local_steps(
    config: Config, name: str, sizes: Int[np.ndarray, " clients"]
) -> Int[np.ndarray, " clients"]:
    """Returns the local steps of clients of some sizes.

    Examples:
        >>> from fedjax_fair.app.settings import presets
        >>> config = presets.resolve(Config())
        >>> local_steps(config, "fedavg:batch_size=20,epochs=2", np.array([5, 41])).tolist()
        [2, 6]
    """
    method, own = resolve_method(config, name)
    if own.solver.epochs is None:
        return np.full_like(sizes, own.solver.steps)
    if method.centralized_fn is not None:
        sizes = np.sum(sizes, keepdims=True)
    return own.solver.epochs * -(-sizes // own.solver.batch_size)


def shortened(federation: Federation) -> Federation:
    training = replace(federation.config.training, rounds=2, eval_every=2)
    return federation._replace(config=replace(federation.config, training=training))


def run(planned: runner.Plan, folder: Path, data_dir: str | None) -> None:
    runner.run(planned, folder, data_dir)
    if not all(is_done(unit) for unit in planned.units):
        raise RuntimeError(str(runner.failures(runner.failed_units(folder))))


if __name__ == "__main__":
    main()
