"""Faults and communication from the sections of a configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from fedjax_fair.app.config import Config
from fedjax_fair.app.registry import COMMUNICATION, FAULTS
from fedjax_fair.app.signatures import Setting, construct, settings_of
from fedjax_fair.roles import Faults
from fedjax_fair.utils import checks

__all__ = ["condition_settings", "make_communication", "make_faults"]

_PRIVACY = ("clipping_norm", "target_unclipped_quantile")
"""Settings that enable clipping."""

_Table = Mapping[str, tuple[Callable[..., Any], Mapping[str, str]]]


def make_faults(config: Config) -> list[Faults]:
    """Makes the faults that a configuration enables.

    Raises:
        ValueError: If a setting is out of range, missing or not used.
    """
    if config.faults.dropout == 1:
        raise ValueError("faults.dropout=1.0: no client would respond; expected a smaller one.")
    disabled = _disabled_faults(config)
    return list(_make("faults", config.faults, FAULTS, disabled).values())


def make_communication(config: Config) -> dict[str, Any]:
    """Makes arguments of ``Round`` from the section ``communication``; errors as `make_faults`."""
    part, disabled = config.communication, _disabled_communication(config)
    if part.delta is not None:
        if disabled.issuperset(_PRIVACY):
            raise ValueError(
                f"communication.delta={part.delta!r} is not used without "
                f"{' or '.join(f'communication.{key}' for key in _PRIVACY)}; remove it."
            )
        checks.positive("communication.delta", part.delta)
        checks.unit_interval("communication.delta", part.delta)
    if not disabled & {"top_k", "bits"}:
        raise ValueError(
            f"communication.top_k={part.top_k!r} and communication.bits={part.bits!r}: expected "
            "one of them."
        )
    arguments = {"aggregation": "aggregation", "top_k": "compression", "bits": "compression"}
    made = _make("communication", replace(part, delta=None), COMMUNICATION, disabled)
    return {arguments.get(key, "privacy"): value for key, value in made.items()}


def condition_settings(config: Config) -> dict[str, dict[str, Setting]]:
    """Returns the settings of enabled faults and communication, by section and field."""
    tables = {"faults": FAULTS, "communication": COMMUNICATION}
    disabled = {
        "faults": _disabled_faults(config),
        "communication": _disabled_communication(config),
    }
    return {
        section: {
            field: setting
            for key in table.keys() - disabled[section]
            for name, setting in settings_of(table[key][0]).items()
            if hasattr(getattr(config, section), field := table[key][1].get(name, name))
        }
        for section, table in tables.items()
    }


def _disabled_faults(config: Config) -> set[str]:
    return {key for key in FAULTS if not getattr(config.faults, key)}


def _disabled_communication(config: Config) -> set[str]:
    disabled = {
        key for key in COMMUNICATION if getattr(config.communication, key) in (None, "plain")
    }
    if "target_unclipped_quantile" not in disabled:
        disabled.add("clipping_norm")  # Which is the first norm of adaptive clipping.
    return disabled


def _make(section: str, part: Any, table: _Table, disabled: set[str]) -> dict[str, Any]:
    """Calls the enabled constructors of a table, which must use each setting that is given."""
    users: dict[str, list[str]] = {}
    for key, (constructor, names) in table.items():
        for name in settings_of(constructor):
            users.setdefault(names.get(name, name), []).append(key)
    for item in fields(part):
        value, keys = getattr(part, item.name), users.get(item.name, [])
        if value is not None and item.name not in table and disabled.issuperset(keys):
            needed = " or ".join(f"{section}.{key}" for key in keys)
            raise ValueError(
                f"{section}.{item.name}={value!r} is not used without {needed}; remove it."
            )
    made = {}
    for key in (key for key in table if key not in disabled):
        constructor, names = table[key]
        try:
            made[key] = construct(constructor, part, names)
        except ValueError as error:
            message = str(error)
            for parameter, setting in names.items():  # Users know the names of settings.
                message = re.sub(rf"\b{parameter}=", f"{setting}=", message)
            if not message.startswith(f"{key}="):
                message = f"{key}={getattr(part, key)!r}: {message}"
            raise ValueError(f"{section}.{message}") from None
    return made
