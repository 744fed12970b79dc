"""The commands by name, each imported when it is used."""

from __future__ import annotations

from functools import partial
from pkgutil import resolve_name
from typing import Any

from fedjax_fair.app.overview import is_overview, print_overview, split_command
from fedjax_fair.app.settings.suggestions import lookup

__all__ = ["CLASSES", "class_of_command", "dispatch"]

CLASSES = {
    "run": "app.commands.options:Run",
    "sweep": "app.commands.options:Sweep",
    "plan": "app.commands.options:Plan",
    "contributions": "app.commands.options:Contributions",
    "resume": "app.commands.options:Resume",
    "show": "app.commands.show:Show",
    "compare": "app.commands.show:Compare",
    "thresholds": "app.commands.thresholding:FitThresholds",
    "benchmark": "benchmark.commands:Benchmark",
    "benchmark enter": "benchmark.commands:BenchmarkEnter",
    "benchmark report": "benchmark.commands:BenchmarkReport",
    "benchmark export": "benchmark.commands:BenchmarkExport",
    "maximize exemplars": "app.commands.options:Exemplars",
    "maximize features": "app.commands.options:Features",
    "maximize movielens": "app.commands.options:Movielens",
    "maximize scores": "app.commands.options:Scores",
    "methods": "app.commands.listing:Methods",
    "metrics": "app.commands.listing:Metrics",
    "data list": "app.commands.data:DataList",
    "data info": "app.commands.data:DataInfo",
    "data show": "app.commands.show_data:DataShow",
    "data prepare": "app.commands.data:DataPrepare",
}
"""Module and class of each command. The benchmark imports ``app``, and is found by name."""
_WITH_PRESETS = {
    "run": "app.commands.training:run",
    "sweep": "app.commands.training:run_sweep",
    "plan": "app.commands.training:run_plan",
    "contributions": "app.commands.contributing:run_contributions",
}
_COMPILING = {
    *("run", "sweep", "plan", "contributions", "resume", "thresholds"),
    *("benchmark", "benchmark enter"),
    *(name for name in CLASSES if name.startswith("maximize")),
}
"""Commands that compile; others must not wait for the import of JAX."""


def class_of_command(name: str) -> Any:
    """Imports the class of a command.

    Raises:
        ValueError: If there is no such command.
    """
    return _import(lookup("command", name, CLASSES))


def dispatch(arguments: list[str]) -> None:
    """Runs one command."""
    if is_overview(arguments):
        print_overview(arguments)
        return
    name, rest = split_command(arguments)
    if name == "benchmark":
        run_command = partial(_import("benchmark.commands:run_benchmark"), rest)
    elif name in _WITH_PRESETS:
        from fedjax_fair.app.settings.request import request

        wanted = request(class_of_command(name), rest, varies=name in ("sweep", "plan"))
        run_command = partial(_import(_WITH_PRESETS[name]), wanted)
    else:
        command = class_of_command(name)
        from fedjax_fair.app.settings.command_line import parse

        run_command = parse(command, rest, name)
    if name in _COMPILING:
        from fedjax_fair.training.executable_cache import enable_compilation_cache

        enable_compilation_cache()
    run_command()


def _import(name: str) -> Any:
    return resolve_name(f"fedjax_fair.{name}")
