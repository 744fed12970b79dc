"""Settings of a configuration by name."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, TypeVar, get_type_hints

from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.method import Method
from fedjax_fair.app.settings.registry import METHODS
from fedjax_fair.app.settings.values import parse_value

__all__ = [
    "ALTERNATIVES",
    "by_name",
    "change",
    "find_method",
    "lookup",
    "method_parts",
    "places",
    "read",
    "suggest",
    "vary",
]

T = TypeVar("T")


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


def method_parts(method: str) -> list[str]:
    """Returns the names of a method or of the methods of a pair, without settings.

    Examples:
        >>> method_parts("divfl+equitable:num_clusters=2")
        ['divfl', 'equitable']
    """
    return method.partition(":")[0].split("+")


def find_method(name: str) -> Method:
    """Finds a method by name, or explains how to use one of a plugin."""
    try:
        return lookup("method", name, METHODS)
    except ValueError as error:
        if suggest(name, METHODS) is not None:
            raise
        hint = "a method of your own needs --plugin FILE or app.settings.plugins.load(FILE)."
        raise ValueError(f"{error} method={name!r}: {hint}") from None


def lookup(kind: str, name: str, table: Mapping[str, T], listed: Iterable[str] | None = None) -> T:
    """Finds an entry by name, or raises an error that suggests a similar one.

    Args:
        kind: What is looked up.
        name: The name.
        table: The entries.
        listed: Names in the error; all by default.

    Examples:
        >>> lookup("method", "fedporx", {"fedavg": 1, "fedprox": 2})
        Traceback (most recent call last):
        ValueError: method='fedporx': did you mean 'fedprox'? Expected one of fedavg, fedprox.
    """
    if name in table:
        return table[name]
    names = [each for each in (table if listed is None else listed) if "." not in each]
    similar = suggest(name, names)
    hint = f"did you mean {similar!r}? Expected" if similar else "expected"
    raise ValueError(f"{kind}={name!r}: {hint} one of {', '.join(names or table)}.")


_ALIASES = {
    "lr": "learning_rate",
    "eta": "learning_rate",
    "bs": "batch_size",
    "batch": "batch_size",
    "dataset": "name",
    "seed": "seeds",
    "num_clients": "clients",
    "num_rounds": "rounds",
    "local_epochs": "epochs",
    "local_steps": "steps",
}
"""Names of settings in other libraries."""


def suggest(name: str, names: Collection[str]) -> str | None:
    """Returns the name that was probably meant, or None.

    Examples:
        >>> suggest("lr", ["prox", "learning_rate"]), suggest("--rounds", ["--training.rounds"])
        ('learning_rate', '--training.rounds')
    """

    def last_part(name: str) -> str:
        return name.strip("-").rpartition(".")[2].replace("-", "_").casefold()

    by_last_part = {last_part(each): each for each in names}
    wanted = last_part(name)
    if (same := by_last_part.get(_ALIASES.get(wanted, wanted))) is not None:
        return same
    folded = {each.casefold(): each for each in names}
    near = difflib.get_close_matches(name.casefold(), folded, n=1)
    return folded[near[0]] if near else None
