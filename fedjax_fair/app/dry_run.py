"""What a run or a sweep would be, before anything is compiled or written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import tomli_w

from fedjax_fair.app.build import Experiment, memory_of
from fedjax_fair.app.config import Config
from fedjax_fair.app.memory import format_bytes, num_bytes
from fedjax_fair.app.sweep import Group

__all__ = ["as_toml", "costs", "costs_of_sweep", "num_programs"]


def as_toml(config: Config) -> str:
    """A configuration as ``--config`` reads it, without what is None.

    Examples:
        >>> as_toml(Config(methods=("fedavg",))).splitlines()[:3]
        ['methods = [', '    "fedavg",', ']']
    """
    written = {}
    for name, value in asdict(config).items():
        if isinstance(value, dict):
            value = {key: each for key, each in value.items() if each is not None}
        if value != {}:
            written[name] = value
    return tomli_w.dumps(written)


def num_programs(config: Config) -> int:
    """Programs that are compiled for a method: initial state, chunks of rounds, evaluation.

    Examples:
        >>> from dataclasses import replace
        >>> from fedjax_fair.app.config import TrainingConfig
        >>> num_programs(Config(training=TrainingConfig(rounds=25, eval_every=10)))
        4
    """
    rounds: Any = config.training.rounds
    chunk = config.training.eval_every
    return 3 + (rounds > chunk and rounds % chunk > 0)


def costs(experiment: Experiment) -> dict[str, str]:
    """What a run compiles, and what it needs at least, by what it is.

    Args:
        experiment: From ``build``.
    """
    config, data = experiment.config, experiment.data
    methods, seeds = len(config.methods), len(config.training.seeds)
    programs = num_programs(config)
    least = memory_of(experiment)
    largest = max(least, key=lambda name: least[name].runs + least[name].minibatches)
    needed = least[largest].runs + least[largest].minibatches
    return {
        "runs": f"{methods} methods x {seeds} seeds, {config.training.rounds} rounds each",
        "programs": f"{methods * programs}, {programs} a method",
        "memory": f"{format_bytes(num_bytes(data))} of data; {largest} needs {format_bytes(needed)} or "
        "more for models and minibatches",
    }


def costs_of_sweep(groups: Sequence[Group]) -> dict[str, str]:
    """The runs of a sweep that share programs, and what is compiled if memory holds them all."""
    found = {}
    for number, group in enumerate(groups, 1):
        fixed = [f"{name}={value}" for name, value in group.labels.items()]
        axes = [f"{axis.name}={','.join(map(str, axis.values))}" for axis in group.axes]
        runs = f"{len(group.runs)} runs, {num_programs(group.config)} programs"
        found[f"{number}. {group.name}"] = "; ".join([runs, *fixed, *axes])
    programs = sum(num_programs(group.config) for group in groups)
    runs = sum(len(group.runs) for group in groups)
    return found | {"in all": f"{runs} runs, {programs} programs"}
