"""Settings that a configuration uses. Others are dropped with a preset, and refused otherwise.

A setting of faults or communication enables one of them, and with it its other settings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.constructors import construct, settings_of
from fedjax_fair.app.settings.named_methods import Settings, resolve_method, used_settings
from fedjax_fair.app.settings.names import NETWORK, SettingKey, change, option_of, values_of
from fedjax_fair.app.settings.registry import (
    COMMUNICATION,
    FAULTS,
    METHODS,
    MODELS,
    PARTITIONERS,
    READERS,
    role_classes,
)
from fedjax_fair.app.settings.source_defaults import find_source, is_leaf, is_table_file
from fedjax_fair.app.settings.suggestions import lookup

if TYPE_CHECKING:
    from fedjax_fair.roles import Faults

__all__ = [
    "check_unused_settings",
    "drop_unused_settings",
    "make_communication",
    "make_faults",
    "run_settings",
]

_OPTIONAL = {"faults": FAULTS, "communication": COMMUNICATION}
_OFF = {"aggregation": "plain", "dropout": 0, "stragglers": 0, "staleness": 0, "byzantine": 0}
"""Values other than None that enable nothing."""
_PRIVACY = ("clipping_norm", "target_unclipped_quantile")
"""Settings that enable clipping."""

_CLIENT_SETTINGS = {"name", "seed", "validation_fraction", "partition_per_seed", "unseen_fraction"}
_FILE_SETTINGS = _CLIENT_SETTINGS | {"file", "target", "label_unit"}
_TABLE_SETTINGS = _FILE_SETTINGS | {
    *("partition", "label", "features", "sensitive_features", "exclude", "central_test"),
}
_DATA_SETTINGS = _CLIENT_SETTINGS | {"dir", "partition", "central_test"}


def _enabled(config: Config, section: str) -> dict[str, Callable[..., Any]]:
    """Returns the constructors of faults or communication by the setting that enables them."""
    values = getattr(config, section)
    enabled = {
        key: constructor
        for key, constructor in _OPTIONAL[section].items()
        if getattr(values, key) not in (None, _OFF.get(key))
    }
    if "target_unclipped_quantile" in enabled:
        enabled.pop("clipping_norm", None)  # Which is the first norm of adaptive clipping.
    return enabled


def run_settings(config: Config) -> Settings:
    """Returns the settings of enabled faults and communication."""
    values = values_of(config)
    return {
        key: setting
        for section in _OPTIONAL
        for constructor in _enabled(config, section).values()
        for name, setting in settings_of(constructor).items()
        if (key := (section, name)) in values
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
    settings = config.communication
    if settings.delta is not None:
        from fedjax_fair.utils import checks

        checks.open_interval("communication.delta", settings.delta)
    if settings.top_k is not None and settings.bits is not None:
        raise ValueError(
            f"communication.top_k={settings.top_k!r} and communication.bits={settings.bits!r}: "
            "expected one of them."
        )
    arguments = {"aggregation": "aggregation", "top_k": "compression", "bits": "compression"}
    made = _make(config, "communication")
    return {arguments.get(key, "privacy"): value for key, value in made.items()}


def _make(config: Config, section: str) -> dict[str, Any]:
    """Calls the enabled constructors of faults or communication."""
    values, made = getattr(config, section), {}
    for key, constructor in _enabled(config, section).items():
        try:
            made[key] = construct(constructor, values)
        except ValueError as error:
            message = str(error)
            if not message.startswith(f"{key}="):
                message = f"{key}={getattr(values, key)!r}: {message}"
            raise ValueError(f"{section}.{message}") from None
    return made


def drop_unused_settings(config: Config, base: Config | None = None) -> Config:
    """Resets unused settings of data, model and methods, except those that differ from ``base``.

    Examples:
        >>> from dataclasses import replace
        >>> from fedjax_fair.app.settings import presets
        >>> base = presets.resolve(presets.PRESETS["equitable"].config)
        >>> drop_unused_settings(replace(base, methods=("fedavg",))).aggregator.num_clusters
    """
    kept = {} if base is None else values_of(base)
    for key, value in _unused_values(config).items():
        if base is None or value == kept[key]:
            config = change(config, *key, None)
    return config


def check_unused_settings(config: Config) -> None:
    """Raises ``ValueError`` for an unused setting."""
    for section, name in _unused_values(config):
        option = option_of(section, name)
        if section in _OPTIONAL:
            table = _OPTIONAL[section].items()
            enabling = [key for key, constructor in table if name in settings_of(constructor)]
            keys = _PRIVACY if name == "delta" else enabling
            needed = " or ".join(option_of(section, key) for key in keys)
            raise ValueError(f"{option} has no effect without {needed}; remove it.")
        if section in ("timing", "schedule") and config.timing.table is None:
            raise ValueError(f"{option} has no effect without --timing.table; remove it.")
        user = "file" if config.data.file is not None else "name" if name == "dir" else "partition"
        reader = {
            "data": f"data.{user}={getattr(config.data, user)!r}",
            "model": f"model.name={config.model.name!r}",
        }.get(section, " and ".join(config.methods))
        raise ValueError(
            f"{option} has no effect: {reader} {_do(reader)} not use it{_users(section, name)}; "
            "remove it."
        )


def _do(names: str) -> str:
    return "do" if " and " in names else "does"


def _users(section: str, name: str) -> str:
    """Names methods, networks or partitions that use a setting, if they are few."""
    roles = {key: role_classes(method).get(section) for key, method in METHODS.items()}
    table = {"data": PARTITIONERS, "model": MODELS}.get(section, roles)
    users = [key for key, role in table.items() if role and name in settings_of(role)]
    if not 0 < len(users) <= 3:
        return ""
    names = " and ".join(users)
    return f" ({names} {_do(names)})"


def _unused_values(config: Config) -> dict[SettingKey, Any]:
    """Returns the values of unused settings that are not None."""
    used = {*NETWORK, *run_settings(config), *(("data", name) for name in _data_settings(config))}
    used |= {(section, key) for section, table in _OPTIONAL.items() for key in table}
    if _enabled(config, "communication").keys() & set(_PRIVACY):
        used.add(("communication", "delta"))
    for name in config.methods:
        used |= used_settings(*resolve_method(config, name)).keys()
    if ("timing", "table") in used:
        used.add(("schedule", "until_seconds"))
    return {
        key: value
        for key, value in values_of(config).items()
        if key[0] != "training" and key not in used and value is not None
    }


def _data_settings(config: Config) -> set[str]:
    """Returns the settings of the section ``data`` that are used."""
    used = _DATA_SETTINGS
    if config.data.file is not None:
        is_table = is_table_file(config.data.file)
        if not is_table and (is_leaf(config.data.file) or config.data.partition is None):
            shape = {"shape"} if is_leaf(config.data.file) else set()
            return _FILE_SETTINGS | {"unknown_clients", "central_test"} | shape
        used = _TABLE_SETTINGS if is_table else _FILE_SETTINGS | {"partition", "central_test"}
    partition = lookup("data.partition", str(config.data.partition), PARTITIONERS)
    used = used | settings_of(partition).keys()
    if config.data.file is None and not find_source(config.data.name).needs_folder:
        used = used - {"dir"}
    reader = READERS.get(config.data.name)
    return used if reader is None else used | settings_of(reader).keys()
