"""Settings, and a file that describes those of the package's classes without an import."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from fedjax_fair.app.settings.values import members

__all__ = ["FILE", "REQUIRED", "Description", "Setting", "stored"]

FILE = Path(__file__).parent / "descriptions.json"
"""Made by ``python -m fedjax_fair.app.settings.catalog``."""

REQUIRED = inspect.Parameter.empty
"""Default of a parameter without one."""

_PLAIN: dict[str, Any] = {kind.__name__: kind for kind in (int, float, bool, str)}
_TYPES = _PLAIN | {f"{name}s": tuple[kind, ...] for name, kind in _PLAIN.items()}


class Setting(NamedTuple):
    """A parameter that can be set by a configuration.

    Attributes:
        name: Name of the parameter.
        type: Type of a value, without None.
        default: Default, or ``inspect.Parameter.empty``.
        traced: Whether it only enters arithmetic, so that a sweep over it compiles once.
        help: Its description in the docstring.
    """

    name: str
    type: Any
    default: Any
    traced: bool
    help: str

    def written(self) -> dict[str, Any]:
        """Returns the setting as JSON, which ``read`` reads."""
        names = {kind: name for name, kind in _TYPES.items()}
        kinds = [
            list(get_args(kind)) if get_origin(kind) is Literal else names[kind]
            for kind in members(self.type)
        ]
        default = {} if self.default is REQUIRED else {"default": self.default}
        return {"type": kinds, **default, "traced": self.traced, "help": self.help}

    @classmethod
    def read(cls, name: str, written: Mapping[str, Any]) -> Setting:
        """Reads a setting from JSON.

        Examples:
            >>> setting = Setting("bits", int | Literal["auto"], 4, False, "Bits per number.")
            >>> Setting.read("bits", setting.written()) == setting
            True
        """
        kinds = [
            _TYPES[kind] if isinstance(kind, str) else Literal[*kind] for kind in written["type"]
        ]
        default = written.get("default", REQUIRED)
        default = tuple(default) if isinstance(default, list) else default
        kind = Union[tuple(kinds)]  # noqa: UP007 (a union of computed members)
        return cls(name, kind, default, written["traced"], written["help"])


class Description(NamedTuple):
    """What the signature and the docstring of a class or function say.

    Attributes:
        summary: First sentence of the docstring.
        source: Link to the first reference, as Markdown, or "".
        settings: Settings by name.
        wraps_solver: Whether it requires another solver, as its parameter ``solver``.
    """

    summary: str
    source: str
    settings: Mapping[str, Setting]
    wraps_solver: bool = False

    def written(self) -> dict[str, Any]:
        """Returns the description as JSON, which ``read`` reads."""
        settings = {name: setting.written() for name, setting in self.settings.items()}
        return self._asdict() | {"settings": settings}

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> Description:
        """Reads a description from JSON."""
        settings = {name: Setting.read(name, item) for name, item in written["settings"].items()}
        return cls(**{**written, "settings": MappingProxyType(settings)})


@cache
def stored() -> dict[str, dict[str, Any]]:
    """Returns ``FILE``: descriptions of classes, server views of methods, defaults of sources."""
    return json.loads(FILE.read_text("utf8"))
