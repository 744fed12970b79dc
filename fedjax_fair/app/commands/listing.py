"""Commands that list and describe methods, and define metrics."""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional

from fedjax_fair.app.settings.setting import default_hint
from fedjax_fair.utils.terminal import format_columns

__all__ = ["Methods", "Metrics"]

_MIN_SUMMARY = 42
"""Columns of a method's summary next to its other columns."""


@dataclass(frozen=True)
class Methods:
    """Lists methods, or describes one: its classes, settings, defaults, ranges and source."""

    name: Positional[
        Annotated[str | None, tyro.conf.arg(metavar="[METHOD]"), default_hint("all")]
    ] = None
    """Method to describe, such as q_fedavg, or a pair, such as divfl+equitable."""

    format: Literal["terminal", "markdown"] = "terminal"
    """Format; the Markdown, with costs and sources, is the tables of docs/methods.md."""

    def __call__(self) -> None:
        from fedjax_fair.app.settings import method_summary, registry

        if self.name is not None:
            if self.format != "terminal":
                raise ValueError("format='markdown': expected 'terminal' with a method.")
            print(method_summary.format_method(self.name))
            return
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
                weights = method.weights_of_mean or "-"
                view = method_summary.server_view(name)
                print(describe(name, weights, view, method.describe()))


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
