"""Methods by name, such as ``subtrunc+equitable:lam=0.25``, and the settings that they use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from fedjax_fair.app.config import DATA_NAMES, Config
from fedjax_fair.app.method import Method
from fedjax_fair.app.registry import METHODS, MODELS, PARTITIONERS, role_classes
from fedjax_fair.app.settings import by_name, change, lookup, read, suggest, unknown_method
from fedjax_fair.app.signatures import Setting, settings_of

__all__ = ["check_unused_settings", "drop_unused_settings", "method_settings", "resolve_method"]

_DATA_FIELDS = {"name", "dir", "partition", "seed", "validation_fraction", "partition_per_seed"}


def resolve_method(config: Config, name: str) -> tuple[Method, Config]:
    """Returns a method and the configuration with the settings in its name.

    Raises:
        ValueError: If the method is unknown or does not use a setting in its name.

    Examples:
        >>> from fedjax_fair.app import presets
        >>> method, own = resolve_method(presets.resolve(Config()), "divfl+equitable:batch_size=20")
        >>> method.selector.__name__, own.solver.batch_size
        ('DivFL', 20)
    """
    names, _, written = name.partition(":")
    method, *others = map(_find_method, names.split("+"))
    for other in others:
        method = _combine(names, method, other)
    if written:
        try:
            config = _set_written(method, config, written)
        except ValueError as error:
            raise ValueError(f"method={name!r}: {error}") from None
    return method, config


def _set_written(method: Method, config: Config, written: str) -> Config:
    """Sets the settings ``name=value`` in a method's name, which are separated by commas."""
    items = [item.partition("=") for item in written.split(",")]
    # The network comes first, because other settings may belong to it.
    items.sort(key=lambda item: item[0].strip() not in ("model.name", "name"))
    done = set()
    for name, _, text in items:
        sections = {section: list(names) for section, names in _settings(method, config).items()}
        listed = by_name(sections)
        sections["model"] += ["name", "compute"]
        place = lookup("setting", name.strip(), by_name(sections), listed)
        if place in done:
            raise ValueError(f"expected {name.strip()} once.")
        config = change(config, *place, read(config, ".".join(place), text))
        done.add(place)
    return config


def method_settings(config: Config, name: str) -> dict[str, dict[str, Setting]]:
    """Returns settings that a method uses and its name does not set, by section and name."""
    method, own = resolve_method(config, name)
    items = name.partition(":")[2].split(",")
    in_name = {item.partition("=")[0].strip().rpartition(".")[2] for item in items}
    return {
        section: {key: setting for key, setting in settings.items() if key not in in_name}
        for section, settings in _settings(method, own).items()
    }


def drop_unused_settings(config: Config, base: Config | None = None) -> Config:
    """Resets unused settings of data, model and methods.

    Those that differ from ``base``, a configuration with intended defaults, are kept.

    Examples:
        >>> from dataclasses import replace
        >>> from fedjax_fair.app import presets
        >>> base = presets.resolve(presets.PRESETS["equitable"].config)
        >>> drop_unused_settings(replace(base, methods=("fedavg",))).aggregator.num_clusters
    """
    for section, name, value in list(_unused_settings(config)):
        if base is None or value == getattr(getattr(base, section), name):
            config = change(config, section, name, None)
    return config


def check_unused_settings(config: Config) -> None:
    """Raises ``ValueError`` for an unused setting of data, model or methods."""
    for section, name, value in _unused_settings(config):
        users = {
            "data": f"data.partition={config.data.partition!r}",
            "model": f"model.name={config.model.name!r}",
        }.get(section, f"methods {', '.join(config.methods)}")
        raise ValueError(f"{section}.{name}={value!r} is not used by {users}; remove it.")


def _unused_settings(config: Config) -> Iterator[tuple[str, str, Any]]:
    """Yields section, field and value of settings that are given and not used."""
    partition = lookup("data.partition", str(config.data.partition), PARTITIONERS)
    used = {
        "data": _DATA_FIELDS | {DATA_NAMES.get(name, name) for name in settings_of(partition)},
        "model": {"name", "compute"},
        "solver": set(),
        "selector": set(),
        "aggregator": set(),
    }
    for name in config.methods:
        for section, settings in _settings(*resolve_method(config, name)).items():
            used[section] |= settings.keys()
    for section, names in used.items():
        part = getattr(config, section)
        for item in fields(part):
            if item.name not in names and (value := getattr(part, item.name)) is not None:
                yield section, item.name, value


def _settings(method: Method, config: Config) -> dict[str, dict[str, Setting]]:
    """Returns the settings that a method uses by section."""
    settings = {role: dict(settings_of(made)) for role, made in role_classes(method).items()}
    for role in settings.keys() - {"solver"}:
        for name in method.from_solver:
            settings[role].pop(name, None)
    if method.centralized_fn is not None:
        del settings["solver"]["prox"]
    network = dict(settings_of(lookup("model.name", str(config.model.name), MODELS)))
    del network["num_classes"]
    return settings | {"model": network}


def _find_method(name: str) -> Method:
    try:
        return lookup("method", name, METHODS)
    except ValueError as error:
        if suggest(name, METHODS) is not None:
            raise
        raise ValueError(f"{error} {unknown_method(name)}.") from None


def _combine(names: str, one: Method, other: Method) -> Method:
    """Combines two methods that differ from federated averaging in different roles."""
    roles, other_roles = map(_roles, (one, other))
    twice = sorted(roles.keys() & other_roles.keys())
    if twice or not roles or not other_roles:
        reason = f"with one {twice[0]}" if twice else "that each differ from fedavg in a role"
        raise ValueError(f"method={names!r}: expected methods {reason}.")
    from_solver = {**one.from_solver, **other.from_solver}
    weighting = other.weighting if "selector" in other_roles else one.weighting
    return Method("", **roles, **other_roles, weighting=weighting, from_solver=from_solver)


def _roles(method: Method) -> dict[str, Any]:
    """Returns the roles in which a method differs from federated averaging."""
    if method.centralized_fn is not None:
        return {}
    return {name: role for name, role in method._asdict().items() if callable(role)}
