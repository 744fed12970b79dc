"""Options of commands: parsing into the fields of a dataclass, and their help."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args, get_type_hints

import tyro

from fedjax_fair.app.overview import HELP
from fedjax_fair.app.settings.setting import is_sequence, members, parse_value
from fedjax_fair.app.settings.suggestions import suggest
from fedjax_fair.utils.terminal import error_prefix

__all__ = [
    "PATHS",
    "assemble",
    "explain_one_seed",
    "fields_of",
    "options_of",
    "parse",
    "parse_options",
    "print_help",
]

PATHS = {
    "--config",
    "--data.central-test",
    "--data.dir",
    "--data.file",
    "--file",
    "--folder",
    "--model.weights",
    "--model.weights-names",
    "--output",
    "--published",
    "--plot",
    "--run",
    "--runs",
    "--timing.online",
    "--timing.table",
}
"""Options that are files or folders. A leading ``~`` is the home folder."""


def parse(kind: Any, arguments: list[str], command: str, default: Any = None) -> Any:
    """Parses arguments into a dataclass; as `parse_options`."""
    if HELP & set(arguments):
        print_help(kind, command, default)
    values = parse_options(kind, arguments, command)
    explain_one_seed(values)
    return assemble(kind, values, default)


def print_help(kind: Any, command: str, default: Any = None) -> None:
    """Prints the options of a dataclass with their defaults; raises ``SystemExit``."""
    given = {} if default is None else {"default": default}
    config = (tyro.conf.DisallowNone,)
    tyro.cli(kind, args=["--help"], prog=f"fedjax-fair {command}", config=config, **given)


def parse_options(kind: Any, arguments: list[str], command: str) -> dict[str, Any]:
    """Parses the arguments of a command into values by option.

    The words after an option belong to it if its type is a tuple. A bool takes no word;
    ``--no-NAME`` sets it to False. Other options take one word. The remaining words belong to the
    field that is ``Positional``; they may be absent if it can be None.

    Args:
        kind: A dataclass; a field that is a dataclass is a section of options.
        arguments: What follows the command.
        command: Name of the command.

    Raises:
        ValueError: If an option is unknown, or a value does not fit.
    """
    types = dict(options_of(kind))
    flags = [flag for flag, kind in types.items() if bool in members(kind)]
    negations = {re.sub(r"(--|\.)(?=[\w-]+$)", r"\1no-", flag): flag for flag in flags}
    values: dict[str, Any] = {}
    positional: list[str] = []
    given = words = ["--output" if word == "-o" else word for word in arguments]
    while words:
        word, *words = words
        if not word.startswith("--"):
            positional.append(word)
            continue
        written, equals, text = word.partition("=")
        flag = written.replace("_", "-")
        switch = "False" if flag in negations else "True"
        flag = negations.get(flag, flag)
        if flag not in types:
            similar = suggest(flag, types)
            help_hint = f"`fedjax-fair {command} --help` lists them."
            hint = f"did you mean {similar}?" if similar else help_hint
            raise ValueError(f"unknown option {flag}: {hint}")
        texts = [text] if equals else []
        if flag in flags:
            if equals:
                raise ValueError(f"{flag}={text}: expected {flag} without a value.")
            texts = [switch]
        else:
            most = len(words) if is_sequence(types[flag]) else 1 - len(texts)
            ends = (index for index, word in enumerate(words[:most]) if word.startswith("--"))
            count = next(ends, min(most, len(words)))
            texts, words = texts + words[:count], words[count:]
        texts = _expand(flag, texts)
        with error_prefix(f"{' '.join([flag, *texts])}: "):
            values[flag] = parse_value(types[flag], texts)
    hints = get_type_hints(kind, include_extras=True)
    names = [name for name, hint in hints.items() if tyro.conf.Positional in get_args(hint)]
    if names:
        return values | _positional_value(names[0], types, positional, command)
    if positional:
        word = positional[0]
        flag = _option_of_name(word, types)
        hint = f"did you mean {flag} {word}? " if flag else ""
        before = given[: given.index(word)]
        after = f" after {before[-1]}" if before and before[-1] in types else ""
        raise ValueError(
            f"unexpected argument {word!r}{after}; {hint}`fedjax-fair {command} --help` lists "
            "the options."
        )
    return values


def _positional_value(
    name: str, types: Mapping[str, Any], words: list[str], command: str
) -> dict[str, Any]:
    """Returns the value of the field that is ``Positional``, or none if it is left out."""
    flag = f"--{name}"
    if not words and type(None) in get_args(types[flag]):
        return {}
    is_list = is_sequence(types[flag])
    if not words or (len(words) > 1 and not is_list):
        raise ValueError(f"{command}: expected {name.upper()}, got {' '.join(words) or 'nothing'}.")
    paths = _expand(flag, words)
    return {flag: tuple(paths) if is_list else paths[0]}


def explain_one_seed(values: Mapping[str, Any]) -> None:
    """Prints that a single seed is no number of seeds, unless it is 0 or 1."""
    for option, seeds in values.items():
        if option.strip("=").endswith("seeds") and len(seeds) == 1 and seeds[0] > 1:
            (seed,), after = seeds, "" if option.endswith("=") else " "
            text = f"one seed, {seed}; for {seed:,} seeds write {option}{after}0:{seed}"
            print(f"fedjax-fair: note: {text}", file=sys.stderr)


def _option_of_name(word: str, types: Mapping[str, Any]) -> str | None:
    """Returns the option of a command whose value a word probably is, a method or a data set."""
    if not types.keys() & {"--methods", "--data.name"}:
        return None
    # Imports the methods of all packages, which few commands need.
    from fedjax_fair.app.settings.registry import METHODS
    from fedjax_fair.app.settings.source_defaults import source_names

    named = {"--methods": METHODS, "--data.name": source_names()}
    return next((flag for flag, names in named.items() if flag in types and word in names), None)


def _expand(flag: str, texts: list[str]) -> list[str]:
    if flag not in PATHS:
        return texts
    if "" in texts:
        raise ValueError(f"{flag.removeprefix('--')}='': expected a path.")
    return [os.path.expanduser(text) for text in texts]


def options_of(kind: Any, prefix: str = "--") -> Iterator[tuple[str, Any]]:
    """Yields the options of a dataclass and of its sections, with their types."""
    types = get_type_hints(kind)
    for item in fields(kind):
        name = prefix + item.name.replace("_", "-")
        if is_dataclass(types[item.name]):
            yield from options_of(types[item.name], f"{name}.")
        else:
            yield name, types[item.name]


def assemble(kind: Any, values: Mapping[str, Any], default: Any = None) -> Any:
    """Makes a dataclass of values by option and the fields of ``default``."""
    given = {} if default is None else fields_of(kind, default)
    sections = get_type_hints(kind)
    for flag, value in values.items():
        section, _, name = flag.removeprefix("--").replace("-", "_").rpartition(".")
        if section:
            value = replace(given.get(section, sections[section]()), **{name: value})
        given[section or name] = value
    return kind(**given)


def fields_of(kind: Any, settings: Any) -> dict[str, Any]:
    """Returns those fields of an object that a dataclass has."""
    return {item.name: getattr(settings, item.name) for item in fields(kind)}
