"""Do roles with little text fare worse? Next characters of Shakespeare's roles.

    python -m experiments.reproduction.text --data-dir FOLDER

Trains the runs of the preset ``shakespeare`` that the file of runs lacks, then writes the table.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

import fedjax_fair as ff
from experiments.common import (
    append_rows,
    has_rows,
    markdown_table,
    options_of,
    read_rows,
    write_study,
)
from experiments.reproduction import forests
from fedjax_fair.app.build import build
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.usage import drop_unused_settings
from fedjax_fair.metrics import paired
from fedjax_fair.results.formats import format_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONFIG = presets.PRESETS["shakespeare"].config
STEM = "text-shakespeare"
RESAMPLES = 10_000
"""Draws of roles for the intervals over roles."""


def main() -> None:
    parser = options_of("Do roles with little text fare worse?")
    parser.add_argument("--data-dir", help="folder of shakespeare.jsonl.gz")
    options = parser.parse_args()
    file = options.output / f"{STEM}-runs.csv"
    if not options.only_write:
        run_missing(file, options.data_dir)
    write_table(file)


def run_missing(file: Path, data_dir: str | None, config: Any = CONFIG) -> None:
    """Trains missing runs, seed after seed, so that an interruption leaves complete seeds."""
    config = replace(config, data=replace(config.data, dir=data_dir))
    experiment = build(drop_unused_settings(presets.resolve(config)))
    data, training = experiment.data, experiment.config.training
    for seed in training.seeds:
        for name, method in experiment.rounds.items():
            known = read_rows(file)
            if has_rows(known, algorithm=name, seed=seed):
                continue
            started = time.perf_counter()
            run = ff.fit(
                method,
                data,
                rounds=training.rounds or 0,
                eval_every=training.rounds or 1,
                seeds=(seed,),
                train_loss=False,
            ).dataset
            last = run.isel(seed=0, round=-1)
            rows = pd.DataFrame(
                {
                    "algorithm": name,
                    "seed": seed,
                    "role": data.client_names,
                    "characters": last["train_examples"].sum("class"),
                    "test_characters": last["test_examples"].sum("class"),
                    "accuracy": last["test_accuracy"],
                    "loss": last["test_loss"],
                }
            )
            append_rows(known, rows, file)
            print(f"{name}, seed {seed}: {time.perf_counter() - started:.0f} s", flush=True)


def write_table(file: Path) -> None:
    """Writes the table as CSV and Markdown next to the file of runs."""
    table = summarize(pd.read_csv(file))
    figures = {STEM: figure(table)}
    write_study(file.with_name(STEM), table, markdown(table), figures, form="%.4f")


def summarize(runs: pd.DataFrame) -> pd.DataFrame:
    """Computes one row per method, over the seeds that all methods have.

    ``accuracy`` and ``worst`` (the third of roles with the lowest) are in %, ``perplexity`` is
    pooled. ``slope`` is the least-squares slope of a role's accuracy, in points per doubling of its
    training text, ``gap`` the accuracy of the third of roles with most text less that of the third
    with least. Intervals are 95%, over seeds (Student), and of the slope also over roles
    (bootstrap of the mean over seeds).
    """
    names = list(dict.fromkeys(runs["algorithm"]))
    values = {name: _by_role(runs, name, "accuracy") for name in names}
    seeds = sorted(set.intersection(*(set(value.index) for value in values.values())))
    roles = runs.drop_duplicates("role").set_index("role")
    text = np.log2(roles["characters"].to_numpy(float))
    rows, reference = [], None
    for name in names:
        accuracy = 100 * values[name].loc[seeds, list(roles.index)].to_numpy()
        losses = _by_role(runs, name, "loss").loc[seeds, list(roles.index)].to_numpy()
        perplexity = np.exp(np.average(losses, axis=1, weights=roles["test_characters"]))
        third = len(text) // 3
        by_text = np.argsort(text, kind="stable")
        measured = {
            "accuracy": accuracy.mean(axis=1),
            "worst": np.sort(accuracy, axis=1)[:, :third].mean(axis=1),
            "perplexity": perplexity,
            "slope": slopes(text, accuracy),
            "gap": accuracy[:, by_text[-third:]].mean(axis=1)
            - accuracy[:, by_text[:third]].mean(axis=1),
        }
        reference = measured if reference is None else reference
        row: dict[str, object] = {"method": name, "seeds": len(seeds), "roles": len(text)}
        for key, over_seeds in measured.items():
            row |= _interval(key, over_seeds)
            if measured is not reference:
                row |= _interval(f"{key} less {names[0]}", over_seeds - reference[key])
        ends = slope_over_roles(text, accuracy.mean(axis=0))
        rows.append(row | dict(zip(("slope roles low", "slope roles high"), ends, strict=True)))
    return pd.DataFrame(rows)


def _by_role(runs: pd.DataFrame, name: str, column: str) -> pd.DataFrame:
    """Returns a column of a method, one row per seed and one column per role."""
    own: Any = runs[runs["algorithm"] == name]
    return own.pivot(index="seed", columns="role", values=column)


def slopes(text: np.ndarray, accuracy: np.ndarray) -> np.ndarray:
    """Returns the least-squares slope of accuracies ``[..., roles]`` on text ``[..., roles]``."""
    centered = text - text.mean(axis=-1, keepdims=True)
    return (centered * accuracy).sum(axis=-1) / (centered**2).sum(axis=-1)


def slope_over_roles(text: np.ndarray, accuracy: np.ndarray) -> np.ndarray:
    """Returns the 95% percentile bootstrap interval of the slope over roles."""
    draws = np.random.default_rng(0).integers(len(text), size=(RESAMPLES, len(text)))
    return np.percentile(slopes(text[draws], accuracy[draws]), [2.5, 97.5])


def _interval(name: str, values: np.ndarray) -> dict[str, float]:
    if len(values) < 2:
        return {f"{name} low": np.nan, name: values.mean(), f"{name} high": np.nan}
    interval = paired.interval(values.astype(float))
    return {f"{name} low": interval.low, name: interval.mean, f"{name} high": interval.high}


def figure(table: pd.DataFrame) -> Figure:
    """Draws differences to the first method, which have no p values."""
    first, others = table["method"].iloc[0], table.iloc[1:]
    names = {
        "worst": "accuracy of the worst third of roles",
        "slope": "accuracy per doubling of text",
    }
    panels = {
        name: pd.DataFrame({
            "method": others["method"], "difference": others[f"{key} less {first}"],
            "low": others[f"{key} less {first} low"], "high": others[f"{key} less {first} high"],
            "p": np.nan, "seeds": others["seeds"],
        })
        for key, name in names.items()
    }  # fmt: skip
    return forests.draw(panels, first)


def markdown(table: pd.DataFrame) -> str:
    """Formats the table as Markdown."""
    first = table.iloc[0]
    lines = [
        f"{first['seeds']} seeds, {first['roles']} roles; 95% intervals over seeds, of the second",
        "slope over roles. Points are of accuracy.",
        "",
    ]

    def cell(row: dict[str, Any], key: str, form: str) -> str:
        ends = (format_number(row[f"{key} {end}"], form) for end in ("low", "high"))
        return f"{format_number(row[key], form)} ({', '.join(ends)})"

    headings = (
        "method", "accuracy, %", "worst third of roles, %", "perplexity",
        "points per doubling of text", "the same, over roles", "most less least text, points",
    )  # fmt: skip
    rows, less = [], []
    for row in table.to_dict("records"):
        levels = [cell(row, key, ".2f") for key in ("accuracy", "worst", "perplexity", "slope")]
        over_roles = ", ".join(f"{row[f'slope roles {end}']:.2f}" for end in ("low", "high"))
        rows.append([row["method"], *levels, over_roles, cell(row, "gap", ".2f")])
        if row["method"] != first["method"]:
            keys = (f"{key} less {first['method']}" for key in ("accuracy", "worst", "slope"))
            less.append([row["method"], *(cell(row, key, "+.2f") for key in keys)])
    lines += markdown_table(headings, rows)
    headings = "less fedavg, paired by seed", "accuracy", "worst third", "points per doubling"
    lines += ["", *markdown_table(headings, less)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
