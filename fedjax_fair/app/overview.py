"""Answers of the command line that need no command: ``--help`` and ``--version``.

This module does not import JAX, which takes seconds.
"""

from __future__ import annotations

import json
import shutil
import textwrap
import tomllib
from pathlib import Path
from typing import Any

from fedjax_fair.utils.terminal import format_columns

__all__ = [
    "COMMANDS",
    "DESCRIPTIONS",
    "HELP",
    "PAPERS",
    "PRESETS",
    "PRESET_TABLES",
    "STORED",
    "is_overview",
    "print_overview",
    "split_command",
]

HELP = {"-h", "--help"}

_SETTINGS = Path(__file__).parent / "settings"
DESCRIPTIONS = _SETTINGS / "descriptions.json"
"""Made by ``python -m fedjax_fair.app.settings.catalog``."""

STORED: dict[str, Any] = json.loads(DESCRIPTIONS.read_text("utf8"))
"""Descriptions that commands read instead of importing classes, methods and data sources."""

COMMANDS: dict[str, str] = STORED["commands"]
"""The first lines of the classes' docstrings."""

PRESET_TABLES: dict[str, dict[str, Any]] = tomllib.loads(
    (_SETTINGS / "presets.toml").read_text("utf8")
)
"""Summary and settings of each preset."""
PRESETS = {name: table["summary"] for name, table in PRESET_TABLES.items()}
PAPERS: list[str] = STORED["papers"]
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


def print_overview(arguments: list[str]) -> None:
    """Prints the version or the overview."""
    if arguments == ["--version"]:
        from importlib import metadata

        print("fedjax-fair", metadata.version("fedjax-fair"))
        return
    width = min(80, shutil.get_terminal_size().columns)
    papers = f"Tables of papers, which need --data.dir: {', '.join(PAPERS)}."
    print(
        *textwrap.wrap("usage: fedjax-fair COMMAND [OPTIONS]", width),
        "\nSimulates fair federated learning.",
        f"\nCommands:\n{format_columns(COMMANDS, indent='  ')}\n",
        *textwrap.wrap("Presets, for `fedjax-fair run [PRESET] [OPTIONS]`:", width),
        f"{format_columns(PRESETS, indent='  ')}\n",
        textwrap.fill(papers, width, break_on_hyphens=False) + "\n",
        *textwrap.wrap(_HINTS, width),
        sep="\n",
    )
