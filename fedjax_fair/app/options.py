"""Options of the command line as a dataclass has them, and what is said of a mistake in one."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import tyro

from fedjax_fair.app.settings import describe_type, suggest

__all__ = ["HELP", "integers", "options_of", "parse", "value_of"]

HELP = {"-h", "--help"}


def parse(kind: Any, arguments: list[str], name: str, default: Any = None) -> Any:
    """Reads options into a dataclass; tyro's report of a mistake becomes a ``ValueError``."""
    options = dict(options_of(kind))
    for argument in arguments:
        _check_option(argument, set(options), name)
    arguments = list(_spread(arguments, options))
    report = io.StringIO()
    given = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(report):
            return tyro.cli(
                kind,
                args=arguments,
                prog=f"fedjax-fair {name}",
                config=(tyro.conf.DisallowNone,),
                **given,
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        raise ValueError(_mistake(report.getvalue(), arguments, options)) from None


def _spread(arguments: list[str], options: dict[str, Any]) -> Iterator[str]:
    """The same arguments, in which values of options that take several stand apart."""
    apart = None
    for argument in arguments:
        flag, *value = _flag_and_value(argument)
        if flag.startswith("--"):
            apart = _apart(options.get(flag))
            yield flag
        if not flag.startswith("--"):
            value = [argument]
        for word in value:
            yield from [word] if apart is None else apart(word)


def _apart(kind: Any) -> Callable[[str], list[str]] | None:
    """What takes the values of an option apart, if it has several."""
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    of = [get_args(member)[0] for member in members if get_origin(member) is tuple]
    return {int: integers, str: _words}.get(of[0]) if of else None


def integers(word: str) -> list[str]:
    """Integers between commas, and ranges of them whose end is left out.

    Examples:
        >>> integers("0,1,7"), integers("3:6,9"), integers("a:b")
        (['0', '1', '7'], ['3', '4', '5', '9'], ['a:b'])
    """
    found: list[str] = []
    for part in word.split(","):
        ends = re.fullmatch(r"(\d{1,9}):(\d{1,9})", part)
        numbers = range(*map(int, ends.groups())) if ends else range(0)
        # What is no range, or one of nothing, or of far too much, stays and is refused.
        found += map(str, numbers) if 0 < len(numbers) <= _MAX_IN_RANGE else [part]
    return found


_MAX_IN_RANGE = 10_000


def _words(word: str) -> list[str]:
    """Words between commas, where ``name:setting=value,setting=value`` is one."""
    found: list[str] = []
    for part in word.split(","):
        if found and ":" in found[-1] and "=" in part and ":" not in part:
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


def value_of(flag: str, arguments: list[str]) -> str | None:
    """What stands behind an option, which is needed before others can be read.

    Examples:
        >>> value_of("--config", ["--config=a.toml", "--quiet"])
        'a.toml'
    """
    words = [word for argument in arguments for word in _flag_and_value(argument)]
    return dict(itertools.pairwise(words)).get(flag)


def _mistake(report: str, arguments: list[str], options: dict[str, Any]) -> str:
    """What may be written for the option that a report of tyro names; else the report itself."""
    said = _first_paragraph(report)
    words = [word for argument in arguments for word in _flag_and_value(argument)]
    flags = options.keys() & set(words)
    named = [flag for flag in re.findall(r"--[\w.-]*\w", said) if flag in flags]
    if not named:
        for flag, word in itertools.pairwise(words):
            kind = options.get(flag)
            if bool in (kind, *get_args(kind)) and not word.startswith("--"):
                return f"{flag} {word}: expected no value; {flag} alone means True."
        return said
    behind = itertools.islice(words, words.index(named[0]) + 1, None)
    given = itertools.takewhile(lambda word: not word.startswith("--"), behind)
    return f"{' '.join([named[0], *given])}: expected {describe_type(options[named[0]])}."


def _flag_and_value(argument: str) -> list[str]:
    """Takes ``--some_flag=value`` apart; what is no flag stays as it is."""
    if not argument.startswith("--"):
        return [argument]
    flag, *value = argument.split("=", 1)
    return [flag.replace("_", "-"), *value]


def options_of(kind: Any, prefix: str = "--") -> Iterator[tuple[str, Any]]:
    """The flags of a dataclass, sections and all, and the types of their values."""
    kinds, described_kinds = get_type_hints(kind), get_type_hints(kind, include_extras=True)
    for item in fields(kind):
        names = [getattr(extra, "name", None) for extra in get_args(described_kinds[item.name])[1:]]
        name = prefix + next(filter(None, names), item.name).replace("_", "-")
        section = item.default_factory
        if is_dataclass(section):
            yield from options_of(section, f"{name}.")
        else:
            yield name, kinds[item.name]


def _check_option(argument: str, options: set[str], name: str) -> None:
    flag = _flag_and_value(argument)[0]
    if not flag.startswith("--") or flag in options | HELP:
        return
    close = suggest(flag, options)
    hint = f"did you mean {close}?" if close else f"`fedjax-fair {name} --help` lists them."
    raise ValueError(f"unknown option {flag}: {hint}")


def _first_paragraph(box: str) -> str:
    """The sentence below the title of the box that tyro draws around a mistake."""
    lines = (line.strip("│ ") for line in box.splitlines()[1:])
    below_title = itertools.dropwhile(_is_rule, lines)
    return " ".join(itertools.takewhile(lambda line: not _is_rule(line), below_title))


def _is_rule(line: str) -> bool:
    return not re.search(r"\w", line)
