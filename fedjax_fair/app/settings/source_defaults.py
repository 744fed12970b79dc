"""Defaults of data sources, read without importing the package's data, and kinds of files."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, NamedTuple

from fedjax_fair.app.overview import STORED

__all__ = ["SourceDefaults", "find_source", "is_leaf", "is_table_file", "source_names"]

_TABLE = "fedjax_fair.data.sources.named_sources"


class SourceDefaults(NamedTuple):
    """Defaults of a `fedjax_fair.data.Source`, with the name of its partition."""

    partition: str
    num_clients: int | None
    model: str
    learning_rate: float
    batch_size: int
    epochs: int
    rounds: int
    client: str | None
    needs_folder: bool

    @classmethod
    def of(cls, source: Any) -> SourceDefaults:
        """Returns the defaults of a source."""
        partition = source.partition.__name__ if source.client is None else "by_column"
        return cls(partition, **{name: getattr(source, name) for name in cls._fields[1:]})


def find_source(name: str) -> SourceDefaults:
    """Returns the defaults of a data source by name.

    The package's data is imported for names that are not stored.

    Examples:
        >>> find_source("mnist").model, find_source("svhn_cropped").model
        ('lenet', 'resnet18')
    """
    # Once imported, the table of sources may have more than the stored ones.
    if _TABLE not in sys.modules and name in STORED["sources"]:
        return SourceDefaults(**STORED["sources"][name])
    return SourceDefaults.of(import_module(_TABLE).get_source(name))


def source_names() -> list[str]:
    """Returns the names of the data sources."""
    imported = sys.modules.get(_TABLE)
    return list(imported.SOURCES if imported else STORED["sources"])


def is_table_file(file: str | None) -> bool:
    """Returns whether there is a file and its name is that of a table."""
    if file is None:
        return False
    from fedjax_fair.data.tables import table_files

    return table_files.is_table_file(file)


def is_leaf(file: str) -> bool:
    """Returns whether a file is LEAF's JSON."""
    from fedjax_fair.data.text import leaf_users

    return leaf_users.is_leaf(file)
