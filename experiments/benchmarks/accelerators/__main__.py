"""What programs cost on accelerators: ``python -m experiments.benchmarks.accelerators``.

Nothing is run: the compiler of the device says what it made. That of a TPU writes an estimate of
cycles behind every operation, which ranks forms of the same computation; it is no time. It comes in
an environment of its own (0.5 GB), made at the first call. Compiling a chunk of rounds takes
minutes.

A local step, a round and the whole of a chunk are those of all members of the cohort together. A
loop whose length the program does not say counts once, and the number of such loops is printed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

from experiments.benchmarks.accelerators.workloads import FORMS, WORKLOADS
from experiments.benchmarks.peers.environment import environment
from experiments.benchmarks.timing import without_settings

REQUIREMENTS = Path(__file__).parent / "tpu.txt"
# The compiler must not look for a machine, and several processes may use it at once.
SETTINGS = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def answer(python: Path, name: str, form: str) -> dict[str, Any]:
    """What the compiler says of a workload in a form."""
    done = subprocess.run(
        [python, "-m", "experiments.benchmarks.accelerators.compiled", name, form],
        env=without_settings() | SETTINGS,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description="Programs compiled for one chip of a TPU v5e")
    parser.add_argument("--only", nargs="*", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--forms", nargs="*", choices=FORMS, default=list(FORMS))
    parser.add_argument("--dearest", action="store_true", help="print the dearest operations")
    parser.add_argument("--cache", type=Path, default=Path(".cache/accelerators"))
    options = parser.parse_args()
    python = environment(REQUIREMENTS, options.cache.resolve())
    print(", ".join(REQUIREMENTS.read_text().split()), "on a v5e chip, millions of cycles")
    print("| | form | step | round | rest of a round | chunk beyond rounds |", end="")
    print(" arguments, MiB | temporaries, MiB | loops of unknown length | compiled in, s |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in options.only:
        for form in options.forms:
            row(name, form, said := answer(python, name, form))
            for cycles, runs, text, origin in said["dearest"] if options.dearest else ():
                print(f"  {cycles:,} x {runs}: {text} {origin}")


def row(name: str, form: str, said: dict[str, Any]) -> None:
    """Prints a row of the table."""

    def millions(cycles: float | None) -> str:
        return "" if cycles is None else f"{cycles / 1e6:.3g}"

    rest = None
    if said["step"] is not None and said["round"] is not None:
        rest = said["round"] - said["steps_a_round"] * said["step"]
    cells = [millions(said["step"]), millions(said["round"] or said["cycles"]), millions(rest)]
    cells += [millions(said["entry"])]
    cells += [f"{said[kind] / 2**20:,.0f}" for kind in ("arguments", "temporaries")]
    cells += [str(said["unknown_loops"]), f"{said['seconds']:.0f}"]
    print(f"| {name} | {form} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
