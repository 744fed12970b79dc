"""A bar that shows how many rows have been selected while a compiled program selects them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
from jaxtyping import Array, Bool, Float, PyTree

from fedjax_fair.submodular.base import SetFunction
from fedjax_fair.tree import Integer

__all__ = ["Reported", "progress_bar"]

# What compiled programs report to. They outlive a bar, and the next one has its place here.
_bars: list[Any] = []


@contextlib.contextmanager
def progress_bar(total: int) -> Iterator[None]:
    """Shows on standard error how many of so many items functions that are ``Reported`` have."""
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


class Reported(SetFunction):
    """The same function, which reports every item that is added.

    Args:
        function: The function.
    """

    function: SetFunction

    @property
    def size(self) -> int:
        return self.function.size

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        return self.function.value(mask)

    def init(self) -> PyTree:
        return self.function.init()

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return self.function.gains(memo)

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        return self.function.gain(memo, item)

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        jax.debug.callback(_advance, item)  # The item, so that it waits until that is chosen.
        return self.function.add(memo, item)


def _advance(item: Any) -> None:
    if _bars:
        bar, task = _bars[-1]
        bar.advance(task)
