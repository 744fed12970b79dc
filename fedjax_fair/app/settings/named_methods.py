"""Methods by name, also pairs and names with settings, such as ``subtrunc+equitable:lam=0.25``."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import product
from typing import Any

from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.constructors import settings_of
from fedjax_fair.app.settings.method import Method
from fedjax_fair.app.settings.names import (
    ALTERNATIVES,
    NETWORK,
    SettingKey,
    change,
    keys_by_name,
    read,
    values_of,
    vary,
)
from fedjax_fair.app.settings.registry import (
    CONCURRENCY,
    METHODS,
    MODELS,
    SCHEDULES,
    TIMING,
    role_classes,
)
from fedjax_fair.app.settings.setting import Setting
from fedjax_fair.app.settings.suggestions import lookup, suggest
from fedjax_fair.utils.terminal import error_prefix

__all__ = [
    "Settings",
    "find_method",
    "method_identity",
    "method_parts",
    "method_settings",
    "resolve_method",
    "used_settings",
]

Settings = dict[SettingKey, Setting]

_Variant = tuple[Method, Config, dict[SettingKey, Any]]
"""A method, its configuration, and the settings in its name."""


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
        >>> config = presets.resolve(Config())
        >>> method, method_config = resolve_method(config, "divfl+equitable:batch_size=20")
        >>> method.selector, method_config.solver.batch_size
        (Reference(name='selectors.DivFL'), 20)
    """
    return _variant(config, name)[:2]


def method_settings(config: Config, name: str) -> Settings:
    """Returns the settings that a method uses and its name does not set."""
    method, method_config, given = _variant(config, name)
    given_or_replaced = {*given, *(ALTERNATIVES.get(key) for key in given)}
    settings = used_settings(method, method_config)
    return {key: setting for key, setting in settings.items() if key not in given_or_replaced}


def method_identity(config: Config, name: str) -> Hashable:
    """Returns what names of the same method have in common: its parts, and the values that it uses.

    Examples:
        >>> from fedjax_fair.app.settings import presets
        >>> config = presets.resolve(Config())
        >>> method_identity(config, "fedprox") == method_identity(config, "fedprox:prox=1.0")
        True
    """
    method, method_config = resolve_method(config, name)
    values = values_of(method_config)
    used = {key: values[key] for key in NETWORK}
    for key, setting in used_settings(method, method_config).items():
        used[key] = setting.default if values.get(key) is None else values[key]
    return frozenset(method_parts(name)), frozenset(used.items())


def used_settings(method: Method, config: Config) -> Settings:
    """Returns the settings that a method uses."""
    network = lookup("model.name", str(config.model.name), MODELS)
    constructors = {**role_classes(method), "model": network}
    if config.timing.table is not None and method.centralized_fn is None:
        constructors.setdefault("schedule", SCHEDULES["synchronous"])
    if "schedule" in constructors:
        constructors["timing"] = TIMING
    settings = {
        (section, name): setting
        for section, constructor in constructors.items()
        for name, setting in settings_of(constructor).items()
    }
    if method.schedule is not None and ("selector", "cohort_size") in settings:
        settings["schedule", "concurrency"] = CONCURRENCY
        if config.schedule.concurrency is not None:
            del settings["selector", "cohort_size"]
    linked = product(("selector", "aggregator"), method.linked_settings)
    unused = {("model", "num_classes"), *linked}
    if method.centralized_fn is not None:
        unused.add(("solver", "prox"))
    return {key: setting for key, setting in settings.items() if key not in unused}


def _variant(config: Config, name: str) -> _Variant:
    names, colon, text = name.partition(":")
    method, *others = map(find_method, names.split("+"))
    for other in others:
        method = _combine(names, method, other)
    if not colon:
        return method, config, {}
    with error_prefix(f"method={name!r}: "):
        return _with_settings(method, config, text)


def _with_settings(method: Method, config: Config, text: str) -> _Variant:
    """Sets the settings in a method's name, ``name=value,name=value``."""
    items = [(key.strip(), value) for key, _, value in (x.partition("=") for x in text.split(","))]
    # The network comes first, because other settings may belong to it.
    items.sort(key=lambda item: item[0] not in ("model.name", "name"))
    given: dict[SettingKey, Any] = {}
    for name, value in items:
        used = used_settings(method, config)
        key = lookup("setting", name, keys_by_name([*used, *NETWORK]), keys_by_name(used))
        if key in given:
            raise ValueError(f"expected {name} once.")
        given[key] = read(key, value)
        config = change(config, *key, given[key])
    return method, vary(config, given), given


def _combine(names: str, one: Method, other: Method) -> Method:
    """Combines two methods that differ from FedAvg in different roles."""
    roles, other_roles = one.roles(), other.roles()
    if twice := sorted(roles.keys() & other_roles.keys()):
        raise ValueError(
            f"method={names!r}: two of them set the {twice[0]}; expected methods with one "
            f"{twice[0]}."
        )
    if not roles or not other_roles:
        raise ValueError(
            f"method={names!r}: expected methods that each differ from fedavg in a role."
        )
    weighting = other.weighting if "selector" in other_roles else one.weighting
    return one._replace(
        summary="",
        **other_roles,
        weighting=weighting,
        linked_settings={**one.linked_settings, **other.linked_settings},
        ranges={**one.ranges, **other.ranges},
    )
