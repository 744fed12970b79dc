"""Defaults of settings that a configuration leaves open."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.constructors import settings_of
from fedjax_fair.app.settings.named_methods import method_settings
from fedjax_fair.app.settings.names import FILES, SETTINGS, SettingKey, values_of
from fedjax_fair.app.settings.registry import COHORT_SIZE, PARTITIONERS
from fedjax_fair.app.settings.setting import REQUIRED
from fedjax_fair.app.settings.suggestions import lookup
from fedjax_fair.app.settings.usage import run_settings

__all__ = ["by_section", "check_defaults", "format_methods", "format_settings", "unset_defaults"]

Defaults = dict[SettingKey, dict[str, Any]]
"""Values by setting and method."""

Keys = Collection[SettingKey]
_COHORT_SIZE = ("selector", "cohort_size")


def unset_defaults(config: Config, varied: Keys = (), num_clients: int | None = None) -> Defaults:
    """Returns the defaults of settings that are None and that a run uses, by method.

    Defaults that depend on other settings are omitted, and those of ``varied`` settings.
    ``num_clients`` is that of the data, which may have fewer clients than the default cohort.

    Examples:
        >>> from fedjax_fair.app.settings import presets
        >>> used = unset_defaults(presets.resolve(Config(methods=("fedavg", "fedprox"))))
        >>> used["solver", "prox"], used["selector", "cohort_size"]
        ({'fedavg': 0.0, 'fedprox': 1.0}, {'fedavg': 10, 'fedprox': 10})
    """
    shared = run_settings(config)
    if config.data.partition is not None:
        partition = lookup("data.partition", str(config.data.partition), PARTITIONERS)
        shared |= {("data", name): setting for name, setting in settings_of(partition).items()}
    used: Defaults = {
        ("data", "validation_fraction"): dict.fromkeys(config.methods, 0.0),
        ("training", "on_nonfinite"): dict.fromkeys(config.methods, "raise"),
    }
    for method in config.methods:
        for key, setting in (method_settings(config, method) | shared).items():
            if setting.default not in (None, REQUIRED):
                used.setdefault(key, {})[method] = setting.default
    if (sizes := used.pop(_COHORT_SIZE, None)) is not None:
        of_config = None if config.data.unseen_fraction else config.data.clients
        known = of_config if num_clients is None else num_clients
        # Only the common default is limited, not that of a custom selector; it is unknown before
        # the clients of a file are.
        used[_COHORT_SIZE] = {
            method: min(size, known) if known and size == COHORT_SIZE else size
            for method, size in sizes.items()
            if known or size != COHORT_SIZE or not _has_clients_of_data(config)
        }
    values = values_of(config)
    sections = [section for section, _ in values]
    return {
        key: used[key]
        for key in sorted(used, key=lambda key: sections.index(key[0]))
        if used[key] and values[key] is None and key not in varied
    }


def _has_clients_of_data(config: Config) -> bool:
    """Returns True if the number of clients is unknown before data is read."""
    data = config.data
    return data.file is not None or data.client is not None or bool(data.unseen_fraction)


def by_section(defaults: Defaults) -> dict[str, dict[str, Any]]:
    """Returns defaults by section and name: by method, or one value if all are equal."""
    sections: dict[str, dict[str, Any]] = {}
    for (section, name), by_method in defaults.items():
        values = list(by_method.values())
        is_shared = len(set(map(repr, values))) == 1
        sections.setdefault(section, {})[name] = values[0] if is_shared else by_method
    return sections


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


def format_settings(config: Config, varied: Keys = (), num_clients: int | None = None) -> str:
    """Formats the settings of a run with their values, defaults included, without paths.

    Settings that a sweep has ``varied`` are omitted.

    Examples:
        >>> from fedjax_fair.app.settings import presets
        >>> config = presets.resolve(Config(methods=("fedavg", "subtrunc")))
        >>> [text for text in format_settings(config).split("; ") if "weights" in text]
        ['weights=num_examples (fedavg) or uniform (subtrunc)']
    """
    names = {key: name for name, key in reversed(SETTINGS.items())}
    defaults, parts = unset_defaults(config, varied, num_clients), []
    for key, value in values_of(config).items():
        if key in FILES or key in varied:
            continue
        by_method = defaults.get(key)
        if value is not None or by_method:
            text = format_methods(by_method) if by_method else _format(value)
            parts.append(f"{names[key]}={text}")
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
    for (section, name), by_method in unset_defaults(config, num_clients=COHORT_SIZE).items():
        before = recorded.get(section, {}).get(name)
        for method in by_method:
            was = before.get(method) if isinstance(before, dict) else before
            if was is None and is_complete:
                raise ValueError(
                    f"{section}.{name}=None: expected a value; defaults.{section}.{name} is "
                    "missing, so that the run did not use the default"
                )
            value = values.get((section, name), {}).get(method, was)
            if was is not None and was != (list(value) if isinstance(value, tuple) else value):
                raise ValueError(
                    f"defaults.{section}.{name}={was!r}: the default is {value!r}; set "
                    f"{section}.{name} instead"
                )
