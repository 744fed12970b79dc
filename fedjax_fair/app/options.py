"""Parsing of command-line options into the fields of a dataclass."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args, get_type_hints

import tyro

from fedjax_fair.app.settings import suggest
from fedjax_fair.app.values import is_sequence, members, parse_value

__all__ = ["HELP", "options_of", "parse", "split_option"]

HELP = {"-h", "--help"}


def parse(kind: Any, arguments: list[str], command: str, default: Any = None) -> Any:
    """Parses arguments into a dataclass.

    The words after an option belong to it if its type is a tuple. A bool takes no word;
    ``--no-NAME`` sets it to False. Other options take one word. The remaining words belong to the
    field that is ``Positional``.

    Args:
        kind: The dataclass; a field that is a dataclass is a section of options.
        arguments: What follows the command.
        command: Name of the command.
        default: Values of options that are not given.

    Raises:
        ValueError: If an option is unknown, or a value does not fit.
        SystemExit: After printing the help.
    """
    if HELP & set(arguments):
        given = {} if default is None else {"default": default}
        config = (tyro.conf.DisallowNone,)
        tyro.cli(kind, args=["--help"], prog=f"fedjax-fair {command}", config=config, **given)
    types = dict(options_of(kind))
    queue = deque(word for argument in arguments for word in split_option(argument))
    flags = [flag for flag, kind in types.items() if bool in members(kind)]
    negations = {re.sub(r"(--|\.)(?=[\w-]+$)", r"\1no-", flag): flag for flag in flags}
    values: dict[str, Any] = {}
    positional: list[str] = []
    while queue:
        flag = queue.popleft()
        if not flag.startswith("--"):
            positional.append(flag)
            continue
        switch = "False" if flag in negations else "True"
        flag = negations.get(flag, flag)
        if flag not in types:
            similar = suggest(flag, types)
            help_hint = f"`fedjax-fair {command} --help` lists them."
            hint = f"did you mean {similar}?" if similar else help_hint
            raise ValueError(f"unknown option {flag}: {hint}")
        is_flag = bool in members(types[flag])
        num_words = len(queue) if is_sequence(types[flag]) else not is_flag
        words: list[str] = []
        while queue and len(words) < num_words and not queue[0].startswith("--"):
            words.append(queue.popleft())
        try:
            values[flag] = parse_value(types[flag], [switch] if is_flag else words)
        except ValueError as error:
            raise ValueError(f"{' '.join([flag, *words])}: {error}") from None
    values |= _positional_value(kind, positional, command)
    return _assemble(kind, values, default)


def split_option(argument: str) -> list[str]:
    """Splits ``--some_option=value``; other arguments remain as they are."""
    if argument == "-o":
        return ["--output"]
    if not argument.startswith("--"):
        return [argument]
    flag, *value = argument.split("=", 1)
    return [flag.replace("_", "-"), *value]


def options_of(kind: Any, prefix: str = "--") -> Iterator[tuple[str, Any]]:
    """Yields the options of a dataclass and of its sections, with their types."""
    types = get_type_hints(kind)
    for item in fields(kind):
        name = prefix + item.name.replace("_", "-")
        if is_dataclass(types[item.name]):
            yield from options_of(types[item.name], f"{name}.")
        else:
            yield name, types[item.name]


def _positional_value(kind: Any, words: list[str], command: str) -> dict[str, Any]:
    """Returns the value of the positional field, if the dataclass has one."""
    types = get_type_hints(kind, include_extras=True)
    for name, hint in types.items():
        if tyro.conf.Positional not in get_args(hint):
            continue
        if is_sequence(get_args(hint)[0]) and words:
            return {f"--{name}": tuple(words)}
        if len(words) != 1:
            given = " ".join(words) or "nothing"
            raise ValueError(f"{command}: expected {name.upper()}, got {given}.")
        return {f"--{name}": words[0]}
    if words:
        raise ValueError(
            f"unexpected argument {words[0]!r}; `fedjax-fair {command} --help` lists the options."
        )
    return {}


def _assemble(kind: Any, values: dict[str, Any], default: Any) -> Any:
    """Makes a dataclass of the values of its options."""
    if default is None:
        sections: Any = [item for item in fields(kind) if is_dataclass(item.default_factory)]
        given = {item.name: item.default_factory() for item in sections}
    else:
        given = {item.name: getattr(default, item.name) for item in fields(kind)}
    for flag, value in values.items():
        section, _, name = flag.removeprefix("--").replace("-", "_").rpartition(".")
        given[section or name] = replace(given[section], **{name: value}) if section else value
    return kind(**given)
