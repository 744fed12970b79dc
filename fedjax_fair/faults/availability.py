"""Clients that are there only some of the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from fedjax_fair import checks
from fedjax_fair.base import Faults, Number

__all__ = ["Diurnal", "Trace"]


class Trace(Faults):
    """Who can be selected in which round, from a table.

    Args:
        table: Zeros and ones, or booleans, ``[rounds, clients]``; it is repeated when its rounds
            are over.

    Raises:
        ValueError: If it is no such table, or (when a round is traced) of other clients.

    Examples:
        >>> every_other_round = Trace([[1, 1, 0], [0, 1, 1]])
    """

    table: ArrayLike | Sequence[Sequence[int]]

    def __post_init__(self):
        self._convert(table=_checked(self.table))

    def available(self, key, round, num_clients):
        table = jnp.asarray(self.table)
        if table.shape[1] != num_clients:
            raise ValueError(f"table: expected {num_clients} clients, got {table.shape[1]}.")
        return table[round % table.shape[0]]


class Diurnal(Faults):
    """Clients come and go with the time of day, at hours of their own.

    A client is available with a probability that swings between two numbers like a sine, with a
    phase of its own, which is spread evenly over the clients.

    Args:
        period: Rounds of a day.
        min_availability: Probability at a client's night, in ``[0, 1]``.
        max_availability: At its noon.

    Raises:
        ValueError: If a number is out of range.

    Examples:
        >>> awake = Diurnal(24, min_availability=0.1, max_availability=0.9)
    """

    period: int
    _: KW_ONLY
    min_availability: Number = 0.0
    max_availability: Number = 1.0

    def __post_init__(self):
        checks.positive_int("period", self.period)
        checks.probability("min_availability", self.min_availability)
        checks.probability("max_availability", self.max_availability)

    def available(self, key, round, num_clients):
        phases = jnp.arange(num_clients, dtype=jnp.float32) / num_clients
        angle = 2 * jnp.pi * ((round % self.period).astype(jnp.float32) / self.period + phases)
        likely = (
            self.min_availability
            + (self.max_availability - self.min_availability) * (1 + jnp.sin(angle)) / 2
        )
        return jax.random.uniform(key, (num_clients,)) < likely


def _checked(table: Any) -> Any:
    """An availability table as booleans."""
    if isinstance(table, Tracer):
        return table
    try:
        given = np.asarray(table)
    except (TypeError, ValueError):  # A random key, a ragged list.
        given = np.empty(0)
    if given.ndim != 2 or given.size == 0 or not np.isin(given, (0, 1)).all():
        raise ValueError(f"table={table!r}: expected zeros and ones, [rounds, clients].")
    return given.astype(bool)
