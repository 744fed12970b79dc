"""Settings of a configuration by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, get_type_hints

from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.suggestions import lookup
from fedjax_fair.app.settings.values import parse_value

__all__ = [
    "ALTERNATIVES",
    "by_name",
    "change",
    "option_of",
    "places",
    "read",
    "vary",
]


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


ALTERNATIVES = {
    ("solver", "steps"): ("solver", "epochs"),
    ("solver", "epochs"): ("solver", "steps"),
}
"""Settings of which exactly one is used, by section and name."""


def vary(config: Config, values: Mapping[tuple[str, str], Any]) -> Config:
    """Changes settings by section and name; local steps replace epochs, and epochs steps.

    Raises:
        ValueError: If steps and epochs are given.

    Examples:
        >>> from fedjax_fair.app.settings import presets
        >>> config = vary(presets.resolve(Config()), {("solver", "steps"): 10})
        >>> config.solver.steps, config.solver.epochs
        (10, None)
    """
    for place, value in values.items():
        config = change(config, *place, value)
        if (other := ALTERNATIVES.get(place)) is None:
            continue
        if other in values:
            names = f"{place[1]}={value} and {other[1]}={values[other]}"
            raise ValueError(f"expected exactly one of {names}.")
        config = change(config, *other, None)
    return config


def places(config: Config) -> dict[str, tuple[str, str]]:
    """Returns section and field of each setting, by ``section.field`` and by unique fields.

    Examples:
        >>> places(Config())["lam"]
        ('selector', 'lam')
    """
    sections = asdict(config)
    return by_name({name: part for name, part in sections.items() if isinstance(part, dict)})


def by_name(sections: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, str]]:
    """As ``places``, from the fields of each section."""
    pairs = [(section, name) for section, names in sections.items() for name in names]
    count = Counter(name for _, name in pairs)
    unique = {name: (section, name) for section, name in pairs if count[name] == 1}
    return unique | {f"{section}.{name}": (section, name) for section, name in pairs}


def read(config: Config, name: str, text: str) -> Any:
    """Converts the value of a setting as the command line does."""
    section, field = lookup("setting", name, places(config))
    try:
        return parse_value(get_type_hints(type(getattr(config, section)))[field], [text])
    except ValueError as error:
        raise ValueError(f"{field}={text!r}: {error}") from None
