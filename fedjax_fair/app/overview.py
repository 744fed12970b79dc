"""Answers of the command line that need no command: ``--help`` and ``--version``.

This module does not import JAX, which takes seconds.
"""

from __future__ import annotations

import shutil
import textwrap
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_fair.utils.terminal import format_columns

if TYPE_CHECKING:
    from fedjax_fair.app.settings.config import Preset

__all__ = [
    "COMMANDS",
    "HELP",
    "PAPERS",
    "PRESETS",
    "PRESET_TABLES",
    "is_overview",
    "print_overview",
    "split_command",
]

HELP = {"-h", "--help"}

COMMANDS = {
    "run": "Compares methods, and writes a folder with results, figures and a report.",
    "sweep": "Runs all combinations of settings, as in `sweep digits lam=0,0.1 prox=0,0.1`.",
    "plan": "Estimates memory and costs of a run or a sweep: `plan mnist --machine h100`.",
    "contributions": "Computes exact Shapley values of clients by training with every coalition.",
    "resume": "Continues an interrupted run, or extends a finished one.",
    "show": "Prints the tables of a run or of contributions; of an unfinished run, its "
    "evaluations.",
    "compare": "Tests which methods of one or more runs differ with statistical significance.",
    "thresholds": "Fits thresholds of clients and sensitive groups to the models of a run.",
    "benchmark": "Compares tuned methods by a fixed protocol: `benchmark` or `benchmark standard`.",
    "benchmark enter": "Checks, tunes and runs the methods of a Python file, and writes one file "
    "per method.",
    "benchmark report": "Writes the tables and figures of a benchmark from its result files.",
    "benchmark export": "Writes the results of a benchmark as a table for other programs.",
    "maximize exemplars": "Selects public images of digits that represent the private images of "
    "all clients.",
    "maximize features": "Selects features that inform most about the label, on every client.",
    "maximize movielens": "Selects movies so that every user likes one of them.",
    "maximize scores": "Selects columns of a table with the scores of clients: facility location "
    "or coverage.",
    "methods": "Lists methods, or describes one: its classes, settings, defaults, ranges and "
    "source.",
    "metrics": "Defines metrics and the terms of tables.",
    "data list": "Lists data sets and which are available.",
    "data info": "Describes a data set.",
    "data show": "Describes a partition, and plots the examples of each client.",
    "data prepare": "Downloads a data set and prepares it (needs the extra `tfds-prepare`).",
}
"""The first lines of the classes' docstrings."""

PRESET_TABLES: dict[str, dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "settings" / "presets.toml").read_text("utf8")
)
"""Summary and settings of each preset."""
PRESETS = {name: table["summary"] for name, table in PRESET_TABLES.items()}
PAPERS = [
    *(
        f"{table}{data}"
        for data in ("", "-cifar10")
        for table in (*(f"table{i}" for i in range(1, 5)), "sensitivity")
    ),
    "cross-mnist",
    *(
        f"equitable{model}-{data}"
        for data in ("mnist", "cifar10", "cifar100", "femnist")
        for model in ("", "-resnet18")
    ),
    *(
        f"equitable-{setting}-{data}"
        for data in ("mnist", "cifar100")
        for setting in ("clusters", "epochs", "prox")
    ),
]
"""Names of the presets in ``settings/paper_presets.py``, which imports more."""

_HINTS = (
    "`fedjax-fair COMMAND --help` lists the options of a command, `fedjax-fair --version` prints "
    "the version. `--plugin FILE` adds the methods of a Python file to every command, "
    "`--traceback` prints the calls that led to an error."
)


def split_command(arguments: list[str]) -> tuple[str, list[str]]:
    """Returns the name of the command, of one or two words, and its arguments.

    Examples:
        >>> split_command(["data", "info", "mnist"]), split_command(["run", "digits"])
        (('data info', ['mnist']), ('run', ['digits']))
    """
    is_group = arguments[:1] in (["data"], ["maximize"])
    num_words = 2 if is_group or " ".join(arguments[:2]) in COMMANDS else 1
    return " ".join(arguments[:num_words]), arguments[num_words:]


def is_overview(arguments: list[str]) -> bool:
    """Returns whether the arguments ask for the version or the overview, not for a command."""
    is_command = split_command(arguments)[0] in COMMANDS
    needs_help = not arguments or bool(HELP & set(arguments))
    return arguments == ["--version"] or (needs_help and not is_command)


def print_overview(arguments: list[str], presets: Mapping[str, Preset] | None = None) -> None:
    """Prints the version or the overview; ``presets`` as for ``cli.main``."""
    if arguments == ["--version"]:
        from importlib import metadata

        print("fedjax-fair", metadata.version("fedjax-fair"))
        return
    given = (presets or {}).items()
    summaries = PRESETS if presets is None else {name: preset.summary for name, preset in given}
    width = min(80, shutil.get_terminal_size().columns)
    papers = f"Tables of papers, which need --data.dir: {', '.join(PAPERS)}."
    print(
        *textwrap.wrap("usage: fedjax-fair COMMAND [OPTIONS]", width),
        "\nSimulates fair federated learning.",
        f"\nCommands:\n{format_columns(COMMANDS, indent='  ')}\n",
        *textwrap.wrap("Presets, for `fedjax-fair run [PRESET] [OPTIONS]`:", width),
        f"{format_columns(summaries, indent='  ')}\n",
        *([] if presets else [textwrap.fill(papers, width, break_on_hyphens=False) + "\n"]),
        *textwrap.wrap(_HINTS, width),
        sep="\n",
    )
