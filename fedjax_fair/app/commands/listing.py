"""Commands that list methods, and metrics with their definitions."""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedjax_fair.app.settings.setting import stored
from fedjax_fair.utils.terminal import format_columns

if TYPE_CHECKING:
    from fedjax_fair.app.settings.method import Method

__all__ = ["Methods", "Metrics"]

_MIN_SUMMARY = 42
"""Columns of a method's summary next to its other columns."""


@dataclass(frozen=True)
class Methods:
    """Lists methods, with the weights of their mean and what the server sees of single clients."""

    format: Literal["terminal", "markdown"] = "terminal"
    """Format; the Markdown, with costs and sources, is the tables of docs/methods.md."""

    def __call__(self) -> None:
        from fedjax_fair.app.settings import registry

        if self.format == "markdown":
            from fedjax_fair.app import method_page  # It builds every method.

            print(method_page.tables(), end="")
            return
        width = shutil.get_terminal_size().columns
        names = max(map(len, registry.METHODS))

        def describe(name: str, weights: str, view: str, summary: str) -> str:
            first = f"{name:<{names}}  {weights:<12}  {view:<11}"
            if width >= len(first) + _MIN_SUMMARY:
                indent = " " * (len(first) + 2)
                first = f"{first}  {summary}"
                return textwrap.fill(first, width, subsequent_indent=indent)
            if width < len(first):
                first = f"{name}: {weights}, {view}"
                first = textwrap.fill(first, width, subsequent_indent="  ")
            rest = textwrap.fill(summary, width, initial_indent="  ", subsequent_indent="  ")
            return f"{first.rstrip()}\n{rest}"

        print(describe("method", "weights", "server view", "summary"))
        for group, methods in registry.GROUPS.items():
            print(f"[{group}]")
            for name, method in methods.items():
                is_mean = method.aggregator is None and method.centralized_fn is None
                weights = method.weighting if is_mean else "-"
                print(describe(name, weights, _server_view(name, method), method.describe()))


def _server_view(name: str, method: Method) -> str:
    """Returns what the server sees of single clients; a plugin's method is made to find it."""
    if (view := stored()["server_views"].get(name)) is not None:
        return view
    from fedjax_fair.app.build import server_view

    return server_view(method)


@dataclass(frozen=True)
class Metrics:
    """Defines metrics and the terms of tables."""

    format: Literal["terminal", "markdown"] = "terminal"
    """Format; docs/metrics.md is the Markdown."""

    def __call__(self) -> None:
        from fedjax_fair.metrics import definitions

        if self.format == "markdown":
            print(definitions.page(), end="")
            return
        width = shutil.get_terminal_size().columns
        print(textwrap.fill(definitions.SYMBOLS, width), end="\n\n")
        print(format_columns(definitions.columns()))
