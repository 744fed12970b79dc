"""Command that fits thresholds of clients and sensitive groups to the models of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from tyro.conf import Positional

from fedjax_fair.analysis.post_processing import (
    PostProcessed,
    group_rates_table,
    post_process,
    post_processing_table,
)
from fedjax_fair.app.build import load_model
from fedjax_fair.app.commands.common import save_figure
from fedjax_fair.app.commands.options import RunPath
from fedjax_fair.app.experiment_data import load_data
from fedjax_fair.app.run_folder import RunFolder
from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.setting import default_hint
from fedjax_fair.app.terminal.console import format_results
from fedjax_fair.metrics.thresholds import Constraint
from fedjax_fair.results.files import write_text
from fedjax_fair.results.formats import to_csv
from fedjax_fair.utils.terminal import escape_control_chars

__all__ = ["FitThresholds"]


@dataclass(frozen=True)
class FitThresholds:
    """Fits thresholds of clients and sensitive groups to the models of a run."""

    run: Positional[RunPath]
    """The run folder, of data with validation examples, sensitive features and two classes."""

    method: Annotated[str | None, default_hint("the first")] = None
    """Method whose models are used."""

    constraint: Constraint = "demographic_parity"
    """Rate that groups are compared by: of prediction 1 among all people, or with label 1."""

    max_global_gap: Annotated[float | None, default_hint("no bound")] = None
    """Largest difference of the groups' rates among the people of all clients, such as 0.02."""

    max_local_gap: Annotated[float | None, default_hint("no bound")] = None
    """Largest difference of the groups' rates at each client."""

    features: Annotated[tuple[str, ...], default_hint("all")] = ()
    """Sensitive features whose combinations are the groups."""

    personalized: bool = False
    """Use the personalized model of each client."""

    output: Annotated[
        str | None, tyro.conf.arg(aliases=["-o"], metavar="FILE"), default_hint("no file")
    ] = None
    """File for a table of the thresholds, such as thresholds.csv."""

    plot: Annotated[str | None, tyro.conf.arg(metavar="FILE"), default_hint("no plot")] = None
    """File for a plot of the gaps before and after, such as plot.png, .svg or .pdf."""

    def __call__(self) -> None:
        if self.max_global_gap is None and self.max_local_gap is None:
            raise ValueError(
                "max_global_gap=None and max_local_gap=None: expected a bound; pass "
                "--max-global-gap 0.02, --max-local-gap 0.02 or both."
            )
        folder = RunFolder(self.run)
        config = folder.config()
        if not isinstance(config, Config):
            raise ValueError(f"run={self.run!r}: expected the folder of a training run.")
        data, unseen = load_data(config)
        folder.check_record(data=data, unseen=unseen)
        found = post_process(
            load_model(self.run, self.method or config.methods[0]),
            data,
            self.constraint,
            max_global_gap=np.inf if self.max_global_gap is None else self.max_global_gap,
            max_local_gap=np.inf if self.max_local_gap is None else self.max_local_gap,
            features=self.features or None,
            personalized=self.personalized,
        )
        for table in (post_processing_table, group_rates_table):
            print(format_results(table(found.dataset)))
        if self.output is not None:
            write_text(Path(self.output), _table(found))
            print(f"Thresholds: {escape_control_chars(self.output)}")
        if self.plot is not None:
            from fedjax_fair.report import threshold_gaps  # Imports matplotlib.

            save_figure(lambda: threshold_gaps(found.dataset), Path(self.plot))


def _table(found: PostProcessed) -> str:
    """Writes the thresholds of each seed, client and group: the score from which 1 is predicted."""
    import pandas as pd

    clients = found.dataset["client"].values  # Names, or positions.
    groups = found.dataset["group"].values
    people = found.dataset["people"].sel(part="validation").values
    rows = [
        {
            "seed": seed,
            "client": clients[client],
            "group": groups[group],
            "people": people[run, client, group],
            "high": own.high[client, group] / own.bins,
            "low": own.low[client, group] / own.bins,
            "low_share": own.low_share[client, group],
            "rate": own.rates[client, group],
        }
        for run, (seed, own) in enumerate(
            zip(found.dataset["seed"].values, found.thresholds, strict=True)
        )
        for client, group in np.ndindex(own.high.shape)
    ]
    return to_csv(pd.DataFrame(rows))
