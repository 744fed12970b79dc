"""Settings of a configuration by name, and configurations as files."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from typeguard import CollectionCheckStrategy, TypeCheckError, check_type

from fedjax_fair.app.config import Config, Maximize, MaximizeExemplars, MaximizeMovielens
from fedjax_fair.app.registry import METHODS
from fedjax_fair.app.values import describe_type, parse_value
from fedjax_fair.results.files import write_text

__all__ = [
    "by_name",
    "change",
    "load",
    "load_into",
    "lookup",
    "places",
    "read",
    "save",
    "suggest",
    "unknown_method",
]

T = TypeVar("T")

_MAXIMIZE = {"maximize exemplars": MaximizeExemplars, "maximize movielens": MaximizeMovielens}


def change(config: Config, section: str, name: str, value: Any) -> Config:
    """Returns the configuration with another value of one setting."""
    return replace(config, **{section: replace(getattr(config, section), **{name: value})})


def places(config: Config) -> dict[str, tuple[str, str]]:
    """Returns section and field of each setting, by ``section.field`` and by unique fields.

    Examples:
        >>> places(Config())["lam"]
        ('selector', 'lam')
    """
    sections = {item.name: getattr(config, item.name) for item in fields(config)}
    parts = {name: fields(part) for name, part in sections.items() if is_dataclass(part)}
    return by_name({name: [item.name for item in items] for name, items in parts.items()})


def by_name(sections: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, str]]:
    """Returns section and field of settings, as ``places``, from the fields of each section."""
    pairs = [(section, name) for section, names in sections.items() for name in names]
    count = Counter(name for _, name in pairs)
    unique = {name: (section, name) for section, name in pairs if count[name] == 1}
    return unique | {f"{section}.{name}": (section, name) for section, name in pairs}


def read(config: Config, name: str, text: str) -> Any:
    """Converts the value of a setting as the command line does.

    Raises:
        ValueError: If there is no such setting, or the value does not fit.
    """
    section, field = lookup("setting", name, places(config))
    try:
        return parse_value(get_type_hints(type(getattr(config, section)))[field], [text])
    except ValueError as error:
        raise ValueError(f"{field}={text!r}: {error}") from None


def save(config: Config | Maximize, path: str | Path) -> None:
    """Writes a configuration as JSON, which ``load`` reads."""
    values = asdict(config)
    for name, kind in _MAXIMIZE.items():
        if isinstance(config, kind):
            values = {"command": name} | values
    write_text(Path(path), json.dumps(values, indent=2) + "\n")


def load(path: str | Path, start: Config | None = None) -> Config | Maximize:
    """Reads a configuration from JSON or TOML, which may leave out the settings of ``start``.

    Raises:
        ValueError: If the file is damaged, has an unknown setting or a value of another type.
        FileNotFoundError: If there is no such file.
    """
    content = Path(path).read_bytes()
    try:
        values = (json if Path(path).suffix == ".json" else tomllib).loads(content.decode())
        if not isinstance(values, dict):
            raise ValueError(f"expected settings by name, got {values!r}")
        if (command := values.pop("command", None)) is not None:
            return _build(lookup("command", str(command), _MAXIMIZE)(), values)
        return _build_run(start or Config(), values)
    except (ValueError, RecursionError) as error:  # The latter if values are nested too deeply.
        raise ValueError(f"path={str(path)!r}: not a configuration: {error}.") from None


def load_into(path: str | Path, start: Config) -> Config:
    """Reads the configuration of a run; as ``load``."""
    config = load(path, start)
    if not isinstance(config, Config):
        raise ValueError(f"path={str(path)!r}: expected settings of a run, not of a maximization.")
    return config


def _build_run(start: Config, values: Mapping[str, Any]) -> Config:
    """Builds the configuration of a run; explains unknown settings by unknown methods."""
    try:
        return _build(start, values)
    except ValueError as error:
        methods = values.get("methods")
        for method in methods if isinstance(methods, list) else ():
            for name in str(method).partition(":")[0].split("+"):
                if name not in METHODS:
                    raise ValueError(f"{error} {unknown_method(name)}") from None
        raise


def unknown_method(name: str) -> str:
    """Explains how to use a method of a plugin."""
    return f"method={name!r}: a method of your own needs --plugin FILE or app.plugins.load(FILE)"


def _build(start: Any, values: Mapping[str, Any]) -> Any:
    """Replaces fields of a dataclass by values from a file."""
    types, built = get_type_hints(type(start)), {}
    for name, value in values.items():
        kind = lookup("setting", name, types)
        if is_dataclass(kind):
            if not isinstance(value, dict):
                raise ValueError(f"{name}={value!r}: expected settings by name")
            built[name] = _build(getattr(start, name), value)
            continue
        built[name] = tuple(value) if isinstance(value, list) else value
        try:
            every_item = CollectionCheckStrategy.ALL_ITEMS
            check_type(built[name], kind, collection_check_strategy=every_item)
        except TypeCheckError:
            raise ValueError(f"{name}={value!r}: expected {describe_type(kind)}") from None
    return replace(start, **built)


def lookup(kind: str, name: str, table: Mapping[str, T], listed: Iterable[str] | None = None) -> T:
    """Finds an entry by name, or suggests a similar name.

    Args:
        kind: What is looked up, for the error.
        name: The name.
        table: The entries.
        listed: Names that an error lists; all by default.

    Raises:
        ValueError: If there is no such entry.

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
