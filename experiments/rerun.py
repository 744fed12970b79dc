"""Repeats final runs of a published benchmark: ``python -m experiments.rerun TRACK``.

Each run has its published settings and seed. Accuracies are compared with the published ones. The
result is the file of ``--output``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedjax_fair.app.terminal.progress import show_steps
from fedjax_fair.benchmark import runner, unit
from fedjax_fair.benchmark.federations import variables_of
from fedjax_fair.benchmark.protocol import TRACKS, Track
from fedjax_fair.benchmark.train import Run, train
from fedjax_fair.results.files import write_text
from fedjax_fair.utils import checks

DOCS = Path(__file__).parents[1] / "docs" / "benchmark"
_TOLERANCE = 1.5e-6
"""Of accuracies, which have six significant digits or more in published files."""


def repeat(place: unit.Unit, track: Track, data: unit.BenchmarkInput, published: Any) -> Any:
    """Trains the final runs of a unit again.

    Args:
        place: The unit.
        track: The track.
        data: The federated dataset.
        published: Rows of the runs in ``cells.csv``.

    Returns:
        The rows with ``difference``, the largest of an accuracy, and ``is_equal``.
    """
    config, final = unit.configuration(place), data.phases["final"]
    of_settings = published.filter(regex="^settings[.]")
    settings = [row.dropna().to_dict() for _, row in of_settings.iterrows()]
    settings = [
        {name.removeprefix("settings."): value for name, value in values.items()}
        for values in settings
    ]
    rounds = unit.make_rounds(place, config, settings, data.phases)
    size = 1 if track.one_run_at_a_time else track.num_blocks
    parts = []
    for first in range(0, len(published), size):
        runs = [Run(i, int(published["seed"].iloc[i])) for i in range(len(published))]
        runs = runs[first : first + size]
        seeds = dict.fromkeys(run.seed for run in runs)
        own = final.of_runs([track.final_seeds.index(seed) for seed in seeds])
        trained = train(config, rounds, runs, own, track.adapt_steps, padding=size)
        found = unit.measures_of(trained, variables_of(place.federation.quantity))
        rows = published.iloc[first : first + size]
        gaps = [np.abs(rows[f"test.{name}"] - values) for name, values in found.items()]
        digests = final.partition_digests
        is_same = [
            rows["partition_digest"].iloc[i] == digests[track.final_seeds.index(run.seed)]
            for i, run in enumerate(runs)
        ]
        largest = np.max(gaps, axis=0)
        parts.append(rows.assign(difference=largest, is_equal=is_same & (largest <= _TOLERANCE)))
    return pd.concat(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Repeats final runs of a published benchmark.")
    parser.add_argument("track", choices=list(TRACKS))
    parser.add_argument("--published", type=Path, help="folder of the published report")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/rerun.csv"))
    parser.add_argument("--data-dir")
    parser.add_argument("--federations", nargs="+", default=[])
    parser.add_argument("--methods", nargs="+", default=[])
    options = parser.parse_args(arguments)
    source = options.published or DOCS / options.track
    published: Any = pd.read_csv(source / "cells.csv", dtype={"protocol": str}, low_memory=False)
    for column, chosen in (("federation", options.federations), ("method", options.methods)):
        for name in chosen:
            checks.one_of(f"{column}s", name, tuple(published[column].unique()))
        if chosen:
            published = published[published[column].isin(chosen)]
    finals, track, parts = published[published["phase"] == "final"], TRACKS[options.track], []
    with show_steps() as show:
        for federation, of_dataset in finals.groupby("federation", sort=False):
            data = None
            for method, own in of_dataset.groupby("method", sort=False):
                planned = runner.plan(options.track, Path(), [str(method)], [str(federation)])
                (place,) = planned.units
                data = data or runner.load(place, track, options.data_dir)
                parts.append(repeat(place, track, data, own))
                show(f"{federation}, {method}: {parts[-1]['is_equal'].mean():.0%} equal")
    found = pd.concat(parts).groupby("federation", sort=False)
    counted = found.agg(
        runs=("seed", "size"), equal=("is_equal", "sum"), largest_difference=("difference", "max")
    )
    text = counted.reset_index().to_csv(index=False, float_format="%.2g")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write_text(options.output, text)
    print(text, end="")


if __name__ == "__main__":
    main()
