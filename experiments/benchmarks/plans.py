"""Accuracy of plans: ``python -m experiments.benchmarks.plans``.

Plans each method of a preset for this machine, from three of its rounds, runs it, and prints both
times without compilation. Repeated in alternation; medians.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

from experiments.benchmarks.timing import print_header, start
from fedjax_fair.app.dry_run import plans
from fedjax_fair.app.run_groups import groups_of, runs_of
from fedjax_fair.app.settings import presets
from fedjax_fair.training.fit import fit
from fedjax_fair.training.loop import Callback


class Timed(Callback):
    """Measures from the first round to the last evaluation."""

    seconds = 0.0

    def on_compiled(self, num_bytes: int) -> None:
        """Starts the clock."""
        self.started = time.perf_counter()

    def on_end(self, results: Any) -> None:
        """Stops it."""
        self.seconds = time.perf_counter() - self.started


def main() -> None:
    about, choices = "Plans for this machine, compared with runs", {"preset": presets.PRESETS}
    options = start(about, choices, preset="digits", repeats=3)
    config = presets.resolve(presets.PRESETS[options.preset].config)
    training: Any = config.training
    print_header("| planned, s | took, s | took / planned")
    for group in groups_of(config):
        planned, took = [], []
        for _ in range(options.repeats):
            ((_, found),) = plans([group], None, group.mesh, train_loss=True)
            planned.append((found.seconds or {})["total"])
            timed = Timed()
            run = partial(fit, **runs_of(group, range(len(group.runs))))
            run(
                rounds=training.rounds,
                eval_every=training.eval_every,
                callbacks=[timed],
                mesh=group.mesh,
            )
            took.append(timed.seconds)
        ratio = statistics.median(b / a for a, b in zip(planned, took, strict=True))
        middle = [statistics.median(each) for each in (planned, took)]
        print(f"| {group.name} | {middle[0]:.2f} | {middle[1]:.2f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
