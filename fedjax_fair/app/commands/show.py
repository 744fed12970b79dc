"""Commands that print results and list methods."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional

from fedjax_fair import results
from fedjax_fair.app import registry
from fedjax_fair.app.build import server_view
from fedjax_fair.app.commands.common import RunPath
from fedjax_fair.app.console import format_table, print_tables
from fedjax_fair.results.comparison import default_metrics
from fedjax_fair.results.tables import comparison_table
from fedjax_fair.text import format_columns

__all__ = ["Compare", "Methods", "Show"]

RunPaths = Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN [RUN ...]")]


@dataclass(frozen=True)
class Show:
    """Prints the table of a run again."""

    run: Positional[RunPath]
    """The run folder, or its results.nc."""

    def __call__(self) -> None:
        try:
            print_tables(results.open(self.run))
        except ValueError as error:
            raise ValueError(f"run={self.run!r}: {error}") from None


@dataclass(frozen=True)
class Compare:
    """Tests which differences between methods of one or more runs are statistically significant."""

    runs: Positional[RunPaths]
    """Run folders, or their results.nc, of the same data."""

    baseline: str | None = None
    """Method that the others are compared to; default: the first."""

    metrics: tuple[str, ...] = ()
    """Metrics to compare; default: accuracy and two of fairness."""

    unpaired: bool = False
    """Compare runs of different seeds, which has less power."""

    average_last: int = 1
    """Number of last evaluations to average."""

    format: Literal["terminal", "markdown", "latex", "csv"] = "terminal"
    """Format of tables; LaTeX needs the package booktabs."""

    def __call__(self) -> None:
        names = [Path(run).name for run in self.runs]
        labels = names if len(set(names)) == len(names) else self.runs
        opened = {label: results.open(run) for label, run in zip(labels, self.runs, strict=True)}
        found, usual = default_metrics(results.merge_runs(opened))
        written = []
        for metric in self.metrics or usual:
            compared = results.compare(
                found,
                metric,
                self.baseline,
                paired=not self.unpaired,
                average_last=self.average_last,
            )
            if self.format == "terminal":
                print(format_table(comparison_table(compared, digits=1)))
            else:
                written.append(results.to_text(compared, self.format))
        if self.format == "csv":  # One table of all metrics.
            written[1:] = [text.partition("\n")[2] for text in written[1:]]
        print(*written, sep="" if self.format == "csv" else "\n", end="")


@dataclass(frozen=True)
class Methods:
    """Lists methods, with the weights of their mean and what the server sees of single clients."""

    def __call__(self) -> None:
        rows = {"method": f"{'weights':<14}{'server view':<13}summary"}
        for name, method in registry.METHODS.items():
            is_mean = method.aggregator is None and method.centralized_fn is None
            weights = method.weighting if is_mean else "-"
            rows[name] = f"{weights:<14}{server_view(method):<13}{method.describe()}"
        print(format_columns(rows))
