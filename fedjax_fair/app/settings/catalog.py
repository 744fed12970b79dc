"""Writes ``descriptions.json``; to run after a change of what it describes.

It describes registered classes, data sources, commands (the first line of their docstrings) and
presets of papers (their names).

python -m fedjax_fair.app.settings.catalog
"""

from __future__ import annotations

import json
from itertools import chain

from fedjax_fair import data
from fedjax_fair.app.build import server_view
from fedjax_fair.app.commands.dispatch import CLASSES, class_of_command
from fedjax_fair.app.overview import DESCRIPTIONS
from fedjax_fair.app.settings import registry
from fedjax_fair.app.settings.constructors import Reference, class_names, describe_signature
from fedjax_fair.app.settings.paper_presets import PAPERS
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
        *(table.values() for table in (*tables, registry.COMMUNICATION, registry.SCHEDULES)),
        [registry.TIMING],
    )
    found = {
        name.removeprefix("fedjax_fair.") for each in constructors for name in class_names(each)
    }
    described = {name: describe_signature(Reference(name).resolve()) for name in sorted(found)}
    commands = {name: class_of_command(name).__doc__.splitlines()[0] for name in CLASSES}
    written = {
        "commands": commands,
        "papers": list(PAPERS),
        "descriptions": {name: each.written() for name, each in described.items()},
        "metrics": predictions.__all__,
        "server_views": {name: server_view(method) for name, method in methods},
        "sources": {name: SourceDefaults.of(each)._asdict() for name, each in data.SOURCES.items()},
    }
    return json.dumps(written, indent=1) + "\n"


if __name__ == "__main__":
    DESCRIPTIONS.write_text(content(), "utf8")
