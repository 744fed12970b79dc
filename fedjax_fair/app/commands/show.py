"""Commands that print and compare results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from typing_extensions import Doc
from tyro.conf import Positional

from fedjax_fair import results
from fedjax_fair.app.commands.common import save_figure
from fedjax_fair.app.commands.options import RunPath
from fedjax_fair.app.run_folder import RunFolder
from fedjax_fair.app.run_record import recorded_values
from fedjax_fair.app.settings import plugins
from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.config_files import as_dict
from fedjax_fair.app.settings.setting import default_hint
from fedjax_fair.app.terminal.console import format_results, format_table, letters, print_tables
from fedjax_fair.results.comparison import (
    COLUMNS,
    LATEX_COLUMNS,
    comparison_table,
    default_metrics,
    gaps_by_feature,
)
from fedjax_fair.results.files import is_locked, read_evaluations, read_log
from fedjax_fair.results.tables import progress_table
from fedjax_fair.utils.terminal import (
    error_prefix,
    escape_control_chars,
    one_line,
    resume_command,
)
from fedjax_fair.utils.warning import warn

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Compare", "Show"]

_NOT_COMPARED = {"training.seeds", "training.eval_every", "data.dir"}
"""Settings in which compared runs may differ without a note."""

_FILES_OF_RUNS = ("config.json", "sweep.json", "results.nc")

RunPaths = Annotated[
    tuple[str, ...], tyro.conf.arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)")
]


@dataclass(frozen=True)
class Show:
    """Prints the tables of a run or of contributions; of an unfinished run, its evaluations."""

    run: Positional[RunPath]
    """The run folder, or its results.nc."""

    def __call__(self) -> None:
        path = Path(self.run)
        with error_prefix(f"run={self.run!r}: "):
            rounds = _unfinished_rounds(path)
            if rounds is None:
                with _expected_structure():
                    dataset = results.open(path)
                    if "shapley_value" in dataset:
                        _print_contributions(dataset)
                    else:
                        print_tables(dataset)
                return
            print(format_results(progress_table(read_evaluations(path / "metrics.jsonl"), rounds)))
        if is_locked(path):
            print("The run continues in another process.")
        else:
            print(f"Unfinished: `{resume_command(path, plugins.loaded())}` continues.")


def _print_contributions(dataset: xr.Dataset) -> None:
    from fedjax_fair.analysis.contributions import Contributions  # Imports training.

    for name in dataset["algorithm"].values:
        own = dataset.sel(algorithm=name)
        shapley, left_out, utility = (
            own[part].values for part in ("shapley_value", "leave_one_out", "utility")
        )
        found = Contributions(shapley, left_out, utility, own)
        print(f"\n{escape_control_chars(name)}\n{found!r}")


def _unfinished_rounds(path: Path) -> int | None:
    """Returns the rounds of a run whose log lacks some of them, or None."""
    try:
        log, ended = read_log(path / "metrics.jsonl"), set()
        config = RunFolder(path).config() if log else None
        if isinstance(config, Config):
            ended = RunFolder(path).ended_methods(config.schedule.until_seconds)
    except (ValueError, OSError):  # Of damaged files, which results do not need.
        return None
    if not isinstance(config, Config) or config.training.rounds is None:
        return None
    places = {place for place, _, _ in log}
    methods = [name for name in config.methods if name not in ended]
    last = product(methods, config.training.seeds, [config.training.rounds])
    return None if places >= set(last) else config.training.rounds


@dataclass(frozen=True)
class Compare:
    """Tests which methods of one or more runs differ with statistical significance."""

    runs: Positional[RunPaths]
    """Folders of runs or sweeps of the same data, folders of such folders, or a results.nc."""

    baseline: Annotated[str | None, default_hint("the first")] = None
    """Method that the others are compared to."""

    metrics: Annotated[
        tuple[str, ...],
        default_hint("those of the first table of a run, and gaps by each sensitive feature"),
    ] = ()
    """Metrics to compare."""

    front: bool = False
    """Show which methods or settings no other one surpasses in accuracy and fairness, instead of
    tests; --metrics names the two measures."""

    unpaired: bool = False
    """Compare runs of different seeds, which has less power."""

    average_last: int = 1
    """Number of last evaluations to average."""

    at_seconds: Annotated[float | None, default_hint("after the last round")] = None
    """Virtual time at which to compare, with the last evaluation of each run until then."""

    format: Literal["terminal", "markdown", "latex", "csv"] = "terminal"
    """Format of tables; LaTeX needs the package booktabs."""

    columns: Annotated[
        tuple[str, ...],
        default_hint(f"all; {', '.join(LATEX_COLUMNS)} in LaTeX"),
        Doc(f"Columns of tables, in order: {', '.join(COLUMNS)}."),
    ] = ()

    plot: Annotated[str | None, tyro.conf.arg(metavar="FILE"), default_hint("no plot")] = None
    """File for a forest plot of the differences, or the front, such as plot.png, .svg or .pdf."""

    def __call__(self) -> None:
        with _expected_structure():
            self._compare()

    def _compare(self) -> None:
        runs = list(dict.fromkeys(path for run in self.runs for path in _runs_in(Path(run))))
        paths = dict(zip(letters(len(runs)), runs, strict=True))
        opened = {label: results.open(path) for label, path in paths.items()}
        merged = results.merge_runs(opened)
        if self.at_seconds is not None:
            if self.average_last != 1:
                raise ValueError(
                    f"average_last={self.average_last}: expected 1 with --at-seconds, which "
                    "selects one evaluation."
                )
            merged = results.at_seconds(merged, self.at_seconds)
        if self.front:
            self._show_front(merged)
            return
        dataset, defaults = default_metrics(merged)
        notes = [_describe_different_settings(paths, opened), _describe_different_records(paths)]
        differ = ". ".join(note for note in notes if note)
        if differ and self.format == "csv":
            warn(f"{differ}. {_legend(paths, paths)}")
        texts, plotted = [], []
        for metric in self.metrics or [*defaults, *gaps_by_feature(dataset)]:
            compared = results.compare(
                dataset,
                metric,
                self.baseline,
                paired=not self.unpaired,
                average_last=self.average_last,
            )
            plotted.append(compared)
            if differ:
                compared = compared.assign_attrs(differ=differ)
            compared = _explain_labels(compared, paths, is_table=self.format != "csv")
            if self.format == "terminal":
                texts.append(format_results(comparison_table(compared, 1, self.columns)))
            else:
                text = results.to_text(compared, self.format, self.columns)
                texts.append(text.removesuffix("\n"))
        if self.format == "csv":  # One table of all metrics.
            texts[1:] = [text.partition("\n")[2] for text in texts[1:]]
        print(*texts, sep="\n" if self.format in ("csv", "terminal") else "\n\n")
        if self.plot is not None:
            from fedjax_fair.report import forest  # Imports matplotlib.

            save_figure(lambda: forest.differences(plotted), Path(self.plot))

    def _show_front(self, dataset: xr.Dataset) -> None:
        from fedjax_fair.analysis import front, front_table

        if len(self.metrics) not in (0, 2):
            raise ValueError(
                f"metrics={self.metrics!r}: expected accuracy and unfairness with --front, or none."
            )
        points = front(dataset, *self.metrics)
        print(format_table(front_table(points)))
        if self.plot is not None:
            from fedjax_fair.report import attained  # Imports matplotlib.

            save_figure(lambda: attained(points), Path(self.plot))


@contextmanager
def _expected_structure() -> Iterator[None]:
    """Raises ``ValueError`` where a file lacks what results have, or has it in another form."""
    try:
        yield
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            "expected results of a run, a sweep or a maximization, as this package writes them; a "
            f"file has another structure ({type(error).__name__}: {one_line(error)})."
        ) from error


def _describe_different_settings(
    paths: dict[str, Path], opened: dict[str, xr.Dataset]
) -> str | None:
    """Names the settings that runs differ in, besides methods and seeds, or returns None."""
    given = by_run = {label: {"rounds": int(run["round"][-1])} for label, run in opened.items()}
    if all((path / "config.json").is_file() for path in paths.values()):
        configs = {label: as_dict(RunFolder(path).config()) for label, path in paths.items()}
        given = {label: _by_name(config) for label, config in configs.items()}
        # Defaults of one run may be given in another one.
        by_run = {
            label: _by_name(config.get("defaults", {})) | given[label]
            for label, config in configs.items()
        }
    differ = []
    for name in sorted({name for settings in given.values() for name in settings} - _NOT_COMPARED):
        values = {label: settings.get(name) for label, settings in by_run.items()}
        if len({repr(value) for value in values.values()}) > 1:
            shown = ", ".join(f"{value} ({label})" for label, value in values.items())
            differ.append(f"{name}: {escape_control_chars(shown)}")
    if not differ:
        return None
    return f"The runs differ in settings, not only in methods: {'; '.join(differ)}"


def _describe_different_records(paths: dict[str, Path]) -> str | None:
    """Names versions, commits, devices and digests of data that differ, or returns None."""
    folders = {label: path for label, path in paths.items() if (path / "env.json").is_file()}
    records = {
        label: recorded_values(RunFolder(path).environment())
        for label, path in folders.items()
        if (path / "config.json").is_file()
    }
    differ = []
    for name in sorted({name for record in records.values() for name in record}):
        # Earlier versions recorded less.
        values = {label: record[name] for label, record in records.items() if name in record}
        if len(set(values.values())) > 1:
            shown = ", ".join(f"{value[:12]} ({label})" for label, value in values.items())
            differ.append(f"{name}: {escape_control_chars(shown)}")
    return f"The runs were made with different {'; '.join(differ)}" if differ else None


def _by_name(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of sections that have a value, by name."""
    sections = {name: each for name, each in settings.items() if isinstance(each, dict)}
    return {
        f"{section}.{name}": value
        for section, values in sections.items()
        for name, value in values.items()
        if section != "defaults" and value is not None
    }


def _runs_in(path: Path) -> list[Path]:
    """Returns the finished runs in a folder of runs; otherwise the path."""
    if any((path / name).exists() for name in _FILES_OF_RUNS) or path.is_file():
        return [path]
    children = {file.parent for name in _FILES_OF_RUNS for file in path.glob(f"*/{name}")}
    finished = sorted(child for child in children if (child / "results.nc").exists())
    if skipped := sorted(child.name for child in children.difference(finished)):
        warn(f"{path}: {', '.join(skipped)} skipped, unfinished.")
    return finished or [path]


def _legend(paths: dict[str, Path], labels: Iterable[str]) -> str:
    return "; ".join(f"{label}: {escape_control_chars(paths[label])}" for label in labels)


def _explain_labels(compared: xr.Dataset, paths: dict[str, Path], *, is_table: bool) -> xr.Dataset:
    """Adds a legend of the runs in names of methods; without a table, names get their paths."""
    names = [compared.attrs["baseline"], *map(str, compared["algorithm"].values)]
    labels = {name: label for name in names for label in paths if f" ({label})" in name}
    if is_table:
        shown = paths if "differ" in compared.attrs else labels.values()
        used = [label for label in paths if label in shown]
        return compared.assign_attrs(runs=_legend(paths, used)) if used else compared
    for place, name in enumerate(names):
        if name in labels:
            label = labels[name]
            names[place] = name.replace(f" ({label})", f" ({paths[label]})")
    return compared.assign_coords(algorithm=names[1:]).assign_attrs(baseline=names[0])
