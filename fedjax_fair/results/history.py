"""Records of a run, round by round, and the Dataset made from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from fedjax_fair import metrics
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.metrics.quantities import ACCURACY, Quantity
from fedjax_fair.numerics.labels import are_sequences
from fedjax_fair.results import sensitive_groups
from fedjax_fair.roles import (
    LABEL_UNIT,
    PERSONALIZED,
    ClientMetric,
    ClientMetrics,
    Metric,
    Model,
    Task,
)
from fedjax_fair.rounds.round_state import RoundInfo, RoundTiming, Traffic

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "PARTITION_VARIABLES",
    "RECORDED",
    "Devices",
    "History",
    "client_coordinate",
    "describe_quantity",
    "metric_attributes",
    "name_coordinates",
    "name_quantities",
    "partition_dataset",
    "record_timing",
    "to_dataset",
    "units_of",
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
"""Fields of ``RoundInfo`` over the slots of cohorts: long name and unit."""

_QUANTITY_PARTS = {
    "sensitive_group": ("groups", ("sensitive_group",),
                        "pooled test examples of each sensitive group"),
    "client_group": ("client_groups", ("client", "sensitive_group"),
                     "test examples of each client and sensitive group"),
    "sensitive_feature": ("features", ("sensitive_value",),
                          "pooled test examples of each value of a sensitive feature"),
    "output": ("outputs", ("output",), "pooled test examples, of each target"),
}  # fmt: skip
"""Kinds of values of quantities besides those of clients: field, dimensions and description."""

_OF_LOSSES = ("test", "validation", "sensitive_group", "client_group", "sensitive_feature")
"""Variables of losses that sequences have a perplexity of too."""

_PER_EVALUATION = ("summaries", "metrics")

_TOTAL = {"population": "all clients", "weighting": "sum"}
"""Attributes of bytes and seconds."""


class Devices(NamedTuple):
    """The devices of clients, and how they are scheduled.

    Attributes:
        names: Names of the device classes.
        classes: Class of each client, also ``[seeds, clients]``.
        is_asynchronous: Whether the model is updated while clients train.
    """

    names: tuple[str, ...]
    classes: Int[np.ndarray, "*seeds clients"]
    is_asynchronous: bool


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
        values |= _record_quantities(metrics)
        if (own := metrics.personalized) is not None:
            measured = {name: getattr(own, name) for name in _OF_MODELS} | own.custom
            measured |= sensitive_groups.record(own.sensitive) | _record_quantities(own)
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
            rounds |= record_timing(info.timing)
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
    devices: Devices | None = None,
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
    units = units_of(data, model)
    described = {
        name: ((dim,), _attributes(long_name, units["loss"] if unit == "nat" else unit))
        for name, (dim, long_name, unit) in RECORDED.items()
    }
    for metric in metrics.quantities.client_metrics(task, custom_metrics):
        described |= describe_quantity(metric, units)
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
    columns |= _timing_variables(rounds, recorded["evaluated"], devices)
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
    coordinates |= {} if devices is None else {"device_class": list(devices.names)}
    if rounds:
        _, num_rounds, slots = rounds["clients"].shape
        coordinates |= {"training_round": np.arange(num_rounds), "slot": np.arange(slots)}
    coordinates |= _output_coordinate(columns, data)
    attributes: dict[str, Any] = {"data": data.name, "label_skew_only": int(data.label_skew_only)}
    found = metrics.quantities.quantities_of(task, custom_metrics, sequences=is_sequence)
    attributes |= name_quantities(found)
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
        return _so_far((sizes.sum(axis=2) + others).cumsum(axis=1), recorded["evaluated"])

    return {
        name: (
            ("seed", "round"),
            values,
            _attributes(f"Sent {way} clients so far", "byte") | _TOTAL,
        )
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


def _record_quantities(clients: ClientMetrics) -> dict[str, Any]:
    """Returns values of quantities that are not of clients alone, by name of the variable."""
    if clients.quantities is None:
        return {}
    return {
        f"{kind}_{name}": value
        for kind, (field, *_) in _QUANTITY_PARTS.items()
        for name, value in getattr(clients.quantities, field).items()
    }


def describe_quantity(
    metric: ClientMetric, units: dict[str, str]
) -> dict[str, tuple[tuple[str, ...], dict[str, str]]]:
    """Returns the dimensions after seed and round, and the attributes, of variables by name."""
    about = {"units": units.get(metric.unit, metric.unit), "better": metric.better}
    about |= {"heading": metric.heading or metric.name, "scale": metric.scale}
    parts: dict[str, tuple[tuple[str, ...], str]] = {
        kind: (("client",), f"{kind} examples") for kind in ("test", "validation")
    }
    parts |= {kind: (dims, text) for kind, (_, dims, text) in _QUANTITY_PARTS.items()}
    return {
        f"{kind}_{metric.name}": (dims, {"long_name": f"{metric.description}, {text}"} | about)
        for kind, (dims, text) in parts.items()
    }


def units_of(data: FederatedData, model: Model | None) -> dict[str, str]:
    """Returns the units of results in place of those of metrics.

    An error has the unit of the label if the user gave it, else the unit of the column of the label
    if its name is known; an error of classes counts them. The loss has the unit of the model's.
    """
    label = "1"
    if data.train.has_targets:
        names = () if data.encoding is None else data.encoding.label
        label = data.label_unit or (f"unit of {', '.join(names)}" if names else LABEL_UNIT)
    units = {LABEL_UNIT: label, f"({LABEL_UNIT})^2": label if label == "1" else f"({label})^2"}
    loss = "nat" if model is None else model.loss_unit
    return units | {"loss": units.get(loss, loss)}


def name_quantities(quantities: Sequence[Quantity]) -> dict[str, str]:
    """Returns the attribute of results that names their quantities; none for accuracy alone."""
    names = [each.name for each in quantities]
    return {} if names == [ACCURACY.name] else {"quantities": json.dumps(names)}


def record_timing(timing: RoundTiming) -> dict[str, np.ndarray]:
    """Returns arrays ``[seeds, rounds, ...]`` of a chunk of rounds, times in seconds."""
    return {
        "staleness": np.asarray(timing.staleness),
        "dispatched": timing.dispatched.as_seconds(),
        "arrived": timing.arrived.as_seconds(),
        "update_time": timing.clock.as_seconds(),
        "spent": timing.spent.as_seconds(),
        "lost": timing.lost.as_seconds(),
        "num_discarded": np.asarray(timing.num_discarded),
    }


def _timing_variables(
    rounds: Mapping[str, np.ndarray], evaluated: np.ndarray, devices: Devices | None
) -> dict[str, Any]:
    """Returns the variables of recorded rounds at the rounds ``evaluated``; none without devices.

    Arrays of rounds are those of `record_timing`, and empty without rounds.
    """
    if devices is None:
        return {}
    run = ("seed",) * (devices.classes.ndim - 1)
    device_class = ((*run, "client"), devices.classes, {"long_name": "Device class"})
    found: dict[str, Any] = {"device_class_of": device_class}
    if not rounds:
        return found
    per_round, over = ("seed", "training_round"), ("seed", "round")
    for name, long_name, unit in (
        ("staleness", "Updates of the model since the version that the client was sent", "updates"),
        ("dispatched", "Virtual time at which the task started", "s"),
        ("arrived", "Virtual time at which the result arrived", "s"),
    ):
        attributes = _attributes(long_name, unit)
        found[f"cohort_{name}"] = ((*per_round, "slot"), rounds[name], attributes)
    times = rounds["update_time"]
    found["update_time"] = (per_round, times, _attributes("Virtual time after the round", "s"))
    spent, lost = (_so_far(rounds[name].cumsum(axis=1), evaluated) for name in ("spent", "lost"))
    for name, dims, values, long_name in (
        ("virtual_time", over, _so_far(times, evaluated), "Virtual time"),
        ("client_seconds", over, spent.sum(axis=2), "Time of all tasks so far"),
        ("class_seconds", (*over, "device_class"), spent, "Time of all tasks so far"),
        ("class_lost_seconds", (*over, "device_class"), lost, "Time of tasks without effect"),
    ):
        found[name] = (dims, values, _attributes(long_name, "s") | _TOTAL)
    attributes = {"long_name": "Whether the model is updated while clients train"}
    kind = np.full(len(spent), devices.is_asynchronous, np.int8)
    return found | {"is_asynchronous": ("seed", kind, attributes)}


def _so_far(values: np.ndarray, evaluated: np.ndarray) -> np.ndarray:
    """Returns cumulative values after each round, ``[seeds, rounds, ...]``, at evaluations."""
    padding = [(0, 0), (1, 0)] + [(0, 0)] * (values.ndim - 2)
    return np.pad(values, padding)[:, evaluated]
