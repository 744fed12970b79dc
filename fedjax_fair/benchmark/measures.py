"""The table of measures: one value per method, criterion, seed and measure, from result files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedjax_fair import results
from fedjax_fair.benchmark.federations import FEDERATIONS
from fedjax_fair.benchmark.protocol import VERSION
from fedjax_fair.results import people
from fedjax_fair.results.model_names import MARK
from fedjax_fair.results.models import by_model

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

__all__ = [
    "REFERENCES",
    "Final",
    "References",
    "clients",
    "constants",
    "curves",
    "finals",
    "table",
]

REFERENCES = ("local_converged", "fine_tuned")
"""Methods to which clients are compared one by one, with the criterion ``"mean"``."""

_SUMMARIES = {
    "accuracy": "accuracy_mean_clients",
    "worst_10pct": "accuracy_worst_10pct",
    "dissimilarity": "client_dissimilarity",
    "standard_deviation": "accuracy_standard_deviation",
    "gini": "accuracy_gini",
    "loss": "test_loss_mean_clients",
}
_GAPS = ("demographic_parity_difference", "equal_opportunity_difference")
_UNIT_OF_COMPUTE = "fedavg"
_WORST = 0.1
_MEGABYTE = 1e6


class Final(NamedTuple):
    """Final runs of a method with the setting of one criterion.

    Attributes:
        federation: Name of the federated dataset.
        method: The method.
        criterion: The criterion that has chosen the setting.
        settings: The setting.
        round: The round of the model that counts.
        model: ``"global"`` or ``"personalized"``, the one that serves clients.
        dataset: Results of this model, over ``seed`` and ``round``.
    """

    federation: str
    method: str
    criterion: str
    settings: dict[str, float]
    round: int
    model: str
    dataset: xr.Dataset

    @property
    def last(self) -> xr.Dataset:
        """Results at the round that counts."""
        return self.dataset.sel(round=self.round)


class References(NamedTuple):
    """What methods are compared to, run by run.

    Attributes:
        served: By federated dataset and method of `REFERENCES`, the test accuracies of clients
            (columns) by seed (rows).
        operations: Floating-point operations of FedAvg by federated dataset.
    """

    served: dict[tuple[str, str], pd.DataFrame]
    operations: dict[str, float]


def finals(folder: Path) -> Iterator[Final]:
    """Yields the final runs of all finished units of a benchmark.

    Raises:
        ValueError: If a file is damaged or of another version of the protocol.
    """
    for done in sorted((folder / "programs").glob("*/*/final.jsonl")):
        file = done.with_name("final.nc")
        dataset = results.open(file)
        if dataset.attrs.get("protocol") != VERSION:
            found = dataset.attrs.get("protocol")
            raise ValueError(f"path={str(file)!r}: expected protocol {VERSION}, got {found}.")
        settings = json.loads(dataset.attrs["settings"])
        for criterion, (setting, round) in json.loads(dataset.attrs["chosen"]).items():
            runs = dataset.isel(run=np.flatnonzero(dataset["setting"].values == setting))
            runs = runs.drop_vars("setting").swap_dims(run="seed")
            serving = by_model(runs, serving=True)
            model = "global"
            if "algorithm" in serving.dims:
                is_personalized = str(serving["algorithm"].values[0]).endswith(MARK)
                model = "personalized" if is_personalized else "global"
                serving = serving.isel(algorithm=0, drop=True)
            yield Final(
                str(dataset.attrs["federation"]),
                str(dataset.attrs["method"]),
                criterion,
                settings[setting],
                int(round),
                model,
                serving,
            )


def table(found: list[Final], others: References | None = None) -> pd.DataFrame:
    """Returns the measures of final runs, in long format.

    Args:
        found: Final runs.
        others: References of other results, for datasets on which ``found`` has none.

    Returns:
        Columns ``federation``, ``method``, ``model``, ``criterion``, ``seed``, ``measure``,
        ``value`` and ``is_diverged``. Accuracies and shares are fractions.
    """
    import pandas as pd

    known = _references(found, others)
    rows: list[dict[str, Any]] = []
    for final in found:
        of_seeds = _measures(final, known)
        is_diverged = final.dataset["diverged"].values >= 0
        for i, seed in enumerate(final.dataset["seed"].values.tolist()):
            for name, values in of_seeds.items():
                rows.append(
                    {
                        "federation": final.federation,
                        "method": final.method,
                        "model": final.model,
                        "criterion": final.criterion,
                        "seed": seed,
                        "measure": name,
                        "value": float(values[i]),
                        "is_diverged": bool(is_diverged[i]),
                    }
                )
    return pd.DataFrame(rows)


def _references(found: list[Final], others: References | None) -> References:
    primary = [final for final in found if final.criterion == "mean"]
    served = {
        (final.federation, final.method): _served(final)
        for final in primary
        if final.method in REFERENCES
    }
    operations = {
        final.federation: _flops(final) for final in primary if final.method == _UNIT_OF_COMPUTE
    }
    if others is None:
        return References(served, operations)
    return References({**others.served, **served}, {**others.operations, **operations})


def _served(final: Final) -> pd.DataFrame:
    """Returns the test accuracies of clients (columns) by seed (rows)."""
    import pandas as pd

    accuracy = final.last["test_accuracy"].transpose("seed", "client")
    names = pd.Index([str(client) for client in range(accuracy.sizes["client"])])
    return pd.DataFrame(accuracy.values, final.last["seed"].values, names)


def clients(found: list[Final], criterion: str) -> pd.DataFrame:
    """Returns the test accuracies of clients.

    Returns:
        Columns ``federation``, ``method`` and ``seed``, and one for each client; clients of
        different seeds are different ones.
    """
    import pandas as pd

    parts = []
    for final in found:
        if final.criterion == criterion:
            own = _served(final).rename_axis("seed").reset_index()
            own.insert(0, "method", final.method)
            own.insert(0, "federation", final.federation)
            parts.append(own)
    return pd.concat(parts, ignore_index=True)


def _measures(final: Final, references: References) -> dict[str, np.ndarray]:
    """Returns the values of all seeds by measure."""
    last = final.last
    measured = {name: last[variable].values for name, variable in _SUMMARIES.items()}
    accuracy = last["test_accuracy"].transpose("seed", "client").values
    for reference in REFERENCES:
        other = references.served.get((final.federation, reference))
        if other is None or reference == final.method:
            continue
        served = other.loc[last["seed"].values].to_numpy()[:, : accuracy.shape[1]]
        measured[f"worse_than_{reference}"] = _share(accuracy < served, accuracy)
    for name in ("unseen", "adapted"):
        if f"{name}_accuracy" in last:
            values = last[f"{name}_accuracy"].transpose("seed", ...).values
            measured[f"{name}_accuracy"] = np.nanmean(values, axis=1)
            measured[f"{name}_worst_10pct"] = _worst(values)
    if "sensitive_group_counts" in last:
        feature = FEDERATIONS[final.federation].sensitive_feature
        gaps = people.gaps(last, [str(feature)])
        for name in _GAPS:
            measured[name] = gaps[name].values
            measured[f"client_{name}"] = gaps[f"client_{name}"].mean("client").values
    measured["noise_floor"] = _noise_floor(last)
    operations = _flops(final)
    relative = operations / references.operations.get(final.federation, np.nan)
    measured["operations"] = np.full(len(accuracy), operations)
    measured["relative_compute"] = np.full(len(accuracy), relative)
    return measured | _communication(final)


def _flops(final: Final) -> float:
    """Returns the floating-point operations of training until the round that counts."""
    return final.dataset.attrs["flops"] * final.round


def _noise_floor(last: xr.Dataset) -> np.ndarray:
    """Returns the standard deviation over clients that equally accurate clients would have.

    With the accuracy p of all clients, the fraction of n correct test examples has the variance
    p (1 - p) / n. The mean squared deviation of K fractions from their mean is the mean of these
    variances times 1 - 1 / K.
    """
    counts = last["test_examples"]
    sizes = counts.sum("class").broadcast_like(last["test_accuracy"])
    sizes = sizes.transpose("seed", "client").values
    accuracy = last["test_accuracy"].transpose("seed", "client").values
    is_known = (sizes > 0) & ~np.isnan(accuracy)
    number = is_known.sum(axis=1)
    total = np.where(is_known, sizes, 0).sum(axis=1)
    pooled = np.where(is_known, sizes * accuracy, 0).sum(axis=1) / total
    variances = pooled * (1 - pooled) * np.where(is_known, 1 / np.maximum(sizes, 1), 0).sum(axis=1)
    return np.sqrt((1 - 1 / number) * variances / number)


def _share(is_worse: np.ndarray, known: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(known), np.nan, is_worse).mean(axis=1, where=~np.isnan(known))


def _worst(values: np.ndarray) -> np.ndarray:
    """Returns the mean over the worst tenth of clients, at least one, of each seed."""
    ascending = np.sort(values, axis=1)  # NaN is last.
    counts = np.maximum(1, np.ceil(_WORST * np.sum(~np.isnan(values), axis=1))).astype(int)
    return np.array([row[:count].mean() for row, count in zip(ascending, counts, strict=True)])


def _communication(final: Final) -> dict[str, np.ndarray]:
    """Returns megabytes in total, and rounds and megabytes until the target accuracy.

    A run that never reaches the target counts with one evaluation more than there are.
    """
    data = final.dataset.sel(round=slice(None, final.round))
    up, down = (data[f"bytes_{way}"].transpose("seed", "round").values for way in ("up", "down"))
    rounds = data["round"].values
    accuracy = data["accuracy_mean_clients"].transpose("seed", "round").values
    is_reached = accuracy >= FEDERATIONS[final.federation].target
    longer = 1 + (rounds[-1] - rounds[-2]) / rounds[-1] if len(rounds) > 1 else 1.0
    first = np.where(is_reached.any(axis=1), is_reached.argmax(axis=1), len(rounds) - 1)
    factor = np.where(is_reached.any(axis=1), 1.0, longer)
    total = (up + down)[np.arange(len(first)), first]
    return {
        "megabytes_up": up[:, -1] / _MEGABYTE,
        "megabytes_down": down[:, -1] / _MEGABYTE,
        "rounds_to_target": rounds[first] * factor,
        "megabytes_to_target": total * factor / _MEGABYTE,
    }


def constants(found: list[Final]) -> dict[tuple[str, str], float]:
    """Returns the measures of a constant predictor by federated dataset and measure.

    It predicts the class that is most frequent among all test examples. Diverged runs count as it.
    """
    values: dict[tuple[str, str], float] = {}
    for final in found:
        if (final.federation, "accuracy") in values:
            continue
        counts = final.dataset["test_examples"].values  # [seeds, clients, classes] or without seeds
        counts = counts.reshape(-1, *counts.shape[-2:])
        frequent = counts.sum(axis=1).argmax(axis=1)
        with np.errstate(invalid="ignore"):
            shares = np.array(
                [run[:, c] / run.sum(axis=1) for run, c in zip(counts, frequent, strict=True)]
            )
        measured = {
            "accuracy": np.nanmean(shares, axis=1),
            "worst_10pct": _worst(shares),
            "standard_deviation": np.nanstd(shares, axis=1),
        }
        for name, of_runs in measured.items():
            values[final.federation, name] = float(np.mean(of_runs))
    return values


def curves(found: list[Final], criterion: str = "mean") -> pd.DataFrame:
    """Returns validation accuracy over rounds: mean over seeds with its 95% interval."""
    import pandas as pd

    from fedjax_fair.metrics import paired

    rows = []
    for final in found:
        if final.criterion != criterion:
            continue
        accuracy = final.dataset["validation_accuracy_mean_clients"]
        for round in final.dataset["round"].values.tolist():
            mean = paired.interval(accuracy.sel(round=round).values)
            rows.append(
                {
                    "federation": final.federation,
                    "method": final.method,
                    "round": round,
                    "accuracy": mean.mean,
                    "low": mean.low,
                    "high": mean.high,
                }
            )
    return pd.DataFrame(rows)
