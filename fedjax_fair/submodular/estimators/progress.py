"""A progress bar of a selection that runs inside a compiled function."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
from jaxtyping import PyTree

from fedjax_fair.submodular.base import WrappedSetFunction
from fedjax_fair.tree import Integer

__all__ = ["Reported", "progress_bar"]

# Compiled functions outlive a bar, so they report to the last one here.
_bars: list[Any] = []


@contextlib.contextmanager
def progress_bar(total: int) -> Iterator[None]:
    """Shows on standard error how many of ``total`` items `Reported` functions have added."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = (MofNCompleteColumn(), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        _bars.append((bar, bar.add_task("", total=total)))
        try:
            yield
            jax.effects_barrier()  # Reports may be late.
            bar.update(_bars[-1][1], completed=total)  # The last item is not added to a memo.
        finally:
            _bars.pop()


class Reported(WrappedSetFunction):
    """The same function, which reports every item that is added."""

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        jax.debug.callback(_advance, item)  # The argument delays the report until it is selected.
        return self.function.add(memo, item)


def _advance(item: Any) -> None:
    if _bars:
        bar, task = _bars[-1]
        bar.advance(task)
