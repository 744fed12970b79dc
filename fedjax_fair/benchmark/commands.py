"""Commands of the benchmark: ``benchmark``, ``benchmark enter``, ``report`` and ``export``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro
from typing_extensions import Doc
from tyro.conf import Positional

from fedjax_fair.app.commands.common import interrupt_hint, print_output_paths
from fedjax_fair.app.settings import plugins, registry
from fedjax_fair.app.settings.command_line import parse
from fedjax_fair.app.settings.config import PartConfig
from fedjax_fair.app.settings.setting import default_hint
from fedjax_fair.app.terminal.console import format_table
from fedjax_fair.app.terminal.progress import show_steps
from fedjax_fair.app.terminal.termination import Termination
from fedjax_fair.benchmark import collected, costs, entry, export, published, report, runner, tuning
from fedjax_fair.benchmark.protocol import TRACKS, UNRANKED
from fedjax_fair.benchmark.report_tables import result_tables
from fedjax_fair.benchmark.unit import is_done
from fedjax_fair.utils.terminal import escape_control_chars

__all__ = [
    "Benchmark",
    "BenchmarkEnter",
    "BenchmarkExport",
    "BenchmarkReport",
    "parse_shard",
    "run_benchmark",
]

_SHARD = re.compile("([1-9][0-9]{0,5})/([1-9][0-9]{0,5})")

FolderPath = Annotated[str, tyro.conf.arg(metavar="FOLDER")]


PublishedPath = Annotated[
    str | None,
    tyro.conf.arg(metavar="FOLDER"),
    default_hint("none"),
    Doc(
        "Folder of a published report of the track, such as docs/benchmark/embedded, whose methods "
        "are added."
    ),
]


@dataclass(frozen=True)
class BenchmarkData:
    """Data sets."""

    dir: Annotated[
        str | None,
        default_hint("$TFDS_DATA_DIR"),
        Doc("Folder of data sets of the tracks standard and large."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class _Units:
    output: str = "benchmarks"
    """Folder in which the folder of the track is created."""

    federations: Annotated[
        tuple[str, ...],
        default_hint("those of the track"),
        Doc("Federated datasets, such as digits."),
    ] = ()

    quiet: bool = False
    """Show no progress."""

    data: BenchmarkData = field(default_factory=BenchmarkData)


@dataclass(frozen=True)
class Benchmark(_Units):
    """Compares tuned methods by a fixed protocol: `benchmark` or `benchmark standard`."""

    methods: Annotated[
        tuple[str, ...],
        default_hint("those of the track"),
        Doc("Methods, also pairs such as divfl+equitable; or all."),
    ] = ()

    resume: bool = False
    """Continue in a folder that has results: interrupted work, or more methods."""

    shard: Annotated[
        str | None,
        default_hint("all work"),
        Doc("Share of the work, such as 3/8 for the third of eight machines with a shared folder."),
    ] = None

    dry_run: bool = False
    """Print the estimated time and memory, and stop."""


@dataclass(frozen=True)
class BenchmarkEnter(_Units):
    """Checks, tunes and runs the methods of a Python file, and writes one file per method."""

    file: Positional[Annotated[str, tyro.conf.arg(metavar="FILE")]]
    """Python file with METHODS (docs/benchmark/enter.md)."""

    track: Annotated[str, Doc(f"Track: {' or '.join(TRACKS)}.")] = "embedded"

    published: PublishedPath = None

    model: PartConfig = field(default_factory=PartConfig)

    def __call__(self) -> None:
        """Runs the command; ``cli`` has loaded the file."""
        names = list(plugins.methods_of(self.file))
        if not names:
            raise ValueError(
                f"file={self.file!r}: expected a Python file with METHODS, a dict of methods by "
                "name."
            )
        folder = Path(self.output) / self.track
        planned = runner.plan(self.track, folder, names, self.federations, part=self.model)
        others = _published(self.published, self.track)
        runner.prepare(planned, folder)
        print(f"Benchmark folder: {escape_control_chars(folder)}")
        with interrupt_hint("the same command continues"), show_steps(quiet=self.quiet) as show:
            entry.check(planned, self.data.dir, show, others)
            _run(planned, folder, self.data.dir, show)
        finished = {unit.method for unit in planned.units if is_done(unit)}
        print_output_paths(
            **{name: entry.write(folder, name) for name in names if name in finished}
        )
        _print_outcome(folder, others)
        if missing := dict.fromkeys(u.method for u in planned.units if not is_done(u)):
            raise ValueError(f"file={self.file!r}: incomplete results of {', '.join(missing)}.")


@dataclass(frozen=True)
class BenchmarkReport:
    """Writes the tables and figures of a benchmark from its result files."""

    folder: Positional[FolderPath]
    """Folder of the benchmark."""

    published: PublishedPath = None

    def __call__(self) -> None:
        folder = Path(self.folder)
        others = _published(self.published, str(runner.read_folder(folder)["track"]))
        found = collected.collect(folder, others)
        print_output_paths(Report=report.write(folder, found))


@dataclass(frozen=True)
class BenchmarkExport:
    """Writes the results of a benchmark as a table for other programs."""

    folder: Positional[FolderPath]
    """Folder of the benchmark."""

    format: Literal["parquet", "csv"] = "parquet"
    """Format; the columns are those that benchopt reads. Parquet needs pyarrow."""

    def __call__(self) -> None:
        print_output_paths(Results=export.write(Path(self.folder), self.format))


def run_benchmark(arguments: list[str]) -> None:
    """Runs ``benchmark [TRACK] [OPTIONS]``."""
    has_track = bool(arguments) and not arguments[0].startswith("-")
    track, rest = (arguments[0], arguments[1:]) if has_track else ("embedded", arguments)
    options = parse(Benchmark, rest, "benchmark")
    folder = Path(options.output) / track
    methods = list(options.methods)
    if methods == ["all"]:
        pairs = (name for each in TRACKS.values() for name in each.methods if "+" in name)
        # The networks of the benchmark have no adapters, and clients no times.
        others = {*registry.GROUPS["adapters"], *registry.GROUPS["asynchronous"], *UNRANKED}
        methods = [*(name for name in registry.METHODS if name not in others), *pairs]
    planned = runner.plan(track, folder, methods, options.federations, parse_shard(options.shard))
    if options.dry_run:
        print(format_table(costs.estimate(planned)))
        return
    if not (options.resume or options.shard) and any((folder / "programs").rglob("*.nc")):
        raise ValueError(
            f"output={options.output!r}: {str(folder)!r} has results; --resume continues them."
        )
    print(f"Benchmark folder: {escape_control_chars(folder)}")
    with (
        interrupt_hint("the same command with --resume continues"),
        show_steps(quiet=options.quiet) as show,
    ):
        _run(planned, folder, options.data.dir, show)
    if options.shard:
        print(f"After all shards: fedjax-fair benchmark report {escape_control_chars(folder)}")
    else:
        _print_outcome(folder)
    if planned.units and not any(is_done(unit) for unit in planned.units):
        raise ValueError(f"output={options.output!r}: no method has results; finish one first.")


def _published(folder: str | None, track: str) -> collected.Collected | None:
    return None if folder is None else published.read(Path(folder), track)


def _print_outcome(folder: Path, others: collected.Collected | None = None) -> None:
    """Prints results, which methods have none and why, and where the files are."""
    for reason in runner.failures(runner.failed_units(folder)):
        print(f"Not run: {escape_control_chars(reason)}")
    if any((folder / "programs").glob("*/*/final.jsonl")):
        found = collected.collect(folder, others)
        shown = report.contents(found)
        for table in result_tables(shown, tuning.MEASURES):
            print(format_table(table))
        print_output_paths(Report=report.write(folder, found, shown))
    print_output_paths(Cells=folder / "cells.jsonl")


def _run(planned: runner.Plan, folder: Path, data_dir: str | None, show) -> None:
    with Termination(at_once=True):
        runner.run(planned, folder, data_dir, show=show)


def parse_shard(text: str | None) -> tuple[int, int]:
    """Returns the number of a share and the number of shares; all work is one share.

    Examples:
        >>> parse_shard("3/8")
        (3, 8)
    """
    if text is None:
        return 1, 1
    found = _SHARD.fullmatch(text)
    if found is None:
        raise ValueError(f"shard={text!r}: expected I/N, such as 3/8.")
    return int(found[1]), int(found[2])
