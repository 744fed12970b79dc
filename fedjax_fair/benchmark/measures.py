"""The table of measures: one value per method, criterion, seed and measure, from result files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedjax_fair import results
from fedjax_fair.benchmark.federations import FEDERATIONS, quantity_of, variables_of
from fedjax_fair.benchmark.protocol import (
    BASELINE,
    CRITERIA,
    MEGABYTES,
    PARITY,
    STOPPED,
    VERSION,
)
from fedjax_fair.metrics import fairness
from fedjax_fair.metrics.quantities import ACCURACY, Quantity
from fedjax_fair.results import sensitive_groups
from fedjax_fair.results.datasets import MARK, by_model
from fedjax_fair.results.task_metrics import sign, validation

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

__all__ = [
    "CONSTANTS",
    "REFERENCES",
    "Final",
    "at_megabytes",
    "at_round",
    "clients",
    "constants",
    "curves",
    "finals",
    "noise_floor",
    "relative",
    "table",
]

REFERENCES = ("local_converged", "fine_tuned")
"""Methods to which clients are compared one by one, with the criterion ``"mean"``."""

CONSTANTS = ("accuracy", "worst_10pct", "standard_deviation", "gini", "dissimilarity")
"""Measures of the constant predictor."""

_GAPS = ("demographic_parity_difference", "equal_opportunity_difference")
_PRIMARY = CRITERIA[0]
DIGITS = 7
"""Significant digits of measures."""
_WORST = 0.1
_MEGABYTE = 1e6


class Final(NamedTuple):
    """Final runs of a method with the settings that one criterion has chosen.

    Attributes:
        federation: Name of the federated dataset.
        method: The method.
        criterion: The criterion, `STOPPED` or `MEGABYTES`.
        settings: The setting of each block.
        rounds: Rounds of training of the model that counts, of each block.
        model: ``"global"`` or ``"personalized"``, the one that serves clients.
        dataset: Results of this model, over ``seed`` and ``round``.
        last: Results of the model that counts, over ``seed``; None if there is no model within the
            operations or megabytes of FedAvg.
    """

    federation: str
    method: str
    criterion: str
    settings: list[dict[str, float]]
    rounds: np.ndarray
    model: str
    dataset: xr.Dataset
    last: xr.Dataset | None

    @property
    def quantity(self) -> Quantity:
        """Quantity that clients are measured by."""
        return quantity_of(self.federation)


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
        yield from _of_unit(dataset)


def _of_unit(dataset: xr.Dataset) -> Iterator[Final]:
    """Yields the runs of each criterion, and those that are stopped by validation examples."""
    attrs, of_unit = dataset.attrs, str(dataset.attrs["federation"])
    settings, chosen = json.loads(attrs["settings"]), json.loads(attrs["chosen"])
    quantity, budget = quantity_of(of_unit), dataset["round"].values[-1]
    for criterion in (*CRITERIA, PARITY, STOPPED):
        places = chosen.get(_PRIMARY if criterion == STOPPED else criterion)
        if places is None and criterion != "compute":
            continue
        own = [settings[place] for place in places or chosen[_PRIMARY]]
        model, serving = _serving(dataset, places or chosen[_PRIMARY])
        rounds = np.full(serving.sizes["seed"], budget, float)
        last = serving.isel(round=-1)
        if criterion == "compute":
            rounds = np.minimum(budget, rounds / attrs["relative_operations"])
            last = at_round(serving, float(rounds[0]))
        elif criterion == STOPPED:
            levels = sign(quantity) * serving[validation(quantity.mean)].transpose("seed", "round")
            best = levels.isel(round=slice(1, None)).fillna(-np.inf).argmax("round") + 1
            rounds = serving["round"].values[best.values].astype(float)
            last = serving.isel(round=best)
        yield Final(of_unit, str(attrs["method"]), criterion, own, rounds, model, serving, last)


def _serving(dataset: xr.Dataset, places: list[int]) -> tuple[str, xr.Dataset]:
    """Returns the kind and the results of the models that serve clients, of one run per block."""
    of_run = {
        (setting, seed): i
        for i, (setting, seed) in enumerate(
            zip(dataset["setting"].values.tolist(), dataset["seed"].values.tolist(), strict=True)
        )
    }
    seeds = np.unique(dataset["seed"].values).tolist()
    runs = dataset.isel(run=[of_run[run] for run in zip(places, seeds, strict=True)])
    serving = by_model(runs.drop_vars("setting").swap_dims(run="seed"), serving=True)
    if "algorithm" not in serving.dims:
        return "global", serving
    is_personalized = str(serving["algorithm"].values[0]).endswith(MARK)
    model = "personalized" if is_personalized else "global"
    return model, serving.isel(algorithm=0, drop=True)


def at_round(dataset: xr.Dataset, at: float) -> xr.Dataset | None:
    """Returns results after a number of rounds, which may lie between two evaluations.

    Numbers are linear in the logarithm of the round. After the last evaluation they stay.

    Args:
        dataset: Results over ``round``, with the evaluation before training.
        at: Number of rounds, such as the rounds of the budget divided by the operations of a round
            relative to those of FedAvg.

    Returns:
        Results without ``round``; None if there is no model within so few rounds: they end before
        the first evaluation after training.
    """
    rounds = dataset["round"].values
    if at < rounds[1]:
        return None
    high = min(int(np.searchsorted(rounds, at)), len(rounds) - 1)
    before, after = (dataset.isel(round=place, drop=True) for place in (max(1, high - 1), high))
    if high == 1 or at >= rounds[high]:
        return after
    weight = math.log(at / rounds[high - 1]) / math.log(rounds[high] / rounds[high - 1])
    return after.assign(
        {
            name: before[name] + weight * (values - before[name])
            for name, values in after.data_vars.items()
            if "round" in dataset[name].dims and values.dtype.kind in "iuf"
        }
    )


def at_megabytes(found: list[Final], budgets: Mapping[str, float]) -> list[Final]:
    """Returns the runs with settings of ``"mean"`` after the megabytes of FedAvg's whole training.

    Args:
        found: Final runs.
        budgets: Megabytes that FedAvg sends in both directions, by federated dataset; those of
            ``found`` come first. Datasets without a budget are left out.

    Returns:
        Runs with the criterion `MEGABYTES`, as `at_round`. A method that sends less stays at its
        last round.
    """
    mean = [final for final in found if final.criterion == _PRIMARY]
    sent = {(final.federation, final.method): _megabytes(final) for final in mean}
    parts = []
    for final in mean:
        own = sent[final.federation, final.method]
        budget = sent.get((final.federation, BASELINE), budgets.get(final.federation))
        if budget is None:
            continue
        last_round = float(final.rounds[0])
        at = last_round if own <= budget else last_round * budget / own
        rounds, last = np.full(final.rounds.shape, at), at_round(final.dataset, at)
        parts.append(final._replace(criterion=MEGABYTES, rounds=rounds, last=last))
    return parts


def _megabytes(final: Final) -> float:
    """Returns what a run sends in both directions, as a mean over seeds."""
    data = final.dataset.isel(round=-1)
    return float((data["bytes_up"] + data["bytes_down"]).mean()) / _MEGABYTE


def table(found: list[Final]) -> pd.DataFrame:
    """Returns the measures of final runs, in long format.

    Values have seven significant digits, as in the files of a report, so that equal values of two
    benchmarks stay equal.

    Returns:
        Columns ``federation``, ``method``, ``model``, ``criterion``, ``seed``, ``measure``,
        ``value`` and ``is_diverged``. Accuracies and shares are fractions. Where clients are
        measured by another quantity, such as errors, the measures of accuracies are of it.
    """
    import pandas as pd

    keys, parts = ["federation", "method", "model", "criterion"], []
    for final in found:
        seeds = pd.Index(final.dataset["seed"].values, name="seed")
        is_diverged = pd.Series(final.dataset["diverged"].values >= 0, seeds)
        wide: Any = pd.DataFrame(_measures(final), seeds).rename_axis(columns="measure")
        rows: Any = wide.stack(future_stack=True).rename("value").reset_index()
        rows["value"] = [float(f"{value:.{DIGITS}g}") for value in rows["value"]]
        rows["is_diverged"] = is_diverged.loc[rows["seed"]].to_numpy()
        parts.append(rows.assign(**{name: getattr(final, name) for name in keys}))
    columns = [*keys, "seed", "measure", "value", "is_diverged"]
    table: Any = pd.concat(parts, ignore_index=True)
    return table[columns]


def clients(found: list[Final], *, losses: bool = False) -> pd.DataFrame:
    """Returns test accuracies, or errors, of clients, with settings selected by ``"mean"``.

    Args:
        found: Final runs.
        losses: Whether to return test losses instead.

    Returns:
        Columns ``federation``, ``method`` and ``seed``, and ``"0"``, ``"1"``, ... for the clients;
        those of different seeds are different ones.
    """
    import pandas as pd

    parts = []
    for final in found:
        if final.criterion == _PRIMARY and final.last is not None:
            name = "test_loss" if losses else final.quantity.client
            values = final.last[name].transpose("seed", "client")
            names = pd.Index([str(client) for client in range(values.sizes["client"])])
            own = pd.DataFrame(values.values, columns=names)
            own.insert(0, "seed", final.last["seed"].values)
            own.insert(0, "method", final.method)
            own.insert(0, "federation", final.federation)
            parts.append(own)
    return pd.concat(parts, ignore_index=True)


def relative(runs: pd.DataFrame, clients: pd.DataFrame, losses: pd.DataFrame) -> pd.DataFrame:
    """Returns the measures that compare runs with other methods, with settings of ``"mean"``.

    They are the shares of clients worse off than with `REFERENCES`, the largest value and the
    standard deviation of loss gaps to ``local_converged``, and the operations relative to those of
    FedAvg, on datasets that have these methods.

    Args:
        runs: Table of `table`.
        clients: Table of `clients`.
        losses: The same of losses; without rows of methods whose losses are not known.

    Returns:
        Further rows of ``runs``.
    """
    import pandas as pd

    keys = ["federation", "method", "seed"]
    whole: Any = runs
    counted: Any = whole[(whole["measure"] == "operations") & (whole["criterion"] == _PRIMARY)]
    of_fedavg = counted[counted["method"] == BASELINE].groupby("federation")["value"].first()
    ratio = counted["value"] / counted["federation"].map(of_fedavg)
    parts = [counted.assign(measure="relative_compute", value=ratio)]
    described = counted.drop(columns=["measure", "value"])

    def add(name: str, values: Any) -> None:
        rows = values.rename("value").reset_index()
        parts.append(described.merge(rows, on=keys).assign(measure=name))

    for reference in REFERENCES:
        others, same = _pairs(clients, reference)
        if not len(others):
            continue
        measured = others.notna().to_numpy()
        federations = others.index.get_level_values("federation")
        signs = np.array([[sign(quantity_of(name))] for name in federations])
        worse = (signs * others.to_numpy() < signs * same.to_numpy()) & measured
        shares = worse.sum(axis=1) / measured.sum(axis=1)
        add(f"worse_than_{reference}", pd.Series(shares, others.index))
    others, same = _pairs(losses, REFERENCES[0])
    gaps = others.astype("float64") - same.to_numpy("float64")
    with np.errstate(invalid="ignore"):  # A loss may be infinite.
        spread = gaps.std(axis=1, ddof=0)
    for name, values in (
        ("loss_gap_maximum", gaps.max(axis=1)),
        ("loss_gap_standard_deviation", spread),
    ):
        add(name, values.map(lambda value: float(f"{value:.{DIGITS}g}")))
    found: Any = pd.concat(parts, ignore_index=True)
    return found.dropna(subset="value")[list(whole.columns)]


def _pairs(clients: pd.DataFrame, reference: str) -> tuple[Any, Any]:
    """Returns the values of clients by method, and of a reference for the same clients."""
    values: Any = clients.set_index(["federation", "method", "seed"])
    methods = values.index.get_level_values("method")
    served, others = values[methods == reference].droplevel("method"), values[methods != reference]
    places = others.index.droplevel("method")
    is_known = places.isin(served.index)
    return others[is_known], served.loc[places[is_known]]


def _measures(final: Final) -> dict[str, np.ndarray]:
    """Returns the values of all seeds by measure; NaN if there is no model."""
    last, quantity = final.last, final.quantity
    if last is None:
        return {name: np.full(final.rounds.shape, np.nan) for name in variables_of(quantity)}
    measured = {name: last[variable].values for name, variable in variables_of(quantity).items()}
    if quantity == ACCURACY:
        measured["gini"] = last["accuracy_gini"].values
    else:
        measured["gini"] = _ginis(last[quantity.client].transpose("seed", "client").values)
    measured["loss"] = last["test_loss_mean_clients"].values
    # Unseen clients get the last model.
    is_whole = final.criterion not in ("compute", STOPPED, MEGABYTES)
    for name in ("unseen", "adapted") if is_whole else ():
        if f"{name}_{quantity.name}" in last:
            values = last[f"{name}_{quantity.name}"].transpose("seed", ...).values
            measured[f"{name}_accuracy"] = np.nanmean(values, axis=1)
            measured[f"{name}_worst_10pct"] = _worst(values, sign(quantity))
    if "sensitive_group_counts" in last:
        feature = FEDERATIONS[final.federation].sensitive_feature
        gaps = sensitive_groups.gaps(last, [str(feature)])
        for name in _GAPS:
            measured[name] = gaps[name].values
            measured[f"client_{name}"] = gaps[f"client_{name}"].mean("client").values
    if quantity == ACCURACY:
        measured["noise_floor"] = noise_floor(last)
    measured["operations"] = final.dataset.attrs["flops"] * final.rounds
    return measured | (_communication(final) if final.criterion == _PRIMARY else {})


def noise_floor(last: xr.Dataset) -> np.ndarray:
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


def _worst(values: np.ndarray, sign: int) -> np.ndarray:
    """Returns the mean over the worst tenth of clients, at least one, of each seed."""
    ascending = np.sort(sign * values, axis=1)  # NaN is last.
    counts = np.maximum(1, np.ceil(_WORST * np.sum(~np.isnan(values), axis=1))).astype(int)
    worst = [row[:count].mean() for row, count in zip(ascending, counts, strict=True)]
    return sign * np.array(worst)


def _ginis(of_runs: np.ndarray) -> np.ndarray:
    return np.array([fairness.gini(run) for run in jnp.asarray(of_runs, jnp.float32)])


def _communication(final: Final) -> dict[str, np.ndarray]:
    """Returns megabytes in total, and rounds and megabytes until the target.

    A run that never reaches the target counts with one evaluation more than there are. If
    parameters are frozen, also the share of trained ones.
    """
    data = final.dataset
    up, down = (data[f"bytes_{way}"].transpose("seed", "round").values for way in ("up", "down"))
    rounds = data["round"].values
    level, way = data[final.quantity.mean].transpose("seed", "round").values, sign(final.quantity)
    is_reached = way * level >= way * FEDERATIONS[final.federation].target
    longer = 1 + (rounds[-1] - rounds[-2]) / rounds[-1] if len(rounds) > 1 else 1.0
    first = np.where(is_reached.any(axis=1), is_reached.argmax(axis=1), len(rounds) - 1)
    factor = np.where(is_reached.any(axis=1), 1.0, longer)
    total = (up + down)[np.arange(len(first)), first]
    trained, share = data.get("trained_parameters"), {}
    if trained is not None:
        share["trained_share"] = (trained / (trained + data["frozen_parameters"])).values
    return share | {
        "megabytes_up": up[:, -1] / _MEGABYTE,
        "megabytes_down": down[:, -1] / _MEGABYTE,
        "rounds_to_target": rounds[first] * factor,
        "megabytes_to_target": total * factor / _MEGABYTE,
    }


def constants(found: list[Final]) -> dict[tuple[str, str], float]:
    """Returns the measures of a constant predictor by federated dataset and measure.

    It predicts the class that is most frequent among all test examples, or the median of their
    labels (`train.constant_errors`). Diverged runs count as it.
    """
    values: dict[tuple[str, str], float] = {}
    for final in found:
        if (final.federation, "accuracy") in values:
            continue
        constant = f"constant_{final.quantity.name}"
        if constant in final.dataset:
            of_clients = final.dataset[constant].transpose("seed", ...).values
        elif final.quantity == ACCURACY:
            of_clients = _constant_accuracies(final.dataset["test_examples"].values)
        else:
            of_clients = np.full((1, 1), np.nan)
        measured = (
            np.nanmean(of_clients, axis=1),
            _worst(of_clients, sign(final.quantity)),
            np.nanstd(of_clients, axis=1),
            _ginis(of_clients),
            [fairness.client_dissimilarity(run) for run in jnp.asarray(of_clients, jnp.float32)],
        )
        for name, of_runs in zip(CONSTANTS, measured, strict=True):
            values[final.federation, name] = float(np.mean(of_runs))
    return values


def _constant_accuracies(counts: np.ndarray) -> np.ndarray:
    """Returns accuracies of clients, from counts ``[seeds, clients, classes]`` or without seeds."""
    counts = counts.reshape(-1, *counts.shape[-2:])
    frequent = counts.sum(axis=1).argmax(axis=1)
    with np.errstate(invalid="ignore"):
        return np.array(
            [run[:, c] / run.sum(axis=1) for run, c in zip(counts, frequent, strict=True)]
        )


def curves(found: list[Final]) -> pd.DataFrame:
    """Returns validation accuracy, or error, over rounds: means over seeds, 95% intervals."""
    import pandas as pd

    from fedjax_fair.metrics import paired

    rows = []
    for final in (final for final in found if final.criterion == _PRIMARY):
        levels = final.dataset[validation(final.quantity.mean)].transpose("round", ...)
        for round, values in zip(levels["round"].values.tolist(), levels.values, strict=True):
            mean = paired.interval(values)
            rows.append([final.federation, final.method, round, mean.mean, mean.low, mean.high])
    columns = ["federation", "method", "round", "accuracy", "low", "high"]
    return pd.DataFrame(rows, columns=columns)
