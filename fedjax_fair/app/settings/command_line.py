"""The command line: options of commands, presets and varied settings, and their help."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise, takewhile
from typing import Any, NamedTuple, get_args, get_type_hints

import tyro

from fedjax_fair.app.overview import HELP
from fedjax_fair.app.settings.config import Config, Preset, TrainingConfig
from fedjax_fair.app.settings.config_files import load_into
from fedjax_fair.app.settings.names import change, places, read
from fedjax_fair.app.settings.presets import resolve
from fedjax_fair.app.settings.registry import METHODS
from fedjax_fair.app.settings.suggestions import lookup, suggest
from fedjax_fair.app.settings.usage import drop_unused_settings, method_settings
from fedjax_fair.app.settings.values import describe_type, is_sequence, members, parse_value
from fedjax_fair.data.sources.named_sources import SOURCES
from fedjax_fair.utils.terminal import format_columns

__all__ = [
    "PATHS",
    "Request",
    "fields_of",
    "options_of",
    "parse",
    "parse_options",
    "request",
]

PATHS = {
    "--config",
    "--data.dir",
    "--data.file",
    "--file",
    "--folder",
    "--output",
    "--published",
    "--plot",
    "--run",
    "--runs",
}
"""Options that are files or folders. A leading ``~`` is the home folder."""
_NAMED: dict[str, Mapping[str, Any]] = {"--methods": METHODS, "--data.name": SOURCES}
"""Options that take one of some names, by which they are suggested."""


def parse(kind: Any, arguments: list[str], command: str, default: Any = None) -> Any:
    """Parses arguments into a dataclass; as `parse_options`."""
    if HELP & set(arguments):
        _print_help(kind, command, default)
    return _assemble(kind, parse_options(kind, arguments, command), default)


def _print_help(kind: Any, command: str, default: Any = None) -> None:
    """Prints the options of a dataclass with their defaults; raises ``SystemExit``."""
    given = {} if default is None else {"default": default}
    config = (tyro.conf.DisallowNone,)
    tyro.cli(kind, args=["--help"], prog=f"fedjax-fair {command}", config=config, **given)


def parse_options(kind: Any, arguments: list[str], command: str) -> dict[str, Any]:
    """Parses the arguments of a command into values by option.

    The words after an option belong to it if its type is a tuple. A bool takes no word;
    ``--no-NAME`` sets it to False. Other options take one word. The remaining words belong to the
    field that is ``Positional``.

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
            ends = (place for place, word in enumerate(words[:most]) if word.startswith("--"))
            count = next(ends, min(most, len(words)))
            texts, words = texts + words[:count], words[count:]
        texts = _expand(flag, texts)
        try:
            values[flag] = parse_value(types[flag], texts)
        except ValueError as error:
            raise ValueError(f"{' '.join([flag, *texts])}: {error}") from None
    hints = get_type_hints(kind, include_extras=True)
    names = [name for name, hint in hints.items() if tyro.conf.Positional in get_args(hint)]
    if not names:
        if positional:
            word = positional[0]
            flags_of_word = (flag for flag, names in _NAMED.items() if word in names)
            flag = next((flag for flag in flags_of_word if flag in types), None)
            hint = f"did you mean {flag} {word}? " if flag else ""
            before = given[: given.index(word)]
            after = f" after {before[-1]}" if before and before[-1] in types else ""
            raise ValueError(
                f"unexpected argument {word!r}{after}; {hint}`fedjax-fair {command} --help` lists "
                "the options."
            )
        return values
    (flag,) = (f"--{name}" for name in names)
    is_list = is_sequence(types[flag])
    if not positional or (len(positional) > 1 and not is_list):
        given = " ".join(positional) or "nothing"
        raise ValueError(f"{command}: expected {names[0].upper()}, got {given}.")
    paths = _expand(flag, positional)
    return values | {flag: tuple(paths) if is_list else paths[0]}


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


def _assemble(kind: Any, values: Mapping[str, Any], default: Any = None) -> Any:
    """Makes a dataclass of values by option and the fields of ``default``."""
    given: dict[str, Any] = {}
    for item in fields(kind):
        if default is not None:
            given[item.name] = getattr(default, item.name)
        elif isinstance(item.default_factory, type):  # A section.
            given[item.name] = item.default_factory()
    for flag, value in values.items():
        section, _, name = flag.removeprefix("--").replace("-", "_").rpartition(".")
        given[section or name] = replace(given[section], **{name: value}) if section else value
    return kind(**given)


def fields_of(kind: Any, settings: Any) -> dict[str, Any]:
    """Returns those fields of an object that a dataclass has."""
    return {item.name: getattr(settings, item.name) for item in fields(kind)}


_DEFAULT_PRESET = "digits"
_VARIED_SETTING = re.compile(r"[A-Za-z_][\w.]*=")


class Request(NamedTuple):
    """Parsed arguments of a command.

    Attributes:
        name: The preset, or else the data set.
        options: Options of the command.
        config: The resolved configuration.
        varied: Values of the settings to vary.
        seeds: Seeds that are given like settings to vary.
    """

    name: str
    options: Any
    config: Config
    varied: dict[str, Sequence[Any]]
    seeds: tuple[int, ...] | None


def request(
    kind: Any, arguments: list[str], presets: Mapping[str, Preset], *, varies: bool = True
) -> Request:
    """Parses ``[PRESET] [NAME=VALUE,VALUE...]... [OPTIONS]``; settings may also follow options.

    Args:
        kind: Class of the options, a subclass of ``Config`` with a field ``config``.
        arguments: What follows the command.
        presets: By name.
        varies: Whether settings can be varied.
    """
    words = list(takewhile(lambda word: not word.startswith("-"), arguments))
    options = arguments[len(words) :]
    is_named = bool(words) and "=" not in words[0]
    preset = words.pop(0) if is_named else _DEFAULT_PRESET
    if varies:
        late = _settings_after_options(options)
        words += [options[place] for place in late]
        options = [word for place, word in enumerate(options) if place not in late]
    base = lookup("preset", preset, presets).config
    command = f"{kind.__name__.lower()} {preset}"
    needs_help = bool(HELP & set(options))
    options = [word for word in options if word not in HELP]
    values = parse_options(kind, options if varies else [*words, *options], command)
    if "--config" in values and not is_named:
        base = Config()
    preset_training = resolve(base).training if base.training.eval_every else base.training
    base = start = change(base, "training", "eval_every", None)
    if "--config" in values:
        start = load_into(values["--config"], base)
    if needs_help:
        # The help shows the values that would be used.
        start = resolve(_set_eval_every(start, preset_training))
    given = fields_of(Config, start)
    if start.output == Config.output:
        del given["output"]  # That of the command is another one.
    default = kind(**given)
    if needs_help:
        if varies:
            columns = format_columns(_describe_settings(start), indent="  ")
            print(f"NAME=VALUE,VALUE varies a setting:\n{columns}\n")
        _print_help(kind, command, default)
    parsed = _assemble(kind, values, default)
    # Only what the preset sets is dropped; what a file or an option sets is kept and checked.
    config = _set_eval_every(Config(**fields_of(Config, parsed)), preset_training)
    config = drop_unused_settings(resolve(config), base=base)
    varied: dict[str, Sequence[Any]] = {}
    for key, _, text in (word.partition("=") for word in words):
        if key in varied:
            raise ValueError(f"{key}: expected once, with values between commas.")
        texts = [text] if key == "seeds" else text.split(",")
        varied[key] = [read(start, key, each) for each in texts]
    _check_replaced(config, values, varied)
    (seeds,) = varied.pop("seeds", [None])
    _explain_one_seed(seeds or values.get("--training.seeds", ()))
    name = preset if is_named else config.data.name.replace("/", "-")
    return Request(name, parsed, config, varied, seeds)


def _settings_after_options(options: Sequence[str]) -> list[int]:
    """Returns the places of settings to vary among options, as in ``--methods fedavg prox=0,1``.

    A word that directly follows an option is its value, such as a file named ``a=b``.
    """
    return [
        place
        for place, (before, word) in enumerate(pairwise(options), start=1)
        if _VARIED_SETTING.match(word) and (not before.startswith("-") or "=" in before)
    ]


def _set_eval_every(config: Config, preset: TrainingConfig) -> Config:
    """Sets the rounds between evaluations to those of the preset, if nothing else does.

    The preset's are for its own rounds; they are not used if fewer rounds would have only one
    evaluation after training.
    """
    if config.training.eval_every is not None or preset.eval_every is None:
        return config
    rounds: Any = resolve(config).training.rounds
    if rounds != preset.rounds and rounds < 2 * preset.eval_every:
        return config
    return change(config, "training", "eval_every", preset.eval_every)


def _check_replaced(
    config: Config, values: Mapping[str, Any], varied: Mapping[str, Sequence[Any]]
) -> None:
    """Raises ``ValueError`` for an option whose value every run replaces by another."""
    names = {lookup("setting", key, places(config)): key for key in varied}
    left = [method_settings(config, method) for method in config.methods]
    used = [method_settings(config, method.partition(":")[0]) for method in config.methods]
    for option in values:
        section, _, field = option.removeprefix("--").replace("-", "_").partition(".")
        shown = f"{option} has no effect"
        if (section, field) in names:
            raise ValueError(f"{shown}, because {names[section, field]} is varied; remove it.")
        is_used, is_left = (
            any(field in settings.get(section, {}) for settings in each) for each in (used, left)
        )
        if is_used and not is_left:
            names_of_methods = " and ".join(config.methods)
            raise ValueError(f"{shown}: {names_of_methods} set it; remove it.")


def _explain_one_seed(seeds: Sequence[int]) -> None:
    """Prints that a single seed is no number of seeds, unless it is 0 or 1."""
    if len(seeds) == 1 and seeds[0] > 1:
        (seed,) = seeds
        text = f"one seed, {seed}; for {seed:,} seeds write --training.seeds 0:{seed}"
        print(f"fedjax-fair: note: {text}", file=sys.stderr)


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
