"""Faults and communication, which a setting of theirs enables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.constructors import construct, settings_of
from fedjax_fair.app.settings.named_methods import Settings
from fedjax_fair.app.settings.registry import COMMUNICATION, FAULTS

if TYPE_CHECKING:
    from fedjax_fair.roles import Faults

__all__ = [
    "OPTIONAL",
    "PRIVACY",
    "enabled",
    "enabling",
    "make_communication",
    "make_faults",
    "settings_of_run",
]

OPTIONAL = {"faults": FAULTS, "communication": COMMUNICATION}
"""Constructors by section, and by the setting that enables them."""

PRIVACY = ("clipping_norm", "target_unclipped_quantile")
"""Settings that enable clipping."""


def enabled(config: Config, section: str) -> dict[str, Callable[..., Any]]:
    """Returns the constructors of faults or communication that a configuration enables."""
    part, off = (
        getattr(config, section),
        (None, "plain") if section == "communication" else (None, 0),
    )
    table = OPTIONAL[section]
    enabled = {key: made for key, made in table.items() if getattr(part, key) not in off}
    if "target_unclipped_quantile" in enabled:
        enabled.pop("clipping_norm", None)  # Which is the first norm of adaptive clipping.
    return enabled


def enabling(section: str, name: str) -> list[str]:
    """Returns the settings that enable what uses a setting of faults or communication."""
    if name == "delta":
        return list(PRIVACY)
    table = OPTIONAL[section]
    return [key for key, constructor in table.items() if name in settings_of(constructor)]


def settings_of_run(config: Config) -> Settings:
    """Returns the settings of enabled faults and communication, by section and field."""
    return {
        section: {
            name: setting
            for constructor in enabled(config, section).values()
            for name, setting in settings_of(constructor).items()
            if hasattr(getattr(config, section), name)
        }
        for section in OPTIONAL
    }


def make_faults(config: Config) -> list[Faults]:
    """Makes the faults that a configuration enables.

    Raises:
        ValueError: If a setting is out of range or missing.
    """
    if config.faults.dropout == 1:
        raise ValueError("faults.dropout=1.0: no client would respond; choose a smaller one.")
    return list(_make(config, "faults").values())


def make_communication(config: Config) -> dict[str, Any]:
    """Makes arguments of ``Round`` from the section ``communication``; errors as `make_faults`."""
    part = config.communication
    if part.delta is not None:
        from fedjax_fair.utils import checks

        checks.open_interval("communication.delta", part.delta)
    if part.top_k is not None and part.bits is not None:
        raise ValueError(
            f"communication.top_k={part.top_k!r} and communication.bits={part.bits!r}: expected "
            "one of them."
        )
    arguments = {"aggregation": "aggregation", "top_k": "compression", "bits": "compression"}
    made = _make(config, "communication")
    return {arguments.get(key, "privacy"): value for key, value in made.items()}


def _make(config: Config, section: str) -> dict[str, Any]:
    """Calls the enabled constructors of faults or communication."""
    part, made = getattr(config, section), {}
    for key, constructor in enabled(config, section).items():
        try:
            made[key] = construct(constructor, part)
        except ValueError as error:
            message = str(error)
            if not message.startswith(f"{key}="):
                message = f"{key}={getattr(part, key)!r}: {message}"
            raise ValueError(f"{section}.{message}") from None
    return made
