"""Description of a run or a sweep before anything is compiled or written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import tomli_w

from fedjax_fair.app.build import Experiment, memory_of
from fedjax_fair.app.config import Config
from fedjax_fair.app.memory import format_bytes
from fedjax_fair.app.sweep import Group
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.text import format_columns

__all__ = ["as_toml", "num_compilations", "print_dry_run", "run_costs", "sweep_costs"]


def print_dry_run(config: Config, costs: Mapping[str, str]) -> None:
    """Prints a configuration as TOML, with costs as comments."""
    print(as_toml(config))
    print(*(f"# {line}" for line in format_columns(costs).splitlines()), sep="\n")


def as_toml(config: Config) -> str:
    """Formats a configuration for ``--config``, without settings that are None.

    Examples:
        >>> as_toml(Config(methods=("fedavg",))).splitlines()[:3]
        ['methods = [', '    "fedavg",', ']']
    """
    values = {
        name: {key: item for key, item in value.items() if item is not None}
        if isinstance(value, dict)
        else value
        for name, value in asdict(config).items()
    }
    return tomli_w.dumps({name: value for name, value in values.items() if value != {}})


def num_compilations(config: Config) -> int:
    """Counts the functions compiled for a method: initial state, chunks of rounds, evaluation."""
    rounds: Any = config.training.rounds
    chunk = config.training.eval_every
    return 3 + (rounds > chunk and rounds % chunk > 0)


def run_costs(experiment: Experiment) -> dict[str, str]:
    """Describes compilations and memory of a run."""
    config = experiment.config
    methods, seeds = len(config.methods), len(config.training.seeds)
    compilations = num_compilations(config)
    needed = {name: each.runs + each.minibatches for name, each in memory_of(experiment).items()}
    largest = max(needed, key=needed.__getitem__)
    data = format_bytes(tree_bytes(experiment.data))
    return {
        "runs": f"{methods} methods x {seeds} seeds, {config.training.rounds} rounds each",
        "compilations": f"{methods * compilations}, {compilations} per method",
        "memory": f"{data} of data; {largest} needs {format_bytes(needed[largest])} or more for "
        "models and minibatches",
    }


def sweep_costs(groups: Sequence[Group]) -> dict[str, str]:
    """Describes the runs of a sweep that are compiled together, if memory holds them all."""
    costs = {}
    for number, group in enumerate(groups, 1):
        fixed = [f"{name}={value}" for name, value in group.labels.items()]
        axes = [f"{axis.name}={','.join(map(str, axis.values))}" for axis in group.axes]
        runs = f"{len(group.runs)} runs, {num_compilations(group.config)} compilations"
        costs[f"{number}. {group.name}"] = "; ".join([runs, *fixed, *axes])
    runs = sum(len(group.runs) for group in groups)
    compilations = sum(num_compilations(group.config) for group in groups)
    return costs | {"total": f"{runs} runs, {compilations} compilations"}
