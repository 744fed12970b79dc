"""Records of a run, round by round, and the Dataset made from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedjax_fair import metrics
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.numerics.labels import are_sequences
from fedjax_fair.results import quantity_variables, sensitive_groups, timing_variables
from fedjax_fair.roles import PERSONALIZED, ClientMetric, ClientMetrics, Metric, Model, Task
from fedjax_fair.rounds.round_state import RoundInfo, Traffic

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "PARTITION_VARIABLES",
    "RECORDED",
    "History",
    "client_coordinate",
    "metric_attributes",
    "name_coordinates",
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
_OF_LOSSES = ("test", "validation", "sensitive_group", "client_group", "sensitive_feature")
"""Variables of losses that sequences have a perplexity of too."""

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
        values |= metrics.custom | sensitive_groups.record(metrics.sensitive)
        values |= quantity_variables.record(metrics)
        if (own := metrics.personalized) is not None:
            measured = {name: getattr(own, name) for name in _OF_MODELS} | own.custom
            measured |= sensitive_groups.record(own.sensitive) | quantity_variables.record(own)
            values |= {f"{PERSONALIZED}{name}": value for name, value in measured.items()}
        self._evaluated.append(round)
        self._records["summaries"].append(summaries)
        self._records["metrics"].append(
            {name: value for name, value in values.items() if value is not None}
        )

    def add_rounds(self, info: RoundInfo) -> None:
        """Records a chunk of rounds: leaves ``[seeds, rounds, cohort]`` or ``[seeds, rounds]``."""
        unnamed = ("available", "bytes_up", "bytes_down")
        rounds = {name: getattr(info, name) for name in (*_PER_SLOT, *unnamed)}
        # Booleans could not be NaN, which pads methods with fewer slots.
        rounds = {
            name: value.astype(np.int8) if value.dtype == bool else value
            for name, value in rounds.items()
            if value is not None
        }
        rounds["update_nonfinite"] = (~info.finite).astype(np.int8)
        if info.timing is not None:
            rounds |= timing_variables.record(info.timing)
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
    model: Model | None = None,
    num_trained: int = 0,
    devices: timing_variables.Devices | None = None,
) -> xr.Dataset:
    """Converts the records of a run to a Dataset.

    Args:
        history: The records.
        seeds: The seeds, in the order of the leading axes.
        data: The federated dataset.
        traffic: Bytes that a participant communicates in a round.
        custom_metrics: Metrics in addition to those of the package.
        model: The network, for its task and the unit of its loss; by default of classification.
        num_trained: Trained parameters, which results have if others are frozen.
        devices: Device classes, with a schedule.
    """
    import xarray as xr

    recorded = history.arrays()
    rounds = recorded["rounds"]
    columns: dict[str, Any] = {}
    task: Task = "classification" if model is None else model.task
    units = quantity_variables.units_of(data, model)
    described = {
        name: ((dim,), _attributes(long_name, units["loss"] if unit == "nat" else unit))
        for name, (dim, long_name, unit) in RECORDED.items()
    }
    for metric in metrics.quantities.client_metrics(task, custom_metrics):
        described |= quantity_variables.describe(metric, units)
    for name, values in recorded["metrics"].items():
        known = name.removeprefix(PERSONALIZED)
        is_undefined = task == "regression" and known.endswith("_accuracy")
        if known in sensitive_groups.RECORDED or is_undefined:
            continue
        dims, attributes = described[known]
        if name != known:
            long_name = f"{attributes['long_name']}, of the client's personalized model"
            attributes = attributes | {"long_name": long_name}
        columns[name] = (("seed", "round", *dims), values, attributes)
    is_sequence = are_sequences(data.test.labels)
    used = metrics.summaries_of(
        client_groups=True,
        validation=True,
        sequences=is_sequence,
        sensitive_classes=data.num_classes,
        task=task,
        custom=custom_metrics,
    )
    for metric in (*used, *metrics.central_summaries(task, custom_metrics)):
        for name in (metric.name, f"{PERSONALIZED}{metric.name}"):
            if (values := recorded["summaries"].get(name)) is not None:
                attributes = metric_attributes(metric, units)
                if name != metric.name:
                    attributes["long_name"] += ", of personalized models"
                columns[name] = (("seed", "round"), values, attributes)
    for prefix in ("", PERSONALIZED) if is_sequence else ():
        columns |= _perplexities(columns, prefix)
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
    frozen = () if model is None else jax.tree.leaves(model.frozen)
    for kind, count in (("trained", num_trained), ("frozen", sum(leaf.size for leaf in frozen))):
        if frozen:
            attributes = _attributes(f"Number of {kind} parameters", "1")
            columns[f"{kind}_parameters"] = ("seed", np.full(len(seeds), count), attributes)
    for role in ("selection", "aggregation"):
        for name, values in recorded[role].items():
            attributes = {"long_name": f"{role.capitalize()}: {name.replace('_', ' ')}"}
            columns[f"{role}_{name}"] = (per_round[: values.ndim], values, attributes)
    columns |= _communication(recorded, traffic) | _partition_variables(data)
    columns |= timing_variables.columns(rounds, recorded["evaluated"], devices)
    for prefix in ("", PERSONALIZED):
        if data.groups is not None:
            columns |= _group_metrics(columns, np.asarray(data.groups), prefix)
        if devices is not None:
            columns |= _group_metrics(columns, devices.classes, prefix, len(devices.names))
        columns |= sensitive_groups.columns(
            recorded["metrics"],
            prefix,
            features=data.sensitive_names or (),
            loss_unit=units["loss"],
            has_accuracy=task != "regression",
        )
        columns |= _perplexities(columns, prefix) if is_sequence else {}
    coordinates = {"seed": np.asarray(seeds, np.int64), "round": recorded["evaluated"]}
    coordinates |= name_coordinates(data) | sensitive_groups.coordinate(data)
    coordinates |= timing_variables.coordinate(devices)
    if rounds:
        _, num_rounds, slots = rounds["clients"].shape
        coordinates |= {"training_round": np.arange(num_rounds), "slot": np.arange(slots)}
    coordinates |= _output_coordinate(columns, data)
    attributes: dict[str, Any] = {"data": data.name, "label_skew_only": int(data.label_skew_only)}
    found = metrics.quantities.quantities_of(task, custom_metrics, sequences=is_sequence)
    attributes |= quantity_variables.attribute(found)
    dataset = xr.Dataset(columns, coords=coordinates, attrs=attributes)
    return dataset.assign(metrics.speed.summarize(dataset)) if rounds and devices else dataset


def _output_coordinate(columns: Mapping[str, Any], data: FederatedData) -> dict[str, Any]:
    """Returns the names of several targets, columns of a table, as a coordinate."""
    has_outputs = any("output" in dims for dims, *_ in columns.values())
    names = () if data.encoding is None else data.encoding.label
    return {"output": list(names)} if has_outputs and len(names) > 1 else {}


def _attributes(long_name: str, unit: str) -> dict[str, str]:
    return {"long_name": long_name, "units": unit}


def metric_attributes(metric: Metric, units: Mapping[str, str]) -> dict[str, str]:
    """Returns the attributes of a metric's variable; ``units`` are those of `units_of`."""
    described = {"population": metric.population, "weighting": metric.weighting}
    unit = units.get(metric.unit, metric.unit)
    if metric.unit == "nat" and metric.name.removeprefix("validation_") != "accuracy_entropy":
        unit = units["loss"]
    if metric.name not in metrics.BY_NAME and metric.better is not None:
        described |= {"better": metric.better}
        described |= {"heading": metric.heading} if metric.heading else {}
    return _attributes(metric.description, unit) | described


def _perplexities(columns: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Returns the perplexities that follow from losses, which results of sequences have."""
    found = {}
    for kind in _OF_LOSSES:
        name = f"{prefix}{kind}_perplexity"
        if f"{prefix}{kind}_loss" in columns and name not in columns:
            dims, losses, attributes = columns[f"{prefix}{kind}_loss"]
            long_name = attributes["long_name"].replace("loss", "perplexity")
            long_name = long_name.replace("Loss", "Perplexity")
            attributes = _attributes(long_name, "1")
            attributes |= {"better": "lower", "heading": "perplexity"}
            found[name] = (dims, np.exp(losses), attributes)
    return found


def _group_metrics(
    columns: Mapping[str, Any], groups: np.ndarray, prefix: str, num_classes: int | None = None
) -> dict[str, Any]:
    """Returns the means of quantities over each group of clients, with a prefix of all names.

    Groups are device classes if their number is given, else ground-truth groups.
    """
    if f"{prefix}test_loss" not in columns:
        return {}
    num_groups = num_classes or int(groups.max()) + 1
    kind, dim, what = ("class_device", "device_class", "device class")
    if num_classes is None:
        kind, dim, what = ("group", "planted_group", "group")
    found = {}
    for name, (dims, measured, about) in columns.items():
        if not name.startswith(f"{prefix}test_") or dims != ("seed", "round", "client"):
            continue
        per_run = groups if groups.ndim == 2 else [groups] * len(measured)
        values = [
            [_group_means(evaluated, group, num_groups) for evaluated in run]
            for run, group in zip(measured, per_run, strict=True)
        ]
        quantity = name.removeprefix(f"{prefix}test_")
        of_models = ", of personalized models" if prefix else ""
        long_name = about["long_name"].partition(",")[0]
        long_name = f"{long_name}, mean over the clients of a {what}{of_models}"
        attributes = about | {"long_name": long_name}
        found[f"{prefix}{kind}_{quantity}"] = (("seed", "round", dim), values, attributes)
    return found


def _group_means(values: np.ndarray, groups: np.ndarray, num_groups: int) -> np.ndarray:
    known = ~np.isnan(values)
    total, count = (
        np.bincount(groups[known], weights, num_groups) for weights in (values[known], None)
    )
    return np.divide(total, count, out=np.full(num_groups, np.nan), where=count > 0)


def _communication(recorded: dict[str, Any], traffic: Traffic) -> dict[str, Any]:
    """Bytes up to every evaluation: clients of all tasks receive, responders send."""
    # Centralized training has no participants.
    none = np.zeros((recorded["metrics"]["participation"].shape[0], 0, 0), bool)
    participants = recorded["rounds"].get("clients", none) >= 0
    receivers = participants & (recorded["rounds"].get("available", participants) > 0)
    responders = participants & (recorded["rounds"].get("responded", none) > 0)

    # The server cannot know before that their results will be lost.
    discarded = np.asarray(recorded["rounds"].get("num_discarded", 0), np.int64) * traffic.down

    def total(mask, name, each, others: Any = 0):
        sizes = mask * np.asarray(recorded["rounds"].get(name, each), np.int64)
        sums = (sizes.sum(axis=2) + others).cumsum(axis=1)
        return np.pad(sums, [(0, 0), (1, 0)])[:, recorded["evaluated"]]

    attributes = {"units": "byte", "population": "all clients", "weighting": "sum"}
    return {
        name: (("seed", "round"), values, {"long_name": f"Sent {way} clients so far"} | attributes)
        for name, values, way in (
            ("bytes_up", total(responders, "bytes_up", traffic.up), "by"),
            ("bytes_down", total(receivers, "bytes_down", traffic.down, discarded), "to"),
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

    return xr.Dataset(_partition_variables(data), name_coordinates(data), {"data": data.name})


def name_coordinates(data: FederatedData) -> dict[str, np.ndarray]:
    """Returns the names of clients and classes as coordinates; without names there are none."""
    names = data.class_names
    return client_coordinate(data) | ({} if names is None else {"class": np.array(names)})


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
