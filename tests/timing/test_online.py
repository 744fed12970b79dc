"""Availability against a mask for each second, and its mistakes."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_fair import timing
from fedjax_fair.timing.clock import NEVER, Clock

PERIODS = (7, 24)


def clock(milliseconds):
    return Clock(jnp.int32(milliseconds // 1000), jnp.int32(milliseconds % 1000))


@jax.jit
def ask(online, client, clock, duration):
    return (
        online.is_online(client, clock),
        online.wait(client, clock),
        online.rest(client, clock),
        online.work(client, clock, duration),
    )


def brute_force(mask, time, duration):
    """The same from the seconds of a period in which a client is online."""
    mask = np.repeat(mask, 1000)
    period = len(mask)
    future = np.roll(mask, -(time % period))
    is_online = bool(future[0])
    wait = int(np.argmax(future))
    rest = 0 if not is_online else NEVER if mask.all() else int(np.argmin(future))
    periods, left = divmod(duration - 1, int(mask.sum()))
    return is_online, wait, rest, periods * period + int(np.flatnonzero(future)[left]) + 1


@st.composite
def interval_lists(draw, period):
    ends = st.tuples(st.integers(0, period), st.integers(0, period))
    pairs = st.lists(ends.filter(lambda pair: pair[0] != pair[1]).map(sorted), min_size=1)
    return draw(pairs.map(lambda pairs: pairs[:6]))


@settings(max_examples=150, deadline=None)
@given(
    st.tuples(*map(interval_lists, PERIODS)),
    st.integers(0, 3 * 24_000),
    st.integers(1, 60_000),
)
def test_answers_are_those_of_a_mask_for_each_second(intervals, time, duration):
    online = timing.Online.from_intervals(intervals, PERIODS)
    # One program for every number of transitions.
    padding = 64 - len(online.transitions)
    padded = online.replace(
        transitions=np.pad(online.transitions, (0, padding)),
        online_before=np.pad(online.online_before, (0, padding)),
    )
    for client, (pairs, period) in enumerate(zip(intervals, PERIODS, strict=True)):
        mask = np.zeros(period, bool)
        for start, end in pairs:
            mask[start:end] = True
        found = [value.item() for value in ask(padded, client, clock(time), jnp.int32(duration))]
        assert found == [*brute_force(mask, time, duration)]
        runs = "".join("10"[not online] for online in np.tile(mask, 2)).split("0")
        assert online.longest()[client] == (np.inf if mask.all() else max(map(len, runs)))


def test_answers_do_not_depend_on_earlier_ones_in_the_trace_of_the_specification():
    online = timing.Online.from_intervals([[(3, 4), (6, 7), (9, 10)]], period=12)
    times = [9000, 6500, 6000, 5999, 7000, 18_000]
    answers = [bool(online.is_online(0, clock(time))) for time in times]
    assert answers == [True, True, True, False, False, True]
    both = jax.vmap(partial(online.is_online, jnp.int32(0)))(
        Clock(jnp.array([9, 6, 6, 5, 7, 18]), jnp.array([0, 500, 0, 999, 0, 0]))
    )
    assert both.tolist() == answers


def test_long_periods_and_late_times_are_exact():
    longest = NEVER // 1000
    online = timing.Online.from_intervals([[(longest - 1, longest)], [(0, 1)]], longest)
    late = Clock(jnp.int32(2**31 - 1), jnp.int32(999))
    position = 1000 * ((2**31 - 1) % longest) + 999
    assert int(online.wait(0, late)) == 1000 * (longest - 1) - position
    assert int(online.wait(1, late)) == 1000 * longest - position
    assert int(online.work(1, late, jnp.int32(1000))) == 1000 * longest - position + 1000
    # The second 1000 ms end a period after the first, beyond 24.8 days.
    assert int(online.work(1, late, jnp.int32(1001))) == NEVER
    assert int(online.work(1, clock(0), jnp.int32(1000))) == 1000
    always = timing.Online.from_intervals([[(0, longest)]], longest)
    assert int(always.work(0, late, jnp.int32(NEVER - 1))) == NEVER - 1
    assert int(always.rest(0, late)) == NEVER


def test_intervals_come_from_a_file_and_from_columns_in_any_order(tmp_path):
    path = tmp_path / "intervals.csv"
    path.write_text("client,online,offline\nb,50,60\na,20,30\nb,0,50\na,0,20.0\n")
    columns = {"client": [0, 1, 1, 0], "online": [0, 0, 50, 20], "offline": [20, 50, 60, 30]}
    expected = timing.Online.from_intervals([[(0, 30)], [(0, 60)]], period=90)
    read = partial(timing.online_from_table, num_clients=2)
    assert read(path, period=90, client_names=("a", "b")) == expected
    assert read(columns, period=90) == expected
    assert read(columns | {"period": [90] * 4}) == expected
    assert expected.transitions.tolist() == [0, 30, 0, 60]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            "0,50,40",
            "intervals.csv, line 2: online=50, offline=40: expected online < offline <= period=99.",
        ),
        ("0,5,5", "online=5, offline=5: expected online < offline <= period=99."),
        ("0,5,100", "online=5, offline=100: expected online < offline <= period=99."),
        ("0,-1,5", "intervals.csv, line 2: online=-1: expected an integer >= 0."),
        ("0,0.5,5", "online=0.5: expected an integer >= 0."),
        ("0,,5", "online=None: expected an integer >= 0."),
        ("0,0,5\n1,0,9", "intervals.csv: client 2 has no interval, so it would never train; add"),
        ("0,0,5\n3,0,9", "line 3: client '3' is not in the data; its clients are '0', '1', ..."),
        ("0,0", "intervals.csv, line 2: 2 cells; expected 3."),
        ("", "intervals.csv: no rows; expected at least one."),
    ],
)
def test_bad_intervals_are_refused_with_their_line(rows, message, tmp_path):
    path = tmp_path / "intervals.csv"
    path.write_text("client,online,offline\n" + rows)
    with pytest.raises(ValueError, match=re.escape(message)):
        timing.online_from_table(path, 3, period=99)


def test_bad_periods_and_columns_are_refused():
    columns = {"client": [0, 0], "online": [0, 5], "offline": [5, 9]}
    read = partial(timing.online_from_table, num_clients=1)
    with pytest.raises(ValueError, match="period=2147484: expected an integer >= 1 and <= 2147483"):
        read(columns, period=2147484)
    with pytest.raises(ValueError, match="table: no column period; expected client, online"):
        read(columns)
    with pytest.raises(ValueError, match="table, row 1: period=20: expected 10, as in other rows"):
        read(columns | {"period": [10, 20]})
    with pytest.raises(ValueError, match="table: column 'period': expected one of client"):
        read(columns | {"period": [10, 10]}, period=10)
