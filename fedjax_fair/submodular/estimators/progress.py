"""A bar that shows how many rows have been picked while a compiled program picks them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

from fedjax_fair.submodular.base import SetFunction

__all__ = ["progress_bar", "reported"]

# What compiled programs report to. They outlive a bar, and the next one has its place here.
_bars: list[Any] = []


@contextlib.contextmanager
def progress_bar(total: int) -> Iterator[None]:
    """Shows on standard error how many of so many items functions that are ``reported`` have."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = (MofNCompleteColumn(), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        _bars.append((bar, bar.add_task("", total=total)))
        try:
            yield
            jax.effects_barrier()  # Reports may be late.
            bar.update(_bars[-1][1], completed=total)  # The last item is added to no memo.
        finally:
            _bars.pop()


def reported(function: SetFunction) -> SetFunction:
    """The same function, which reports every item that is added."""

    def add(memo, item):
        jax.debug.callback(_advance, item)  # The item, so that it waits until that is chosen.
        return function.add(memo, item)

    return function._replace(add=add)


def _advance(item: Any) -> None:
    if _bars:
        bar, task = _bars[-1]
        bar.advance(task)
