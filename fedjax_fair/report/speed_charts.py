"""Data of the charts of virtual time on the page of a run, for its script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_fair.results.datasets import is_repeated
from fedjax_fair.results.formats import student

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["AXES", "by_time", "speed"]

AXES = {"virtual_time": "virtual time (s)", "client_seconds": "time of clients (s)"}
"""Variables that charts may have as their axis in place of rounds, and their labels."""

_PLACES = 121
"""Times of a curve; between two of them a line is drawn, although values are steps."""

_MAX_TASKS = 40


def by_time(values: xr.DataArray, times: xr.DataArray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the times and the values of the last evaluations until then, for each method.

    Args:
        values: Over ``algorithm``, ``seed`` and ``round``.
        times: Times of the evaluations, with the same axes. A curve ends with the shortest run.

    Returns:
        Pairs of arrays ``[times]`` and ``[seeds, times]``; empty for a method without time.
    """
    curves = []
    for method, of_method in zip(values.values, times.values, strict=True):
        known = ~np.isnan(of_method)
        if not known.any(axis=1).all():
            curves.append((np.empty(0), np.empty((len(method), 0))))
            continue
        end = min(time[is_known].max() for time, is_known in zip(of_method, known, strict=True))
        at = np.linspace(0, end, _PLACES)
        runs = [
            run[is_known][np.searchsorted(time[is_known], at, side="right") - 1]
            for run, time, is_known in zip(method, of_method, known, strict=True)
        ]
        curves.append((at, np.stack(runs)))
    return curves


def speed(dataset: xr.Dataset) -> dict[str, Any]:
    """Returns names of device classes, and for each method whose results count and when.

    ``class_shares`` has for each class the share of the clients, and means with intervals of the
    shares of results and weights, in percent; ``staleness`` the share of the results of each class
    by staleness; ``tasks`` the first tasks of the first seed, as start, end, class and whether the
    result counts. These are None for a method whose cohorts are those of another entry.
    """
    names = [str(name) for name in dataset["algorithm"].values]
    classes = [str(name) for name in dataset["device_class"].values]
    found: dict[str, Any] = {"classes": classes, "class_shares": [], "staleness": [], "tasks": []}
    for name in names:
        own = dataset.sel(algorithm=name)
        has_cohorts = not is_repeated(name, names) and bool(own["virtual_time"].notnull().any())
        charts = _of_method(own, len(classes)) if has_cohorts else (None, None, None)
        for kind, values in zip(("class_shares", "staleness", "tasks"), charts, strict=True):
            found[kind].append(values)
    return found


def _of_method(own: xr.Dataset, num_classes: int) -> tuple[Any, Any, Any]:
    """Returns the shares, the staleness and the tasks of one method."""
    clients, responded, staleness, starts, ends = (
        own[f"cohort_{name}"].transpose("seed", "training_round", "slot").values
        for name in ("clients", "responded", "staleness", "dispatched", "arrived")
    )
    clients = np.nan_to_num(clients, nan=-1).astype(int)
    of_client = own["device_class_of"].values.astype(int)
    of_client = np.broadcast_to(of_client, (len(clients), of_client.shape[-1]))
    kinds = np.stack([row[run] for row, run in zip(of_client, clients, strict=True)])
    counts = (clients >= 0) & (responded > 0)
    histograms = [_histogram(staleness[counts & (kinds == c)]) for c in range(num_classes)]
    tasks = np.stack([each[0].ravel() for each in (starts, ends, kinds, counts)], axis=1)
    tasks = tasks[(clients[0].ravel() >= 0) & (tasks[:, 1] > tasks[:, 0])]
    first = tasks[np.argsort(tasks[:, 0], kind="stable")][:_MAX_TASKS]
    shares = np.bincount(of_client.ravel(), minlength=num_classes) / of_client.size
    return _shares(own, 100 * shares), histograms, first.tolist()


def _shares(own: xr.Dataset, of_clients: np.ndarray) -> list[list[Any]]:
    """Returns the shares of clients, results and weights of each class, in percent."""
    columns: list[Any] = [of_clients.tolist()]
    for kind in ("participation", "weight"):
        runs = own[f"class_{kind}_share"].transpose("seed", "device_class", "round").values
        # A run without results has no shares.
        last = [run[:, np.flatnonzero(~np.isnan(run).all(axis=0))[-1:]] for run in runs]
        last = [run[:, 0] if run.size else np.full(len(run), np.nan) for run in last]
        intervals = np.stack(student(100 * np.stack(last, axis=1)), axis=1)
        columns.append([[None if np.isnan(v) else float(f"{v:.6g}") for v in row]
                        for row in intervals])  # fmt: skip
    return [list(row) for row in zip(*columns, strict=True)]


def _histogram(staleness: np.ndarray) -> list[list[float]]:
    """Returns each staleness from 0 and its share of the results, in percent."""
    counts = np.bincount(staleness.astype(int))
    shares = 100 * counts / max(staleness.size, 1)
    return [list(range(counts.size)), shares.round(3).tolist()]
