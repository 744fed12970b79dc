"""Records of a run, round by round, and the Dataset made from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_fair import metrics
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.numerics.labels import are_sequences
from fedjax_fair.results import people
from fedjax_fair.roles import PERSONALIZED, ClientMetric, ClientMetrics, Metric
from fedjax_fair.rounds.round_state import RoundInfo, Traffic

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "PARTITION_VARIABLES",
    "RECORDED",
    "History",
    "client_coordinate",
    "metric_attributes",
    "partition_dataset",
    "to_dataset",
]

PARTITION_VARIABLES = ("train_examples", "test_examples", "validation_examples", "group")
"""Variables that describe the partition, not a method."""

RECORDED = {
    "test_accuracy": ("client", "Test accuracy", "1"),
    "test_loss": ("client", "Test loss", "nat"),
    "train_loss": ("client", "Training loss", "nat"),
    "validation_accuracy": ("client", "Validation accuracy", "1"),
    "validation_loss": ("client", "Validation loss", "nat"),
    "participation": ("client", "Times trained", "1"),
    "class_accuracy": ("class", "Accuracy on all test examples of a class", "1"),
}
"""Fields of ``ClientMetrics`` that change during a run: last dimension, long name and unit."""

_OF_MODELS = ("test_accuracy", "test_loss", "train_loss", "validation_accuracy", "validation_loss")
"""Fields that personalized models have too."""

_PER_SLOT = {
    "clients": ("Client in the cohort", "1"),
    "weights": ("Aggregation weight", "1"),
    "loss": ("Mean minibatch loss in local training", "nat"),
    "steps": ("Local steps", "steps"),
    "responded": ("Whether the result has arrived", "1"),
    "nonfinite": ("Whether the update sent is not finite", "1"),
    "state_nonfinite": ("Whether the client's new state is not finite and was not stored", "1"),
}
_PER_EVALUATION = ("summaries", "metrics")


class History:
    """Evaluations and rounds, in order.

    Recorded arrays have seeds first; ``arrays`` inserts time as the second axis.
    """

    def __init__(self) -> None:
        self._evaluated: list[int] = []
        self._records: dict[str, list[dict[str, np.ndarray]]] = {
            name: [] for name in (*_PER_EVALUATION, "rounds", "selection", "aggregation")
        }

    @property
    def round(self) -> int:
        """The round of the latest evaluation; -1 before the first."""
        return self._evaluated[-1] if self._evaluated else -1

    def add_evaluation(
        self, round: int, summaries: dict[str, np.ndarray], metrics: ClientMetrics
    ) -> None:
        """Records an evaluation: summaries ``[seeds]`` and ``[seeds, clients or classes]``."""
        values: dict[str, Any] = {name: getattr(metrics, name) for name in RECORDED}
        values |= metrics.custom | people.record(metrics.sensitive)
        if (own := metrics.personalized) is not None:
            measured = {name: getattr(own, name) for name in _OF_MODELS} | own.custom
            measured |= people.record(own.sensitive)
            values |= {f"{PERSONALIZED}{name}": value for name, value in measured.items()}
        self._evaluated.append(round)
        self._records["summaries"].append(summaries)
        self._records["metrics"].append(
            {name: value for name, value in values.items() if value is not None}
        )

    def add_rounds(self, info: RoundInfo) -> None:
        """Records a chunk of rounds: leaves ``[seeds, rounds, cohort]`` or ``[seeds, rounds]``."""
        rounds = {name: getattr(info, name) for name in (*_PER_SLOT, "available")}
        # Booleans could not be NaN, which pads methods with fewer slots.
        rounds = {
            name: value.astype(np.int8) if value.dtype == bool else value
            for name, value in rounds.items()
            if value is not None
        }
        rounds["update_nonfinite"] = (~info.finite).astype(np.int8)
        for name, record in (
            ("rounds", rounds),
            ("selection", info.selector),
            ("aggregation", info.aggregator),
        ):
            arrays = {key: np.asarray(value) for key, value in record.items()}
            self._records[name].append(arrays)

    def arrays(self) -> dict[str, Any]:
        """Returns all records: ``[seeds, evaluations, ...]`` and ``[seeds, rounds, ...]``."""
        arrays: dict[str, Any] = {"evaluated": np.asarray(self._evaluated, np.int64)}
        for name, records in self._records.items():
            join = np.stack if name in _PER_EVALUATION else np.concatenate
            arrays[name] = {
                key: join([record[key] for record in records], axis=1)
                for key in (records[0] if records else ())
            }
        return arrays

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any]) -> History:
        """Restores a history from ``arrays``."""
        history = cls()
        history._evaluated = [int(round) for round in arrays["evaluated"]]
        for name in history._records:
            if name in _PER_EVALUATION:
                history._records[name] = [
                    {key: values[:, i] for key, values in arrays[name].items()}
                    for i in range(len(history._evaluated))
                ]
            elif arrays["rounds"]:
                history._records[name] = [arrays[name]]
        return history


def to_dataset(
    history: History,
    seeds: tuple[int, ...],
    data: FederatedData,
    traffic: Traffic,
    custom_metrics: Sequence[Metric | ClientMetric] = (),
) -> xr.Dataset:
    """Converts the records of a run to a Dataset.

    Args:
        history: The records.
        seeds: The seeds, in the order of the leading axes.
        data: The federated dataset.
        traffic: Bytes that a participant communicates in a round.
        custom_metrics: Metrics in addition to those of the package.
    """
    import xarray as xr

    recorded = history.arrays()
    rounds = recorded["rounds"]
    columns: dict[str, Any] = {}
    per_client = RECORDED | {
        f"{kind}_{metric.name}": ("client", f"{metric.description}, {kind} examples", metric.unit)
        for metric in custom_metrics
        if isinstance(metric, ClientMetric)
        for kind in ("test", "validation")
    }
    per_client |= {
        f"{PERSONALIZED}{name}": (dim, f"{long_name}, of the client's personalized model", unit)
        for name, (dim, long_name, unit) in per_client.items()
    }
    for name, values in recorded["metrics"].items():
        if name.removeprefix(PERSONALIZED) in people.RECORDED:
            continue
        dim, long_name, unit = per_client[name]
        columns[name] = (("seed", "round", dim), values, _attributes(long_name, unit))
    summaries = tuple(metric for metric in custom_metrics if isinstance(metric, Metric))
    for metric in metrics.ALL_SUMMARIES + summaries:
        if (values := recorded["summaries"].get(metric.name)) is not None:
            columns[metric.name] = (("seed", "round"), values, metric_attributes(metric))
        name = f"{PERSONALIZED}{metric.name}"
        if (values := recorded["summaries"].get(name)) is not None:
            attributes = metric_attributes(metric)
            attributes["long_name"] += ", of personalized models"
            columns[name] = (("seed", "round"), values, attributes)
    per_round = ("seed", "training_round", "slot")
    first_nonfinite = np.full(len(seeds), -1)
    if rounds:
        for name, (long_name, unit) in _PER_SLOT.items():
            if name in rounds:
                columns[f"cohort_{name}"] = (per_round, rounds[name], _attributes(long_name, unit))
        nonfinite = rounds["update_nonfinite"]
        first_nonfinite = np.where(nonfinite.any(axis=1), nonfinite.argmax(axis=1), -1)
        attributes = _attributes("Whether the update was not finite and was skipped", "1")
        columns["update_nonfinite"] = (per_round[:2], nonfinite, attributes)
    attributes = {"long_name": "First round whose update was not finite, or -1"}
    columns["diverged"] = ("seed", first_nonfinite, attributes)
    for role in ("selection", "aggregation"):
        for name, values in recorded[role].items():
            attributes = {"long_name": f"{role.capitalize()}: {name.replace('_', ' ')}"}
            columns[f"{role}_{name}"] = (per_round[: values.ndim], values, attributes)
    columns |= _communication(recorded, traffic) | _partition_variables(data)
    for prefix in ("", PERSONALIZED):
        columns |= _group_metrics(recorded["metrics"], data, prefix)
        columns |= people.columns(recorded["metrics"], prefix)
    coordinates = {"seed": np.asarray(seeds, np.int64), "round": recorded["evaluated"]}
    coordinates |= client_coordinate(data) | people.coordinate(data)
    if rounds:
        _, num_rounds, slots = rounds["clients"].shape
        coordinates |= {"training_round": np.arange(num_rounds), "slot": np.arange(slots)}
    attributes = {"data": data.name, "label_skew_only": int(data.label_skew_only)}
    return xr.Dataset(columns, coords=coordinates, attrs=attributes)


def _attributes(long_name: str, unit: str) -> dict[str, str]:
    return {"long_name": long_name, "units": unit}


def metric_attributes(metric: Metric) -> dict[str, str]:
    """Returns the attributes of a metric's variable."""
    described = {"population": metric.population, "weighting": metric.weighting}
    return _attributes(metric.description, metric.unit) | described


def _group_metrics(
    clients: dict[str, np.ndarray], data: FederatedData, prefix: str = ""
) -> dict[str, Any]:
    """Mean test accuracy and loss of each ground-truth group, with a prefix of all names."""
    if data.groups is None or f"{prefix}test_loss" not in clients:
        return {}
    groups = np.asarray(data.groups)
    per_run = groups if groups.ndim == 2 else [groups] * len(clients["test_loss"])
    num_groups = int(groups.max()) + 1
    columns = {}
    for name, unit in {"accuracy": "1", "loss": "nat"}.items():
        values = [
            [_group_means(evaluated, group, num_groups) for evaluated in run]
            for run, group in zip(clients[f"{prefix}test_{name}"], per_run, strict=True)
        ]
        of_models = ", of personalized models" if prefix else ""
        long_name = f"Test {name}, mean over the clients of a group{of_models}"
        attributes = _attributes(long_name, unit)
        columns[f"{prefix}group_{name}"] = (("seed", "round", "planted_group"), values, attributes)
    return columns


def _group_means(values: np.ndarray, groups: np.ndarray, num_groups: int) -> np.ndarray:
    known = ~np.isnan(values)
    total, count = (
        np.bincount(groups[known], weights, num_groups) for weights in (values[known], None)
    )
    return np.divide(total, count, out=np.full(num_groups, np.nan), where=count > 0)


def _communication(recorded: dict[str, Any], traffic: Traffic) -> dict[str, Any]:
    """Bytes up to every evaluation: available participants receive, responders send."""
    # Centralized training has no participants.
    none = np.zeros((recorded["metrics"]["participation"].shape[0], 0, 0), bool)
    participants = recorded["rounds"].get("clients", none) >= 0
    receivers = participants & (recorded["rounds"].get("available", participants) > 0)
    responders = participants & (recorded["rounds"].get("responded", none) > 0)
    up, down = (
        np.pad(counts.sum(axis=2).cumsum(axis=1), [(0, 0), (1, 0)])[:, recorded["evaluated"]]
        for counts in (responders, receivers)
    )
    attributes = {"units": "byte", "population": "all clients", "weighting": "sum"}
    return {
        name: (("seed", "round"), values, {"long_name": f"Sent {way} clients so far"} | attributes)
        for name, values, way in (
            ("bytes_up", up * traffic.up, "by"),
            ("bytes_down", down * traffic.down, "to"),
        )
    }


def partition_dataset(data: FederatedData) -> xr.Dataset:
    """Returns the variables of results that describe the partition.

    Examples:
        >>> from fedjax_fair import data
        >>> dict(partition_dataset(data.load("digits", data.iid(20))).train_examples.sizes)
        {'client': 20, 'class': 10}
    """
    import xarray as xr

    return xr.Dataset(_partition_variables(data), client_coordinate(data), {"data": data.name})


def client_coordinate(data: FederatedData) -> dict[str, np.ndarray]:
    """Returns the names of clients as a coordinate; without names results have none."""
    return {} if data.client_names is None else {"client": np.array(data.client_names)}


def _partition_variables(data: FederatedData) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    run = () if data.num_partitions is None else ("seed",)
    purposes = {"train": "training", "test": "testing", "validation": "validation"}
    for name, purpose in purposes.items():
        if (examples := getattr(data, name)) is not None:
            counts = examples.class_counts(data.num_classes)
            counted = "labels" if are_sequences(examples.labels) else "examples"
            attributes = _attributes(f"{counted.capitalize()} for {purpose}", counted)
            columns[f"{name}_examples"] = ((*run, "client", "class"), counts, attributes)
    if data.groups is not None:
        attributes = {"long_name": "Ground-truth group"}
        columns["group"] = ((*run, "client"), np.asarray(data.groups), attributes)
    return columns
