"""Tables of group fairness: differences between groups of people, pooled and per client."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from fedjax_fair.metrics.group_noise import expected_difference
from fedjax_fair.results.datasets import final_metrics
from fedjax_fair.results.intervals import format_mean, format_number
from fedjax_fair.results.people import feature_counts, gaps
from fedjax_fair.utils.terminal import escape_control_chars

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["people_rows", "people_titles"]

HEADINGS = {
    "demographic_parity_difference": "demographic\nparity",
    "equal_opportunity_difference": "equal\nopportunity",
    "equalized_odds_difference": "equalized\nodds",
    "accuracy_parity_difference": "accuracy\nparity",
}
"""Differences in the tables, and their headings."""

NOTE = (
    "In %, differences between groups of people, after the last round; 0 is fair. First line: "
    "pooled people; second: mean over the clients for which it is defined. Noise floor: difference "
    "expected from finite groups if all had equal rates."
)


def people_titles(dataset: xr.Dataset) -> dict[str, tuple[str, ...]]:
    """Returns the features of each table by title: each feature, and all of them together."""
    names = [name for name, _ in json.loads(dataset["sensitive_group"].attrs["features"])]
    sets = [(name,) for name in names] + ([tuple(names)] if len(names) > 1 else [])
    return {
        f"Group fairness by {escape_control_chars(' x '.join(features))}": features
        for features in sets
    }


def people_rows(dataset: xr.Dataset, features: tuple[str, ...]) -> dict[str, list[str]]:
    """Returns a cell per method, and one of the noise floor, by heading.

    Args:
        dataset: Results with the dimension ``algorithm``.
        features: Sensitive features whose combinations are the groups.
    """
    finals = final_metrics(dataset[["accuracy_mean_clients", "sensitive_group_counts"]])
    measured = 100 * gaps(finals, features)
    columns = {}
    for name, heading in HEADINGS.items():
        pooled = measured[name].transpose("algorithm", "seed").values
        clients = measured[f"client_{name}"].transpose("algorithm", "seed", "client").values
        cells = [
            f"{format_mean(runs)}\n{format_mean(_mean(of_clients))}"
            for runs, of_clients in zip(pooled, clients, strict=True)
        ]
        columns[heading] = [*cells, _floor(finals, name, features)]
    return columns


def _floor(finals: xr.Dataset, name: str, features: tuple[str, ...]) -> str:
    """Returns the noise floors of pooled people and of clients, mean over methods and seeds."""
    counts = feature_counts(finals, features).transpose("algorithm", "seed", "client", ...).values
    pooled, clients = [], []
    for run in counts.reshape(-1, *counts.shape[2:]):
        if np.isnan(run).any() or not run.sum():
            continue
        people = run.round().astype(np.int64)
        together = people.sum(axis=0)
        pooled.append(float(expected_difference(name, together, draws=50)))
        clients.append(float(_mean(expected_difference(name, people, draws=50))))
    return "\n".join(
        format_number(100 * float(_mean(np.array(values))), ".1f").strip("-")
        for values in (pooled, clients)
    )


def _mean(values: np.ndarray) -> np.ndarray:
    """Averages over the last axis, without NaN; NaN if there is nothing else."""
    known = ~np.isnan(values)
    total, number = np.where(known, values, 0).sum(axis=-1), known.sum(axis=-1)
    return np.divide(total, number, out=np.full(total.shape, np.nan), where=number > 0)
