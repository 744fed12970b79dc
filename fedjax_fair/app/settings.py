"""Settings of a configuration by name, from text and as JSON."""

from __future__ import annotations

import contextlib
import difflib
import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from fedjax_fair.app.config import Config, Maximize

__all__ = ["closest", "load", "lookup", "override", "places", "read", "save"]

T = TypeVar("T")


def override(config: Config, settings: str) -> Config:
    """Changes settings by name, in whichever section has them.

    Args:
        config: A configuration.
        settings: ``name=value``, separated by commas; ``section.name`` where several sections have
            a setting of this name.

    Returns:
        The configuration with these settings.

    Raises:
        ValueError: If there is no such setting, several, or the value does not fit.

    Examples:
        >>> override(Config(), "lam=0.25,data.seed=3").selector.lam
        0.25
        >>> override(Config(), "lamda=0.25")
        Traceback (most recent call last):
        ValueError: setting='lamda': did you mean 'lam'? Expected ...
    """
    for item in settings.split(","):
        name, _, text = item.partition("=")
        section, field_name = lookup("setting", name.strip(), places(config))
        part = replace(getattr(config, section), **{field_name: read(config, name.strip(), text)})
        config = replace(config, **{section: part})
    return config


def places(config: Config) -> dict[str, tuple[str, str]]:
    """Section and field of each setting, by its own name where that is unique and by both.

    Examples:
        >>> places(Config())["lam"]
        ('selector', 'lam')
    """
    both = {
        f"{section.name}.{item.name}": (section.name, item.name)
        for section in fields(config)
        if is_dataclass(part := getattr(config, section.name))
        for item in fields(part)
    }
    own = Counter(name for _, name in both.values())
    return {name: place for place in both.values() if own[name := place[1]] == 1} | both


def read(config: Config, name: str, text: str) -> Any:
    """Reads the value of a setting as the command line would.

    Raises:
        ValueError: If there is no such setting, or the value does not fit.

    Examples:
        >>> read(Config(), "lam", "0.25")
        0.25
    """
    import tyro

    section, field_name = lookup("setting", name, places(config))
    kind: Any = get_type_hints(type(getattr(config, section)))[field_name]
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return tyro.cli(kind, args=[text])
    except SystemExit:
        described = getattr(kind, "__name__", str(kind)).replace("typing.", "")
        raise ValueError(f"{name}={text!r}: expected {described}.") from None


def save(config: Config | Maximize, path: str | Path) -> None:
    """Writes a configuration as JSON, such that ``load`` gives back an equal one."""
    Path(path).write_text(json.dumps(asdict(config), indent=2) + "\n")


def load(path: str | Path) -> Config:
    """Reads what ``save`` wrote.

    Raises:
        ValueError: If the file is not JSON or names a setting that does not exist.
    """
    try:
        values = json.loads(Path(path).read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"path={str(path)!r}: expected JSON ({error}).") from None
    return _build(Config, values)


def _build(kind: Any, values: Any) -> Any:
    """The inverse of ``asdict``: sequences are tuples, sections are dataclasses."""
    if not is_dataclass(kind):
        return tuple(values) if isinstance(values, list) else values
    assert isinstance(kind, type)
    known = {item.name: item.name for item in fields(kind)}
    for name in values:
        lookup("setting", name, known)
    kinds = get_type_hints(kind)
    return kind(**{name: _build(kinds[name], value) for name, value in values.items()})


def lookup(kind: str, name: str, table: Mapping[str, T]) -> T:
    """Finds an entry by name, or says which name was probably meant.

    Args:
        kind: What the name is the name of.
        name: What was asked for.
        table: What there is.

    Returns:
        The entry.

    Raises:
        ValueError: If there is none of this name.

    Examples:
        >>> lookup("method", "fedavg", {"fedavg": 1, "fedprox": 2})
        1
        >>> lookup("method", "fedporx", {"fedavg": 1, "fedprox": 2})
        Traceback (most recent call last):
        ValueError: method='fedporx': did you mean 'fedprox'? Expected one of fedavg, fedprox.
    """
    if name in table:
        return table[name]
    close = closest(name, table)
    hint = f"did you mean {close!r}? Expected" if close else "expected"
    raise ValueError(f"{kind}={name!r}: {hint} one of {', '.join(table)}.")


def closest(name: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant, if any is near.

    Examples:
        >>> closest("--solver.prx", ["--solver.prox", "--solver.steps"])
        '--solver.prox'
    """
    return next(iter(difflib.get_close_matches(name, list(names), n=1)), None)
