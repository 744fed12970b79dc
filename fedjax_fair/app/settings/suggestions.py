"""Look-up of entries by name, with suggestions for mistyped names."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

__all__ = ["lookup", "suggest"]

T = TypeVar("T")


def lookup(
    kind: str,
    name: str,
    table: Mapping[str, T],
    listed: Iterable[str] | None = None,
    command: str | None = None,
) -> T:
    """Finds an entry by name, or raises an error that suggests a similar one.

    Args:
        kind: What is looked up.
        name: The name.
        table: The entries.
        listed: Names in the error; all by default.
        command: A command that lists the names, which the error names instead of all of them.

    Examples:
        >>> lookup("method", "fedporx", {"fedavg": 1, "fedprox": 2})
        Traceback (most recent call last):
        ValueError: method='fedporx': did you mean 'fedprox'? Expected one of fedavg, fedprox.
    """
    if name in table:
        return table[name]
    names = [each for each in (table if listed is None else listed) if "." not in each]
    similar = suggest(name, names)
    if command is not None:
        near = dict.fromkeys([*filter(None, [similar]), *_near(name, names, 3)])
        hint = f"did you mean {' or '.join(map(repr, list(near)[:3]))}? " if near else ""
        raise ValueError(f"{kind}={name!r}: {hint}`{command}` lists all {len(names)}.")
    hint = f"did you mean {similar!r}? Expected" if similar else "expected"
    raise ValueError(f"{kind}={name!r}: {hint} one of {', '.join(names or table)}.")


_ALIASES = {
    "lr": "learning_rate",
    "eta": "learning_rate",
    "bs": "batch_size",
    "batch": "batch_size",
    "dataset": "name",
    "seed": "seeds",
    "num_clients": "clients",
    "num_rounds": "rounds",
    "local_epochs": "epochs",
    "local_steps": "steps",
}
"""Names of settings in other libraries."""


def suggest(name: str, names: Collection[str]) -> str | None:
    """Returns the name that was probably meant, or None.

    Examples:
        >>> suggest("lr", ["prox", "learning_rate"]), suggest("--rounds", ["--training.rounds"])
        ('learning_rate', '--training.rounds')
    """

    def last_part(name: str) -> str:
        return name.strip("-").rpartition(".")[2].replace("-", "_").casefold()

    by_last_part = {last_part(each): each for each in names}
    wanted = last_part(name)
    if (same := by_last_part.get(_ALIASES.get(wanted, wanted))) is not None:
        return same
    return next(iter(_near(name, names, 1)), None)


def _near(name: str, names: Iterable[str], count: int) -> list[str]:
    """Returns similar names, the most similar first."""
    folded = {each.casefold(): each for each in names}
    return [folded[each] for each in difflib.get_close_matches(name.casefold(), folded, n=count)]
