"""Commands that list, describe, plot and prepare data."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from fedjax_fair import data
from fedjax_fair.app.build import load_data
from fedjax_fair.app.commands.common import Name
from fedjax_fair.app.config import Config, DataConfig
from fedjax_fair.app.presets import resolve
from fedjax_fair.app.signatures import default_hint
from fedjax_fair.app.unseen import split_clients
from fedjax_fair.app.variants import drop_unused_settings
from fedjax_fair.data.sensitive_counts import format_client_counts
from fedjax_fair.data.table_sources import TABLES
from fedjax_fair.report import plots
from fedjax_fair.utils.terminal import escape_control_chars, format_columns

__all__ = ["DataInfo", "DataList", "DataPrepare", "DataShow"]

Output = Annotated[str | None, tyro.conf.arg(aliases=["-o"], metavar="FILE", help_behavior_hint="")]


_WIDTH = 72
"""Characters of a line of `DataList`."""


@dataclass(frozen=True)
class Folder:
    """Location of data."""

    dir: Annotated[str | None, default_hint("$TFDS_DATA_DIR or ~/tensorflow_datasets")] = None
    """Folder of sets or original files."""


@dataclass(frozen=True)
class DataList:
    """Lists data sets and which are available."""

    data: Folder = field(default_factory=Folder)

    def __call__(self) -> None:
        folder, rows = self.data.dir, {}
        is_wide = shutil.get_terminal_size().columns >= _WIDTH
        if folder is not None and not Path(folder).is_dir():
            raise ValueError(f"data.dir={folder!r}: no such folder.")
        for entry in data.available(self.data.dir):
            size = (
                f"{entry.num_train:,} + {entry.num_test:,} examples"
                if entry.prepared
                else "not available"
            )
            rows[entry.name] = (
                f"{size:<26}  {entry.partition}" if is_wide else f"{size}, {entry.partition}"
            )
            if entry.damage is not None:
                rows[entry.name] = f"damaged: {' '.join(entry.damage.split())}"
        print(format_columns(rows))


@dataclass(frozen=True)
class DataInfo:
    """Describes a data set."""

    name: Positional[Name]
    """Data set."""

    data: Folder = field(default_factory=Folder)

    def __call__(self) -> None:
        folder = self.data.dir
        if folder is not None and not data.get_source(self.name).needs_folder:
            raise ValueError(
                f"data.dir={folder!r} is not used by {self.name}, which needs no folder; remove it."
            )
        described = data.describe(self.name, folder)._asdict()
        print(format_columns({key: text for key, text in described.items() if text is not None}))
        if described["prepared"] and self.name in TABLES:
            federation = data.load(self.name, data_dir=self.data.dir)
            print(f"\n{federation}\n\n{_client_counts(federation)}")


@dataclass(frozen=True)
class DataShow:
    """Describes a partition, and plots the examples of each client."""

    data: DataConfig = field(default_factory=DataConfig)

    output: Output = None
    """File of the plot, such as partition.png."""

    def __call__(self) -> None:
        if self.output is not None and not Path(self.output).suffix:
            raise ValueError(f"output={self.output!r}: expected a file such as partition.png.")
        # Defaults for another partition are not used by this one.
        config = drop_unused_settings(resolve(Config(data=self.data)), base=Config())
        federation, unseen = split_clients(config, load_data(config))
        print(federation)
        if unseen is not None:
            print(f"\nUnseen clients\n{unseen}")
        if federation.sensitive_names is not None:
            print(f"\n{_client_counts(federation)}")
        if self.output is not None:
            plots.partition(federation).savefig(self.output, dpi=150)
            print(f"Plot: {escape_control_chars(self.output)}")


def _client_counts(federation: data.FederatedData) -> str:
    """Formats counts by client, class and value of sensitive features, zeros included."""
    first, tables = federation.partition(0), []
    names = first.sensitive_names
    assert names is not None
    for title, part in (("training", first.train), ("test", first.test)):
        table = format_client_counts(part, names, first.num_classes, first.client_names)
        tables.append(f"{title} examples\n{table}")
    return "\n\n".join(tables)


@dataclass(frozen=True)
class DataPrepare:
    """Downloads a data set and prepares it (needs the extra `tfds-prepare`)."""

    name: Positional[Name]
    """Data set of tensorflow-datasets."""

    data: Folder = field(default_factory=Folder)

    def __call__(self) -> None:
        print(escape_control_chars(data.prepare(self.name, self.data.dir)))
