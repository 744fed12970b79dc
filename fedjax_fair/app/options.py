"""Options of the command line as a dataclass has them, and what is said of a mistake in one."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

import tyro

from fedjax_fair.app.settings import closest, described

__all__ = ["HELP", "options_of", "parse"]

HELP = {"-h", "--help"}


def parse(kind: Any, arguments: list[str], name: str, default: Any = None) -> Any:
    """Reads options into a dataclass; tyro's report of a mistake becomes a ``ValueError``."""
    options = dict(options_of(kind))
    for argument in arguments:
        _require_option(argument, set(options), name)
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
    return f"{' '.join([named[0], *given])}: expected {described(options[named[0]])}."


def _flag_and_value(argument: str) -> list[str]:
    """Takes ``--some_flag=value`` apart; what is no flag stays as it is."""
    if not argument.startswith("--"):
        return [argument]
    flag, *value = argument.split("=", 1)
    return [flag.replace("_", "-"), *value]


def options_of(kind: Any, prefix: str = "--") -> Iterator[tuple[str, Any]]:
    """The flags of a dataclass, sections and all, and the types of their values."""
    kinds = get_type_hints(kind)
    for item in fields(kind):
        name = prefix + item.name.replace("_", "-")
        section = item.default_factory
        if is_dataclass(section):
            yield from options_of(section, f"{name}.")
        else:
            yield name, kinds[item.name]


def _require_option(argument: str, options: set[str], name: str) -> None:
    flag = _flag_and_value(argument)[0]
    if not flag.startswith("--") or flag in options | HELP:
        return
    close = closest(flag, options)
    hint = f"did you mean {close}?" if close else f"`fedjax-fair {name} --help` lists them."
    raise ValueError(f"unknown option {flag}: {hint}")


def _first_paragraph(box: str) -> str:
    """The sentence below the title of the box that tyro draws around a mistake."""
    lines = (line.strip("│ ") for line in box.splitlines()[1:])
    below_title = itertools.dropwhile(_is_rule, lines)
    return " ".join(itertools.takewhile(lambda line: not _is_rule(line), below_title))


def _is_rule(line: str) -> bool:
    return not re.search(r"\w", line)
