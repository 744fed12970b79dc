"""The commands by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedjax_fair.app.commands.benchmarking import (
    Benchmark,
    BenchmarkEnter,
    BenchmarkExport,
    BenchmarkReport,
    run_benchmark,
)
from fedjax_fair.app.commands.data import DataInfo, DataList, DataPrepare, DataShow
from fedjax_fair.app.commands.maximizing import Exemplars, Movielens
from fedjax_fair.app.commands.planning import Plan, run_plan
from fedjax_fair.app.commands.show import Compare, Methods, Metrics, Show
from fedjax_fair.app.commands.training import Resume, Run, Sweep, run, run_sweep
from fedjax_fair.app.overview import is_overview, print_overview, split_command
from fedjax_fair.app.settings.command_line import parse
from fedjax_fair.app.settings.config import Preset
from fedjax_fair.app.settings.names import lookup
from fedjax_fair.app.settings.presets import PRESETS

__all__ = ["COMMANDS", "dispatch"]

COMMANDS: dict[str, Any] = {
    "run": Run,
    "sweep": Sweep,
    "plan": Plan,
    "resume": Resume,
    "show": Show,
    "compare": Compare,
    "benchmark": Benchmark,
    "benchmark enter": BenchmarkEnter,
    "benchmark report": BenchmarkReport,
    "benchmark export": BenchmarkExport,
    "maximize exemplars": Exemplars,
    "maximize movielens": Movielens,
    "methods": Methods,
    "metrics": Metrics,
    "data list": DataList,
    "data info": DataInfo,
    "data show": DataShow,
    "data prepare": DataPrepare,
}
_WITH_PRESETS = {"run": run, "sweep": run_sweep, "plan": run_plan}


def dispatch(arguments: list[str], presets: Mapping[str, Preset] | None = None) -> None:
    """Runs one command; arguments as for ``cli.main``."""
    if is_overview(arguments):
        print_overview(arguments, presets)
        return
    name, rest = split_command(arguments)
    if (run_command := _WITH_PRESETS.get(name)) is not None:
        run_command(rest, PRESETS if presets is None else presets)
    elif name == "benchmark":
        run_benchmark(rest)
    else:
        parse(lookup("command", name, COMMANDS), rest, name)()
