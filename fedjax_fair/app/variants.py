"""Methods by name, such as ``subtrunc+equitable:lam=0.25``, and which settings each reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from fedjax_fair.app.config import DATA_NAMES, Config
from fedjax_fair.app.method import Method
from fedjax_fair.app.registry import METHODS, MODELS, PARTITIONERS, role_classes
from fedjax_fair.app.settings import lookup, override, suggest, unknown_method
from fedjax_fair.app.signatures import Setting, settings_of

__all__ = ["check_unused_settings", "drop_unused_settings", "method_settings", "resolve_method"]

_ROLES = ("solver", "selector", "aggregator")


def resolve_method(config: Config, name: str) -> tuple[Method, Config]:
    """A method and its own configuration, in which the settings of its name hold.

    Args:
        config: A resolved configuration.
        name: The method, as in ``config.methods``.

    Raises:
        ValueError: If there is no such method, or if it does not read a setting of its name.

    Examples:
        >>> from fedjax_fair.app import presets
        >>> method, own = resolve_method(presets.resolve(Config()), "divfl+equitable:batch_size=20")
        >>> method.selector.__name__, own.solver.batch_size
        ('DivFL', 20)
    """
    method = _combination(name)
    _, _, written = name.partition(":")
    if not written:
        return method, config
    # A network's settings are those of the one that the name chooses.
    return method, override(config, written, lambda config: _settings(method, config), name)


def method_settings(config: Config, name: str) -> dict[str, dict[str, Setting]]:
    """The settings that one method reads, by section and name, those in its own name aside.

    Args:
        config: A resolved configuration.
        name: The method, as in ``config.methods``.

    Examples:
        >>> from fedjax_fair.app import presets
        >>> config = presets.resolve(Config())
        >>> list(method_settings(config, "unionfl:mu=2")["selector"])
        ['cohort_size', 'window', 'candidates', 'pool', 'num_reference_clients', 'gradients', 'scale']
    """
    method, own = resolve_method(config, name)
    in_name = name.partition(":")[2].split(",")
    written = {item.partition("=")[0].strip().rpartition(".")[2] for item in in_name}
    return {
        section: {key: setting for key, setting in read.items() if key not in written}
        for section, read in _settings(method, own).items()
    }


def drop_unused_settings(config: Config, base: Config | None = None) -> Config:
    """The same run without settings that nothing in it reads.

    For a configuration that was made for more methods, or other data, than it is used with.

    Args:
        config: A resolved configuration.
        base: What it was made from; a setting that differs from it was meant, and is kept.

    Examples:
        >>> from fedjax_fair.app import presets
        >>> planted = presets.resolve(presets.PRESETS["equitable"].config)
        >>> drop_unused_settings(replace(planted, methods=("fedavg",))).aggregator.num_clusters
    """
    for section, name in list(_unused_settings(config)):
        part = getattr(config, section)
        if base is not None and getattr(part, name) != getattr(getattr(base, section), name):
            continue
        part = replace(part, **{name: None})
        config = replace(config, **{section: part})
    return config


def check_unused_settings(config: Config) -> None:
    """Raises ``ValueError`` if a setting is given that nothing in the run reads."""
    for section, name in _unused_settings(config):
        value = getattr(getattr(config, section), name)
        readers = {
            "data": f"data.partition={config.data.partition!r}",
            "model": f"model.name={config.model.name!r}",
        }.get(section, f"methods {', '.join(config.methods)}")
        raise ValueError(
            f"{section}.{name}={value!r}: nothing in this run reads it; expected only settings of "
            f"{readers}."
        )


def _unused_settings(config: Config) -> Iterable[tuple[str, str]]:
    """Settings that are given and that nothing in the run reads: section and field."""
    read: dict[str, set[str]] = {
        "data": {"name", "dir", "partition", "seed", "validation_fraction", "partition_per_seed"}
    }
    partition = lookup("data.partition", str(config.data.partition), PARTITIONERS)
    read["data"] |= {DATA_NAMES.get(name, name) for name in settings_of(partition)}
    read |= {"model": {"name", "compute"}, **{role: set() for role in _ROLES}}
    for name in config.methods:
        method, own = resolve_method(config, name)
        for section, settings in _settings(method, own).items():
            read[section] |= settings.keys()
    for section, names in read.items():
        part = getattr(config, section)
        for item in fields(part):
            if item.name not in names and getattr(part, item.name) is not None:
                yield section, item.name


def _settings(method: Method, config: Config) -> dict[str, dict[str, Setting]]:
    """What a method reads, by section."""
    made_of = role_classes(method)
    settings = {role: dict(settings_of(made_of[role])) for role in _ROLES if role in made_of}
    for role in ("selector", "aggregator"):
        for borrowed in method.from_solver:
            settings.get(role, {}).pop(borrowed, None)
    if method.centralized_fn is not None:
        del settings["solver"]["prox"]
    network = dict(settings_of(lookup("model.name", str(config.model.name), MODELS)))
    del network["num_classes"]
    return settings | {"model": network}


def _combination(name: str) -> Method:
    """The method of a name such as ``subtrunc+equitable:lam=0.25``."""
    names = name.partition(":")[0]
    first, *others = map(_known, names.split("+"))
    for other in others:
        first = _combined(names, first, other)
    return first


def _known(name: str) -> Method:
    try:
        return lookup("method", name, METHODS)
    except ValueError as error:
        if suggest(name, METHODS) is not None:
            raise
        raise ValueError(f"{error} {unknown_method(name)}.") from None


def _combined(names: str, one: Method, other: Method) -> Method:
    """Both methods in one, if no role is taken twice."""
    roles = [{} if method.centralized_fn else _roles(method) for method in (one, other)]
    twice = sorted(roles[0].keys() & roles[1].keys())
    if twice or not all(roles):
        reason = f"with one {twice[0]}" if twice else "that each differ from fedavg in a role"
        raise ValueError(f"method={names!r}: expected methods {reason}.")
    borrowed = {**one.from_solver, **other.from_solver}
    weighting = other.weighting if "selector" in roles[1] else one.weighting
    return Method("", **roles[0], **roles[1], weighting=weighting, from_solver=borrowed)


def _roles(method: Method) -> dict[str, Any]:
    """The roles in which a method differs from federated averaging."""
    return {name: role for name, role in method._asdict().items() if callable(role)}
