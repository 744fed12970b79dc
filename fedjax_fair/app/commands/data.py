"""Commands that list, describe, draw and prepare data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import tyro
from tyro.conf import Positional

from fedjax_fair import data
from fedjax_fair.app.build import load_data
from fedjax_fair.app.commands.common import Name
from fedjax_fair.app.config import Config, DataConfig
from fedjax_fair.app.presets import resolve
from fedjax_fair.app.variants import drop_unused_settings
from fedjax_fair.report import plots
from fedjax_fair.text import escape_control_chars, format_columns

__all__ = ["DataInfo", "DataList", "DataPrepare", "DataShow"]

Output = Annotated[str | None, tyro.conf.arg(aliases=["-o"], metavar="FILE")]


@dataclass(frozen=True)
class Folder:
    """Where data is."""

    dir: str | None = None
    """Folder of prepared sets, or of original files; else $TFDS_DATA_DIR or
    ~/tensorflow_datasets."""


@dataclass(frozen=True)
class DataList:
    """Lists the data sets, and which are ready to use."""

    data: Folder = field(default_factory=Folder)

    def __call__(self) -> None:
        rows = {}
        for entry in data.available(self.data.dir):
            ready = f"{entry.num_train:,} + {entry.num_test:,} examples" if entry.prepared else "-"
            if entry.damage is not None:
                rows[entry.name] = f"damaged: {' '.join(entry.damage.split())}"
                continue
            rows[entry.name] = f"{ready:<26}  {entry.partition}"
        print(format_columns(rows))


@dataclass(frozen=True)
class DataInfo:
    """Describes a data set."""

    name: Positional[Name]
    """The data set."""

    data: Folder = field(default_factory=Folder)

    def __call__(self) -> None:
        print(format_columns(data.describe(self.name, self.data.dir)._asdict()))


@dataclass(frozen=True)
class DataShow:
    """Describes a federation before any training, and draws who owns what."""

    data: DataConfig = field(default_factory=DataConfig)

    output: Output = None
    """File of the picture, such as partition.png."""

    def __call__(self) -> None:
        # Settings that are the default's own, for another partition, are none of this one.
        config = drop_unused_settings(resolve(Config(data=self.data)), base=Config())
        federation = load_data(config)
        print(federation)
        if self.output is not None:
            plots.partition(federation).savefig(self.output, dpi=150)
            print(f"Picture: {escape_control_chars(self.output)}")


@dataclass(frozen=True)
class DataPrepare:
    """Downloads a data set and prepares it (needs the extra `tfds-prepare`)."""

    name: Positional[Name]
    """The data set, as tensorflow-datasets calls it."""

    data: Folder = field(default_factory=Folder)

    def __call__(self) -> None:
        print(escape_control_chars(data.prepare(self.name, self.data.dir)))
