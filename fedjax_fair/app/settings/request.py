"""Requests of ``run``, ``sweep`` and ``plan``: a configuration, and the settings that vary."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any, NamedTuple

from fedjax_fair.app.overview import HELP
from fedjax_fair.app.settings.command_line import (
    assemble,
    explain_one_seed,
    fields_of,
    parse_options,
    print_help,
)
from fedjax_fair.app.settings.config import Config, TrainingConfig
from fedjax_fair.app.settings.config_files import load_into
from fedjax_fair.app.settings.named_methods import method_settings
from fedjax_fair.app.settings.names import SETTINGS, change, read
from fedjax_fair.app.settings.paper_presets import PAPERS
from fedjax_fair.app.settings.presets import PRESETS, resolve
from fedjax_fair.app.settings.setting import describe_type
from fedjax_fair.app.settings.suggestions import lookup
from fedjax_fair.app.settings.usage import drop_unused_settings
from fedjax_fair.utils.terminal import format_columns

__all__ = ["Request", "request"]

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
        given: Options on the command line.
    """

    name: str
    options: Any
    config: Config
    varied: dict[str, Sequence[Any]]
    seeds: tuple[int, ...] | None
    given: Collection[str]


def request(kind: Any, arguments: list[str], *, varies: bool = True) -> Request:
    """Parses ``[PRESET] [NAME=VALUE,VALUE...]... [OPTIONS]``; settings may also follow options.

    Args:
        kind: Class of the options, a subclass of ``Config`` with a field ``config``.
        arguments: What follows the command.
        varies: Whether settings can be varied.
    """
    words = list(takewhile(lambda word: not word.startswith("-"), arguments))
    options = arguments[len(words) :]
    is_named = bool(words) and "=" not in words[0]
    preset = words.pop(0) if is_named else _DEFAULT_PRESET
    if varies:
        late = _settings_after_options(options)
        words += [options[index] for index in late]
        options = [word for index, word in enumerate(options) if index not in late]
    base = lookup("preset", preset, PRESETS | PAPERS, command="fedjax-fair --help").config
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
    for name in ("methods", "output"):
        if getattr(start, name) == getattr(Config, name):
            del given[name]  # Those of the command may be others.
    default = kind(**given)
    if needs_help:
        if varies:
            columns = format_columns(_describe_settings(start), indent="  ")
            print(f"NAME=VALUE,VALUE varies a setting:\n{columns}\n")
        print_help(kind, command, default)
    parsed = assemble(kind, values, default)
    # Only what the preset sets is dropped; what a file or an option sets is kept and checked.
    config = _set_eval_every(Config(**fields_of(Config, parsed)), preset_training)
    config = drop_unused_settings(resolve(config), base=base)
    varied: dict[str, Sequence[Any]] = {}
    for key, _, text in (word.partition("=") for word in words):
        if key in varied:
            raise ValueError(f"{key}: expected once, with values between commas.")
        texts = [text] if key == "seeds" else text.split(",")
        varied[key] = [read(lookup("setting", key, SETTINGS), each) for each in texts]
    _check_replaced(config, values, varied)
    (seeds,) = varied.pop("seeds", [None])
    explain_one_seed(values | {"seeds=": seeds or ()})
    name = preset if is_named else config.data.name.replace("/", "-")
    return Request(name, parsed, config, varied, seeds, values.keys())


def _settings_after_options(options: Sequence[str]) -> list[int]:
    """Returns the indices of settings to vary among options, as in ``--methods fedavg prox=0,1``.

    A word that directly follows an option is its value, such as a file named ``a=b``.
    """
    return [
        index
        for index, (before, word) in enumerate(pairwise(options), start=1)
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
    names = {lookup("setting", name, SETTINGS): name for name in varied}
    left, used = (
        {key for method in methods for key in method_settings(config, method)}
        for methods in (config.methods, [name.partition(":")[0] for name in config.methods])
    )
    for option in values:
        section, _, name = option.removeprefix("--").replace("-", "_").partition(".")
        key, shown = (section, name), f"{option} has no effect"
        if key in names:
            raise ValueError(f"{shown}, because {names[key]} is varied; remove it.")
        if key in used - left:
            raise ValueError(f"{shown}: {' and '.join(config.methods)} set it; remove it.")


def _describe_settings(config: Config) -> dict[str, str]:
    """Describes the settings of the methods, which can be varied."""
    described = {"seeds": "Runs of every configuration, such as 0,1,2 or 0:10."}
    unique = {key: name for name, key in SETTINGS.items() if "." not in name}
    for method in config.methods:
        for key, setting in method_settings(config, method).items():
            name = unique.get(key, ".".join(key))
            described.setdefault(name, f"{setting.help} ({describe_type(setting.type)})")
    return described
