"""The commands by name."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from fedjax_fair.app.commands.data import DataInfo, DataList, DataPrepare, DataShow
from fedjax_fair.app.commands.maximizing import Exemplars, Movielens
from fedjax_fair.app.commands.planning import Plan, run_plan
from fedjax_fair.app.commands.show import Compare, Methods, Metrics, Show
from fedjax_fair.app.commands.training import Resume, Run, Sweep, run, run_sweep
from fedjax_fair.app.options import parse
from fedjax_fair.app.overview import is_overview, print_overview, split_command
from fedjax_fair.app.presets import PRESETS, Preset
from fedjax_fair.app.settings import lookup

__all__ = ["COMMANDS", "dispatch", "find_command"]

_BENCHMARK = "fedjax_fair.benchmark.commands"

COMMANDS: dict[str, Any] = {
    "run": Run,
    "sweep": Sweep,
    "plan": Plan,
    "resume": Resume,
    "show": Show,
    "compare": Compare,
    "benchmark": f"{_BENCHMARK}:Benchmark",
    "benchmark enter": f"{_BENCHMARK}:BenchmarkEnter",
    "benchmark report": f"{_BENCHMARK}:BenchmarkReport",
    "benchmark export": f"{_BENCHMARK}:BenchmarkExport",
    "maximize exemplars": Exemplars,
    "maximize movielens": Movielens,
    "methods": Methods,
    "metrics": Metrics,
    "data list": DataList,
    "data info": DataInfo,
    "data show": DataShow,
    "data prepare": DataPrepare,
}
"""Classes by name; those of the benchmark, which imports this package, by where they are."""

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
        resolve_name(f"{_BENCHMARK}:run_benchmark")(rest)
    else:
        parse(find_command(name), rest, name)()


def find_command(name: str) -> Any:
    """Returns the class of a command."""
    found = lookup("command", name, COMMANDS)
    return resolve_name(found) if isinstance(found, str) else found
