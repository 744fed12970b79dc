"""Settings that a configuration uses, and the defaults of those that it leaves open.

Methods may have settings in their names, such as ``subtrunc+equitable:lam=0.25``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.fields import REQUIRED, Setting, construct, settings_of
from fedjax_fair.app.settings.method import Method
from fedjax_fair.app.settings.names import (
    ALTERNATIVES,
    by_name,
    change,
    find_method,
    method_parts,
    places,
    read,
    vary,
)
from fedjax_fair.app.settings.registry import (
    COHORT_SIZE,
    COMMUNICATION,
    FAULTS,
    METHODS,
    MODELS,
    PARTITIONERS,
    READERS,
    role_classes,
)
from fedjax_fair.app.settings.suggestions import lookup
from fedjax_fair.data import get_source
from fedjax_fair.data.tables.table_files import is_table_file
from fedjax_fair.data.text.leaf_users import is_leaf
from fedjax_fair.roles import Faults
from fedjax_fair.utils import checks

__all__ = [
    "check_defaults",
    "check_unused_settings",
    "collapse",
    "drop_unused_settings",
    "format_methods",
    "format_settings",
    "make_communication",
    "make_faults",
    "method_identity",
    "method_settings",
    "resolve_method",
    "unset_defaults",
]

Defaults = dict[str, dict[str, dict[str, Any]]]
"""Values by section, setting and method."""

Places = Collection[tuple[str, str]]
"""Settings by section and field."""

_Written = dict[tuple[str, str], Any]
_Settings = dict[str, dict[str, Setting]]

_CLIENT_FIELDS = {"name", "seed", "validation_fraction", "partition_per_seed", "unseen_fraction"}
_FILE_FIELDS = _CLIENT_FIELDS | {"file"}
_TABLE_FIELDS = _FILE_FIELDS | {"partition", "label", "features", "sensitive_features", "exclude"}
_TABLE_FIELDS |= {"central_test"}
_DATA_FIELDS = _CLIENT_FIELDS | {"dir", "partition"}

_ENABLED_BY_A_SETTING = {"faults": FAULTS, "communication": COMMUNICATION}
_PRIVACY = ("clipping_norm", "target_unclipped_quantile")
"""Settings that enable clipping."""


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


def method_settings(config: Config, name: str) -> _Settings:
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
    for section, name, _ in _unused_settings(config):
        option = _option(section, name)
        if section in _ENABLED_BY_A_SETTING:
            needed = " or ".join(_option(section, key) for key in _enabling(section, name))
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


def _option(section: str, name: str) -> str:
    return f"--{section}.{name.replace('_', '-')}"


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


def _enabling(section: str, name: str) -> list[str]:
    """Returns the settings that enable what uses a setting of faults or communication."""
    if name == "delta":
        return list(_PRIVACY)
    table = _ENABLED_BY_A_SETTING[section]
    return [key for key, constructor in table.items() if name in settings_of(constructor)]


def _enabled(config: Config, section: str) -> dict[str, Callable[..., Any]]:
    """Returns the constructors of faults or communication that a configuration enables."""
    part, off = (
        getattr(config, section),
        (None, "plain") if section == "communication" else (None, 0),
    )
    table = _ENABLED_BY_A_SETTING[section]
    enabled = {key: made for key, made in table.items() if getattr(part, key) not in off}
    if "target_unclipped_quantile" in enabled:
        enabled.pop("clipping_norm", None)  # Which is the first norm of adaptive clipping.
    return enabled


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
        checks.positive("communication.delta", part.delta)
        checks.unit_interval("communication.delta", part.delta)
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
    for key, constructor in _enabled(config, section).items():
        try:
            made[key] = construct(constructor, part)
        except ValueError as error:
            message = str(error)
            if not message.startswith(f"{key}="):
                message = f"{key}={getattr(part, key)!r}: {message}"
            raise ValueError(f"{section}.{message}") from None
    return made


def _unused_settings(config: Config) -> Iterator[tuple[str, str, Any]]:
    """Yields section, field and value of unused settings."""
    used: dict[str, set[str]] = {
        section: set(table) for section, table in _ENABLED_BY_A_SETTING.items()
    }
    used |= {"data": _data_settings(config), "model": {"name", "compute"}}
    used |= {role: set() for role in ("solver", "selector", "aggregator", "server_optimizer")}
    if _enabled(config, "communication").keys() & set(_PRIVACY):
        used["communication"].add("delta")
    of_methods = (_settings(*resolve_method(config, name)) for name in config.methods)
    for settings in (_settings_of_run(config), *of_methods):
        for section, names in settings.items():
            used[section] |= names.keys()
    for section, names in used.items():
        part = getattr(config, section)
        for item in fields(part):
            if item.name not in names and (value := getattr(part, item.name)) is not None:
                yield section, item.name, value


def _settings_of_run(config: Config) -> _Settings:
    """Returns the settings of enabled faults and communication, by section and field."""
    return {
        section: {
            name: setting
            for constructor in _enabled(config, section).values()
            for name, setting in settings_of(constructor).items()
            if hasattr(getattr(config, section), name)
        }
        for section in _ENABLED_BY_A_SETTING
    }


def _data_settings(config: Config) -> set[str]:
    """Returns the fields of the section ``data`` that are used."""
    fields = _DATA_FIELDS
    if config.data.file is not None:
        is_table = is_table_file(config.data.file)
        if not is_table and (is_leaf(config.data.file) or config.data.partition is None):
            central = set() if is_leaf(config.data.file) else {"central_test"}
            return _FILE_FIELDS | {"unknown_clients"} | central
        fields = _TABLE_FIELDS if is_table else _FILE_FIELDS | {"partition", "central_test"}
    partition = lookup("data.partition", str(config.data.partition), PARTITIONERS)
    used = fields | settings_of(partition).keys()
    if config.data.file is None and not get_source(config.data.name).needs_folder:
        used = used - {"dir"}
    reader = READERS.get(config.data.name)
    return used if reader is None else used | settings_of(reader).keys()


def _settings(method: Method, config: Config) -> _Settings:
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


def unset_defaults(config: Config, varied: Places = (), num_clients: int | None = None) -> Defaults:
    """Returns the defaults of settings that are None and that a run uses, by method.

    Defaults that depend on other settings are omitted, and those of ``varied`` settings.
    ``num_clients`` is that of the data, which may have fewer clients than the default cohort.

    Examples:
        >>> from fedjax_fair.app.settings import presets
        >>> used = unset_defaults(presets.resolve(Config(methods=("fedavg", "fedprox"))))
        >>> used["solver"]["prox"], used["selector"]["cohort_size"]
        ({'fedavg': 0.0, 'fedprox': 1.0}, {'fedavg': 10, 'fedprox': 10})
    """
    of_data: dict[str, Setting] = {}
    if config.data.partition is not None:
        partition = lookup("data.partition", str(config.data.partition), PARTITIONERS)
        of_data = dict(settings_of(partition))
    of_run = {"data": of_data, **_settings_of_run(config)}
    used: Defaults = {
        "data": {"validation_fraction": dict.fromkeys(config.methods, 0.0)},
        "training": {"on_nonfinite": dict.fromkeys(config.methods, "raise")},
    }
    for method in config.methods:
        for section, settings in (method_settings(config, method) | of_run).items():
            for name, setting in settings.items():
                if setting.default not in (None, REQUIRED):
                    used.setdefault(section, {}).setdefault(name, {})[method] = setting.default
    if "cohort_size" in (of_selector := used.get("selector", {})):
        of_config = None if config.data.unseen_fraction else config.data.clients
        known = of_config if num_clients is None else num_clients
        sizes = of_selector.pop("cohort_size")
        # Only the common default is limited, not that of a custom selector; it is unknown before
        # the clients of a file are.
        of_selector["cohort_size"] = {
            method: min(size, known) if known and size == COHORT_SIZE else size
            for method, size in sizes.items()
            if known or size != COHORT_SIZE or not _has_clients_of_data(config)
        }
    order = [item.name for item in fields(config) if item.name in used]
    return {
        section: {
            name: by_method
            for name, by_method in used[section].items()
            if by_method
            and getattr(getattr(config, section), name) is None
            and (section, name) not in varied
        }
        for section in order
    }


def _has_clients_of_data(config: Config) -> bool:
    """Whether the number of clients is unknown before data is read."""
    data = config.data
    return data.file is not None or data.client is not None or bool(data.unseen_fraction)


def collapse(defaults: Defaults) -> dict[str, dict[str, Any]]:
    """Replaces values by method that are all equal by one value."""
    return {
        section: {
            name: value if _is_shared(by_method) else by_method
            for name, by_method in settings.items()
            for value in [next(iter(by_method.values()))]
        }
        for section, settings in defaults.items()
        if settings
    }


def _is_shared(by_method: Mapping[str, Any]) -> bool:
    return len({repr(value) for value in by_method.values()}) == 1


def format_methods(by_method: Mapping[str, Any]) -> str:
    """Formats values by method; one value if all are equal.

    Examples:
        >>> format_methods({"fedavg": 0.0, "divfl": 0.0, "fedprox": 1.0})
        '0 (fedavg, divfl) or 1 (fedprox)'
    """
    methods: dict[str, list[str]] = {}
    for method, value in by_method.items():
        methods.setdefault(_format(value), []).append(method)
    if len(methods) == 1:
        return next(iter(methods))
    return " or ".join(f"{value} ({', '.join(names)})" for value, names in methods.items())


def _format(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return ",".join(map(_format, value))
    short = f"{value:g}" if isinstance(value, float) else ""
    return short if short and float(short) == value else str(value)


def format_settings(config: Config, varied: Places = (), num_clients: int | None = None) -> str:
    """Formats the settings of a run with their values, defaults included, without paths.

    Settings that a sweep has ``varied`` are omitted.

    Examples:
        >>> from fedjax_fair.app.settings import presets
        >>> config = presets.resolve(Config(methods=("fedavg", "subtrunc")))
        >>> [part for part in format_settings(config).split("; ") if "weights" in part]
        ['weights=num_examples (fedavg) or uniform (subtrunc)']
    """
    names = {place: name for name, place in reversed(places(config).items())}
    defaults, parts = unset_defaults(config, varied, num_clients), []
    for section in (item.name for item in fields(config)):
        part = getattr(config, section)
        if not is_dataclass(part):
            continue
        for name in (item.name for item in fields(part)):
            value = getattr(part, name)
            if name in ("dir", "file", "central_test") or (section, name) in varied:
                continue
            if value is not None:
                parts.append(f"{names[section, name]}={_format(value)}")
            elif by_method := defaults.get(section, {}).get(name):
                parts.append(f"{names[section, name]}={format_methods(by_method)}")
    return "; ".join(parts)


def check_defaults(config: Config, recorded: Any) -> None:
    """Raises ``ValueError`` if defaults in a file differ from those that are used."""
    if not isinstance(recorded, dict):
        raise ValueError(f"defaults={recorded!r}: expected settings by name")
    for section, settings in unset_defaults(config).items():
        for name, by_method in settings.items():
            before = recorded.get(section, {}).get(name)
            for method, value in by_method.items():
                was = before.get(method) if isinstance(before, dict) else before
                if was is not None and was != (list(value) if isinstance(value, tuple) else value):
                    raise ValueError(
                        f"defaults.{section}.{name}={was!r}: the default is {value!r}; set "
                        f"{section}.{name} instead"
                    )
