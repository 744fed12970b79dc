"""Plans of runs and sweeps for a machine, and their presentation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from jax.sharding import Mesh
from rich import box
from rich.table import Table

from fedjax_fair.app.build import Experiment, local_steps
from fedjax_fair.app.memory import format_bytes
from fedjax_fair.app.sweep import Group, runs_of
from fedjax_fair.planning.machines import Machine
from fedjax_fair.planning.measurement import measure_plan
from fedjax_fair.planning.plan import Plan, plan
from fedjax_fair.text import format_columns

__all__ = ["as_json", "format_plan", "groups_of_run", "plans"]


def groups_of_run(experiment: Experiment) -> list[Group]:
    """Returns the runs of each method of an experiment as a group."""
    config, data, rounds, mesh = experiment
    runs: list[tuple[tuple[Any, ...], int]] = [((), seed) for seed in config.training.seeds]
    return [
        Group(name, config, data, mesh, {}, [], [], runs, {(): round})
        for name, round in rounds.items()
    ]


def plans(
    groups: Sequence[Group], machine: Machine | None, mesh: Mesh | None, *, train_loss: bool
) -> Iterator[tuple[str, Plan]]:
    """Plans groups of runs sequentially, and yields the name and plan of each.

    Args:
        groups: The groups.
        machine: The target, or None for the local machine, which runs some rounds.
        mesh: Devices of the target; None for one.
        train_loss: Whether evaluations measure training losses.
    """
    for group in groups:
        labels = [f"{name}={value}" for name, value in group.labels.items()]
        training: Any = group.config.training
        arguments: dict[str, Any] = {
            **runs_of(group, range(len(group.runs)))._asdict(),
            "rounds": training.rounds,
            "eval_every": training.eval_every,
            "train_loss": train_loss,
            "mesh": mesh,
        }
        if machine is None:
            estimate = measure_plan(**arguments)
        else:
            steps = partial(local_steps, group.config, group.name)
            estimate = plan(machine, **arguments, local_steps=steps)
        yield " ".join([group.name, *labels]), estimate


def as_json(machine: Machine | None, plans: dict[str, Plan]) -> dict[str, Any]:
    """Converts plans to JSON, with bytes and seconds."""
    rows = {
        name: each._asdict() | {"work": None if each.work is None else each.work._asdict()}
        for name, each in plans.items()
    }
    return {"machine": "local" if machine is None else machine._asdict(), "plans": rows}


def format_plan(machine: Machine | None, plans: dict[str, Plan]) -> tuple[Table, str]:
    """Formats plans by name as a table of 80 columns and notes."""
    title = f"Estimated cost per method on {'this machine' if machine is None else machine.name}"
    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
    )
    table.add_column("method", overflow="fold")
    for heading in ("runs", "memory", "fit", "round", "evaluation", "total", "compiling"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, each in plans.items():
        table.add_row(
            name,
            f"{each.runs}",
            format_bytes(sum(each.memory.values())),
            f"{each.max_parallel_runs:,}",
            *(_duration(each.seconds[part]) for part in ("round", "evaluation", "total")),
            _duration(each.compile_seconds),
        )
    return table, format_columns(_notes(machine, plans))


def _notes(machine: Machine | None, plans: dict[str, Plan]) -> dict[str, str]:
    largest = max((each.memory for each in plans.values()), key=lambda each: sum(each.values()))
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in largest.items())
    total = _duration(sum(each.seconds["total"] for each in plans.values()))
    compiling = _duration(sum(each.compile_seconds for each in plans.values()))
    notes = {
        "memory": f"at most: {parts}",
        "total": f"{total}, and {compiling} of compilation on this machine",
    }
    if machine is None:
        notes["how"] = "from two rounds and an evaluation of each; figures are not included"
        return notes
    notes["memory"] += f"; a device has {format_bytes(int(machine.memory))}"
    notes["host"] = f"{format_bytes(sum(each.records for each in plans.values()))} of records"
    for name, each in plans.items():
        if (work := each.work) is None:
            continue
        counts = [f"{work.kernels:,.0f} kernels", f"{work.flops / 1e9:,.3g} billion FLOPs"]
        if work.cycles:
            counts.insert(0, f"{work.cycles:,.0f} cycles")
        if work.fp32_flops:
            counts[-1] += f" ({work.fp32_flops / 1e9:,.3g} in float32)"
        counts.append(f"{format_bytes(int(work.bytes))} moved")
        if work.collectives:
            size = format_bytes(int(work.collective_bytes))
            counts.append(f"{work.collectives:,.0f} collectives of {size}")
        notes[name] = f"a round: {', '.join(counts)}"
    source = "cycles of the compiler" if machine.clock_hz else "bytes and FLOPs of each kernel"
    notes["how"] = f"lower bounds from the {source}, not validated on a device"
    if unknown := sum(each.unknown_loops for each in plans.values()):
        notes["how"] += f"; {unknown} loops of unknown length count once"
    return notes


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
