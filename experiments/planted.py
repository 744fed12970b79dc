"""Rates of errors of the benchmark, with known answers: ``python -m experiments.planted``.

FedAvg under the names of ten other methods, in other blocks, is compared with itself: in how many
of 100 repetitions is any of the 20 hypotheses of accuracy and spread rejected? Each repetition
draws its blocks from twice as many. The same with three points less spread of one method. FedAvg on
data that is iid over clients is as accurate as centralized SGD.

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
from fedjax_fair.benchmark.ranking import ORDERS
from fedjax_fair.benchmark.statistics import LEVEL

FILE = Path(__file__).parents[1] / "docs" / "benchmark" / "planted.csv"
REPETITIONS, ALIASES, BLOCKS = 100, 10, 8
REDUCED_SPREAD = {"digits": 0.0, "synthetic": 0.03}
"""Points, as a fraction, by which the spread of the first alias is reduced."""
FIRST_SEEDS = 100_000, 200_000
"""Of blocks that the benchmark does not use."""


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


def finish(name: str, track: protocol.Track, folder: Path) -> list[measures.Final]:
    """Runs what is missing of a benchmark, and returns its final runs."""
    protocol.TRACKS[name] = track
    planned = runner.plan(name, folder / name)
    with show_steps() as show:
        runner.run(planned, folder / name, show=show)
    return list(measures.finals(folder / name))


def aliases(table: pd.DataFrame) -> pd.DataFrame:
    """Compares FedAvg with itself under other names.

    Args:
        table: Table of measures of FedAvg, with ``BLOCKS`` blocks for itself and for each alias, or
            more, of which each repetition draws as many without replacement.

    Returns:
        A row per federation and repetition: ``rejected``, the number of hypotheses with p < .05
        among those without a difference; and ``found``, whether the one with less spread has
        p < .05 and the right sign, if there is one.
    """
    rows = []
    random, seeds = np.random.default_rng(0), np.unique(table["seed"].to_numpy())
    shape = 1 + ALIASES, BLOCKS
    drawn = [random.permutation(seeds)[: np.prod(shape)].reshape(shape) for _ in range(REPETITIONS)]
    for federation, own in table.groupby("federation", sort=False):
        reduced = REDUCED_SPREAD[str(federation)]
        for repetition, of_methods in enumerate(drawn):
            names = ["fedavg", *(f"alias_{i}" for i in range(ALIASES))]
            place = {seed: (names[i], b) for (i, b), seed in np.ndenumerate(of_methods)}
            used = own[own["seed"].isin(list(place))]
            used = used.assign(
                method=[place[seed][0] for seed in used["seed"]],
                seed=[place[seed][1] for seed in used["seed"]],
            )
            used["value"] -= reduced * _is_planted(used)
            compared: Any = verdicts.differences(used, "fedavg")
            compared = compared[compared["family"] == "F2"]
            is_true = _is_planted(compared) & (reduced > 0)
            rows.append(
                {
                    "check": "alias",
                    "federation": federation,
                    "repetition": repetition,
                    "hypotheses": int((~is_true).sum()),
                    "rejected": int((compared["p"][~is_true] < LEVEL).sum()),
                    "found": (compared["verdict"][is_true] == "better").any() if reduced else None,
                }
            )
    return pd.DataFrame(rows)


def _is_planted(rows: Any) -> Any:
    """Returns which rows are of the spread of the first alias."""
    return (rows["method"] == "alias_0") & (rows["measure"] == ORDERS["spread"].measure)


def iid(table: pd.DataFrame) -> pd.DataFrame:
    """Compares FedAvg with centralized SGD on iid data, by accuracy in points."""
    measure, criterion = ORDERS["accuracy"]
    gaps: Any = statistics.differences(table, measure, criterion, "centralized")
    compared = statistics.estimate(gaps).loc[("digits_iid", "fedavg")]
    row = {"check": "iid", "federation": "digits_iid", "repetition": 0}
    return pd.DataFrame([row | (100 * compared[["difference", "low", "high"]]).to_dict()])


def main() -> None:
    parser = argparse.ArgumentParser(description="Checks of the benchmark with known answers.")
    parser.add_argument("--output", default="benchmarks/planted", help="folder of results")
    folder = Path(parser.parse_args().output)
    add_iid_digits()
    number = 2 * (1 + ALIASES) * BLOCKS
    same = protocol.Track(tuple(REDUCED_SPREAD), ("fedavg",), number, first_seeds=FIRST_SEEDS)
    methods = "fedavg", "centralized"
    equal = protocol.Track(("digits_iid",), methods, 2 * BLOCKS, first_seeds=FIRST_SEEDS)
    table = pd.concat(
        [
            aliases(measures.table(finish("alias", same, folder))),
            iid(measures.table(finish("iid", equal, folder))),
        ]
    )
    table.to_csv(FILE, index=False, float_format="%.6g", lineterminator="\n")
    print(
        table.groupby(["check", "federation"])[["rejected", "found"]].agg(lambda c: (c > 0).mean())
    )


if __name__ == "__main__":
    main()
