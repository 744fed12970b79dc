"""Clients that are there only some of the time."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_fair import checks
from fedjax_fair.base import Faults, Number

__all__ = ["diurnal", "trace"]


def trace(available: Any) -> Faults:
    """Who can be selected in which round, from a table.

    Args:
        available: Zeros and ones, or booleans, ``[rounds, clients]``; it is repeated when its
            rounds are over.

    Returns:
        ``Faults``.

    Raises:
        ValueError: If it is no such table, or (when a round is traced) of other clients.

    Examples:
        >>> every_other_round = trace([[1, 1, 0], [0, 1, 1]])
    """
    table = np.asarray(available)
    if table.ndim != 2 or table.size == 0 or not np.isin(table, (0, 1)).all():
        raise ValueError(f"available={available!r}: expected zeros and ones, [rounds, clients].")
    table = table.astype(bool)

    def of_round(key, round, num_clients):
        if table.shape[1] != num_clients:
            raise ValueError(f"available: expected {num_clients} clients, got {table.shape[1]}.")
        return jnp.asarray(table)[round % table.shape[0]]

    return Faults(available=of_round)


def diurnal(period: int, *, lowest: Number = 0.0, highest: Number = 1.0) -> Faults:
    """Clients come and go with the time of day, at hours of their own.

    A client is available with a probability that swings between two numbers like a sine, with a
    phase of its own, which is spread evenly over the clients.

    Args:
        period: Rounds of a day.
        lowest: Probability at a client's night, in ``[0, 1]``; may be traced.
        highest: At its noon.

    Returns:
        ``Faults``.

    Raises:
        ValueError: If a number is out of range.

    Examples:
        >>> awake = diurnal(24, lowest=0.1, highest=0.9)
    """
    checks.positive_int("period", period)
    checks.probability("lowest", lowest)
    checks.probability("highest", highest)

    def of_round(key, round, num_clients):
        phases = jnp.arange(num_clients, dtype=jnp.float32) / num_clients
        angle = 2 * jnp.pi * ((round % period).astype(jnp.float32) / period + phases)
        likely = lowest + (highest - lowest) * (1 + jnp.sin(angle)) / 2
        return jax.random.uniform(key, (num_clients,)) < likely

    return Faults(available=of_round)
