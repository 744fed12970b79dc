"""Startup times: ``python -m experiments.benchmarks.startup``.

* The import of the package, beyond that of JAX.
* ``fit`` of LeNet on 100 clients with 480 images of 28 x 28 (120 more to test), until its functions
  are compiled, and until they are read from a cache; and until it returns, after one round and two
  evaluations.
* ``fedjax-fair run``, the first command of the README, with an empty and a full cache, and the same
  of other checkouts with ``--against FOLDER ...``.

Processor time divided by the number of cores is a lower bound. So are tracing and lowering, which
are Python and use one thread. Each measurement is a new process; medians, in turn.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from experiments.benchmarks.timing import run_python, start, without_settings

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


RUN = "from fedjax_fair.app.cli import program; program()"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=("fit", "run"), default=("fit", "run"))
    parser.add_argument("--against", nargs="*", type=Path, default=())
    options = start(parser)
    if "fit" in options.only:
        benchmark_fit(options.repeats)
    if "run" in options.only:
        benchmark_run(options.repeats, [Path.cwd(), *options.against])


def benchmark_run(repeats: int, checkouts: list[Path]) -> None:
    """Times the command of each checkout, with an empty and a full cache."""
    names = ("empty cache", "full cache")
    waits: dict[tuple[Path, str], list[float]] = {}
    works: dict[tuple[Path, str], list[float]] = {}
    for _ in range(repeats):
        for checkout in checkouts:
            with tempfile.TemporaryDirectory() as folder:
                for name in names:
                    environment = without_settings(
                        JAX_COMPILATION_CACHE_DIR=f"{folder}/programs",
                        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
                        PYTHONPATH=str(checkout),
                    )
                    command = [sys.executable, "-c", RUN, "run", "--output", f"{folder}/{name}"]
                    started, worked = time.perf_counter(), _of_processors()
                    subprocess.run(
                        command, cwd=folder, env=environment, capture_output=True, check=True
                    )
                    seconds = time.perf_counter() - started
                    waits.setdefault((checkout, name), []).append(seconds)
                    works.setdefault((checkout, name), []).append(_of_processors() - worked)
    for (checkout, name), seconds in waits.items():
        ratio = np.median(np.divide(seconds, waits[checkouts[0], name]))
        print(
            f"fedjax-fair run, {name:20s} {np.median(seconds):6.1f} s (least {min(seconds):.1f}), "
            f"{np.median(works[checkout, name]):.1f} s of processors, "
            f"{ratio:.2f} times the first: {checkout.name}"
        )


def _of_processors() -> float:
    """Returns the processor seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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
