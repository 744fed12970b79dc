"""Settings of a configuration by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass, replace
from typing import Any, get_type_hints

from fedjax_fair.app.settings.command_line import PATHS
from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.setting import parse_value
from fedjax_fair.utils.terminal import error_prefix

__all__ = [
    "ALTERNATIVES",
    "FILES",
    "NETWORK",
    "OF_ANOTHER",
    "SETTINGS",
    "SettingKey",
    "change",
    "keys_by_name",
    "option_of",
    "read",
    "values_of",
    "vary",
]

SettingKey = tuple[str, str]
"""Section and name of a setting."""

ALTERNATIVES = {
    ("solver", "steps"): ("solver", "epochs"),
    ("solver", "epochs"): ("solver", "steps"),
}
"""Settings of which exactly one is used."""

OF_ANOTHER = {
    ("model", "weights_names"): ("model", "weights"),
    ("model", "fresh"): ("model", "trainable"),
    ("model", "lora_alpha"): ("model", "lora"),
    ("model", "lora_targets"): ("model", "lora"),
}
"""Settings of a network that are only used with another one."""

NETWORK = (
    *(("model", name) for name in ("name", "compute", "weights", "trainable", "lora")),
    *OF_ANOTHER,
)
"""Settings of every network."""


_SECTIONS = {name: kind for name, kind in get_type_hints(Config).items() if is_dataclass(kind)}
_TYPES: dict[SettingKey, Any] = {
    (section, name): kind
    for section, settings in _SECTIONS.items()
    for name, kind in get_type_hints(settings).items()
}


def option_of(section: str, name: str) -> str:
    """Returns the option of a setting.

    Examples:
        >>> option_of("server_optimizer", "beta1")
        '--server-optimizer.beta1'
    """
    return f"--{section}.{name}".replace("_", "-")


def change(config: Config, section: str, name: str, value: Any) -> Config:
    """Returns the configuration with another value of one setting."""
    return replace(config, **{section: replace(getattr(config, section), **{name: value})})


def vary(config: Config, values: Mapping[SettingKey, Any]) -> Config:
    """Changes settings; local steps replace epochs, and epochs steps.

    Raises:
        ValueError: If steps and epochs are given.

    Examples:
        >>> from fedjax_fair.app.settings import presets
        >>> config = vary(presets.resolve(Config()), {("solver", "steps"): 10})
        >>> config.solver.steps, config.solver.epochs
        (10, None)
    """
    for key, value in values.items():
        config = change(config, *key, value)
        if (other := ALTERNATIVES.get(key)) is None:
            continue
        if other in values:
            names = f"{key[1]}={value} and {other[1]}={values[other]}"
            raise ValueError(f"expected exactly one of {names}.")
        config = change(config, *other, None)
    return config


def values_of(config: Config) -> dict[SettingKey, Any]:
    """Returns the values of all settings that are in sections.

    Examples:
        >>> values_of(Config())["training", "seeds"]
        (0, 1, 2)
    """
    return {(section, name): getattr(getattr(config, section), name) for section, name in _TYPES}


def keys_by_name(keys: Iterable[SettingKey]) -> dict[str, SettingKey]:
    """Returns settings by ``section.name``, and by ``name`` if it is unique and of no file."""
    full = {f"{section}.{name}": (section, name) for section, name in keys}
    short = [key for key in full.values() if key not in FILES]
    count = Counter(name for _, name in short)
    return {key[1]: key for key in short if count[key[1]] == 1} | full


FILES = {key for key in _TYPES if option_of(*key) in PATHS}
"""Settings that are paths; ``weights`` alone are those of clients."""

SETTINGS = keys_by_name(_TYPES)
"""All settings by name, such as ``lam`` and ``selector.lam``."""


def read(key: SettingKey, text: str) -> Any:
    """Converts the value of a setting as the command line does."""
    with error_prefix(f"{key[1]}={text!r}: "):
        return parse_value(_TYPES[key], [text])
