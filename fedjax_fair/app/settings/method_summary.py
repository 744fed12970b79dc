"""One method in words: its classes, settings, defaults, ranges and source."""

from __future__ import annotations

import re
from typing import Any

from fedjax_fair.app.overview import STORED
from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.constructors import class_names
from fedjax_fair.app.settings.method import Method
from fedjax_fair.app.settings.named_methods import (
    find_method,
    method_parts,
    method_settings,
    resolve_method,
)
from fedjax_fair.app.settings.names import SettingKey, option_of, values_of
from fedjax_fair.app.settings.presets import resolve
from fedjax_fair.app.settings.registry import COHORT_SIZE, METHODS, role_classes
from fedjax_fair.app.settings.setting import REQUIRED, Setting, describe_type
from fedjax_fair.utils.terminal import format_columns

__all__ = ["format_method", "server_view"]

_LINK = re.compile(r"\[(.*?)\]\((.*?)\)")
_VIEWS = ("aggregate", "scalars", "vectors", "examples")


def server_view(name: str) -> str:
    """Returns what the server needs to see of single clients for a method, or for a pair.

    Examples:
        >>> server_view("fedavg"), server_view("power_of_choice+krum")
        ('aggregate', 'vectors')
    """
    return max(map(_server_view, method_parts(name)), key=_VIEWS.index)


def _server_view(name: str) -> str:
    if (view := STORED["server_views"].get(name)) is not None:
        return view
    from fedjax_fair.app.build import server_view  # It makes the roles of a plugin's method.

    return server_view(METHODS[name])


def format_method(name: str) -> str:
    """Describes a method, or a pair of methods.

    Raises:
        ValueError: If there is no such method.
    """
    config = resolve(Config(methods=(name,)))
    method, _ = resolve_method(config, name)
    parts = list(map(find_method, method_parts(name)))
    sources = (part.source() for part in parts)
    facts = {
        "server view": server_view(name),
        "source": _LINK.sub(r"\1, \2", " and ".join(filter(None, sources))),
        **{role: ", ".join(class_names(made)) for role, made in role_classes(method).items()},
    }
    settings = {
        option_of(*key): _describe(setting, method, config, key)
        for key, setting in method_settings(config, name).items()
        if key[0] != "model"
    }
    title = " ".join(f"{part.describe()}." for part in parts)
    shown = {key: text for key, text in facts.items() if text}
    return f"{name}: {title}\n\n{format_columns(shown)}\n\n{format_columns(settings)}"


def _describe(setting: Setting, method: Method, config: Config, key: SettingKey) -> str:
    """Describes type, default, tuned range and meaning of a setting."""
    default: Any = setting.default
    if values_of(config)[key] is not None:
        default = "that of the data set"
    elif default in (None, REQUIRED):
        default = "none"
    elif setting.name == "cohort_size" and default == COHORT_SIZE:
        default = f"{default}, or all clients"
    names = (setting.name, ".".join(key))
    tuned = next((method.ranges[name] for name in names if name in method.ranges), None)
    by = f"; tuned from {tuned.low:g} to {tuned.high:g}" if tuned else ""
    return f"{describe_type(setting.type)}; default: {default}{by}. {setting.help}"
