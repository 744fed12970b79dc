"""Methods by name, also pairs and names with settings, such as ``subtrunc+equitable:lam=0.25``."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.constructors import settings_of
from fedjax_fair.app.settings.method import Method
from fedjax_fair.app.settings.names import ALTERNATIVES, by_name, change, read, vary
from fedjax_fair.app.settings.registry import METHODS, MODELS, role_classes
from fedjax_fair.app.settings.setting import Setting
from fedjax_fair.app.settings.suggestions import lookup, suggest

__all__ = [
    "Settings",
    "find_method",
    "method_identity",
    "method_parts",
    "method_settings",
    "resolve_method",
    "used_settings",
]

Settings = dict[str, dict[str, Setting]]
"""Settings by section and name."""

_Written = dict[tuple[str, str], Any]


def method_parts(method: str) -> list[str]:
    """Returns the names of a method or of the methods of a pair, without settings.

    Examples:
        >>> method_parts("divfl+equitable:num_clusters=2")
        ['divfl', 'equitable']
    """
    return method.partition(":")[0].split("+")


def find_method(name: str) -> Method:
    """Finds a method by name, or explains how to use one of a plugin."""
    command = "fedjax-fair methods"
    if name not in METHODS and suggest(name, METHODS) is None:
        raise ValueError(
            f"method={name!r}: a method of your own needs --plugin FILE or "
            f"app.settings.plugins.load(FILE); `{command}` lists the {len(METHODS)} others."
        )
    return lookup("method", name, METHODS, command=command)


def resolve_method(config: Config, name: str) -> tuple[Method, Config]:
    """Returns a method and the configuration with the settings in its name.

    Raises:
        ValueError: If there is no such method, or it does not use such a setting.

    Examples:
        >>> from fedjax_fair.app.settings import presets
        >>> method, own = resolve_method(presets.resolve(Config()), "divfl+equitable:batch_size=20")
        >>> method.selector, own.solver.batch_size
        (Reference(name='selectors.DivFL'), 20)
    """
    return _variant(config, name)[:2]


def method_settings(config: Config, name: str) -> Settings:
    """Returns settings that a method uses and its name does not set, by section and name."""
    method, own, written = _variant(config, name)
    set_by_name = written.keys() | {
        ALTERNATIVES[place] for place in written if place in ALTERNATIVES
    }
    return {
        section: {key: item for key, item in items.items() if (section, key) not in set_by_name}
        for section, items in used_settings(method, own).items()
    }


def method_identity(config: Config, name: str) -> Hashable:
    """Returns what names of the same method have in common: its parts, and the values that it uses.

    Examples:
        >>> from fedjax_fair.app.settings import presets
        >>> config = presets.resolve(Config())
        >>> method_identity(config, "fedprox") == method_identity(config, "fedprox:prox=1.0")
        True
    """
    method, own = resolve_method(config, name)
    values = {("model", key): getattr(own.model, key) for key in ("name", "compute")}
    for section, settings in used_settings(method, own).items():
        for key, setting in settings.items():
            value = getattr(getattr(own, section), key, None)
            values[section, key] = setting.default if value is None else value
    return frozenset(method_parts(name)), frozenset(values.items())


def used_settings(method: Method, config: Config) -> Settings:
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
        sections = {
            section: list(names) for section, names in used_settings(method, config).items()
        }
        listed = by_name(sections)
        sections["model"] += ["name", "compute"]
        place = lookup("setting", key, by_name(sections), listed)
        if place in written:
            raise ValueError(f"expected {key} once.")
        written[place] = read(config, ".".join(place), value)
        config = change(config, *place, written[place])
    return method, vary(config, written), written


def _combine(names: str, one: Method, other: Method) -> Method:
    """Combines two methods that differ from FedAvg in different roles."""
    roles, other_roles = one.roles(), other.roles()
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
