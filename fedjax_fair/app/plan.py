"""Plans runs and sweeps for a machine: which batches there are, and how plans are shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from jax.sharding import Mesh
from rich import box
from rich.table import Table

from fedjax_fair.app.build import Experiment, local_steps
from fedjax_fair.app.config import Config
from fedjax_fair.app.memory import format_bytes
from fedjax_fair.app.sweep import Group, Runs, free_bytes, runs_of
from fedjax_fair.planning.machines import Machine
from fedjax_fair.planning.measurement import measure_plan
from fedjax_fair.planning.plan import Plan, plan
from fedjax_fair.text import format_columns

__all__ = ["BatchPlan", "as_json", "batches_of_run", "batches_of_sweep", "format_plan", "plans"]


class BatchPlan(NamedTuple):
    """A batch of runs that share programs.

    Attributes:
        name: What tells it from the others.
        method: The method.
        config: Its settings.
        batch: The runs.
        train_loss: Whether its evaluations measure training losses.
    """

    name: str
    method: str
    config: Config
    batch: Runs
    train_loss: bool


def batches_of_run(experiment: Experiment) -> list[BatchPlan]:
    """What ``run`` would run, a batch for each method."""
    config, data = experiment.config, experiment.data
    seeds = tuple(config.training.seeds)
    return [
        BatchPlan(name, name, config, Runs((round,), seeds, data), True)
        for name, round in experiment.rounds.items()
    ]


def batches_of_sweep(groups: Sequence[Group]) -> list[BatchPlan]:
    """What ``sweep`` would run, a batch for each group."""
    return [
        BatchPlan(
            " ".join([group.name, *(f"{name}={value}" for name, value in group.labels.items())]),
            group.name,
            group.config,
            runs_of(group, range(len(group.runs))),
            False,
        )
        for group in groups
    ]


def plans(
    batches: Sequence[BatchPlan], machine: Machine | None, mesh: Mesh | None
) -> Iterator[tuple[str, Plan]]:
    """Plans batches one after another.

    Args:
        batches: What would be run.
        machine: Where, or None for the machine at hand, which then runs some rounds.
        mesh: Devices of it, or None for one.

    Yields:
        The name of each, and its plan.
    """
    for each in batches:
        training: Any = each.config.training
        given: dict[str, Any] = {
            **each.batch._asdict(),
            "rounds": training.rounds,
            "eval_every": training.eval_every,
            "train_loss": each.train_loss,
        }
        if machine is None:
            yield each.name, measure_plan(**given, free=free_bytes(), mesh=mesh)
        else:
            steps = partial(local_steps, each.config, each.method)
            yield each.name, plan(machine, **given, mesh=mesh, local_steps=steps)


def as_json(machine: Machine | None, found: dict[str, Plan]) -> dict[str, Any]:
    """Plans for scripts: bytes and seconds."""
    rows = {}
    for name, each in found.items():
        work = None if each.work is None else each.work._asdict()
        rows[name] = each._asdict() | {"work": work}
    where = None if machine is None else machine._asdict()
    return {"machine": where or "local", "plans": rows}


def format_plan(machine: Machine | None, found: dict[str, Plan]) -> tuple[Table, str]:
    """A table of plans, and what is to be said of it.

    Args:
        machine: As for ``plans``.
        found: Plans by name.
    """
    where = "local" if machine is None else machine.name
    title = f"What the runs of each method would take: {where}"
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("method", overflow="fold")
    for heading in ("runs", "memory", "fit", "round", "evaluation", "in all", "compiling"):
        table.add_column(heading, justify="right")
    for name, each in found.items():
        table.add_row(
            name,
            f"{each.runs}",
            format_bytes(sum(each.memory.values())),
            f"{each.max_parallel_runs:,}",
            *(_duration(each.seconds[part]) for part in ("round", "evaluation", "total")),
            _duration(each.compile_seconds),
        )
    return table, format_columns(_notes(machine, found))


def _notes(machine: Machine | None, found: dict[str, Plan]) -> dict[str, str]:
    """What stands below the table."""
    several = list(found.values())
    largest = max(several, key=lambda each: sum(each.memory.values()))
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in largest.memory.items())
    whole = sum(each.seconds["total"] for each in several)
    compiling = sum(each.compile_seconds for each in several)
    notes = {
        "memory": f"at most: {parts}",
        "in all": f"{_duration(whole)}, and {_duration(compiling)} of compiling here",
    }
    if machine is None:
        notes["how"] = "two rounds and an evaluation of each were run; drawing is not counted"
        return notes
    notes["memory"] += f"; a device has {format_bytes(int(machine.memory))}"
    notes["host"] = f"{format_bytes(sum(each.records for each in several))} of records"
    works = [(name, each.work) for name, each in found.items() if each.work is not None]
    for name, work in works:
        cycles = "" if work.cycles is None else f"{work.cycles:,.0f} cycles, "
        full = (
            f" ({work.fp32_flops / 1e9:,.3g} billion in full precision)" if work.fp32_flops else ""
        )
        crossing = ""
        if work.collectives:
            crossing = f", {work.collectives:,.0f} collectives of {format_bytes(int(work.collective_bytes))}"
        notes[name] = (
            f"a round: {cycles}{work.kernels:,.0f} kernels, {work.flops / 1e9:,.3g} billion "
            f"operations in products{full}, {format_bytes(int(work.bytes))} moved{crossing}"
        )
    unknown = sum(work.unknown_loops for _, work in works)
    by = "the compiler's cycles" if machine.clock_hz else "each kernel's bytes and products at peak"
    notes["how"] = f"{by}, never compared with a device; expect more"
    if unknown:
        notes["how"] += f"; loops of unknown length, {unknown} in all, count once"
    return notes


def _duration(seconds: float) -> str:
    """A time in the largest unit of which it is two or more; from a second on in seconds.

    Examples:
        >>> [_duration(each) for each in (0.00012, 0.25, 1.5, 75.0, 7500.0, 3e5)]
        ['120 us', '250 ms', '1.5 s', '75.0 s', '2.1 h', '3.5 days']
    """
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min"), (0.5, "s")):
        if seconds >= 2 * size:
            return f"{seconds / max(size, 1):,.1f} {unit}"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
