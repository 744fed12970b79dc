"""Fields of a configuration and their help, from the settings of constructors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, make_dataclass
from typing import Annotated, Any

import tyro
from typing_extensions import Doc

from fedjax_fair.app.settings.constructors import settings_of
from fedjax_fair.app.settings.setting import REQUIRED, Setting

__all__ = ["default_hint", "section"]

_MAX_READERS = 7


def section(
    constructors: Mapping[str, Callable[..., Any]],
    fixed: type = object,
    *,
    hidden: Sequence[str] = (),
) -> Any:
    """Makes the base class of a section of a configuration, whose fields are None by default.

    Args:
        constructors: Constructors by the name that selects them.
        fixed: A frozen dataclass of other fields.
        hidden: Parameters that do not become fields.
    """
    users: dict[str, dict[str, Setting]] = {}
    for selected, constructor in constructors.items():
        for name, setting in settings_of(constructor).items():
            if name not in hidden:
                users.setdefault(name, {})[selected] = setting
    generated = []
    for key, settings in users.items():
        kind, *others = {str(setting.type): setting.type for setting in settings.values()}.values()
        if others:
            raise TypeError(f"{key}: {kind}, {others}; expected one type for all constructors.")
        annotation = Annotated[
            kind | None, Doc(_help(settings, len(constructors))), default_hint(_defaults(settings))
        ]
        generated.append((key, annotation, field(default=None)))
    return make_dataclass("Section", generated, bases=(fixed,), frozen=True)


def _help(users: Mapping[str, Setting], num_constructors: int) -> str:
    """Returns the description of a field and, of several names, those that use it."""
    text = next((s.help for s in users.values() if not s.help.startswith("As for")), "")
    if num_constructors == 1:
        return text
    readers = ", ".join(users) if len(users) <= _MAX_READERS else "most methods"
    return f"{text.rstrip('.')} ({readers})."


def _defaults(users: Mapping[str, Setting]) -> str:
    """Returns the default of a field, or its defaults with the names that use each but the most."""
    names: dict[str, list[str]] = {}
    for name, setting in users.items():
        if setting.default not in (None, REQUIRED):
            value = setting.default
            text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
            names.setdefault(text, []).append(name)
    first, *others = sorted(names, key=lambda text: -len(names[text])) or [""]
    return "; ".join([first, *(f"{text} for {', '.join(names[text])}" for text in others)])


def default_hint(default: str = "") -> Any:
    """Makes the annotation that shows a default in the help of a field that is None or empty."""

    def hint(shown: str) -> str:
        shown = default if shown in ("None", "") else shown
        return f"(default: {shown})" if shown else ""

    return tyro.conf.arg(help_behavior_hint=hint)
