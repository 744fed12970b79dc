"""Clients that are available only some of the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from fedjax_fair.roles import Faults, Number, setting
from fedjax_fair.utils import checks

__all__ = ["Diurnal", "Trace"]


def _as_table(name: str, table: Any) -> Any:
    """Returns an availability table as booleans."""
    if isinstance(table, Tracer):
        return table
    try:
        array = np.asarray(table)
    except (TypeError, ValueError):  # A random key, a ragged list.
        array = np.empty(0)
    if array.ndim != 2 or array.size == 0 or not np.isin(array, (0, 1)).all():
        raise ValueError(
            f"{name}={table!r}: expected zeros and ones, [rounds, clients]; pass a rectangular "
            "array."
        )
    return array.astype(bool)


class Trace(Faults):
    """Availability from a table.

    Args:
        table: Zeros and ones, or booleans, ``[rounds, clients]``; repeated after its last round.

    Raises:
        ValueError: If ``table`` is no such table, or (before training, or when a round is traced)
            of other clients.

    Examples:
        >>> every_other_round = Trace([[1, 1, 0], [0, 1, 1]])
    """

    table: ArrayLike | Sequence[Sequence[int]] = setting(_as_table)

    def check(self, num_clients):
        if (size := np.shape(self.table)[1]) != num_clients:
            raise ValueError(
                f"table of {size} clients: expected {num_clients}, the number of clients; give the "
                "table one column per client."
            )

    def available(self, key, round, num_clients):
        self.check(num_clients)
        table = jnp.asarray(self.table)
        return table[round % table.shape[0]]


class Diurnal(Faults):
    """Availability that depends on the time of day.

    Probabilities are sines of the round, with phases that are evenly spread over the clients.

    Args:
        period: Rounds per day.
        min_availability: Lowest probability of a day, in ``[0, 1]``.
        max_availability: Highest probability of a day.

    Raises:
        ValueError: If a setting is out of range.

    Examples:
        >>> awake = Diurnal(24, min_availability=0.1, max_availability=0.9)
    """

    period: int = setting(checks.positive_int)
    _: KW_ONLY
    min_availability: Number = setting(checks.probability, default=0.0)
    max_availability: Number = setting(checks.probability, default=1.0)

    def available(self, key, round, num_clients):
        phases = jnp.arange(num_clients, dtype=jnp.float32) / num_clients
        angle = 2 * jnp.pi * ((round % self.period).astype(jnp.float32) / self.period + phases)
        amplitude = self.max_availability - self.min_availability
        probability = self.min_availability + amplitude * (1 + jnp.sin(angle)) / 2
        return jax.random.uniform(key, (num_clients,)) < probability
