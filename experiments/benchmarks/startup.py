"""Startup times: ``python -m experiments.benchmarks.startup``.

* The import of the package, beyond that of JAX.
* ``fit`` of LeNet on 100 clients with 480 images of 28 x 28 (120 more to test), until its functions
  are compiled, and until they are read from a cache; and until it returns, after one round and two
  evaluations.
* ``fedjax-fair run groups`` and the first Python program of the README, with an empty and a full
  cache, and the same of other checkouts with ``--against FOLDER ...``: seconds until the end
  (``wall``), of processors (``total``, ``imports``, ``drawing``), of tracing with lowering, and of
  compiling or loading programs; numbers of programs and modules; memory. ``startup.csv`` keeps the
  rows, so that a change that adds a program is seen.

Processor time divided by the number of cores is a lower bound. So are tracing and lowering, which
are Python and use one thread. Each measurement is a new process; medians, in turn.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.benchmarks.timing import environment, run_parts, run_python, without_settings

IMPORTS = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
FIRST_ROUND = """
import jax
import numpy as np
import time
import fedjax_fair as ff
rng = np.random.default_rng(0)
images = rng.integers(0, 256, (60_000, 28, 28, 1), dtype=np.uint8)
labels = rng.integers(0, 10, 60_000).astype(np.int32)
data = ff.data.from_arrays(images, labels, np.split(np.arange(60_000), 100))
method = ff.Round(
    ff.models.lenet(10), ff.selectors.Uniform(10),
    ff.solvers.SGD(0.1, 50, steps=20), ff.aggregators.Mean(),
)
traced = []
def keep(name, seconds, **_):
    if name.endswith(("jaxpr_trace_duration", "jaxpr_to_mlir_module_duration")):
        traced.append(seconds)
jax.monitoring.register_event_duration_secs_listener(keep)
class Ready(ff.Callback):
    def on_compiled(self, num_bytes):
        print(time.perf_counter() - started)
        print(time.process_time() - worked)
        print(sum(traced))
started, worked = time.perf_counter(), time.process_time()
ff.fit(method, data, rounds=1, eval_every=1, train_loss=False, callbacks=[Ready()])
print(time.perf_counter() - started)
"""


# Threads of XLA compile and train at once, so that times of compilations are not of processors.
MEASURED = """
import atexit, json, resource, sys, time
from jax import monitoring
seconds = dict.fromkeys(("tracing", "compiling"), 0.0)
programs, loaded, drawn = [], [], []
def keep(name, duration, **_):
    if name.endswith(("jaxpr_trace_duration", "jaxpr_to_mlir_module_duration")):
        seconds["tracing"] += duration
    if name.endswith("backend_compile_duration"):
        seconds["compiling"] += duration
        programs.append(name)
monitoring.register_event_duration_secs_listener(keep)
monitoring.register_event_listener(lambda name, **_: "/cache_hits" in name and loaded.append(name))
def timed(draw):
    def call(*arguments):
        started = time.process_time()
        draw(*arguments)
        drawn.append(time.process_time() - started)
    return call
def report():
    used = resource.getrusage(resource.RUSAGE_SELF)
    print("measured", json.dumps({
        "imports": imports, **seconds, "drawing": sum(drawn), "total": time.process_time(),
        "compiled": len(programs) - len(loaded), "loaded": len(loaded),
        "modules": len(sys.modules), "peak_mib": used.ru_maxrss // 1024,
    }))
atexit.register(report)
"""
COMMAND = """
from fedjax_fair.app import experiment
from fedjax_fair.app.cli import program
imports, experiment.draw = time.process_time(), timed(experiment.draw)
program()
"""
IN_PYTHON = """
import fedjax_fair as ff
imports = time.process_time()
ff.enable_compilation_cache()
"""
COLUMNS = (
    "wall", "total", "imports", "tracing", "compiling", "drawing",
    "compiled", "loaded", "modules", "peak_mib",
)  # fmt: skip
HISTORY = Path(__file__).with_suffix(".csv")


def main() -> None:
    parts = {"fit": lambda options: benchmark_fit(options.repeats), "run": compare_checkouts}
    run_parts(__doc__, parts, repeats=5, against=())


def compare_checkouts(options) -> None:
    """Measures this checkout and others, prints the table and adds it to the history."""
    table = benchmark_run(options.repeats, [Path.cwd(), *map(Path, options.against)])
    print(table.drop(columns=["date", "machine"]).to_string(index=False))
    with HISTORY.open("a") as history:
        table.to_csv(history, index=False, header=not history.tell())


def benchmark_run(repeats: int, checkouts: Sequence[Path]) -> pd.DataFrame:
    """Measures the command and the program of each checkout, with an empty and a full cache.

    Returns:
        Medians, one row per checkout, program and cache.
    """
    rows: dict[tuple[Path, str, str], list[dict[str, float]]] = {}
    for _ in range(repeats):
        for checkout in checkouts:
            programs = {"run groups": COMMAND, "README": IN_PYTHON + readme_program(checkout)}
            for name, program in programs.items():
                with tempfile.TemporaryDirectory() as folder:
                    for cache in ("empty", "full"):
                        measured = _measure(MEASURED + program, name.split(), checkout, folder)
                        rows.setdefault((checkout, name, cache), []).append(measured)
    return pd.DataFrame(
        {
            "date": time.strftime("%Y-%m-%d"),
            "commit": _commit(checkout),
            "machine": environment(),
            "program": name,
            "cache": cache,
            **{key: round(float(np.median([one[key] for one in found])), 2) for key in COLUMNS},
        }
        for (checkout, name, cache), found in rows.items()
    )


def readme_program(checkout: Path) -> str:
    """Returns the first Python program of the README."""
    found = re.search(r"```python\n(.*?)```", (checkout / "README.md").read_text(), re.DOTALL)
    assert found
    return found[1]


def parse(printed: str) -> dict[str, float]:
    """Reads the measurements from what a process printed.

    Raises:
        ValueError: If it printed none.
    """
    lines = [line for line in printed.splitlines() if line.startswith("measured {")]
    if not lines:
        raise ValueError(f"expected a line of measurements, got {printed[-300:]!r}.")
    return json.loads(lines[-1].removeprefix("measured "))


def _measure(
    program: str, arguments: Sequence[str], checkout: Path, folder: str
) -> dict[str, float]:
    settings = without_settings(
        JAX_COMPILATION_CACHE_DIR=f"{folder}/programs",
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        PYTHONPATH=str(checkout),
    )
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder, env=settings, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {"wall": time.perf_counter() - started, **parse(done.stdout)}


def _commit(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def benchmark_fit(repeats: int) -> None:
    """Times imports, and ``fit`` until its functions are ready."""
    with tempfile.TemporaryDirectory() as folder:
        cached = {
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        run_python("-c", FIRST_ROUND, **cached)
        waits: dict[str, list[float]] = {}
        for _ in range(repeats):
            for names, program, settings in (
                (["import jax"], IMPORTS.format("jax"), {}),
                (["import jax, then fedjax_fair"], IMPORTS.format("jax, fedjax_fair"), {}),
                (_names("empty cache"), FIRST_ROUND, {}),
                (_names("full cache"), FIRST_ROUND, cached),
            ):
                lines = run_python("-c", program, **settings)
                for name, seconds in zip(names, map(float, lines), strict=True):
                    waits.setdefault(name, []).append(seconds)
    for name, seconds in waits.items():
        print(f"{name:40s} {np.median(seconds):6.2f} s (least {min(seconds):.2f})")


def _names(programs: str) -> list[str]:
    """Returns the names of the values that ``FIRST_ROUND`` prints."""
    own = ("", ", of processors", ", tracing and lowering")
    return [*(programs + one for one in own), f"fit, {programs}"]


if __name__ == "__main__":
    main()
