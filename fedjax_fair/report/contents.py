"""What the page of a run draws, as numbers that its script reads; accuracies in percent.

Python computes, with 95 % intervals over seeds wherever there are several; the script only draws.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from fedjax_fair.metrics import fairness
from fedjax_fair.report.drawing import NOISE_FLOOR, by_method, label
from fedjax_fair.report.intervals import student

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["contents"]

_MAX_VALUES = 1_200_000
"""Numbers of single clients on a page: 3.2 MB, two bytes each in base64."""

_MAX_CLIENTS = 1000
_NOTHING = 65535
_SEEDS = ("seed", "round")


def contents(dataset: xr.Dataset) -> dict[str, Any]:
    """Everything that the page of a run draws.

    Args:
        dataset: Results with the dimension ``algorithm`` and without settings.

    Returns:
        What ``json`` can write: ``methods``; ``accuracy``, ``dissimilarity``, ``floor``,
        ``cluster_agreement`` and ``groups`` as curves of ``[rounds, means, lows, highs]`` a method;
        ``tradeoff``; ``participation``; and ``clients``, with the accuracy of every client at every
        evaluation and who trained in which round.
    """
    found: dict[str, Any] = {
        "methods": [str(name) for name in dataset["algorithm"].values],
        "accuracy": _curves(by_method(dataset, "accuracy_mean_clients", _SEEDS)),
        "dissimilarity": _curves(by_method(dataset, "client_dissimilarity", _SEEDS)),
        "floor": _curves(by_method(dataset, NOISE_FLOOR, _SEEDS)),
        "participation": _participation(dataset),
        "clients": _clients(dataset),
    }
    found["start"] = _first_difference(found["accuracy"])
    found["tradeoff"] = [
        [_last(curve) for curve in pair]
        for pair in zip(found["dissimilarity"], found["accuracy"], strict=True)
    ]
    if "group_accuracy" in dataset:
        values = by_method(dataset, "group_accuracy", ("seed", "round", "planted_group"))
        sizes = range(values.sizes["planted_group"])
        found["groups"] = [_curves(values.isel(planted_group=group)) for group in sizes]
    if "aggregation_nmi" in dataset:
        found["cluster_agreement"] = _cluster_agreement(dataset)
    return found


def _curves(values: xr.DataArray) -> list[list[list[float | None]]]:
    """Rounds, means and ends of intervals of each method."""
    rounds = values["round"].values
    ordered = values.transpose("algorithm", "round", "seed").values * 100
    return [_curve(rounds, runs) for runs in ordered]


def _curve(rounds: np.ndarray, runs: np.ndarray) -> list[list[float | None]]:
    measured = ~np.isnan(runs).any(axis=1)
    columns = student(runs[measured])
    return [rounds[measured].tolist(), *(_numbers(column) for column in columns)]


def _numbers(values: np.ndarray) -> list[float | None]:
    """Three decimals are below what a picture shows; JSON has no NaN."""
    return [None if np.isnan(value) else round(float(value), 3) for value in values]


def _last(curve: list[list[float | None]]) -> list[float | None] | None:
    """Mean and ends of the last evaluation."""
    _, *columns = curve
    return [column[-1] for column in columns] if columns[0] else None


def _first_difference(curves: list[list[list[Any]]]) -> int:
    """The first evaluation at which methods are not all the same, as they are before training."""
    at_round: dict[int, list[float]] = {}
    for rounds, means, *_ in curves:
        for number, mean in zip(rounds, means, strict=True):
            at_round.setdefault(number, []).append(mean)
    ordered = sorted(at_round)
    later = [number for number in ordered if number > 0]
    differ = [
        number for number in later if len(at_round[number]) == 1 or len(set(at_round[number])) > 1
    ]
    return int((differ or later or [0])[0])


def _participation(dataset: xr.Dataset) -> list[dict[str, Any] | None]:
    """Share of rounds that clients trained in, the busiest of each seed first."""
    counts = by_method(dataset, "participation", ("seed", "round", "client"))
    found: list[dict[str, Any] | None] = []
    for method in range(counts.sizes["algorithm"]):
        last = counts.isel(algorithm=method).dropna("round", how="all").isel(round=-1)
        trained = last.transpose("seed", "client").values
        rounds = int(last["round"])
        if not trained.any():  # Pooled examples have no clients.
            found.append(None)
            continue
        shares = 100 * np.sort(trained, axis=1)[:, ::-1] / max(rounds, 1)
        places = np.linspace(0, 100, shares.shape[1])
        shown = np.linspace(0, 100, min(shares.shape[1], 201))
        curves = np.stack([np.interp(shown, places, run) for run in shares], axis=1)
        gini = student([float(fairness.gini(jnp.asarray(run, jnp.float32))) for run in trained])
        found.append(
            {
                "share": [_numbers(shown), *map(_numbers, student(curves))],
                "never": round(float(100 * (trained == 0).mean()), 1),
                "gini": _numbers(np.asarray(gini)),
            }
        )
    return found


def _cluster_agreement(dataset: xr.Dataset) -> list[list[list[float | None]] | None]:
    """Mutual information of found and planted groups, mean over rounds so far."""
    values = by_method(dataset, "aggregation_nmi", ("seed", "training_round"))
    found: list[list[list[float | None]] | None] = []
    for runs in values.transpose("algorithm", "training_round", "seed").values:
        rounds = np.arange(1, len(runs) + 1)
        so_far = np.cumsum(runs, axis=0) / rounds[:, None]
        found.append(None if np.isnan(runs).all() else _curve(rounds, so_far))
    return found


def _clients(dataset: xr.Dataset) -> dict[str, Any]:
    """Accuracies and rounds of single clients, of as many as a page can hold."""
    accuracy = by_method(dataset, "test_accuracy", ("seed", "round", "client"))
    accuracy = accuracy.transpose("algorithm", "seed", "round", "client")
    cohorts = by_method(dataset, "cohort_clients", ("seed", "training_round", "slot"))
    cohorts = cohorts.transpose("algorithm", "seed", "training_round", "slot")
    num_clients = accuracy.sizes["client"]
    ids = np.unique(np.linspace(0, num_clients - 1, min(num_clients, _MAX_CLIENTS)).astype(int))
    methods, seeds, evaluations, _ = accuracy.shape
    participants = methods * cohorts.sizes["training_round"] * cohorts.sizes["slot"]
    one_seed = methods * evaluations * ids.size + participants
    kept = int(np.clip(_MAX_VALUES // one_seed, 1, seeds))
    room = max(2, (_MAX_VALUES - kept * participants) // (kept * methods * ids.size))
    shown = np.unique(np.linspace(0, evaluations - 1, min(room, evaluations)).astype(int))
    tested = _per_seed(dataset, "test_examples", kept).sum(axis=2)
    return {
        "total": num_clients,
        "ids": ids.tolist(),
        "seeds": dataset["seed"].values[:kept].tolist(),
        "allSeeds": seeds,
        "rounds": dataset["round"].values[shown].tolist(),
        "accuracy": _packed(accuracy.values[:, :kept, shown][..., ids] * 1e4),
        "label": label(accuracy),
        "cohorts": list(cohorts.shape[2:]),
        "trained": _packed(_places(cohorts.values[:, :kept], ids, num_clients)),
        "classes": [
            [_sparse(client) for client in run[ids]]
            for run in _per_seed(dataset, "train_examples", kept)
        ],
        "tested": tested[:, ids].tolist(),
        "groups": _groups(dataset, ids, kept),
    }


def _per_seed(dataset: xr.Dataset, name: str, kept: int) -> np.ndarray:
    """Class counts ``[runs, clients, classes]``; of one run where it is the same in all."""
    counts = dataset[name]
    if "seed" not in counts.dims:
        return counts.transpose("client", "class").values[None].astype(int)
    return counts.transpose("seed", "client", "class").values[:kept].astype(int)


def _groups(dataset: xr.Dataset, ids: np.ndarray, kept: int) -> list[list[int]] | None:
    if "group" not in dataset:
        return None
    group = dataset["group"]
    runs = (
        group.transpose("seed", "client").values[:kept] if group.ndim == 2 else group.values[None]
    )
    return runs[:, ids].astype(int).tolist()


def _sparse(counts: np.ndarray) -> list[list[int]]:
    """Pairs of a class and the examples of it."""
    owned = np.flatnonzero(counts)
    return np.stack([owned, counts[owned]], axis=1).tolist()


def _places(cohorts: np.ndarray, ids: np.ndarray, num_clients: int) -> np.ndarray:
    """Where the participants of cohorts are among the clients shown; NaN for others and empty slots."""
    place = np.full(num_clients + 1, np.nan)
    place[ids] = np.arange(ids.size)
    participants = np.nan_to_num(cohorts, nan=-1).astype(int)
    return place[np.where(participants < 0, num_clients, participants)]


def _packed(values: np.ndarray) -> str:
    """Whole numbers below 65,535, two bytes each, lowest first; what is NaN becomes 65,535."""
    whole = np.where(np.isnan(values), _NOTHING, np.rint(values))
    return base64.b64encode(whole.astype("<u2").tobytes()).decode()
