"""Defaults of settings that a configuration leaves open."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.constructors import settings_of
from fedjax_fair.app.settings.enabled import settings_of_run
from fedjax_fair.app.settings.named_methods import method_settings
from fedjax_fair.app.settings.names import places
from fedjax_fair.app.settings.registry import COHORT_SIZE, PARTITIONERS
from fedjax_fair.app.settings.setting import REQUIRED, Setting
from fedjax_fair.app.settings.suggestions import lookup

__all__ = ["check_defaults", "collapse", "format_methods", "format_settings", "unset_defaults"]

Defaults = dict[str, dict[str, dict[str, Any]]]
"""Values by section, setting and method."""

Places = Collection[tuple[str, str]]
"""Settings by section and field."""


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
    of_run = {"data": of_data, **settings_of_run(config)}
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
            if name in ("dir", "file") or (section, name) in varied:
                continue
            if value is not None:
                parts.append(f"{names[section, name]}={_format(value)}")
            elif by_method := defaults.get(section, {}).get(name):
                parts.append(f"{names[section, name]}={format_methods(by_method)}")
    return "; ".join(parts)


def check_defaults(config: Config, recorded: Any, *, is_complete: bool = True) -> None:
    """Raises ``ValueError`` if defaults in a file differ from those that are used.

    A file that ``is_complete`` has all of them: one that is absent belongs to a setting whose value
    was removed.
    """
    sections = recorded.items() if isinstance(recorded, dict) else ()
    for path, section in [("defaults", recorded), *((f"defaults.{k}", v) for k, v in sections)]:
        if not isinstance(section, dict):
            raise ValueError(f"{path}={section!r}: expected settings by name")
    values = unset_defaults(config)
    # Also the cohort size, whose default is unknown before the clients of a file are.
    for section, settings in unset_defaults(config, num_clients=COHORT_SIZE).items():
        for name, by_method in settings.items():
            before = recorded.get(section, {}).get(name)
            for method in by_method:
                was = before.get(method) if isinstance(before, dict) else before
                if was is None and is_complete:
                    raise ValueError(
                        f"{section}.{name}=None: expected a value; defaults.{section}.{name} is "
                        "missing, so that the run did not use the default"
                    )
                value = values[section].get(name, {}).get(method, was)
                if was is not None and was != (list(value) if isinstance(value, tuple) else value):
                    raise ValueError(
                        f"defaults.{section}.{name}={was!r}: the default is {value!r}; set "
                        f"{section}.{name} instead"
                    )
