"""Costs of compiled functions on accelerators: ``python -m experiments.benchmarks.accelerators``.

Nothing is run. The compiler of a TPU estimates the cycles of every operation, which rank
implementations of the same computation; they are no times. For a GPU kernels and bytes are counted,
and the time is a lower bound from the device's peaks. Compilers are in separate environments
(0.5 GB for TPUs, 6 GB for CUDA), created by the first call. Compiling a chunk of rounds takes
minutes.

A local step, a round and a chunk are those of all participants. A loop of unknown length counts
once, and the number of such loops is printed. On several devices, figures are those of a device
with a single batch of participants; the last columns are the sums over devices, how long they take,
and the time of replicated work in a round.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

from experiments.benchmarks.accelerators.choices import CHOICES
from experiments.benchmarks.accelerators.costs import Cost
from experiments.benchmarks.accelerators.estimates import rates_of, roofline_seconds
from experiments.benchmarks.accelerators.workloads import FORMS, ROUNDS, WORKLOADS
from experiments.benchmarks.peers.environment import environment
from experiments.benchmarks.timing import without_settings
from fedjax_fair.planning import machines
from fedjax_fair.planning.machines import Machine

FOLDER = Path(__file__).parent
COLUMNS = {"gpu": ("kernels", 1, "kernels"), "tpu": ("cycles", 1e6, "millions of cycles")}
"""Reported cost of a platform's programs, its unit, and the name of the unit."""


def answer(python: Path, target: str, name: str, form: str) -> dict[str, Any]:
    """Returns the compiler's estimates of a workload in a form."""
    done = subprocess.run(
        [python, "-m", "experiments.benchmarks.accelerators.one", target, name, form],
        env=without_settings(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description="Programs compiled for accelerators")
    parser.add_argument("--target", default="v5e:1x1", help=machines.NAMES)
    every = [*WORKLOADS, *CHOICES]
    parser.add_argument("--only", nargs="*", choices=every, default=every)
    parser.add_argument("--forms", nargs="*", choices=FORMS, default=list(FORMS))
    parser.add_argument("--dearest", action="store_true", help="print the dearest operations")
    parser.add_argument("--cache", type=Path, default=Path(".cache/accelerators"))
    options = parser.parse_args()
    machine = machines.find(options.target)
    requirements = FOLDER / ("cuda.txt" if machine.platform == "gpu" else "tpu.txt")
    python = environment(requirements, options.cache.resolve())
    unit = COLUMNS[machine.platform][-1]
    print(", ".join(requirements.read_text().split()), f"for {machine.name}, {unit}")
    print("| | form | step | round | rest of a round | chunk beyond rounds | ms a round |", end="")
    print(" products, 1e9 | moved, MB | bound, ms | arguments, MiB | temporaries, MiB |", end="")
    print(" loops of unknown length | compiled in, s |", end="")
    several = " collectives a round | bytes given | waiting, us | not divided, us |"
    print(several if machine.num_devices > 1 else "")
    print("|---" * (18 if machine.num_devices > 1 else 14) + "|")
    for name in options.only:
        for form in ("ours",) if name in CHOICES else options.forms:
            row(machine, name, form, estimates := answer(python, machine.name, name, form))
            for seconds, runs, text, origin in estimates["dearest"] if options.dearest else ():
                print(f"  {seconds * 1e6:.3g} us x {runs}: {text} {origin}")


def row(machine: Machine, name: str, form: str, estimates: dict[str, Any]) -> None:
    """Prints a row of the table; the bound is the roofline of a round, or of an evaluation."""
    key, unit, _ = COLUMNS[machine.platform]
    costs = estimates["costs"]

    def shown(count: float | None) -> str:
        return "" if count is None else f"{count / unit:.3g}"

    whole, round, step = (cost and cost[key] for cost in costs.values())
    rest = entry = None
    if round is not None:
        entry = whole - ROUNDS * round
        rest = step and round - estimates["steps_a_round"] * step
    one, rounds = (costs["whole"], 1) if round is None else (costs["round"], ROUNDS)
    bound = roofline_seconds(rates_of(machine), Cost(**one))
    cells = [shown(step), shown(one[key]), shown(rest), shown(entry)]
    cells += [f"{each:.3g}" for each in (1e3 * estimates["seconds"] / rounds, one["flops"] / 1e9)]
    cells += [f"{each:.3g}" for each in (one["bytes"] / 1e6, 1e3 * bound)]
    cells += [f"{estimates[kind] / 2**20:,.0f}" for kind in ("arguments", "temporaries")]
    cells += [str(estimates["unknown_loops"]), f"{estimates['compile_seconds']:.0f}"]
    if machine.num_devices > 1:
        cells += [f"{one['collectives']:g}", f"{one['collective_bytes']:,}"]
        cells += [f"{1e6 * estimates[kind] / rounds:.3g}" for kind in ("waiting", "not_divided")]
    print(f"| {name} | {form} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
