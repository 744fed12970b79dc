"""Checks of the benchmark with known answers: ``python -m experiments.planted``.

- The same method under two names, with other seeds: it is not separated from itself, in twenty
  repetitions. The method is FedAvg with the step size in the middle of the range.
- FedAvg on data that is iid over clients is as accurate as centralized SGD, both tuned.

Results are written to ``docs/benchmark/planted.csv``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedjax_fair import data
from fedjax_fair.app.terminal.progress import show_steps
from fedjax_fair.benchmark import measures, protocol, runner, statistics, verdicts
from fedjax_fair.benchmark.federations import FEDERATIONS

FILE = Path(__file__).parents[1] / "docs" / "benchmark" / "planted.csv"
REPETITIONS, SEEDS = 20, 16
FIRST_SEED = 1000
TRACKS = {
    "alias": protocol.Track(
        ("digits", "synthetic", "groups"),
        ("fedavg",),
        num_settings=1,
        tuning_seeds=(0,),
        final_seeds=tuple(range(FIRST_SEED, FIRST_SEED + 2 * REPETITIONS * SEEDS)),
    ),
    "iid": protocol.Track(
        ("digits_iid",),
        ("fedavg", "centralized"),
        final_seeds=tuple(range(FIRST_SEED, FIRST_SEED + SEEDS)),
    ),
}


def add_iid_digits() -> None:
    """Adds the federated dataset ``digits_iid``, with as many clients as ``digits``."""
    digits = FEDERATIONS["digits"]

    def pool(data_dir: str | None):
        whole = digits.pool(data_dir)
        iid = data.iid(20)
        clients = whole.clients._replace(
            split=lambda examples, seed: iid.split(whole.labels[examples], seed)
        )
        return whole._replace(clients=clients)

    FEDERATIONS["digits_iid"] = digits._replace(name="digits_iid", pool=pool)


def finish(name: str, folder: Path) -> list[measures.Final]:
    """Runs what is missing of a benchmark, and returns its final runs."""
    protocol.TRACKS[name] = TRACKS[name]
    planned = runner.plan(name, folder / name)
    with show_steps() as show:
        runner.run(planned, folder / name, show=show)
    return list(measures.finals(folder / name))


def aliases(found: list[measures.Final]) -> pd.DataFrame:
    """Compares FedAvg with itself: a row per repetition, with the verdict over all datasets."""
    whole: Any = measures.table([final for final in found if final.criterion == "mean"])
    constants = measures.constants(found)
    rows = []
    for repetition in range(REPETITIONS):
        first = FIRST_SEED + 2 * repetition * SEEDS
        names = {"fedavg": first, "alias": first + SEEDS}
        parts = [
            whole[whole["seed"].between(start, start + SEEDS - 1)].assign(
                method=name, seed=lambda part, start=start: part["seed"] - start
            )
            for name, start in names.items()
        ]
        table = statistics.replace_diverged(pd.concat(parts), constants)
        judged: Any = verdicts.primary(verdicts.evidence(table, ["alias"], "fedavg"))
        accuracy: Any = statistics.overall(table, "accuracy", "fedavg", "mean")
        judged = judged[judged["scope"] == statistics.OVERALL].iloc[0]
        rows.append(
            {
                "check": "alias",
                "repetition": repetition,
                "difference": -judged["gain"],
                "low": -judged["high"],
                "high": -judged["low"],
                "is_separated": judged["verdict"] != verdicts.NO_VERDICT,
                "accuracy_difference": accuracy["difference"].iloc[0],
                "accuracy_is_separated": bool(accuracy["is_separated"].iloc[0]),
            }
        )
    return pd.DataFrame(rows)


def iid(found: list[measures.Final]) -> pd.DataFrame:
    """Compares FedAvg with centralized SGD on iid data, by accuracy in points."""
    compared: Any = statistics.compare(measures.table(found), "accuracy", "centralized", "mean")
    row = compared.set_index("method").loc["fedavg"]
    return pd.DataFrame(
        [
            {
                "check": "iid",
                "repetition": 0,
                "difference": 100 * row["difference"],
                "low": 100 * row["low"],
                "high": 100 * row["high"],
                "is_separated": bool(row["is_significant"]),
                "accuracy_difference": np.nan,
                "accuracy_is_separated": bool(row["is_significant"]),
            }
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Checks of the benchmark with known answers.")
    parser.add_argument("--output", default="benchmarks/planted", help="folder of results")
    folder = Path(parser.parse_args().output)
    add_iid_digits()
    table = pd.concat([aliases(finish("alias", folder)), iid(finish("iid", folder))])
    table.to_csv(FILE, index=False, float_format="%.6g", lineterminator="\n")
    print(table.to_string(index=False))


if __name__ == "__main__":
    main()
