"""What ``run``, ``sweep`` and ``plan`` shall do: a preset, what is varied, and options."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedjax_fair.app.config import Config
from fedjax_fair.app.options import HELP, integers, value_of
from fedjax_fair.app.presets import Preset, resolve
from fedjax_fair.app.settings import load_into, lookup, read

__all__ = ["Request", "request"]

_DEFAULT_PRESET = "digits"


class Request(NamedTuple):
    """What was typed behind a command, before its options are read.

    Attributes:
        preset: The preset, given or not.
        named: Whether it was given.
        base: What a file of settings is laid over.
        start: What options are laid over.
        words: Other words before the first option.
        options: The rest.
    """

    preset: str
    named: bool
    base: Config
    start: Config
    words: list[str]
    options: list[str]

    def varied(self) -> tuple[dict[str, list[Any]], list[int] | None]:
        """Words as values of settings to vary, and seeds if they are among them."""
        found: dict[str, list[Any]] = {}
        for word in self.words:
            name, _, values = word.partition("=")
            if name in found:
                raise ValueError(f"{name}: expected once, with values between commas.")
            texts = integers(values) if name == "seeds" else values.split(",")
            found[name] = [read(self.start, name, text) for text in texts]
        seeds = found.pop("seeds", None)
        return found, None if seeds is None else [seed for (seed,) in seeds]


def request(arguments: list[str], presets: Mapping[str, Preset]) -> Request:
    """Takes apart what follows a command.

    Args:
        arguments: All that follows it.
        presets: By name.

    Raises:
        ValueError: If there is no such preset, or the file of ``--config`` cannot be read.
    """
    words = list(itertools.takewhile(lambda word: not word.startswith("-"), arguments))
    options = arguments[len(words) :]
    named = bool(words) and "=" not in words[0]
    preset = words[0] if named else _DEFAULT_PRESET
    base = start = lookup("preset", preset, presets).config
    file = value_of("--config", options)
    if file is not None:
        base = base if named else Config()
        start = load_into(file, base)
    if HELP & set(options):
        start = resolve(start)  # Show the values that would be used.
    return Request(preset, named, base, start, words[named:], options)
