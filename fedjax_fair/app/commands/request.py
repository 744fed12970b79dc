"""Arguments of ``run``, ``sweep`` and ``plan``: a preset, varied settings and options."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from fedjax_fair.app.commands.common import fields_of
from fedjax_fair.app.config import Config
from fedjax_fair.app.options import HELP, parse, split_option
from fedjax_fair.app.presets import Preset, resolve
from fedjax_fair.app.settings import load_into, lookup, places, read
from fedjax_fair.app.values import describe_type
from fedjax_fair.app.variants import drop_unused_settings, method_settings
from fedjax_fair.text import format_columns

__all__ = ["Request", "request"]

_DEFAULT_PRESET = "digits"


class Request(NamedTuple):
    """Parsed arguments of a command.

    Attributes:
        name: The preset that was given, or else the data set.
        options: Options of the command.
        config: The resolved configuration.
        varied: Values of the settings to vary.
        seeds: Seeds, if they are given like settings to vary.
    """

    name: str
    options: Any
    config: Config
    varied: dict[str, list[Any]]
    seeds: tuple[int, ...] | None


def request(
    kind: Any,
    arguments: list[str],
    presets: Mapping[str, Preset],
    *,
    varies: bool = True,
    output: str | None = None,
) -> Request:
    """Parses ``[PRESET] [NAME=VALUE,VALUE...]... [OPTIONS]``.

    Args:
        kind: Class of the options, a subclass of ``Config`` with a field ``config``.
        arguments: What follows the command.
        presets: By name.
        varies: Whether settings can be varied.
        output: Parent folder of the default of ``--output``.

    Raises:
        ValueError: If an argument is wrong, or the file of ``--config`` cannot be read.
    """
    words = list(itertools.takewhile(lambda word: not word.startswith("-"), arguments))
    options = arguments[len(words) :]
    is_named = bool(words) and "=" not in words[0]
    preset = words.pop(0) if is_named else _DEFAULT_PRESET
    base = start = lookup("preset", preset, presets).config
    pairs = itertools.pairwise(word for option in options for word in split_option(option))
    if (file := dict(pairs).get("--config")) is not None:
        base = base if is_named else Config()
        start = load_into(file, base)
    if HELP & set(options):
        start = resolve(start)  # So that the help shows the values that would be used.
        if varies:
            columns = format_columns(_describe_settings(start), indent="  ")
            print(f"NAME=VALUE,VALUE varies a setting:\n{columns}\n")
    default = kind(**fields_of(Config, start))
    if output is not None:
        default = replace(default, output=f"{output}/{preset}")
    command = f"{kind.__name__.lower()} {preset}"
    parsed = parse(kind, options if varies else [*words, *options], command, default)
    config = Config(**fields_of(Config, parsed))
    # Only what the preset sets is dropped; what a file or an option sets is kept and checked.
    config = drop_unused_settings(resolve(config), base=base)
    name = preset if is_named else config.data.name.replace("/", "-")
    return Request(name, parsed, config, *_varied(start, words))


def _varied(
    config: Config, words: list[str]
) -> tuple[dict[str, list[Any]], tuple[int, ...] | None]:
    varied: dict[str, list[Any]] = {}
    seeds = None
    for word in words:
        name, _, values = word.partition("=")
        if name in varied or (name == "seeds" and seeds is not None):
            raise ValueError(f"{name}: expected once, with values between commas.")
        if name == "seeds":
            seeds = read(config, name, values)
        else:
            varied[name] = [read(config, name, text) for text in values.split(",")]
    return varied, seeds


def _describe_settings(config: Config) -> dict[str, str]:
    """Describes the settings of the methods, which can be varied."""
    described = {"seeds": "Runs of every configuration, such as 0,1,2 or 0:10."}
    unique = {place: name for name, place in places(config).items() if "." not in name}
    for method in config.methods:
        for section, settings in method_settings(config, method).items():
            for setting in settings.values():
                name = unique.get((section, setting.name), f"{section}.{setting.name}")
                described.setdefault(name, f"{setting.help} ({describe_type(setting.type)})")
    return described
