"""What a run records, round by round, and the Dataset made of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_fair import metrics
from fedjax_fair.base import ClientMetric, ClientMetrics, Metric, Variables
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.metrics.communication import bytes_per_round
from fedjax_fair.simulate import RoundInfo

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "PARTITION_VARIABLES",
    "RECORDED",
    "History",
    "described",
    "partition_dataset",
    "to_dataset",
]

PARTITION_VARIABLES = ("train_examples", "test_examples", "validation_examples", "group")
"""What belongs to a partition and not to a method."""

RECORDED = {
    "test_accuracy": ("client", "Test accuracy", "1"),
    "test_loss": ("client", "Test loss", "nat"),
    "train_loss": ("client", "Training loss", "nat"),
    "validation_accuracy": ("client", "Validation accuracy", "1"),
    "validation_loss": ("client", "Validation loss", "nat"),
    "participation": ("client", "Rounds trained in", "rounds"),
    "class_accuracy": ("class", "Accuracy on all test examples of a class", "1"),
}
"""Fields of ``ClientMetrics`` that change during a run: last dimension, long name and unit.

Those of validation examples are there if the examples are.
"""

_PER_SLOT = {
    "clients": ("Client in the cohort", "1"),
    "weights": ("Aggregation weight", "1"),
    "loss": ("Mean minibatch loss in local training", "nat"),
    "steps": ("Local steps", "steps"),
    "responded": ("Whether the result has arrived", "1"),
    "nonfinite": ("Whether the update that was sent is not finite", "1"),
}


class History:
    """Evaluations and rounds, in the order they happened.

    Arrays are kept as they come, with seeds first; ``arrays`` puts time second.
    """

    def __init__(self) -> None:
        self._evaluated: list[int] = []
        self._summaries: list[dict[str, np.ndarray]] = []
        self._metrics: list[dict[str, np.ndarray]] = []
        self._rounds: list[dict[str, np.ndarray]] = []
        self._selection: list[dict[str, np.ndarray]] = []
        self._aggregation: list[dict[str, np.ndarray]] = []

    @property
    def round(self) -> int:
        """The round of the latest evaluation; -1 before the first."""
        return self._evaluated[-1] if self._evaluated else -1

    def add_evaluation(
        self, round: int, summaries: dict[str, np.ndarray], metrics: ClientMetrics
    ) -> None:
        """Records an evaluation: summaries ``[seeds]`` and ``[seeds, clients or classes]``."""
        self._evaluated.append(round)
        self._summaries.append(summaries)
        measured: dict[str, Any] = {name: getattr(metrics, name) for name in RECORDED}
        measured |= metrics.custom
        self._metrics.append({name: value for name, value in measured.items() if value is not None})

    def add_rounds(self, info: RoundInfo) -> None:
        """Records a chunk of rounds: leaves ``[seeds, rounds, cohort]`` or ``[seeds, rounds]``."""
        own = {name: getattr(info, name) for name in _PER_SLOT}
        # Not as truth values, which could not be missing where another method has more slots.
        own |= {name: own[name].astype(np.int8) for name in ("responded", "nonfinite")}
        own["update_nonfinite"] = (~info.finite).astype(np.int8)
        self._rounds.append(own)
        self._selection.append({name: np.asarray(value) for name, value in info.selector.items()})
        self._aggregation.append(
            {name: np.asarray(value) for name, value in info.aggregator.items()}
        )

    def arrays(self) -> dict[str, Any]:
        """Everything as arrays: ``[seeds, evaluations, ...]`` and ``[seeds, rounds, ...]``."""
        return {
            "evaluated": np.asarray(self._evaluated, np.int64),
            "summaries": _join(self._summaries, np.stack),
            "metrics": _join(self._metrics, np.stack),
            "rounds": _join(self._rounds, np.concatenate),
            "selection": _join(self._selection, np.concatenate),
            "aggregation": _join(self._aggregation, np.concatenate),
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any]) -> History:
        """Rebuilds a history from what ``arrays`` returned."""
        history = cls()
        history._evaluated = [int(round) for round in arrays["evaluated"]]
        history._summaries = _split(arrays["summaries"], len(history._evaluated))
        history._metrics = _split(arrays["metrics"], len(history._evaluated))
        history._rounds = [arrays["rounds"]] if arrays["rounds"] else []
        history._selection = [arrays["selection"]] if arrays["rounds"] else []
        history._aggregation = [arrays["aggregation"]] if arrays["rounds"] else []
        return history


def _join(records: list[dict[str, np.ndarray]], along_time) -> dict[str, np.ndarray]:
    names = records[0] if records else ()
    return {name: along_time([record[name] for record in records], axis=1) for name in names}


def _split(joined: dict[str, np.ndarray], count: int) -> list[dict[str, np.ndarray]]:
    return [{name: values[:, i] for name, values in joined.items()} for i in range(count)]


def to_dataset(
    history: History,
    seeds: tuple[int, ...],
    data: FederatedData,
    variables: Variables,
    bytes_up: int | None = None,
    custom_metrics: Sequence[Metric | ClientMetric] = (),
) -> xr.Dataset:
    """Turns what a run recorded into a Dataset.

    Args:
        history: What was recorded.
        seeds: The seeds, in the order of the history's leading axes.
        data: The federation.
        variables: Variables of one model, or their shapes, for the bytes that a round moves.
        bytes_up: Bytes that a participant sends in a round; by default those of a model.
        custom_metrics: What was measured besides.

    Returns:
        The Dataset that ``fedjax_fair.results`` describes.
    """
    import xarray as xr

    recorded = history.arrays()
    columns: dict[str, Any] = {}
    of_clients = RECORDED | {
        f"{kind}_{metric.name}": ("client", f"{metric.description}, {kind} examples", metric.unit)
        for metric in custom_metrics
        if isinstance(metric, ClientMetric)
        for kind in ("test", "validation")
    }
    for name, values in recorded["metrics"].items():
        dim, long_name, unit = of_clients[name]
        attributes = {"long_name": long_name, "units": unit}
        columns[name] = (("seed", "round", dim), values, attributes)
    summaries = tuple(metric for metric in custom_metrics if isinstance(metric, Metric))
    for metric in metrics.ALL_SUMMARIES + summaries:
        if metric.name not in recorded["summaries"]:
            continue
        values = recorded["summaries"][metric.name]
        columns[metric.name] = (("seed", "round"), values, described(metric))
    for name, (long_name, unit) in _PER_SLOT.items() if recorded["rounds"] else ():
        attributes = {"long_name": long_name, "units": unit}
        values = recorded["rounds"][name]
        columns[f"cohort_{name}"] = (("seed", "training_round", "slot"), values, attributes)
    columns |= _divergence(recorded["rounds"], len(seeds))
    for role in ("selection", "aggregation"):
        for name, values in recorded[role].items():
            attributes = {"long_name": f"{role.capitalize()}: {name.replace('_', ' ')}"}
            dims = ("seed", "training_round", "slot")[: values.ndim]
            columns[f"{role}_{name}"] = (dims, values, attributes)
    columns |= _communication(recorded, variables, bytes_up)
    columns |= _partition_variables(data)
    columns |= _of_groups(recorded["metrics"], data)
    coordinates = {"seed": np.asarray(seeds, np.int64), "round": recorded["evaluated"]}
    if recorded["rounds"]:
        _, rounds, slots = recorded["rounds"]["clients"].shape
        coordinates |= {"training_round": np.arange(rounds), "slot": np.arange(slots)}
    return xr.Dataset(
        columns,
        coords=coordinates,
        attrs={"data": data.name, "label_skew_only": int(data.label_skew_only)},
    )


def _divergence(rounds: dict[str, np.ndarray], num_seeds: int) -> dict[str, Any]:
    """Updates of the model that were not finite, and the first of each run."""
    attributes = {"long_name": "First round whose update was not finite, or -1"}
    if not rounds:
        return {"diverged": ("seed", np.full(num_seeds, -1), attributes)}
    bad = rounds["update_nonfinite"]
    first = np.where(bad.any(axis=1), bad.argmax(axis=1), -1)
    whether = {"long_name": "Whether the update was not finite; the model stayed", "units": "1"}
    return {
        "update_nonfinite": (("seed", "training_round"), bad, whether),
        "diverged": ("seed", first, attributes),
    }


def described(metric: Metric) -> dict[str, str]:
    """What a metric says of itself, as attributes of its variable."""
    return {
        "long_name": metric.description,
        "units": metric.unit,
        "population": metric.population,
        "weighting": metric.weighting,
    }


def _of_groups(clients: dict[str, np.ndarray], data: FederatedData) -> dict[str, Any]:
    """Mean test accuracy and loss of each planted group."""
    if data.groups is None:
        return {}
    groups = np.asarray(data.groups)
    per_run = groups if groups.ndim == 2 else [groups] * len(clients["test_loss"])
    num_groups = int(groups.max()) + 1
    columns = {}
    for name, unit in {"accuracy": "1", "loss": "nat"}.items():
        values = [
            [_group_means(evaluated, own, num_groups) for evaluated in run]
            for run, own in zip(clients[f"test_{name}"], per_run, strict=True)
        ]
        described = {"long_name": f"Test {name}, mean over the clients of a group", "units": unit}
        columns[f"group_{name}"] = (("seed", "round", "planted_group"), values, described)
    return columns


def _group_means(values: np.ndarray, groups: np.ndarray, num_groups: int) -> np.ndarray:
    known = ~np.isnan(values)
    total, count = (
        np.bincount(groups[known], weights, num_groups) for weights in (values[known], None)
    )
    return np.divide(total, count, out=np.full(num_groups, np.nan), where=count > 0)


def _communication(
    recorded: dict[str, Any], variables: Variables, bytes_up: int | None
) -> dict[str, Any]:
    """Traffic up to every evaluation: participants receive a model, and those who answer an update."""
    moved = bytes_per_round(variables, cohort_size=1)
    none = np.zeros((recorded["metrics"]["participation"].shape[0], 0, 0), bool)
    participants = recorded["rounds"].get("clients", none) >= 0  # Pooled examples have none.
    arrived = participants & (recorded["rounds"].get("responded", none) > 0)
    up, down = (
        np.pad(counts.sum(axis=2).cumsum(axis=1), [(0, 0), (1, 0)])[:, recorded["evaluated"]]
        for counts in (arrived, participants)
    )
    attributes = {"units": "byte", "population": "all clients", "weighting": "sum"}
    sent = {"long_name": "Sent by clients so far", **attributes}
    received = {"long_name": "Sent to clients so far", **attributes}
    return {
        "bytes_up": (("seed", "round"), up * (moved if bytes_up is None else bytes_up), sent),
        "bytes_down": (("seed", "round"), down * moved, received),
    }


def partition_dataset(data: FederatedData) -> xr.Dataset:
    """Who owns what, as results have it, before any training.

    Args:
        data: The federation.

    Returns:
        ``train_examples`` and ``test_examples`` over ``(client, class)``, and ``group`` over
        ``client`` where groups are planted; over ``seed`` too, where every run has a partition.

    Examples:
        >>> from fedjax_fair import data
        >>> dict(partition_dataset(data.load("digits", data.iid(20))).train_examples.sizes)
        {'client': 20, 'class': 10}
    """
    import xarray as xr

    return xr.Dataset(_partition_variables(data), attrs={"data": data.name})


def _partition_variables(data: FederatedData) -> dict[str, Any]:
    """Examples of every client and class, and the planted groups."""
    columns: dict[str, Any] = {}
    run = () if data.num_partitions is None else ("seed",)
    purposes = {"train": "training", "test": "testing", "validation": "validation"}
    for name, purpose in purposes.items():
        if (examples := getattr(data, name)) is None:
            continue
        attributes = {"long_name": f"Examples for {purpose}", "units": "examples"}
        counts = examples.class_counts(data.num_classes)
        columns[f"{name}_examples"] = ((*run, "client", "class"), counts, attributes)
    if data.groups is not None:
        groups = np.asarray(data.groups)
        columns["group"] = ((*run, "client"), groups, {"long_name": "Planted group"})
    return columns
