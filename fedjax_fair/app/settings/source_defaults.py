"""Defaults of data sources, read without importing the package's data, and kinds of files."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from fedjax_fair.app.settings.setting import stored

__all__ = ["OTHER", "SourceDefaults", "find_source", "is_leaf", "is_table_file", "source_names"]

OTHER = ""
"""Name of the stored defaults of image sets that have no entry of their own."""


class SourceDefaults(NamedTuple):
    """What a configuration needs of a `fedjax_fair.data.Source`, with the partition's name."""

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
        """Returns those of a source."""
        partition = source.partition.__name__ if source.client is None else "by_column"
        return cls(partition, **{name: getattr(source, name) for name in cls._fields[1:]})


def find_source(name: str) -> SourceDefaults:
    """Returns the defaults of a data source by name.

    Examples:
        >>> find_source("mnist").model, find_source("svhn_cropped").model
        ('lenet', 'resnet18')
    """
    if (named := _imported()) is not None:
        return SourceDefaults.of(named.get_source(name))
    sources = stored()["sources"]
    return SourceDefaults(**sources.get(name, sources[OTHER]))


def source_names() -> list[str]:
    """Returns the names of the data sources."""
    named = _imported()
    return list(named.SOURCES) if named else [name for name in stored()["sources"] if name != OTHER]


def is_table_file(file: str | None) -> bool:
    """Whether there is a file and its name is that of a table."""
    if file is None:
        return False
    from fedjax_fair.data.tables import table_files

    return table_files.is_table_file(file)


def is_leaf(file: str) -> bool:
    """Whether a file is LEAF's JSON."""
    from fedjax_fair.data.text import leaf_users

    return leaf_users.is_leaf(file)


def _imported() -> Any:
    """Returns the module of the table of sources once it is imported, and may have more of them."""
    return sys.modules.get("fedjax_fair.data.sources.named_sources")
