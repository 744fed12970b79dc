"""Settings that a configuration has and does not use: dropped with a preset, refused otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.constructors import settings_of
from fedjax_fair.app.settings.enabled import OPTIONAL, PRIVACY, enabled, enabling, settings_of_run
from fedjax_fair.app.settings.named_methods import resolve_method, used_settings
from fedjax_fair.app.settings.names import change, option_of
from fedjax_fair.app.settings.registry import METHODS, MODELS, PARTITIONERS, READERS, role_classes
from fedjax_fair.app.settings.source_defaults import find_source, is_leaf, is_table_file
from fedjax_fair.app.settings.suggestions import lookup

__all__ = ["check_unused_settings", "drop_unused_settings"]

_CLIENT_FIELDS = {"name", "seed", "validation_fraction", "partition_per_seed", "unseen_fraction"}
_FILE_FIELDS = _CLIENT_FIELDS | {"file", "target", "label_unit"}
_TABLE_FIELDS = _FILE_FIELDS | {
    *("partition", "label", "features", "sensitive_features", "exclude", "central_test"),
}
_DATA_FIELDS = _CLIENT_FIELDS | {"dir", "partition", "central_test"}


def drop_unused_settings(config: Config, base: Config | None = None) -> Config:
    """Resets unused settings of data, model and methods, except those that differ from ``base``.

    Examples:
        >>> from dataclasses import replace
        >>> from fedjax_fair.app.settings import presets
        >>> base = presets.resolve(presets.PRESETS["equitable"].config)
        >>> drop_unused_settings(replace(base, methods=("fedavg",))).aggregator.num_clusters
    """
    for section, name, value in list(_unused_settings(config)):
        if base is None or value == getattr(getattr(base, section), name):
            config = change(config, section, name, None)
    return config


def check_unused_settings(config: Config) -> None:
    """Raises ``ValueError`` for an unused setting."""
    for section, name, _ in _unused_settings(config):
        option = option_of(section, name)
        if section in OPTIONAL:
            needed = " or ".join(option_of(section, key) for key in enabling(section, name))
            raise ValueError(f"{option} has no effect without {needed}; remove it.")
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


def _unused_settings(config: Config) -> Iterator[tuple[str, str, Any]]:
    """Yields section, field and value of unused settings."""
    used: dict[str, set[str]] = {section: set(table) for section, table in OPTIONAL.items()}
    used |= {"data": _data_settings(config), "model": {"name", "compute"}}
    used |= {role: set() for role in ("solver", "selector", "aggregator", "server_optimizer")}
    if enabled(config, "communication").keys() & set(PRIVACY):
        used["communication"].add("delta")
    of_methods = (used_settings(*resolve_method(config, name)) for name in config.methods)
    for settings in (settings_of_run(config), *of_methods):
        for section, names in settings.items():
            used[section] |= names.keys()
    for section, names in used.items():
        part = getattr(config, section)
        for item in fields(part):
            if item.name not in names and (value := getattr(part, item.name)) is not None:
                yield section, item.name, value


def _data_settings(config: Config) -> set[str]:
    """Returns the fields of the section ``data`` that are used."""
    fields = _DATA_FIELDS
    if config.data.file is not None:
        is_table = is_table_file(config.data.file)
        if not is_table and (is_leaf(config.data.file) or config.data.partition is None):
            shape = {"shape"} if is_leaf(config.data.file) else set()
            return _FILE_FIELDS | {"unknown_clients", "central_test"} | shape
        fields = _TABLE_FIELDS if is_table else _FILE_FIELDS | {"partition", "central_test"}
    partition = lookup("data.partition", str(config.data.partition), PARTITIONERS)
    used = fields | settings_of(partition).keys()
    if config.data.file is None and not find_source(config.data.name).needs_folder:
        used = used - {"dir"}
    reader = READERS.get(config.data.name)
    return used if reader is None else used | settings_of(reader).keys()
