"""The commands by name, each imported when it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedjax_fair.app.overview import is_overview, print_overview, split_command
from fedjax_fair.app.settings.suggestions import lookup

if TYPE_CHECKING:
    from fedjax_fair.app.settings.presets import Preset

__all__ = ["CLASSES", "class_of_command", "dispatch"]

CLASSES = {
    "run": "training.Run",
    "sweep": "training.Sweep",
    "plan": "planning.Plan",
    "resume": "training.Resume",
    "show": "show.Show",
    "compare": "show.Compare",
    "benchmark": "benchmarking.Benchmark",
    "benchmark enter": "benchmarking.BenchmarkEnter",
    "benchmark report": "benchmarking.BenchmarkReport",
    "benchmark export": "benchmarking.BenchmarkExport",
    "maximize exemplars": "maximizing.Exemplars",
    "maximize movielens": "maximizing.Movielens",
    "methods": "listing.Methods",
    "metrics": "listing.Metrics",
    "data list": "data.DataList",
    "data info": "data.DataInfo",
    "data show": "partition.DataShow",
    "data prepare": "data.DataPrepare",
}
"""Module and class of each command."""
_WITH_PRESETS = {"run": "training.run", "sweep": "training.run_sweep", "plan": "planning.run_plan"}
_COMPILING = {
    *("run", "sweep", "plan", "resume", "benchmark", "benchmark enter"),
    *("maximize exemplars", "maximize movielens"),
}
"""Commands that compile; others must not wait for the import of JAX."""


def class_of_command(name: str) -> Any:
    """Imports the class of a command.

    Raises:
        ValueError: If there is no such command.
    """
    return _import(lookup("command", name, CLASSES))


def dispatch(arguments: list[str], presets: Mapping[str, Preset] | None = None) -> None:
    """Runs one command; arguments as for ``cli.main``."""
    if is_overview(arguments):
        print_overview(arguments, presets)
        return
    name, rest = split_command(arguments)
    if name in _COMPILING:
        from fedjax_fair.training.executable_cache import enable_compilation_cache

        enable_compilation_cache()
    if name in _WITH_PRESETS:
        run_command: Callable[..., None] = _import(_WITH_PRESETS[name])
        if presets is None:
            from fedjax_fair.app.settings.presets import PRESETS

            presets = PRESETS
        run_command(rest, presets)
    elif name == "benchmark":
        _import("benchmarking.run_benchmark")(rest)
    else:
        command = class_of_command(name)
        from fedjax_fair.app.settings.command_line import parse

        parse(command, rest, name)()


def _import(name: str) -> Any:
    module, _, attribute = name.partition(".")
    return getattr(import_module(f"fedjax_fair.app.commands.{module}"), attribute)
