"""Settings of a configuration by name, from text and as JSON."""

from __future__ import annotations

import contextlib
import difflib
import io
import json
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from typeguard import CollectionCheckStrategy, TypeCheckError, check_type

from fedjax_fair.app.config import Config, Maximize, MaximizeExemplars, MaximizeMovielens
from fedjax_fair.app.registry import METHODS
from fedjax_fair.results.files import write_text

__all__ = [
    "describe_type",
    "load",
    "load_into",
    "lookup",
    "override",
    "places",
    "read",
    "save",
    "suggest",
    "unknown_method",
]

T = TypeVar("T")

MAXIMIZE = {"maximize exemplars": MaximizeExemplars, "maximize movielens": MaximizeMovielens}
"""What the commands that maximize are set by."""


def override(
    config: Config,
    written: str,
    readable: Callable[[Config], Mapping[str, Iterable[str]]],
    method: str,
) -> Config:
    """Changes the settings that are written behind a method's name.

    Args:
        config: A configuration.
        written: ``name=value``, separated by commas; ``section.name`` where several sections have
            a setting of this name.
        readable: The settings that the method reads with a configuration, by section. The name of
            the network is always one.
        method: The method's name, for errors.

    Returns:
        The configuration with these settings.

    Raises:
        ValueError: If the method has no such setting, one is given twice, or a value does not fit.

    Examples:
        >>> def readable(config):
        ...     return {"selector": ["cohort_size", "lam", "b"]}
        >>> override(Config(), "lam=0.25,b=2", readable, "subtrunc:lam=0.25,b=2").selector.lam
        0.25
        >>> override(Config(), "alpha=9", readable, "subtrunc:alpha=9")
        Traceback (most recent call last):
        ValueError: method='subtrunc:alpha=9': setting='alpha': expected one of cohort_size, lam, b.
    """
    given = [item.partition("=") for item in written.split(",")]
    # The network first: the others may be settings of it.
    given.sort(key=lambda item: item[0].strip() not in ("model.name", "name"))
    seen = set()
    for name, _, text in given:
        by_section = {section: list(names) for section, names in readable(config).items()}
        own = _by_name(by_section)
        by_section["model"] = [*by_section.get("model", ()), "name", "compute"]
        try:
            place = lookup("setting", name.strip(), _by_name(by_section), shown=own)
            value = read(config, ".".join(place), text)
        except ValueError as error:
            raise ValueError(f"method={method!r}: {error}") from None
        if place in seen:
            raise ValueError(f"method={method!r}: expected {name.strip()} once.")
        seen.add(place)
        section, field_name = place
        part = replace(getattr(config, section), **{field_name: value})
        config = replace(config, **{section: part})
    return config


def places(config: Config) -> dict[str, tuple[str, str]]:
    """Section and field of each setting, by its own name where that is unique and by both.

    Examples:
        >>> places(Config())["lam"]
        ('selector', 'lam')
    """
    return _by_name(
        {
            section.name: [item.name for item in fields(part)]
            for section in fields(config)
            if is_dataclass(part := getattr(config, section.name))
        }
    )


def _by_name(sections: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, str]]:
    both = {
        f"{section}.{name}": (section, name)
        for section, names in sections.items()
        for name in names
    }
    own = Counter(name for _, name in both.values())
    return {place[1]: place for place in both.values() if own[place[1]] == 1} | both


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
            return tyro.cli(kind, args=[text], config=(tyro.conf.DisallowNone,))
    except SystemExit:
        raise ValueError(f"{field_name}={text!r}: expected {describe_type(kind)}.") from None


_WRITTEN = {int: "an integer", float: "a number", bool: "True or False", str: "text"}
_WRITTEN_MANY = {int: "integers", float: "numbers", str: "words"}


def describe_type(kind: Any) -> str:
    """What may be written for a value of a type.

    Examples:
        >>> describe_type(int | Literal["auto", "all"] | None), describe_type(tuple[int, ...])
        ("an integer or 'auto' or 'all'", 'integers')
    """
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    words: list[str] = []
    for member in members:
        if get_origin(member) is Literal:
            words += map(repr, get_args(member))
        elif get_origin(member) is tuple:
            words.append(_WRITTEN_MANY[get_args(member)[0]])
        elif member is not type(None):
            words.append(_WRITTEN[member])
    return " or ".join(words)


def save(config: Config | Maximize, path: str | Path) -> None:
    """Writes a configuration as JSON, such that ``load`` gives back an equal one."""
    command = [name for name, kind in MAXIMIZE.items() if isinstance(config, kind)]
    named = {"command": command[0]} if command else {}
    write_text(Path(path), json.dumps(named | asdict(config), indent=2) + "\n")


def load(path: str | Path) -> Config | Maximize:
    """Reads what ``save`` wrote.

    Raises:
        ValueError: If the file is not JSON, names a setting that does not exist, or holds a value
            of another kind than the setting's.
    """
    with _naming(path):
        values = _named(json.loads(Path(path).read_text(encoding="utf8")))
        if (command := values.pop("command", None)) is not None:
            return _build(lookup("command", str(command), MAXIMIZE)(), values)
        return _of_run(Config(), values)


def load_into(path: str | Path, start: Config) -> Config:
    """Reads settings over others.

    Args:
        path: A TOML file, or the ``config.json`` of a run. It may leave out what ``start`` says.
        start: Where settings come from that the file does not have.

    Raises:
        ValueError: As ``load``.
        FileNotFoundError: If there is no such file.

    Examples:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "short.toml"
        >>> _ = file.write_text("training.rounds = 5")
        >>> load_into(file, Config()).training.rounds
        5
    """
    text = Path(path).read_bytes()
    with _naming(path):
        read = json.loads if Path(path).suffix == ".json" else tomllib.loads
        values = _named(read(text.decode()))
        if "command" in values:
            raise ValueError(f"expected settings of a run, found those of {values['command']}")
        return _of_run(start, values)


@contextlib.contextmanager
def _naming(path: str | Path) -> Iterator[None]:
    """Says of a mistake in which file it is; what is no JSON, TOML or text raises one of them."""
    try:
        yield
    # What is nested too deep raises the other.
    except (ValueError, RecursionError) as error:
        raise ValueError(f"path={str(path)!r}: not a configuration: {error}.") from None


def _named(values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ValueError(f"expected settings by name, got {values!r}")
    return values


def _of_run(start: Config, values: Mapping[str, Any]) -> Config:
    """The configuration of a run; a setting that is not known may be one of an unknown method."""
    try:
        return _build(start, values)
    except ValueError as error:
        given = values.get("methods")
        methods = given if isinstance(given, list) else []
        names = {name for one in map(str, methods) for name in one.partition(":")[0].split("+")}
        for name in sorted(names - METHODS.keys()):
            raise ValueError(f"{error} {unknown_method(name)}") from None
        raise


def unknown_method(name: str) -> str:
    """What to do about a method that is not known.

    Examples:
        >>> unknown_method("newest")
        "method='newest': one of your own needs --plugin FILE; in Python, app.plugins.load(FILE)"
    """
    return (
        f"method={name!r}: one of your own needs --plugin FILE; in Python, app.plugins.load(FILE)"
    )


def _build(start: Any, values: Mapping[str, Any]) -> Any:
    """A dataclass with other values; sequences become tuples, sections dataclasses."""
    known = {item.name: item.name for item in fields(start)}
    kinds, built = get_type_hints(type(start)), {}
    for name, value in values.items():
        lookup("setting", name, known)
        kind = kinds[name]
        if is_dataclass(kind):
            if not isinstance(value, dict):
                raise ValueError(f"{name}={value!r}: expected settings by name")
            built[name] = _build(getattr(start, name), value)
            continue
        built[name] = tuple(value) if isinstance(value, list) else value
        try:
            check_type(
                built[name],
                kind,
                collection_check_strategy=CollectionCheckStrategy.ALL_ITEMS,
            )
        except TypeCheckError:
            raise ValueError(f"{name}={value!r}: expected {describe_type(kind)}") from None
    return replace(start, **built)


def lookup(kind: str, name: str, table: Mapping[str, T], shown: Iterable[str] | None = None) -> T:
    """Finds an entry by name, or says which name was probably meant.

    Args:
        kind: What the name is the name of.
        name: The name.
        table: The entries.
        shown: Names that an error lists; all by default.

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
    names = [each for each in (table if shown is None else shown) if "." not in each]
    close = suggest(name, names)
    hint = f"did you mean {close!r}? Expected" if close else "expected"
    raise ValueError(f"{kind}={name!r}: {hint} one of {', '.join(names or table)}.")


def suggest(name: str, names: Collection[str]) -> str | None:
    """The name that was probably meant, if any is near.

    Examples:
        >>> suggest("--solver.prx", ["--solver.prox", "--solver.steps"])
        '--solver.prox'
        >>> suggest("lr", ["prox", "learning_rate"]), suggest("--rounds", ["--training.rounds"])
        ('learning_rate', '--training.rounds')
    """
    last = _last_part(name)
    by_last = {_last_part(known): known for known in names}
    if (same := by_last.get(_ALIASES.get(last, last))) is not None:
        return same
    folded = {known.casefold(): known for known in names}
    near = difflib.get_close_matches(name.casefold(), folded, n=1)
    return folded[near[0]] if near else None


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
"""What others call settings, and what they are called here."""


def _last_part(name: str) -> str:
    """The name of a setting without its section, however it is written."""
    return name.strip("-").rpartition(".")[2].replace("-", "_").casefold()
