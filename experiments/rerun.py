"""Repeats final runs of a published benchmark: ``python -m experiments.rerun TRACK``.

Tuning runs are taken from the published ``cells.csv``, except for methods whose round is tuned,
which are tuned again. Final runs are made as by ``fedjax-fair benchmark``, and their accuracies are
compared with the published ones. The result is ``rerun.csv`` in the folder of ``--output``.
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
from fedjax_fair.benchmark.measure_table import direction
from fedjax_fair.benchmark.protocol import CRITERIA, TRACKS, VERSION
from fedjax_fair.results.files import write_text
from fedjax_fair.utils import checks

DOCS = Path(__file__).parents[1] / "docs" / "benchmark"
_NUDGE = 1e-6
"""Above the rounding errors of published values, which can hide which setting was better."""
_TOLERANCE = 1.5e-6
"""Of accuracies, which have six significant digits or more in published files."""
_MEASURES: dict[str, str] = dict(zip(CRITERIA, tuning.MEASURES, strict=True))
"""Measures that are best for the chosen setting, by criterion."""
_GROUPS = ("settings", "versions", "validation", "test")


def restore(published: pd.DataFrame, folder: Path, track: str) -> None:
    """Writes the tuning files of units from published runs."""
    units: Any = published.groupby(["federation", "method"], sort=False)
    for (federation, method), own in units:
        if method in unit.TUNED_ROUND:
            continue
        (place,) = runner.plan(track, folder, [method], [federation]).units
        if (place.folder / "tuning.jsonl").exists():
            continue
        config = unit.configuration(place)
        settings = tuning.settings_of(method, config, TRACKS[track].num_settings)
        index = {cells.settings_hash(federation, method, s): i for i, s in enumerate(settings)}
        runs = own[own["phase"] == "tuning"]
        runs = runs.assign(place=runs["settings_hash"].map(index))
        runs = runs.sort_values(["place", "seed"], ignore_index=True)
        if not runs["place"].value_counts(sort=False).eq(len(TRACKS[track].tuning_seeds)).all():
            raise ValueError(f"{method} on {federation}: expected all tuning runs once.")
        tuned = _tuned(runs, config.training.rounds or 0)
        _check_choices(place, tuned, _chosen(own[own["phase"] == "final"], index), len(settings))
        described = {"protocol": VERSION, "federation": federation, "method": method}
        attrs = described | {
            "phase": "tuning",
            "settings": json.dumps(settings),
            "chosen": "{}",
            "data_digest": str(runs["data_digest"].iloc[0]),
        }
        place.folder.mkdir(parents=True, exist_ok=True)
        results.save(tuned.assign_attrs(attrs), place.file("tuning"))
        cells.write(
            place.folder / "tuning.jsonl", map(_cell, runs.drop(columns="place").to_dict("records"))
        )


def _tuned(runs: Any, round: int) -> xr.Dataset:
    """Returns validation measures of tuning runs after the last round."""
    values = {
        variable: (("run", "round"), runs[[f"validation.{name}"]].to_numpy(float, copy=True))
        for name, variable in unit.VALIDATION.items()
    }
    diverged = np.where(runs["status"] == "ok", -1, 0)
    dataset = xr.Dataset({**values, "diverged": ("run", diverged)}, {"round": [round]})
    return dataset.assign_coords(setting=("run", runs["place"]), seed=("run", runs["seed"]))


def _chosen(finals: Any, index: dict[str, int]) -> dict[str, int]:
    """Returns the published setting of each criterion."""
    return {
        criterion: index[str(row["settings_hash"])]
        for row in finals.to_dict("records")
        for criterion in json.loads(str(row["criterion"]).replace("'", '"'))
    }


def _check_choices(
    place: unit.Unit, tuned: xr.Dataset, published: dict[str, int], num_settings: int
) -> None:
    """Prefers published settings where rounded values are equal.

    Raises:
        ValueError: If other settings than the published ones are chosen.
    """
    for _ in range(2):
        chosen = unit.choose(tuned, place.method, num_settings)
        wrong = [name for name, choice in chosen.items() if published[name] != choice.setting]
        for criterion in wrong:
            measure = _MEASURES[criterion]
            values = tuned[unit.VALIDATION[measure]].values
            is_published = tuned["setting"].values == published[criterion]
            values[is_published] += direction(measure) * _NUDGE
        if not wrong:
            return
    raise ValueError(
        f"{place.method} on {place.federation.name}: expected the published settings of "
        f"{', '.join(wrong)} to be the best of its tuning runs."
    )


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
        A row per federated dataset: the number of published runs, of those whose test accuracies
        after the last round are equal, and the largest difference of an accuracy. A run that is
        missing is not equal.
    """
    keys = ["federation", "method", "settings_hash", "seed"]
    finals = published[published["phase"] == "final"]
    names = [f"test.{name}" for name in unit.VALIDATION]
    own: Any = pd.json_normalize(cells.gather(folder))
    own = own[own["phase"] == "final"][[*keys, "partition_digest", *names]]
    both: Any = finals.merge(own, on=keys, how="left", suffixes=("", "_own"))
    pairs = [both[columns].to_numpy(float) for columns in (names, [f"{n}_own" for n in names])]
    differences = np.abs(pairs[0] - pairs[1]).max(axis=1)
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
        for name in chosen:
            checks.one_of(f"{column}s", name, tuple(published[column].unique()))
        if chosen:
            published = published[published[column].isin(chosen)]
    folder = options.output / options.track
    restore(published, folder, options.track)
    with show_steps() as show:
        for name, own in published.groupby("federation", sort=False):
            methods = list(dict.fromkeys(own["method"]))
            planned = runner.plan(options.track, folder, methods, [str(name)])
            runner.run(planned, folder, options.data_dir, show=show)
    found = compare(published, folder).to_csv(index=False, float_format="%.2g")
    write_text(options.output / "rerun.csv", found)
    print(found, end="")


if __name__ == "__main__":
    main()
