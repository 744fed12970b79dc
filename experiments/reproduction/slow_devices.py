"""Accuracy on slow and fast devices by asynchronous training, at equal virtual time.

    python -m experiments.reproduction.slow_devices

Tunes every method on validation examples, trains what the files of runs lack, then writes the
tables. docs/reproduction/slow-devices.md states the protocol.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits

import fedjax_fair as ff
from experiments.common import append_rows, has_rows, options_of, read_rows
from experiments.reproduction.runs import federate
from experiments.reproduction.slow_devices_results import write_tables
from fedjax_fair.data import FederatedData
from fedjax_fair.roles import Aggregator
from fedjax_fair.timing import ClientTimes

SECONDS = 600.0
"""Virtual time at which methods are compared."""
CLIENTS, BUFFER = 20, 5
LOW_DIGITS, NUM_LOW = (0, 1, 2, 3), 8
"""The first clients hold these digits, the others hold the remaining ones."""
SLOW = {"correlated": tuple(range(8)), "independent": (0, 1, 2, 8, 9, 10, 11, 12)}
"""Clients with slow devices: all that hold the low digits; or two fifths of each kind."""
SPEEDS = {
    "device_class": ["fast", "slow"],
    "share": [0.6, 0.4],
    "seconds_per_example": [0.01, 0.05],
    "seconds_per_task": [1.0, 1.0],
}
JITTER = 0.3
NUM_RESPONSES, DEADLINES = 15, (8.0, 12.0, 24.0)
"""Over-selection: 20 clients start, the first 15 results within the deadline count."""
RATES = (0.01, 0.04, 0.16, 0.64)
"""Step sizes of methods with a setting of their own, of which they try three values."""
MORE_RATES = tuple(np.geomspace(RATES[0], RATES[-1], 12).round(4).tolist())
"""As many settings for methods without one."""
STEPS = (0.5, 1.0, 2.0)
TUNING_SEEDS, SEEDS = tuple(range(1590, 1596)), tuple(range(1600, 1620))
TEST_FRACTION = 0.3


class Method(NamedTuple):
    """A method of the study.

    Attributes:
        aggregator: Function of the own setting.
        own: Values of the own setting; none for methods without one.
        buffer_size: Results for an update; 0 for synchronous rounds.
    """

    aggregator: Callable[[Any], Aggregator]
    own: tuple[float, ...] = ()
    buffer_size: int = BUFFER

    @property
    def settings(self) -> list[tuple[float, float]]:
        """Step sizes and own settings to try; the latter is NaN without one."""
        return list(product(RATES, self.own) if self.own else product(MORE_RATES, (np.nan,)))


def _fed_buff(exponent: float, step: float) -> Aggregator:
    return ff.aggregators.FedBuff(step, ff.aggregators.Polynomial(exponent))


OVER_SELECTION = "fedavg, over-selection"
METHODS = {
    "fedavg": Method(lambda _: ff.aggregators.Mean(), buffer_size=0),
    OVER_SELECTION: Method(lambda _: ff.aggregators.Mean(), DEADLINES, buffer_size=0),
    "fedasync": Method(lambda mixing: ff.aggregators.FedAsync(mixing), (0.2, 0.4, 0.8), 1),
    "fedbuff": Method(partial(_fed_buff, 0.5), STEPS),
    "fedbuff, exponent 0": Method(partial(_fed_buff, 0.0), STEPS),
    "ca2fl": Method(lambda step: ff.aggregators.CA2FL(step), STEPS),
    "fed_stale_weight": Method(lambda step: ff.aggregators.FedStaleWeight(step), STEPS),
    "fed_stale_weight, exact": Method(
        lambda step: ff.aggregators.FedStaleWeight(step, exact=True), STEPS
    ),
    "area": Method(lambda _: ff.aggregators.AREA()),
}


def main() -> None:
    parser = options_of("Whom does asynchronous training serve?")
    parser.add_argument("--only", nargs="*", choices=METHODS, default=list(METHODS))
    options = parser.parse_args()
    files = [options.output / f"slow-devices-{part}.csv" for part in ("tuning", "runs")]
    if not options.only_write:
        for speeds, name in product(SLOW, options.only):
            run(speeds, name, files[0], METHODS[name].settings, TUNING_SEEDS)
            run(speeds, name, files[1], [best_setting(read_rows(files[0]), speeds, name)], SEEDS)
    write_tables(files[1])


def best_setting(tuning: Any, speeds: str, name: str) -> tuple[float, float]:
    """Returns the setting with the highest mean validation accuracy over clients and seeds."""
    rows = tuning[(tuning["speeds"] == speeds) & (tuning["algorithm"] == name)]
    means = rows.groupby(["learning_rate", "own"], dropna=False)["validation"].mean()
    return means.idxmax()


def run(
    speeds: str, name: str, file: Path, settings: list[tuple[float, float]], seeds: Sequence[int]
) -> None:
    """Trains a method with all settings and seeds in one batch, unless the file has it."""
    known = read_rows(file)
    if has_rows(known, speeds=speeds, algorithm=name):
        return
    started = time.perf_counter()
    runs = pd.DataFrame(
        [(*setting, seed) for setting in settings for seed in seeds],
        columns=pd.Index(["learning_rate", "own", "seed"]),
    )
    done = train(speeds, name, runs)
    rows = pd.concat([runs, done], axis=1)
    rows.insert(0, "algorithm", name)
    rows.insert(0, "speeds", speeds)
    append_rows(known, rows, file, digits=6)
    print(f"{speeds}, {name}, {len(runs)} runs: {time.perf_counter() - started:.0f} s", flush=True)


def train(speeds: str, name: str, runs: Any, seconds: float = SECONDS) -> pd.DataFrame:
    """Trains a method, one run for each row of step size, own setting and seed.

    Returns:
        Measures of the last evaluations at or before ``seconds``, in the order of the rows.
    """
    times, method = times_of(speeds), METHODS[name]
    is_final = tuple(runs["seed"].unique()) == SEEDS
    data = ff.data.stack([partition(seed, is_final) for seed in runs["seed"]])
    arrivals = CLIENTS * seconds  # No task is shorter than a second.
    results = ff.fit(
        [
            make_round(method, times, rate, own, data.num_classes)
            for rate, own in zip(runs["learning_rate"], runs["own"], strict=True)
        ],
        data,
        rounds=int(arrivals / (method.buffer_size or CLIENTS)),
        seeds=runs["seed"].tolist(),
        eval_every=max(1, 60 // method.buffer_size) if method.buffer_size else 1,
        train_loss=False,
        until_seconds=seconds,
    ).dataset
    last = (results["virtual_time"] <= seconds).sum("round") - 1
    at_end = results.isel(round=last)
    if not is_final:
        return pd.DataFrame({"validation": at_end["validation_accuracy_mean_clients"].values})
    metrics = ff.metrics.speed.summarize(results).isel(round=last)
    accuracy, time = results["class_device_accuracy"], results["virtual_time"]
    late = accuracy.where((time > seconds / 2) & (time <= seconds)).mean("round")
    by_class = {
        "accuracy": at_end["class_device_accuracy"],
        "late_accuracy": late,
        "share": metrics["class_participation_share"],
        "weight": metrics["class_weight_share"],
        "staleness": metrics["class_staleness_mean"],
    }
    of_run = {
        "results": at_end["participation"].sum("client"),
        "client_seconds": at_end["client_seconds"],
        "seconds": at_end["virtual_time"],
    }
    columns = {
        f"{name}_{kind}": values.sel(device_class=kind)
        for name, values in by_class.items()
        for kind in ("slow", "fast")
    }
    return pd.DataFrame({name: values.values for name, values in (columns | of_run).items()})


def times_of(speeds: str) -> ClientTimes:
    """Returns the times of the clients, slow for those of `SLOW`."""
    slow = np.isin(np.arange(CLIENTS), SLOW[speeds]).astype(int)
    return ff.timing.from_table(SPEEDS, CLIENTS, assign=slow).replace(jitter=JITTER)


def make_round(
    method: Method, times: ClientTimes, rate: float, own: float, num_classes: int
) -> ff.Round:
    """Returns the round of a method; clients start again as soon as they have finished."""
    if method.buffer_size:
        schedule = ff.schedules.Asynchronous(times, buffer_size=method.buffer_size)
    elif method.own:
        schedule = ff.schedules.Synchronous(times, num_responses=NUM_RESPONSES, deadline=own)
    else:
        schedule = ff.schedules.Synchronous(times)
    return ff.Round(
        ff.models.mlp(num_classes, hidden=(64,)),
        ff.selectors.Full(),
        ff.solvers.SGD(rate, batch_size=10, epochs=5),
        method.aggregator(own),
        schedule=schedule,
    )


def partition(seed: int, is_final: bool) -> FederatedData:
    """Returns clients with 90 or 89 images of digits 0 to 3, or of 4 to 9, drawn by the seed.

    Final runs do not train on the validation examples either.
    """
    pixels, labels = load_digits(return_X_y=True)
    rng, is_low = np.random.default_rng(seed), np.isin(labels, LOW_DIGITS)
    clients = [
        client
        for of_kind, size in ((is_low, NUM_LOW), (~is_low, CLIENTS - NUM_LOW))
        for client in np.array_split(rng.permutation(np.flatnonzero(of_kind)), size)
    ]
    parts = [np.split(client, [int(len(client) * TEST_FRACTION)]) for client in clients]
    test, train = zip(*parts, strict=True)
    features = (pixels / 16).astype(np.float32)
    data = federate(features, labels, train, test, seed, name="digits", num_classes=10)
    return data._replace(validation=None) if is_final else data


if __name__ == "__main__":
    main()
