"""Methods by name, such as ``subtrunc+equitable:lam=0.25``, and the settings that they use."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import fields
from typing import Any

from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.method import Method
from fedjax_fair.app.settings.names import (
    ALTERNATIVES,
    by_name,
    change,
    find_method,
    lookup,
    method_parts,
    read,
    vary,
)
from fedjax_fair.app.settings.registry import MODELS, PARTITIONERS, READERS, role_classes
from fedjax_fair.app.settings.signatures import Setting, settings_of
from fedjax_fair.data import get_source
from fedjax_fair.data.table_files import is_table_file

__all__ = [
    "check_unused_settings",
    "drop_unused_settings",
    "method_identity",
    "method_settings",
    "resolve_method",
]

_Written = dict[tuple[str, str], Any]

_CLIENT_FIELDS = {"name", "seed", "validation_fraction", "partition_per_seed", "unseen_fraction"}
_FILE_FIELDS = _CLIENT_FIELDS | {"file"}
_TABLE_FIELDS = _FILE_FIELDS | {"partition", "label", "sensitive_features", "exclude"}
_DATA_FIELDS = _CLIENT_FIELDS | {"dir", "partition"}


def resolve_method(config: Config, name: str) -> tuple[Method, Config]:
    """Returns a method and the configuration with the settings in its name.

    Raises:
        ValueError: If there is no such method, or it does not use such a setting.

    Examples:
        >>> from fedjax_fair.app.settings import presets
        >>> method, own = resolve_method(presets.resolve(Config()), "divfl+equitable:batch_size=20")
        >>> method.selector.__name__, own.solver.batch_size
        ('DivFL', 20)
    """
    return _variant(config, name)[:2]


def method_settings(config: Config, name: str) -> dict[str, dict[str, Setting]]:
    """Returns settings that a method uses and its name does not set, by section and name."""
    method, own, written = _variant(config, name)
    set_by_name = written.keys() | {
        ALTERNATIVES[place] for place in written if place in ALTERNATIVES
    }
    return {
        section: {key: item for key, item in items.items() if (section, key) not in set_by_name}
        for section, items in _settings(method, own).items()
    }


def method_identity(config: Config, name: str) -> Hashable:
    """Returns what ``fedprox:prox=1`` and ``fedprox:prox=1.0`` have in common."""
    return frozenset(method_parts(name)), frozenset(_variant(config, name)[2].items())


def _variant(config: Config, name: str) -> tuple[Method, Config, _Written]:
    """Returns a method, its configuration, and the settings in its name by place."""
    names, colon, text = name.partition(":")
    method, *others = map(find_method, names.split("+"))
    for other in others:
        method = _combine(names, method, other)
    if not colon:
        return method, config, {}
    try:
        return _set_written(method, config, text)
    except ValueError as error:
        raise ValueError(f"method={name!r}: {error}") from None


def _set_written(method: Method, config: Config, text: str) -> tuple[Method, Config, _Written]:
    """Sets the settings in a method's name, ``name=value,name=value``."""
    parts = (part.partition("=") for part in text.split(","))
    items = [(key.strip(), value) for key, _, value in parts]
    # The network comes first, because other settings may belong to it.
    items.sort(key=lambda item: item[0] not in ("model.name", "name"))
    written: _Written = {}
    for key, value in items:
        sections = {section: list(names) for section, names in _settings(method, config).items()}
        listed = by_name(sections)
        sections["model"] += ["name", "compute"]
        place = lookup("setting", key, by_name(sections), listed)
        if place in written:
            raise ValueError(f"expected {key} once.")
        written[place] = read(config, ".".join(place), value)
        config = change(config, *place, written[place])
    return method, vary(config, written), written


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
    for section, name, value in _unused_settings(config):
        user = "file" if config.data.file is not None else "name" if name == "dir" else "partition"
        users = {
            "data": f"data.{user}={getattr(config.data, user)!r}",
            "model": f"model.name={config.model.name!r}",
        }.get(section, f"methods {', '.join(config.methods)}")
        raise ValueError(f"{section}.{name}={value!r} is not used by {users}; remove it.")


def _unused_settings(config: Config) -> Iterator[tuple[str, str, Any]]:
    """Yields section, field and value of unused settings."""
    used = {
        "data": _data_settings(config),
        "model": {"name", "compute"},
        "solver": set(),
        "selector": set(),
        "aggregator": set(),
        "server_optimizer": set(),
    }
    for name in config.methods:
        for section, settings in _settings(*resolve_method(config, name)).items():
            used[section] |= settings.keys()
    for section, names in used.items():
        part = getattr(config, section)
        for item in fields(part):
            if item.name not in names and (value := getattr(part, item.name)) is not None:
                yield section, item.name, value


def _data_settings(config: Config) -> set[str]:
    """Returns the fields of the section ``data`` that are used."""
    fields = _DATA_FIELDS
    if config.data.file is not None:
        if not is_table_file(config.data.file):
            return _FILE_FIELDS
        fields = _TABLE_FIELDS
    partition = lookup("data.partition", str(config.data.partition), PARTITIONERS)
    used = fields | settings_of(partition).keys()
    if config.data.file is None and not get_source(config.data.name).needs_folder:
        used = used - {"dir"}
    reader = READERS.get(config.data.name)
    return used if reader is None else used | settings_of(reader).keys()


def _settings(method: Method, config: Config) -> dict[str, dict[str, Setting]]:
    """Returns the settings that a method uses by section."""
    settings = {role: dict(settings_of(made)) for role, made in role_classes(method).items()}
    for role in settings.keys() & {"selector", "aggregator"}:
        for name in method.from_solver:
            settings[role].pop(name, None)
    if method.centralized_fn is not None:
        del settings["solver"]["prox"]
    network = dict(settings_of(lookup("model.name", str(config.model.name), MODELS)))
    del network["num_classes"]
    return settings | {"model": network}


def _combine(names: str, one: Method, other: Method) -> Method:
    """Combines two methods that differ from FedAvg in different roles."""
    roles, other_roles = map(_roles, (one, other))
    twice = sorted(roles.keys() & other_roles.keys())
    if twice or not roles or not other_roles:
        if twice:
            raise ValueError(
                f"method={names!r}: two of them set the {twice[0]}; expected methods with one "
                f"{twice[0]}."
            )
        raise ValueError(
            f"method={names!r}: expected methods that each differ from fedavg in a role."
        )
    from_solver = {**one.from_solver, **other.from_solver}
    weighting = other.weighting if "selector" in other_roles else one.weighting
    return Method(
        "",
        **roles,
        **other_roles,
        weighting=weighting,
        from_solver=from_solver,
        ranges={**one.ranges, **other.ranges},
    )


def _roles(method: Method) -> dict[str, Any]:
    """Returns the roles in which a method differs from FedAvg."""
    if method.centralized_fn is not None:
        return {}
    return {name: role for name, role in method._asdict().items() if callable(role)}
