"""Variables of virtual time in results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from fedjax_fair.rounds.round_state import RoundTiming

__all__ = ["Devices", "columns", "coordinate", "record"]

_TOTAL = {"population": "all clients", "weighting": "sum"}


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


def record(timing: RoundTiming) -> dict[str, np.ndarray]:
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


def columns(
    rounds: Mapping[str, np.ndarray], evaluated: np.ndarray, devices: Devices | None
) -> dict[str, Any]:
    """Returns the variables of recorded rounds at the rounds ``evaluated``; none without devices.

    Arrays of rounds are those of `record`, and empty without rounds.
    """
    if devices is None:
        return {}
    per_round, seeded = ("seed", "training_round"), devices.classes.shape[:-1]
    found: dict[str, Any] = {
        "device_class_of": (
            (*("seed",) * len(seeded), "client"),
            devices.classes,
            {"long_name": "Device class"},
        ),
    }
    if not rounds:
        return found
    for name, long_name, unit in (
        ("staleness", "Updates of the model since the version that the client was sent", "updates"),
        ("dispatched", "Virtual time at which the task started", "s"),
        ("arrived", "Virtual time at which the result arrived", "s"),
    ):
        attributes = {"long_name": long_name, "units": unit}
        found[f"cohort_{name}"] = ((*per_round, "slot"), rounds[name], attributes)
    attributes = {"long_name": "Virtual time after the round", "units": "s"}
    found["update_time"] = (per_round, rounds["update_time"], attributes)

    def so_far(values: np.ndarray) -> np.ndarray:
        padding = [(0, 0), (1, 0)] + [(0, 0)] * (values.ndim - 2)
        return np.pad(values, padding)[:, evaluated]

    spent, lost = (so_far(rounds[name].cumsum(axis=1)) for name in ("spent", "lost"))
    over = ("seed", "round")
    for name, dims, values, long_name in (
        ("virtual_time", over, so_far(rounds["update_time"]), "Virtual time"),
        ("client_seconds", over, spent.sum(axis=2), "Time of all tasks so far"),
        ("class_seconds", (*over, "device_class"), spent, "Time of all tasks so far"),
        ("class_lost_seconds", (*over, "device_class"), lost, "Time of tasks without effect"),
    ):
        found[name] = (dims, values, {"long_name": long_name, "units": "s"} | _TOTAL)
    attributes = {"long_name": "Whether the model is updated while clients train"}
    kind = np.full(len(spent), devices.is_asynchronous, np.int8)
    return found | {"is_asynchronous": ("seed", kind, attributes)}


def coordinate(devices: Devices | None) -> dict[str, Any]:
    """Returns the names of device classes as a coordinate."""
    return {} if devices is None else {"device_class": list(devices.names)}
