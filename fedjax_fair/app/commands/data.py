"""Commands that list, describe and prepare data."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from importlib import import_module, metadata
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from fedjax_fair import data
from fedjax_fair.app.settings import plugins
from fedjax_fair.app.settings.setting import default_hint
from fedjax_fair.data.sensitive_counts import format_client_counts
from fedjax_fair.data.sources.table_sources import TABLES
from fedjax_fair.utils.terminal import escape_control_chars, format_columns

__all__ = ["DataInfo", "DataList", "DataPrepare", "client_counts"]

Name = Annotated[str, tyro.conf.arg(metavar="NAME")]


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
        _add_sources_of_plugins()
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
        _add_sources_of_plugins()
        folder = self.data.dir
        if folder is not None and not data.get_source(self.name).needs_folder:
            raise ValueError(
                f"data.dir={folder!r} is not used by {self.name}, which needs no folder; remove it."
            )
        described = data.describe(self.name, folder)._asdict()
        print(format_columns({key: text for key, text in described.items() if text is not None}))
        if described["prepared"] and self.name in TABLES:
            federation = data.load(self.name, data_dir=self.data.dir)
            print(f"\n{federation}\n\n{client_counts(federation)}")


@dataclass(frozen=True)
class DataPrepare:
    """Downloads a data set and prepares it (needs the extra `tfds-prepare`)."""

    name: Positional[Name]
    """Data set of tensorflow-datasets."""

    data: Folder = field(default_factory=Folder)

    def __call__(self) -> None:
        _add_sources_of_plugins()
        print(escape_control_chars(data.prepare(self.name, self.data.dir)))


def _add_sources_of_plugins() -> None:
    """Imports the registry, which adds them, only if there may be any: it imports all methods."""
    if plugins.loaded() or metadata.entry_points(group="fedjax_fair.sources"):
        import_module("fedjax_fair.app.settings.registry")


def client_counts(federation: data.FederatedData) -> str:
    """Formats counts by client, class and value of sensitive features, zeros included."""
    first, tables = federation.partition(0), []
    names = first.sensitive_names
    assert names is not None
    for title, part in (("training", first.train), ("test", first.test)):
        classes = first.class_names or range(first.num_classes)
        table = format_client_counts(part, names, classes, first.client_names)
        tables.append(f"{title} examples\n{table}")
    return "\n\n".join(tables)
