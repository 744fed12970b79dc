"""Intervals of time in which clients are online, repeated with a period."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from fedjax_fair.timing.clock import NEVER, Clock
from fedjax_fair.timing.columns import Table, read_number
from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import Tree

__all__ = ["MAX_PERIOD", "Online", "online_from_table"]

MAX_PERIOD = NEVER // 1000
"""Seconds; a time within a period has milliseconds of 32 bits."""


class Online(Tree):
    """Times at which clients are online; made by `from_intervals` or `online_from_table`.

    A client goes online or offline at transitions, in whole seconds of its period. Methods are for
    one client and one time, which may be traced, and have no memory of other calls.

    Attributes:
        offsets: Transitions of client i are those from ``offsets[i]`` up to ``offsets[i + 1]``.
        transitions: Seconds in ``[0, period)``, increasing for each client, even in number.
        online_before: Online seconds of the period before each transition.
        is_online_last: Whether each client is online at the end of its period, as just before its
            start.
        period: Seconds, at most 2,147,483.

    Examples:
        >>> online = Online.from_intervals([[(0, 15), (22, 100)], [(0, 100)]], period=100)
        >>> at_20 = Clock(jnp.int32(120), jnp.int32(0))
        >>> bool(online.is_online(0, at_20)), int(online.wait(0, at_20))
        (False, 2000)
        >>> int(online.work(0, at_20, jnp.int32(5000)))  # Online from 22 to 27.
        7000
    """

    offsets: Int[Array | np.ndarray, " clients_and_one"]
    transitions: Int[Array | np.ndarray, " total"]
    online_before: Int[Array | np.ndarray, " total"]
    is_online_last: Bool[Array | np.ndarray, " clients"]
    period: Int[Array | np.ndarray, " clients"]

    @classmethod
    def from_intervals(
        cls, intervals: Sequence[Sequence[tuple[int, int]]], period: int | Sequence[int]
    ) -> Online:
        """Makes it from the intervals ``[online, offline)`` of each client.

        Args:
            intervals: Whole seconds, in any order; overlapping and touching ones are merged.
            period: Seconds after which the intervals repeat, of all clients or each.

        Raises:
            ValueError: If an interval is empty or exceeds the period, or a client has none.
        """
        rows = [(client, *pair) for client, pairs in enumerate(intervals) for pair in pairs]
        clients, starts, ends = zip(*rows, strict=True) if rows else ((), (), ())
        periods = np.broadcast_to(np.asarray(period), len(intervals))
        columns = {"online": starts, "offline": ends, "period": periods[list(clients)]}
        places = [f"intervals, client {client}" for client in clients]
        table = Table("intervals", {name: list(each) for name, each in columns.items()}, places)
        return _make(table, list(clients), len(intervals))

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return self.period.shape[0]

    def is_online(self, client: Int[Array, ""] | int, clock: Clock) -> Bool[Array, ""]:
        """Returns whether the client is online."""
        seconds = clock.seconds % jnp.asarray(self.period)[client]
        return self._is_online_after(client, self._count(self.transitions, client, seconds))

    def wait(self, client: Int[Array, ""] | int, clock: Clock) -> Int[Array, ""]:
        """Returns the milliseconds until the client is online; 0 if it is."""
        return jnp.where(self.is_online(client, clock), 0, self._until_transition(client, clock))

    def rest(self, client: Int[Array, ""] | int, clock: Clock) -> Int[Array, ""]:
        """Returns the milliseconds until the client is offline, at most ``NEVER``; 0 if it is."""
        return jnp.where(self.is_online(client, clock), self._until_transition(client, clock), 0)

    def work(
        self, client: Int[Array, ""] | int, clock: Clock, duration: Int[Array, ""]
    ) -> Int[Array, ""]:
        """Returns the milliseconds until the client was online for ``duration`` of them.

        Args:
            client: The client.
            clock: Start of the work.
            duration: Milliseconds, >= 1.

        Returns:
            Milliseconds, at most ``NEVER``.
        """
        period = jnp.asarray(self.period)[client]
        seconds, period = clock.seconds % period, 1000 * period
        position = 1000 * seconds + clock.milliseconds
        done = self._online_until(client, self._count(self.transitions, client, seconds), position)
        whole = self._online_until(client, self._num_transitions(client), period)
        # The work ends in the period `periods` later, when `rest` of its time is done, which is
        # positive. Sums might exceed 32 bits, differences do not.
        periods, rest = (duration - 1) // whole, (duration - 1) % whole + 1
        is_later = rest > whole - done
        rest = jnp.where(is_later, rest - (whole - done), done + rest)
        periods = periods + is_later.astype(jnp.int32)
        # At the end, the transitions passed are those with less online time before them.
        count = self._count(self.online_before, client, (rest - 1) // 1000)
        last, before = self._last_transition(client, count)
        end = 1000 * last + (rest - 1000 * before)
        # Unsigned numbers hold the sum of two periods.
        is_next = (periods > 0).astype(jnp.uint32)
        period = period.astype(jnp.uint32)
        part = end.astype(jnp.uint32) + is_next * period - position.astype(jnp.uint32)
        more = periods.astype(jnp.uint32) - is_next
        is_never = (part > NEVER) | (more > (NEVER - jnp.minimum(part, NEVER)) // period)
        return jnp.where(is_never, NEVER, more * period + part).astype(jnp.int32)

    def longest(self) -> np.ndarray:
        """Returns the length of each client's longest interval in seconds, on the host.

        It is infinite for clients that are always online.
        """
        counts = np.diff(self.offsets)
        client = np.repeat(np.arange(self.num_clients), counts)
        place = np.arange(len(client)) - np.asarray(self.offsets)[client]
        is_last = place == counts[client] - 1
        following = np.asarray(self.offsets)[client] + np.where(is_last, 0, place + 1)
        transitions = np.asarray(self.transitions, np.int64)
        lengths = transitions[following] - transitions[: len(client)]
        lengths = lengths + np.where(is_last, np.asarray(self.period)[client], 0)
        is_start = np.asarray(self.is_online_last)[client] ^ (place % 2 == 0)
        longest = np.where(counts == 0, np.inf, 0.0)
        np.maximum.at(longest, client[is_start], lengths[is_start])
        return longest

    def _num_transitions(self, client):
        offsets = jnp.asarray(self.offsets)
        return offsets[client + 1] - offsets[client]

    def _count(self, values, client, limit):
        """Counts the transitions of a client whose values are at most ``limit``."""
        values, offsets = jnp.asarray(values), jnp.asarray(self.offsets)

        def halve(_, bounds):
            low, high = bounds
            middle = (low + high) // 2
            is_counted = (low < high) & (values[middle] <= limit)
            return jnp.where(is_counted, middle + 1, low), jnp.where(is_counted, high, middle)

        start, end = offsets[client], offsets[client + 1]
        steps = len(values).bit_length()
        return jax.lax.fori_loop(0, steps, halve, (start, end))[0] - start

    def _is_online_after(self, client, count):
        return jnp.asarray(self.is_online_last)[client] ^ (count % 2 == 1)

    def _last_transition(self, client, count):
        """Returns the last of some transitions and the online seconds before, or zeros."""
        index = jnp.asarray(self.offsets)[client] + count - 1
        values = jnp.asarray(self.transitions)[index], jnp.asarray(self.online_before)[index]
        return tuple(jnp.where(count > 0, value, 0) for value in values)

    def _online_until(self, client, count, position):
        """Returns the online milliseconds of a period before a position after some transitions."""
        last, before = self._last_transition(client, count)
        since = jnp.where(self._is_online_after(client, count), position - 1000 * last, 0)
        return 1000 * before + since

    def _until_transition(self, client, clock):
        period = jnp.asarray(self.period)[client]
        seconds = clock.seconds % period
        count = self._count(self.transitions, client, seconds)
        total = self._num_transitions(client)
        is_next = count == total
        index = jnp.asarray(self.offsets)[client] + jnp.where(is_next, 0, count)
        following = jnp.asarray(self.transitions)[index] + jnp.where(is_next, period, 0)
        until = 1000 * (following - seconds) - clock.milliseconds
        return jnp.where(total == 0, NEVER, until)


def online_from_table(
    table: Any,
    num_clients: int,
    *,
    period: int | None = None,
    client_names: Sequence[str] | None = None,
) -> Online:
    """Reads intervals ``[online, offline)``, one in each row.

    A trace of FedScale is a pickle of a dictionary with ``active``, ``inactive`` and
    ``finish_time`` of each client, whose intervals are closed. Written as columns it is read by
    this function; ``duration`` and ``model`` are not used.

    Args:
        table: Path of a CSV file, columns by name, or a table of pandas: ``client`` (id or name),
            ``online`` and ``offline`` in whole seconds, and maybe ``period``, equal in all rows of
            a client.
        num_clients: Number of clients.
        period: Seconds after which the intervals repeat, at most 2,147,483, without that column.
        client_names: Names of the clients, as `FederatedData.client_names`.

    Raises:
        ValueError: If a value is invalid, or a client unknown or never online.

    Examples:
        >>> trace = {0: {"active": [1, 3, 6, 9], "inactive": [1, 4, 7, 10], "finish_time": 12}}
        >>> rows = [
        ...     {"client": client, "online": on, "offline": off, "period": entry["finish_time"]}
        ...     for client, entry in trace.items()
        ...     for on, off in zip(entry["active"], entry["inactive"])
        ...     if on < off
        ... ]
        >>> columns = {name: [row[name] for row in rows] for name in rows[0]}
        >>> online = online_from_table(columns, num_clients=1)
        >>> online.transitions.tolist()
        [3, 4, 6, 7, 9, 10]
    """
    checks.positive_int("num_clients", num_clients)
    if period is not None:
        checks.positive_int("period", period, at_most=MAX_PERIOD)
    read = Table.read(table)
    columns = ("client", "online", "offline")
    read.check_columns(columns if period is not None else (*columns, "period"), ())
    clients = read.find_clients(num_clients, client_names)
    if period is not None:
        read.columns["period"] = [period] * len(clients)
    return _make(read, clients, num_clients)


def _make(table: Table, clients: list[int], num_clients: int) -> Online:
    """Makes `Online` from the columns ``online``, ``offline`` and ``period``."""
    starts, ends, each = (_whole_numbers(table, name) for name in ("online", "offline", "period"))
    periods = np.zeros(num_clients, np.int64)
    for place, client, start, end, period in zip(
        table.places, clients, starts, ends, each, strict=True
    ):
        checks.positive_int(f"{place}: period", period, at_most=MAX_PERIOD)
        if periods[client] not in (0, period):
            raise ValueError(
                f"{place}: period={period}: expected {periods[client]}, as in other rows of the "
                "client."
            )
        periods[client] = period
        if not start < end <= period:
            raise ValueError(
                f"{place}: online={start}, offline={end}: expected online < offline <= "
                f"period={period}."
            )
    if not periods.all():
        raise ValueError(
            f"{table.name}: client {np.argmin(periods)} has no interval, so it would never train; "
            "add one, or remove it from the data."
        )
    # The number of intervals that hold a time changes at their ends. At equal times they start
    # before others end, so that intervals that touch are one.
    client = np.tile(np.asarray(clients, np.int64), 2)
    second = np.asarray(starts + ends, np.int64)
    change = np.repeat([1, -1], len(clients))
    order = np.lexsort((-change, second, client))
    client, second, change = client[order], second[order], change[order]
    number = np.cumsum(change)
    is_start, is_end = (change == 1) & (number == 1), (change == -1) & (number == 0)
    # The end of a period is the start of the next one.
    closes, opens = np.zeros((2, num_clients), bool)
    closes[client[is_end & (second == periods[client])]] = True
    opens[client[is_start & (second == 0)]] = True
    second = second % periods[client]
    kept = (is_start | is_end) & ~((closes & opens)[client] & (second == 0))
    client, second = client[kept], second[kept]
    order = np.lexsort((second, client))
    client, second = client[order], second[order]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(client, minlength=num_clients))])
    place = np.arange(len(client)) - offsets[client]
    was_online = closes[client] ^ (place % 2 == 1)
    since = second - np.where(place == 0, 0, np.roll(second, 1))
    total = np.concatenate([[0], np.cumsum(since * was_online)])
    before = total[1:] - total[offsets[client]]
    # Without any transition, indices still need an element.
    padding = np.zeros(0 if len(client) else 1, np.int32)
    return Online(
        offsets.astype(np.int32),
        np.concatenate([second.astype(np.int32), padding]),
        np.concatenate([before.astype(np.int32), padding]),
        closes,
        periods.astype(np.int32),
    )


def _whole_numbers(table: Table, column: str) -> list[int]:
    """Returns a column of integers >= 0, which may be written as decimals."""
    values = []
    for place, cell in zip(table.places, table.columns[column], strict=True):
        value = read_number(cell)
        value = int(value) if isinstance(value, float) and value.is_integer() else value
        checks.non_negative_int(f"{place}: {column}", value, at_most=checks.MAX_INT)
        values.append(value)
    return values
