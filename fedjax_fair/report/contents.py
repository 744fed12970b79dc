"""Data of the charts on the page of a run, for its script, in the units of tables.

Means and 95% intervals over seeds are computed here. The script only draws.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_fair.report import drawing
from fedjax_fair.results import task_metrics
from fedjax_fair.results.datasets import at_common_time, class_names, has_client_names, is_repeated
from fedjax_fair.results.formats import student
from fedjax_fair.results.task_metrics import primary

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["contents", "curve_of"]

_MAX_VALUES = 1_200_000
"""Values and cohort members of single clients on a page: 3.2 MB, two bytes each in base64."""

_TIME_AXES = {"virtual_time": "virtual time (s)", "client_seconds": "time of clients (s)"}
"""Variables that charts may have as their axis in place of rounds, and their labels."""

_MAX_CLIENTS = 1000
_MAX_TASKS = 40
_MISSING = 65535
_SEEDS = ("seed", "round")

Curve = list[list[float | None]]


def contents(dataset: xr.Dataset, floors: np.ndarray) -> dict[str, Any]:
    """Collects the data of all charts, with curves ``[rounds, means, lows, highs]`` per method.

    ``floors`` are the noise floors of the dissimilarity.
    """
    quantity = primary(dataset)
    level = _in_unit(dataset, quantity.mean, _SEEDS)
    later = level.where(level["round"] > 0, drop=True)  # Methods are equal before training.
    if later.sizes["round"] < 2:
        later = level
    spread = _in_unit(dataset, quantity.dissimilarity, _SEEDS)
    unit = task_metrics.unit(dataset, quantity.mean)
    numbers: dict[str, Any] = {
        "methods": [str(name) for name in dataset["algorithm"].values],
        "quantity": {
            "name": quantity.heading,
            "better": quantity.better,
            "unit": unit,
            "difference": "points" if unit == "%" else unit,
            "digits": task_metrics.digits(dataset, quantity.mean),
        },
        "level": _curves(level),
        "dissimilarity": _curves(spread),
        "floor": _numbers(100 * floors),
        "participation": _participation(dataset),
        "clients": _clients(dataset),
        "start": drawing.first_difference(later),
    }
    last = at_common_time(dataset)
    pairs = (
        _curves(_in_unit(last, name, _SEEDS)) for name in (quantity.dissimilarity, quantity.mean)
    )
    numbers["tradeoff"] = [
        [[column[-1] for column in curve[1:]] if curve[0] else None for curve in pair]
        for pair in zip(*pairs, strict=True)
    ]
    over_time: dict[str, Any] = {"level": level, "dissimilarity": spread}
    if drawing.is_known(dataset, quantity.group):
        groups = _in_unit(dataset, quantity.group, ("planted_group", *_SEEDS))
        over_time["groups"] = groups.transpose("planted_group", ...)
        numbers["groups"] = [_curves(group) for group in over_time["groups"]]
    if "virtual_time" in dataset:
        numbers["times"] = {
            name: {"label": label} | {kind: _curves_by(dataset, values, name)
                                      for kind, values in over_time.items()}
            for name, label in _TIME_AXES.items()
        }  # fmt: skip
        of_class = f"class_device_{quantity.name}"
        classes = _in_unit(dataset, of_class, ("device_class", *_SEEDS))
        classes = classes.transpose("device_class", ...)
        numbers["class_speed"] = _curves_by(dataset, classes, "virtual_time")
        numbers |= _speed(dataset)
    if "aggregation_nmi" in dataset:
        agreement = drawing.mean_so_far(dataset, "aggregation_nmi")
        numbers["cluster_agreement"] = [
            None if np.isnan(runs).all() else curve_of(agreement["training_round"].values, runs)
            for runs in agreement.values
        ]
    return numbers


def _in_unit(dataset: xr.Dataset, name: str, dims: tuple[str, ...]) -> xr.DataArray:
    """Returns a variable as `drawing.by_method`, in the unit of tables; NaN if it is missing."""
    if name in dataset:
        return drawing.to_percent(drawing.by_method(dataset, name, dims))
    return np.nan * drawing.by_method(dataset, primary(dataset).mean, dims)


def _curves(values: xr.DataArray) -> list[Curve]:
    """The curve of each method."""
    return [curve_of(values["round"].values, runs) for runs in values.values]


def _curves_by(dataset: xr.Dataset, values: xr.DataArray, clock: str) -> list[Any]:
    """The curve of each method against a time; of values over classes, a list for each class."""
    if values.ndim == 4:
        return [_curves_by(dataset, each, clock) for each in values]
    times = drawing.by_method(dataset, clock, _SEEDS)
    return [curve_of(at, runs) for at, runs in drawing.by_time(values, times)]


def curve_of(places: np.ndarray, runs: np.ndarray) -> Curve:
    """Returns places, means and interval ends of ``runs`` (``[seeds, places]``) without NaN."""
    measured = ~np.isnan(runs).any(axis=0)
    return [places[measured].tolist(), *map(_numbers, student(runs[:, measured].T))]


def _numbers(values: np.ndarray) -> list[float | None]:
    """Rounded values; JSON has no NaN."""
    return [None if np.isnan(value) else float(f"{value:.6g}") for value in values]


def _participation(dataset: xr.Dataset) -> list[dict[str, Any] | None]:
    """Share of rounds in which clients trained, the most frequent of each seed first."""
    summaries: list[dict[str, Any] | None] = []
    names = [str(name) for name in dataset["algorithm"].values]
    participation = drawing.by_method(dataset, "participation", ("seed", "round", "client"))
    for counts, cohorts in zip(participation, _responders(dataset), strict=True):
        last = counts.dropna("round", how="all").isel(round=-1)
        # Centralized training has no cohorts.
        if not last.any() or is_repeated(str(counts["algorithm"].values), names):
            summaries.append(None)
            continue
        num_rounds = max(int(last["round"]), 1)
        rounds = np.stack([_num_rounds(run[:num_rounds], last.shape[1]) for run in cohorts])
        shares = 100 * np.sort(rounds, axis=1)[:, ::-1] / num_rounds
        places = np.linspace(0, 100, shares.shape[1])
        shown = np.linspace(0, 100, min(shares.shape[1], 201))
        curves = np.stack([np.interp(shown, places, run) for run in shares], axis=1)
        summaries.append(
            {
                "share": [_numbers(shown), *map(_numbers, student(curves))],
                "never": round(float(100 * (last == 0).mean()), 1),
                "gini": _numbers(np.asarray(student(drawing.gini_indices(last.values)))),
            }
        )
    return summaries


def _responders(dataset: xr.Dataset) -> np.ndarray:
    """Clients whose result has arrived, ``[methods, seeds, rounds, slots]``; -1 for others."""
    dims = ("seed", "training_round", "slot")
    cohorts = drawing.by_method(dataset, "cohort_clients", dims).values
    if "cohort_responded" in dataset:
        responded = drawing.by_method(dataset, "cohort_responded", dims).values > 0
        cohorts = np.where(responded, cohorts, -1)
    return np.nan_to_num(cohorts, nan=-1).astype(int)


def _num_rounds(cohorts: np.ndarray, num_clients: int) -> np.ndarray:
    """Number of rounds in which each client trained, in one slot or several."""
    rounds, slots = np.nonzero(cohorts >= 0)
    places = np.unique(rounds * num_clients + cohorts[rounds, slots])
    return np.bincount(places % num_clients, minlength=num_clients)


def _clients(dataset: xr.Dataset) -> dict[str, Any]:
    """Values and cohorts of as many clients, seeds and evaluations as fit on a page."""
    measured = _in_unit(dataset, primary(dataset).client, ("seed", "round", "client"))
    cohorts = drawing.by_method(dataset, "cohort_clients", ("seed", "training_round", "slot"))
    methods, num_seeds, evaluations, num_clients = measured.shape
    ids = np.unique(np.linspace(0, num_clients - 1, min(num_clients, _MAX_CLIENTS)).astype(int))
    members = methods * cohorts.sizes["training_round"] * cohorts.sizes["slot"]
    seeds = int(np.clip(_MAX_VALUES // (methods * evaluations * ids.size + members), 1, num_seeds))
    room = max(2, (_MAX_VALUES - seeds * members) // (seeds * methods * ids.size))
    shown = np.unique(np.linspace(0, evaluations - 1, min(room, evaluations)).astype(int))
    # Members of cohorts by their place among the clients shown; NaN for others and empty slots.
    place = np.full(num_clients + 1, np.nan)
    place[ids] = np.arange(ids.size)
    trained = np.nan_to_num(cohorts.values[:, :seeds], nan=-1).astype(int)
    trained = place[np.where(trained < 0, num_clients, trained)]

    def per_seed(name: str) -> np.ndarray:
        """Returns ``[runs, clients, ...]``; one run if the partition is the same in all."""
        values = dataset[name]
        values = values if "seed" in values.dims else values.expand_dims("seed")
        return values.transpose("seed", "client", ...).values[:seeds, ids].astype(int)

    values = measured.values[:, :seeds, shown][..., ids]
    low, per_unit = 0.0, 100.0
    if not drawing.is_percent(measured):
        ends = np.append(values[np.isfinite(values)], 0.0)
        low, high = float(ends.min()), float(ends.max())
        per_unit = (_MISSING - 1) / ((high - low) or 1.0)
    return {
        "total": num_clients,
        "ids": ids.tolist(),
        "names": dataset["client"].values[ids].tolist() if has_client_names(dataset) else None,
        "seeds": dataset["seed"].values[:seeds].tolist(),
        "allSeeds": num_seeds,
        "rounds": dataset["round"].values[shown].tolist(),
        "measured": _packed((values - low) * per_unit),
        "low": low,
        "perUnit": per_unit,
        "label": drawing.label(measured),
        "classNames": class_names(dataset),
        "hasClasses": dataset.sizes["class"] > 1,
        "cohorts": list(cohorts.shape[2:]),
        "trained": _packed(trained),
        "classes": [[_sparse(client) for client in run] for run in per_seed("train_examples")],
        "tested": per_seed("test_examples").sum(axis=2).tolist(),
        "groups": per_seed("group").tolist() if "group" in dataset else None,
    }


def _sparse(counts: np.ndarray) -> list[list[int]]:
    """Pairs of a class and its number of examples."""
    owned = np.flatnonzero(counts)
    return np.stack([owned, counts[owned]], axis=1).tolist()


def _packed(values: np.ndarray) -> str:
    """Encodes integers below 65,535 in two bytes each, little-endian, and others as 65,535."""
    integers = np.where(np.isfinite(values), np.rint(values), _MISSING)
    return base64.b64encode(integers.astype("<u2").tobytes()).decode()


def _speed(dataset: xr.Dataset) -> dict[str, Any]:
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
    return _class_shares(own, 100 * shares), histograms, first.tolist()


def _class_shares(own: xr.Dataset, of_clients: np.ndarray) -> list[list[Any]]:
    """Returns the shares of clients, results and weights of each class, in percent."""
    columns: list[Any] = [of_clients.tolist()]
    for kind in ("participation", "weight"):
        runs = own[f"class_{kind}_share"].transpose("seed", "device_class", "round").values
        # A run without results has no shares.
        last = [run[:, np.flatnonzero(~np.isnan(run).all(axis=0))[-1:]] for run in runs]
        last = [run[:, 0] if run.size else np.full(len(run), np.nan) for run in last]
        intervals = np.stack(student(100 * np.stack(last, axis=1)), axis=1)
        columns.append([_numbers(row) for row in intervals])
    return [list(row) for row in zip(*columns, strict=True)]


def _histogram(staleness: np.ndarray) -> list[list[float]]:
    """Returns each staleness from 0 and its share of the results, in percent."""
    counts = np.bincount(staleness.astype(int))
    shares = 100 * counts / max(staleness.size, 1)
    return [list(range(counts.size)), shares.round(3).tolist()]
