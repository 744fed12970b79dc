"""Configurations as files."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from fedjax_fair.app.settings.config import Config, Maximize
from fedjax_fair.app.settings.defaults import by_section, check_defaults, unset_defaults
from fedjax_fair.app.settings.named_methods import find_method, method_parts
from fedjax_fair.app.settings.registry import METHODS, MODELS, PARTITIONERS
from fedjax_fair.app.settings.setting import check_value, describe_type, parse_float
from fedjax_fair.app.settings.suggestions import lookup
from fedjax_fair.utils.terminal import error_prefix

__all__ = ["as_dict", "load", "load_into", "save", "set_values"]

_MAXIMIZE = {
    f"maximize {kind.__name__.removeprefix('Maximize').casefold()}": kind
    for kind in sorted(Maximize.__subclasses__(), key=lambda kind: kind.__name__)
}
"""Configurations by command."""


def save(config: Config | Maximize, path: str | Path, num_clients: int | None = None) -> None:
    """Writes a configuration as JSON, which ``load`` reads, with the defaults that it uses."""
    from fedjax_fair.results.files import write_text

    write_text(Path(path), json.dumps(as_dict(config, num_clients), indent=2) + "\n")


def as_dict(config: Config | Maximize, num_clients: int | None = None) -> dict[str, Any]:
    """Converts a configuration to nested dictionaries, with the defaults that it uses."""
    if isinstance(config, Config):
        is_known = _names_are_known(config)
        defaults = unset_defaults(config, num_clients=num_clients) if is_known else {}
        return asdict(config) | {"defaults": by_section(defaults)}
    (command,) = [name for name, kind in _MAXIMIZE.items() if isinstance(config, kind)]
    return {"command": command} | asdict(config)


def load(path: str | Path, start: Config | None = None) -> Config | Maximize:
    """Reads a configuration from JSON or TOML.

    Settings may be omitted only if they are in ``start``. The defaults that ``save`` wrote are not
    settings: they must be those in use.

    Raises:
        ValueError: If the file is damaged or lacks a setting, or a setting is unknown or has a
            value of another type.
        FileNotFoundError: If there is no such file.
    """
    content = Path(path).read_bytes()
    try:
        if Path(path).suffix == ".json":
            values = json.loads(
                content.decode(), parse_float=parse_float, object_pairs_hook=_unique
            )
        else:
            values = tomllib.loads(content.decode(), parse_float=parse_float)
        if not isinstance(values, dict):
            raise ValueError(f"expected settings by name, got {values!r}")
        if (command := values.pop("command", None)) is not None:
            default = lookup("command", str(command), _MAXIMIZE)()
            return set_values(default, values, is_complete=True)
        has_defaults, defaults = "defaults" in values, values.pop("defaults", {})
        try:
            config = set_values(start or Config(), values, is_complete=start is None)
        except ValueError:
            _check_methods(values.get("methods"))  # Settings may be unknown with their method.
            raise
        if start is None and not has_defaults:
            raise ValueError("defaults is missing: expected settings by name")
        if _names_are_known(config):  # Others are errors of what uses them.
            check_defaults(config, defaults, is_complete=start is None)
        return config
    except (ValueError, RecursionError) as error:  # The latter if values are nested too deeply.
        reason = str(error).rstrip(".")
        raise ValueError(f"path={str(path)!r}: not a configuration: {reason}.") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Makes a dict of different names."""
    names = [name for name, _ in pairs]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{repeated[0]}: expected once")
    return dict(pairs)


def load_into(path: str | Path, start: Config) -> Config:
    """Reads the configuration of a run; as ``load``."""
    if not Path(path).exists() or Path(path).is_dir():
        is_run = (Path(path) / "config.json").exists()
        expected = f"{str(Path(path) / 'config.json')!r}" if is_run else "a TOML or JSON file"
        reason = "is a folder" if Path(path).is_dir() else "no such file"
        raise FileNotFoundError(f"config={str(path)!r}: {reason}; expected {expected}.")
    config = load(path, start)
    if not isinstance(config, Config):
        raise ValueError(f"path={str(path)!r}: expected settings of a run, not of a maximization.")
    return config


def set_values(
    start: Any, values: Mapping[str, Any], *, is_complete: bool = False, section: str = ""
) -> Any:
    """Replaces fields of a dataclass, which may be a section, by values from a file.

    Raises:
        ValueError: If a setting is unknown, has a value of another type, or is missing although the
            file ``is_complete``.
    """
    types, built = get_type_hints(type(start)), {}
    for name, value in values.items():
        kind = lookup("setting", name, types)
        if is_dataclass(kind):
            if not isinstance(value, dict):
                raise ValueError(f"{name}={value!r}: expected settings by name")
            built[name] = set_values(
                getattr(start, name), value, is_complete=is_complete, section=f"{name}."
            )
            continue
        with error_prefix(f"{name}={value!r}: "):
            built[name] = check_value(kind, value)
    for name, kind in types.items():
        if is_complete and name not in values:
            needed = "settings by name" if is_dataclass(kind) else describe_type(kind)
            or_null = " or null" if getattr(start, name) is None else ""
            raise ValueError(f"{section}{name} is missing: expected {needed}{or_null}")
    return replace(start, **built)


def _names_are_known(config: Config) -> bool:
    """Looks up partition, network and methods; those of plugins may not be loaded."""
    parts = {part for name in config.methods for part in method_parts(name)}
    partition = config.data.partition
    has_data = partition in PARTITIONERS or (partition is None and config.data.file is not None)
    is_known = has_data and config.model.name in MODELS
    return is_known and parts <= METHODS.keys()


def _check_methods(names: Any) -> None:
    for name in names if isinstance(names, list) else ():
        for part in method_parts(name) if isinstance(name, str) else ():
            find_method(part)
