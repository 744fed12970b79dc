"""Commands that show what runs have left, and what there is to run."""

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
    """The run folder, or a results.nc."""

    def __call__(self) -> None:
        dataset = results.open(self.run)
        try:
            print_tables(dataset)
        except ValueError as error:
            raise ValueError(f"run={self.run!r}: {error}") from None


@dataclass(frozen=True)
class Compare:
    """Says which differences between methods are beyond chance, within a run or across several."""

    runs: Positional[RunPaths]
    """Run folders, or files results.nc, on the same data."""

    baseline: str | None = None
    """The method that others are compared to; by default the first."""

    metrics: tuple[str, ...] = ()
    """Metrics to compare by; by default accuracy, and how evenly clients are served."""

    unpaired: bool = False
    """Compare runs of different seeds, which finds less."""

    average_last: int = 1
    """Evaluations at the end of a run whose mean counts."""

    format: Literal["terminal", "markdown", "latex", "csv"] = "terminal"
    """How tables are written; LaTeX needs the package booktabs."""

    def __call__(self) -> None:
        if not self.runs:
            raise ValueError("compare: expected one or more run folders.")
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
    """Lists methods: how each averages its cohort, and what its server sees of one client."""

    def __call__(self) -> None:
        rows = {"method": f"{'weights':<14}{'server view':<13}what it is"}
        for name, method in registry.METHODS.items():
            weights = (
                "its own"
                if method.aggregator
                else "-"
                if method.centralized_fn
                else method.weighting
            )
            rows[name] = f"{weights:<14}{server_view(method):<13}{method.summary}"
        print(format_columns(rows))
