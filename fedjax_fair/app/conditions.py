"""Faults and communication from the sections of a configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from fedjax_fair.app.config import Config
from fedjax_fair.app.registry import COMMUNICATION, FAULTS
from fedjax_fair.app.signatures import construct, settings_of
from fedjax_fair.base import Faults

__all__ = ["make_communication", "make_faults"]

_Table = Mapping[str, tuple[Callable[..., Any], Mapping[str, str]]]


def make_faults(config: Config) -> list[Faults]:
    """Makes the faults that a configuration enables.

    Raises:
        ValueError: If a setting is out of range, missing or not used.
    """
    enabled = {key: use for key, use in FAULTS.items() if getattr(config.faults, key)}
    _check_used("faults", config.faults, FAULTS, enabled)
    return [fault for _, fault in _make("faults", config.faults, enabled)]


def make_communication(config: Config) -> dict[str, Any]:
    """Makes the communication of a configuration, as arguments of ``Round``.

    Raises:
        ValueError: If a setting is out of range, missing or not used.
    """
    part = config.communication
    disabled = {key for key in COMMUNICATION if getattr(part, key) in (None, "plain")}
    if "target_unclipped_quantile" not in disabled:
        disabled.add("clipping_norm")  # Which is the first norm of adaptive clipping.
    enabled = {key: use for key, use in COMMUNICATION.items() if key not in disabled}
    _check_used("communication", part, COMMUNICATION, enabled)
    if {"top_k", "bits"} <= enabled.keys():
        raise ValueError(
            f"communication.top_k={part.top_k!r} and communication.bits={part.bits!r}: expected "
            "one of them."
        )
    arguments = {"aggregation": "aggregation", "top_k": "compression", "bits": "compression"}
    # Without noise updates are only clipped.
    made = _make("communication", part, enabled, noise_multiplier=0.0)
    return {arguments.get(key, "privacy"): value for key, value in made}


def _make(section: str, part: Any, enabled: _Table, **defaults: Any) -> Iterator[tuple[str, Any]]:
    for key, (constructor, names) in enabled.items():
        try:
            yield key, construct(constructor, part, names, **defaults)
        except ValueError as error:
            message = str(error)
            for parameter, setting in names.items():  # Users know the names of settings.
                message = re.sub(rf"\b{parameter}=", f"{setting}=", message)
            if not message.startswith(f"{key}="):
                message = f"{key}={getattr(part, key)!r}: {message}"
            raise ValueError(f"{section}.{message}") from None


def _check_used(section: str, part: Any, table: _Table, enabled: _Table) -> None:
    """Checks that an enabled entry uses each setting that is given."""
    users: dict[str, list[str]] = {}
    for key, (constructor, names) in table.items():
        for name in settings_of(constructor):
            users.setdefault(names.get(name, name), []).append(key)
    for item in fields(part):
        value, keys = getattr(part, item.name), users.get(item.name, [])
        if value is None or item.name in table or enabled.keys() & set(keys):
            continue
        needed = " or ".join(f"{section}.{key}" for key in keys)
        raise ValueError(
            f"{section}.{item.name}={value!r} is not used without {needed}; remove it."
        )
