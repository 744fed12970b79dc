"""Texts of results about their settings, privacy and Byzantine clients."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.defaults import format_settings
from fedjax_fair.communication import epsilon
from fedjax_fair.faults import Byzantine
from fedjax_fair.rounds.base_round import BaseRound
from fedjax_fair.rounds.round import Round

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["add_epsilon", "attributes_of", "guarantee"]

_ATTRIBUTES = {
    "long_name": "epsilon of differential privacy, NaN without a guarantee",
    "units": "1",
}


def guarantee(name: str, method: BaseRound, config: Config, num_clients: int) -> float | str | None:
    """Returns epsilon of a run, the reason why there is none, or None without clipping.

    Args:
        name: The method.
        method: Its round.
        config: The configuration, with the rounds and delta.
        num_clients: Number of clients.
    """
    if not isinstance(method, Round) or method.privacy is None:
        return None
    if method.selector.sampling is None:
        return f"{name} selects by data"
    faults: Any = method.faults  # A tuple, by the constructor.
    if any(fault.available is not None for fault in faults):
        return "cohorts depend on the availability of clients"
    if any(isinstance(fault, Byzantine) for fault in faults):
        return "Byzantine clients do not clip"
    spent = epsilon(
        method.privacy,
        method.selector,
        num_clients=num_clients,
        rounds=config.training.rounds or 0,
        delta=_delta(config, num_clients),
    )
    return "there is no noise" if math.isinf(spent) else spent


def attributes_of(
    config: Config,
    guarantees: Iterable[tuple[str, float | str | None]],
    num_clients: int,
    varied: Collection[tuple[str, str]] = (),
) -> dict[str, str]:
    """Returns the attributes of results that describe settings, privacy and Byzantine clients.

    ``guarantees`` are pairs of a method and its `guarantee`, of which a sweep has several, and
    ``varied`` the settings that it varies.
    """
    attrs = {"settings": format_settings(config, varied, num_clients)}
    known: dict[str, list[float | str]] = {}
    for name, value in guarantees:
        if value is not None:
            known.setdefault(name, []).append(value)
    if known:
        attrs["privacy"] = _describe_guarantees(known, config, num_clients)
    if config.faults.byzantine or ("faults", "byzantine") in varied:
        attrs["byzantine"] = (
            "Accuracies and other metrics are of all clients, Byzantine ones included."
        )
    return attrs


def add_epsilon(dataset: xr.Dataset, guarantee: float | str | None) -> xr.Dataset:
    """Adds the variable ``epsilon`` to the results of one method, unless it has no clipping."""
    if guarantee is None:
        return dataset
    value = math.nan if isinstance(guarantee, str) else guarantee
    return dataset.assign(epsilon=((), value, _ATTRIBUTES))


def _describe_guarantees(
    guarantees: Mapping[str, Iterable[float | str]], config: Config, num_clients: int
) -> str:
    """Describes the guarantees of each method, of which a sweep has several.

    Examples:
        >>> spent = {"fedavg": [1.5, 201.25], "divfl": ["divfl selects by data"]}
        >>> _describe_guarantees(spent, Config(), num_clients=100).split("; ")[0]
        'Privacy of clients at delta = 0.01: fedavg: epsilon = 1.5 to 201'
    """
    parts = []
    for name, each in guarantees.items():
        values = sorted({f"{one:.3g}" for one in each if not isinstance(one, str)}, key=float)
        reasons = sorted({f"no guarantee: {one}" for one in each if isinstance(one, str)})
        spent = [f"epsilon = {' to '.join(values[:: max(1, len(values) - 1)])}"] if values else []
        parts.append(f"{name}: {', '.join(spent + reasons)}")
    delta = f"delta = {_delta(config, num_clients):.3g}"
    return f"Privacy of clients at {delta}: {'; '.join(parts)}."


def _delta(config: Config, num_clients: int) -> float:
    delta = config.communication.delta
    return 1 / max(2, num_clients) if delta is None else delta
