"""Writes ``descriptions.json``; to run after a change of a registered class or a data source.

python -m fedjax_fair.app.settings.catalog
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

from fedjax_fair import data
from fedjax_fair.app.build import server_view
from fedjax_fair.app.settings import registry, signatures
from fedjax_fair.app.settings.constructors import Reference, Renamed, Wrapping
from fedjax_fair.app.settings.setting import FILE
from fedjax_fair.app.settings.source_defaults import SourceDefaults
from fedjax_fair.metrics import predictions

__all__ = ["content"]


def content() -> str:
    """Returns what the file should contain, from the classes, without the methods of plugins."""
    methods = [
        method
        for group, table in registry.GROUPS.items()
        if group != "plugin"
        for method in table.items()
    ]
    tables = (registry.MODELS, registry.PARTITIONERS, registry.READERS, registry.FAULTS)
    constructors = chain(
        *(registry.role_classes(method).values() for _, method in methods),
        *(table.values() for table in (*tables, registry.COMMUNICATION)),
    )
    found = {each.name: each for constructor in constructors for each in _references(constructor)}
    described = {name: signatures.describe(found[name].resolve()) for name in sorted(found)}
    written = {
        "descriptions": {name: each.written() for name, each in described.items()},
        "metrics": predictions.__all__,
        "server_views": {name: server_view(method) for name, method in methods},
        "sources": {name: SourceDefaults.of(each)._asdict() for name, each in data.SOURCES.items()},
    }
    return json.dumps(written, indent=1) + "\n"


def _references(constructor: Callable[..., Any]) -> Iterator[Reference]:
    """Yields the references within a constructor."""
    match constructor:
        case Reference():
            yield constructor
        case Wrapping(outer, inner):
            yield from chain(_references(outer), _references(inner))
        case Renamed(inner):
            yield from _references(inner)
        case partial():
            yield from _references(constructor.func)


if __name__ == "__main__":
    FILE.write_text(content(), "utf8")
