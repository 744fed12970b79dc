"""The commands by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

from fedjax_fair.app.commands.data import DataInfo, DataList, DataPrepare, DataShow
from fedjax_fair.app.commands.maximizing import Exemplars, Movielens
from fedjax_fair.app.commands.planning import Plan, run_plan
from fedjax_fair.app.commands.show import Compare, Methods, Show
from fedjax_fair.app.commands.training import Resume, Run, Sweep, run, run_sweep
from fedjax_fair.app.options import HELP, parse
from fedjax_fair.app.presets import PRESETS, Preset
from fedjax_fair.app.settings import lookup
from fedjax_fair.text import format_columns

__all__ = ["COMMANDS", "dispatch"]

COMMANDS: dict[str, Any] = {
    "run": Run,
    "sweep": Sweep,
    "plan": Plan,
    "resume": Resume,
    "show": Show,
    "compare": Compare,
    "maximize exemplars": Exemplars,
    "maximize movielens": Movielens,
    "methods": Methods,
    "data list": DataList,
    "data info": DataInfo,
    "data show": DataShow,
    "data prepare": DataPrepare,
}
_WITH_PRESETS = {"run": run, "sweep": run_sweep, "plan": run_plan}


def dispatch(arguments: list[str], presets: Mapping[str, Preset] | None = None) -> None:
    """Runs one command; arguments as for ``cli.main``."""
    presets = PRESETS if presets is None else presets
    if arguments == ["--version"]:
        print("fedjax-fair", metadata.version("fedjax-fair"))
        return
    num_words = 2 if arguments[:1] in (["data"], ["maximize"]) else 1
    name, rest = " ".join(arguments[:num_words]), arguments[num_words:]
    if name not in COMMANDS and (not arguments or HELP & set(arguments)):
        print(_overview(presets))
    elif (run_command := _WITH_PRESETS.get(name)) is not None:
        run_command(rest, presets)
    else:
        parse(lookup("command", name, COMMANDS), rest, name)()


def _overview(presets: Mapping[str, Preset]) -> str:
    commands = {name: command.__doc__.splitlines()[0] for name, command in COMMANDS.items()}
    summaries = {name: preset.summary for name, preset in presets.items()}
    return f"""usage: fedjax-fair COMMAND [OPTIONS]

Simulates fair federated learning.

Commands:
{format_columns(commands, indent="  ")}

Presets, for `fedjax-fair run [PRESET] [OPTIONS]`:
{format_columns(summaries, indent="  ")}

`fedjax-fair COMMAND --help` lists the options of a command,
`fedjax-fair --version` prints the version. `--plugin FILE` adds the methods of
a Python file to every command."""
