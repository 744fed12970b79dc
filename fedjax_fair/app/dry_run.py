"""Costs of runs and sweeps: dry runs, and plans for a machine."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import tomli_w
from jax.sharding import Mesh

from fedjax_fair.app.memory import IN_FLIGHT, format_bytes, min_memory
from fedjax_fair.app.run_groups import Axis, Group, runs_of
from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.defaults import format_methods, unset_defaults
from fedjax_fair.app.settings.named_methods import resolve_method
from fedjax_fair.app.terminal.console import format_table
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.planning.machines import Machine
from fedjax_fair.planning.plan import Plan, measure_plan, plan
from fedjax_fair.results.formats import Table
from fedjax_fair.utils.terminal import format_columns

__all__ = ["as_json", "as_toml", "format_plan", "num_compilations", "plans", "print_dry_run"]


def print_dry_run(config: Config, groups: Sequence[Group], axes: Sequence[Axis] = ()) -> None:
    """Prints a configuration as TOML, with defaults and costs as comments."""
    varied = [axis.key for axis in axes]
    print(as_toml(config, varied, groups[0].data.num_clients))
    print(*(f"# {line}" for line in format_columns(_costs(groups)).splitlines()), sep="\n")


def as_toml(
    config: Config, varied: Collection[tuple[str, str]] = (), num_clients: int | None = None
) -> str:
    """Formats a configuration for ``--config``, with the defaults that it uses as comments.

    Settings that are None and have no default are omitted, and defaults of ``varied`` settings.

    Examples:
        >>> from fedjax_fair.app.settings import presets
        >>> shown = as_toml(presets.resolve(Config(methods=("fedavg",)))).splitlines()
        >>> shown[:3], shown[shown.index("[selector]") + 1]
        (['methods = [', '    "fedavg",', ']'], '# cohort_size = 10')
    """

    def given(items: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in items if value is not None}

    values, defaults = (
        asdict(config, dict_factory=given),
        unset_defaults(config, varied, num_clients),
    )
    sections = {name: value for name, value in values.items() if isinstance(value, dict)}
    blocks = [tomli_w.dumps({name: values[name] for name in values if name not in sections})]
    for section, settings in sections.items():
        lines = [_comment(key[1], item) for key, item in defaults.items() if key[0] == section]
        if settings or lines:
            blocks.append("".join([tomli_w.dumps({section: settings}), *lines]))
    return "\n".join(blocks)


def _comment(name: str, by_method: Mapping[str, Any]) -> str:
    """Formats the default of a setting as comment lines, ``name = value`` if all are equal."""
    values = list(by_method.values())
    if any(value != values[0] for value in values):
        return f"# {name}: {format_methods(by_method)}\n"
    return "".join(f"# {line}\n" for line in tomli_w.dumps({name: values[0]}).splitlines())


def num_compilations(config: Config) -> int:
    """Counts the functions compiled for a method: initial state, chunks of rounds, evaluation."""
    rounds: Any = config.training.rounds
    chunk = config.training.eval_every
    return 3 + (rounds > chunk and rounds % chunk > 0)


def _costs(groups: Sequence[Group]) -> dict[str, str]:
    """Describes runs that are compiled together, if memory holds them all, and their memory."""
    rows, memory, frozen, in_flight = {}, {}, 0, {}
    for number, group in enumerate(groups, 1):
        fixed = [f"{name}={value}" for name, value in group.labels.items()]
        axes = [f"{axis.name}={','.join(map(str, axis.values))}" for axis in group.axes]
        runs = f"{len(group.runs)} runs, {num_compilations(group.config)} compilations"
        rows[f"{number}. {group.name}"] = "; ".join([runs, *fixed, *axes])
        method, (_, method_config) = (
            next(iter(group.rounds.values())),
            resolve_method(group.config, group.name),
        )
        needed = min_memory(method, method_config, len(group.runs), group.data, group.mesh)
        memory[group.name] = sum(needed.values())
        for subject in needed:
            if subject.startswith(IN_FLIGHT):
                text = f"{subject.removeprefix(IN_FLIGHT)} of {group.name}"
                in_flight[f"{format_bytes(needed[subject])}, {text}"] = needed[subject]
        frozen = max(frozen, tree_bytes(method.model.frozen))
    runs = sum(len(group.runs) for group in groups)
    compilations = sum(num_compilations(group.config) for group in groups)
    largest = max(memory, key=memory.__getitem__)
    if frozen:
        rows["frozen parameters"] = f"{format_bytes(frozen)}, once for all clients and seeds"
    if in_flight:
        rows["models in flight"] = max(in_flight, key=in_flight.__getitem__)
    return rows | {
        "total": f"{runs} runs, {compilations} compilations",
        "memory": f"{format_bytes(tree_bytes(groups[0].data))} of data; {largest} needs "
        f"{format_bytes(memory[largest])} or more for models and minibatches",
    }


def plans(
    groups: Sequence[Group], machine: Machine | None, mesh: Mesh | None, *, train_loss: bool
) -> Iterator[tuple[str, Plan]]:
    """Plans groups of runs sequentially, and yields the name and plan of each.

    ``machine`` and ``mesh`` are the target; without a machine, some rounds run locally.
    ``train_loss`` is whether evaluations measure training losses.
    """
    for group in groups:
        labels = [f"{name}={value}" for name, value in group.labels.items()]
        training: Any = group.config.training
        arguments: dict[str, Any] = {
            **runs_of(group, range(len(group.runs))),
            "rounds": training.rounds,
            "eval_every": training.eval_every,
            "train_loss": train_loss,
            "mesh": mesh,
        }
        made = measure_plan(**arguments) if machine is None else plan(machine, **arguments)
        yield " ".join([group.name, *labels]), made


def as_json(machine: Machine | None, plans: dict[str, Plan]) -> dict[str, Any]:
    """Converts plans to JSON, with bytes, seconds and FLOPs."""
    rows = {name: each._asdict() for name, each in plans.items()}
    for row in rows.values():
        del row["programs"]
    return {"machine": "local" if machine is None else machine._asdict(), "plans": rows}


def format_plan(machine: Machine | None, plans: dict[str, Plan]) -> str:
    """Formats plans by name as a table and notes."""
    costs = ("round", "evaluation", "total") if machine is None else ("FLOPs", "accessed")
    headings = ("method", "runs", "memory", "fit", *costs, "compiling")
    rows = [
        (
            name,
            f"{each.runs}",
            format_bytes(sum(each.memory.values())),
            f"{each.max_parallel_runs:,}",
            *_format_costs(each),
            _duration(each.compile_seconds),
        )
        for name, each in plans.items()
    ]
    where = "this machine" if machine is None else machine.name
    table = Table(f"Estimated cost per method on {where}", headings, rows, "")
    return f"{format_table(table)}\n{format_columns(_notes(machine, plans))}"


def _format_costs(plan: Plan) -> list[str]:
    """Formats seconds, or what a compiler counts in a round."""
    if plan.seconds is not None:
        return [_duration(plan.seconds[part]) for part in ("round", "evaluation", "total")]
    if plan.work is None:
        return ["-", "-"]
    return [f"{plan.work['flops'] / 1e9:,.3g} billion", format_bytes(int(plan.work["bytes"]))]


def _notes(machine: Machine | None, plans: dict[str, Plan]) -> dict[str, str]:
    largest = max((each.memory for each in plans.values()), key=lambda each: sum(each.values()))
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in largest.items())
    in_flight = max(each.memory.get("in flight", 0) for each in plans.values())
    asynchronous = (
        {"models in flight": f"at most {format_bytes(in_flight)} of what clients were sent"}
        if in_flight
        else {}
    )
    compiling = _duration(sum(each.compile_seconds for each in plans.values()))
    if machine is None:
        total = _duration(sum(each.seconds["total"] for each in plans.values() if each.seconds))
        return {
            "memory": f"at most: {parts}",
            **asynchronous,
            "total": f"{total}, and {compiling} of compilation on this machine",
            "how": "from two rounds and an evaluation of each; figures are not included",
        }
    compiler = "for the CPU of this machine" if machine.module is None else f"for {machine.name}"
    return {
        "memory": f"at most: {parts}; a device has {format_bytes(int(machine.memory))}",
        **asynchronous,
        "host": f"{format_bytes(sum(each.records for each in plans.values()))} of records",
        "compiling": f"{compiling} on this machine",
        "how": f"XLA's cost analysis of a round, of programs {compiler}; it counts one pass of "
        "every loop, so that rounds with several local steps cost more",
    }


def _duration(seconds: float) -> str:
    """Formats a time in the largest unit of which it is two or more, or in seconds.

    Examples:
        >>> [_duration(each) for each in (0.00012, 0.25, 1.5, 75.0, 7500.0, 3e5)]
        ['120 us', '250 ms', '1.5 s', '75.0 s', '2.1 h', '3.5 days']
    """
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min"), (0.5, "s")):
        if seconds >= 2 * size:
            return f"{seconds / max(size, 1):,.1f} {unit}"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
