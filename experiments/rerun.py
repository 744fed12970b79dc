"""Repeats final runs of a published benchmark: ``python -m experiments.rerun TRACK``.

Tuning runs are taken from the published ``cells.csv``, except for methods whose round is tuned,
which are tuned again. Final runs are made as by ``fedjax-fair benchmark``, and their accuracies are
compared with the published ones. ``docs/benchmark/rerun.csv`` has the result.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from fedjax_fair import results
from fedjax_fair.app.progress import show_steps
from fedjax_fair.benchmark import cells, runner, tuning, unit
from fedjax_fair.benchmark.federations import FEDERATIONS
from fedjax_fair.benchmark.protocol import TRACKS, VERSION

DOCS = Path(__file__).parents[1] / "docs" / "benchmark"
_NUDGE = 1e-6
"""Above the rounding errors of published values, which can hide which setting was better."""
_TOLERANCE = 1.5e-6
"""Of accuracies, which have six significant digits or more in published files."""
_GROUPS = ("settings", "versions", "validation", "test")


def restore(published: pd.DataFrame, folder: Path, track: str) -> None:
    """Writes the tuning files of units from published runs."""
    units: Any = published.groupby(["federation", "method"], sort=False)
    for (federation, method), own in units:
        if method in unit.TUNED_ROUND:
            continue
        place = unit.Unit(FEDERATIONS[federation], method, _programs(folder, federation, method))
        if (place.folder / "tuning.jsonl").exists():
            continue
        config = unit.configuration(place)
        settings = tuning.settings_of(method, config, TRACKS[track].num_settings)
        index = {cells.settings_hash(federation, method, s): i for i, s in enumerate(settings)}
        runs = own[own["phase"] == "tuning"]
        tuned = _tuned(runs, index, config.training.rounds or 0)
        for criterion, setting in _chosen(own[own["phase"] == "final"], index).items():
            _prefer(tuned, criterion, setting)
        described = {"protocol": VERSION, "federation": federation, "method": method}
        attrs = described | {
            "phase": "tuning",
            "settings": json.dumps(settings),
            "chosen": "{}",
            "data_digest": str(runs["data_digest"].iloc[0]),
        }
        place.folder.mkdir(parents=True, exist_ok=True)
        results.save(tuned.assign_attrs(attrs), place.file("tuning"))
        cells.write(place.folder / "tuning.jsonl", map(_cell, runs.to_dict("records")))


def _programs(folder: Path, federation: str, method: str) -> Path:
    return folder / "programs" / federation / method


def _tuned(runs: Any, index: dict[str, int], round: int) -> xr.Dataset:
    """Returns validation measures of tuning runs after the last round."""
    values = {
        variable: (("run", "round"), runs[[f"validation.{name}"]].to_numpy(float, copy=True))
        for name, variable in unit.VALIDATION.items()
    }
    diverged = np.where(runs["status"] == "ok", -1, 0)
    dataset = xr.Dataset({**values, "diverged": ("run", diverged)}, {"round": [round]})
    settings = [index[digest] for digest in runs["settings_hash"]]
    return dataset.assign_coords(setting=("run", settings), seed=("run", runs["seed"]))


def _chosen(finals: Any, index: dict[str, int]) -> dict[str, int]:
    """Returns the published setting of each criterion."""
    return {
        criterion: index[str(row["settings_hash"])]
        for row in finals.to_dict("records")
        for criterion in json.loads(str(row["criterion"]).replace("'", '"'))
    }


def _prefer(tuned: xr.Dataset, criterion: str, setting: int) -> None:
    """Makes a setting the best one by a criterion, if rounded values have lost that."""
    measure, sign = {
        "mean": ("accuracy", 1), "worst": ("worst_10pct", 1), "fairest": ("standard_deviation", -1)
    }[criterion]  # fmt: skip
    values = tuned[unit.VALIDATION[measure]].values
    values[tuned["setting"].values == setting] += sign * _NUDGE


def _cell(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a cell from its row in ``cells.csv``, without missing values."""
    cell: dict[str, Any] = {}
    for name, value in row.items():
        group, _, key = name.partition(".")
        if pd.isna(value):
            continue
        if key and group in _GROUPS:
            cell.setdefault(group, {})[key] = value
        else:
            cell[name] = value
    return cell


def compare(published: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """Compares final runs of a folder with published ones.

    Returns:
        A row per federated dataset: the number of runs, of those whose test accuracies are equal,
        and the largest difference of an accuracy.
    """
    keys = ["federation", "method", "settings_hash", "seed"]
    finals = published[published["phase"] == "final"]
    own = pd.json_normalize(cells.gather(folder))
    both: Any = finals.merge(own[own["phase"] == "final"], on=keys, suffixes=("", "_own"))
    names = [f"test.{name}" for name in unit.VALIDATION]
    differences = np.abs(
        both[names].to_numpy(float) - both[[f"{name}_own" for name in names]].to_numpy(float)
    ).max(axis=1)
    is_same_data = both["partition_digest"] == both["partition_digest_own"]
    both = both.assign(difference=differences, is_equal=is_same_data & (differences <= _TOLERANCE))
    counted = both.groupby("federation", sort=False).agg(
        runs=("seed", "size"), equal=("is_equal", "sum"), largest_difference=("difference", "max")
    )
    return counted.reset_index()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Repeats final runs of a published benchmark.")
    parser.add_argument("track", choices=list(TRACKS))
    parser.add_argument("--published", type=Path, help="folder of the published report")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/rerun"))
    parser.add_argument("--data-dir")
    parser.add_argument("--federations", nargs="+", default=[])
    parser.add_argument("--methods", nargs="+", default=[])
    options = parser.parse_args(arguments)
    source = options.published or DOCS / options.track
    published: Any = pd.read_csv(source / "cells.csv", dtype={"protocol": str}, low_memory=False)
    for column, chosen in (("federation", options.federations), ("method", options.methods)):
        if chosen:
            published = published[published[column].isin(chosen)]
    folder = options.output / options.track
    restore(published, folder, options.track)
    with show_steps() as show:
        for name, own in published.groupby("federation", sort=False):
            methods = list(dict.fromkeys(own["method"]))
            planned = runner.plan(options.track, folder, methods, [str(name)])
            runner.run(planned, folder, options.data_dir, show=show)
    print(compare(published, folder).to_csv(index=False, float_format="%.2g"), end="")


if __name__ == "__main__":
    main()
