"""What a person sees while a run goes on."""

import io
import re
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from rich.console import Console

from fedjax_fair.app import progress
from fedjax_fair.simulate import RoundInfo
from fedjax_fair.training.fit import Evaluation


def evaluation(done, seconds, info=None):
    summaries = {
        "accuracy_mean_clients": np.array([0.5, 0.7]),
        "client_dissimilarity": np.array([0.1, 0.2]),
    }
    clients = SimpleNamespace(train_sizes=np.array([[10, 3], [10, 3]]))
    return Evaluation(done, 10, (0, 1), summaries, clients, seconds, info)  # type: ignore


def rounds(clients, steps):
    nothing = dict.fromkeys(RoundInfo._fields)
    known = {"clients": np.array(clients), "steps": np.array(steps)}
    return RoundInfo(**nothing | known)  # type: ignore


@pytest.mark.parametrize("batch_size", [1, 4, 10, 32])
def test_examples_are_those_of_the_minibatches(batch_size):
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 30, (2, 6))
    clients, steps = rng.integers(-1, 6, (2, 3, 4)), rng.integers(0, 9, (2, 3, 4))
    expected = 0
    for place in np.ndindex(clients.shape):
        if clients[place] < 0:
            continue
        left = own = sizes[place[0], clients[place]]
        for _ in range(steps[place]):
            taken = min(batch_size, left)
            expected += taken
            left = left - taken or own
    assert progress.examples_in(rounds(clients, steps), sizes, batch_size) == expected


def test_a_pipe_gets_a_line_for_each_evaluation():
    file = io.StringIO()
    with progress.show_training(Console(file=file)) as show:
        bar = show("a [b]", 4)
        bar.on_start(10, (0, 1))
        bar.on_compiled(3 * 2**20)
        bar.on_evaluation(evaluation(0, 5.0))
        bar.on_evaluation(evaluation(4, 7.0, rounds([[[0, 1]], [[0, 1]]], [[[3, 1]], [[3, 1]]])))
        bar.on_evaluation(evaluation(10, 10.0))
    quality = "accuracy 60.0 %  dissimilarity 15.0 %"
    assert re.sub(r"in \d+ s", "in 0 s", file.getvalue()).splitlines() == [
        "a [b]: compiling",
        "a [b]: compiled in 0 s, 3 MiB",
        f"a [b]: round 0/10  {quality}",
        # Four rounds in two seconds; 10 and 3 examples of each of two seeds.
        f"a [b]: round 4/10  {quality}  2 rounds/s, 13 examples/s, 0:00:03 left",
        f"a [b]: round 10/10  {quality}  2 rounds/s",
    ]


def on_terminal(width=80):
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)


def text_of(bars):
    console = on_terminal()
    console.print(bars.get_renderable())
    return console.file.getvalue()  # type: ignore


def test_a_terminal_of_eighty_columns_says_what_goes_on():
    bars = progress._Bars(on_terminal())
    bar = progress._Bar(bars, "fedavg", None)
    bar.on_start(10, (0, 1))
    assert "compiling (0 s so far)" in text_of(bars)
    bar.on_compiled(3 * 2**20)
    assert "3 MiB" in text_of(bars)
    bar.on_evaluation(evaluation(2, 1.0))
    bar.on_evaluation(evaluation(5, 4.0))
    shown = text_of(bars)
    for part in ("5/10", "dissimilarity 15.0 %", "1 rounds/s, 0:00:05 left"):
        assert part in shown


def test_names_are_shown_as_they_are():
    bars = progress._Bars(on_terminal(200))
    progress._Bar(bars, "a [/x] \x1b[2J", None).on_start(10, (0,))
    assert "a [/x] \\x1b[2J" in text_of(bars)


def test_a_run_that_was_done_before_shows_its_end():
    bars = progress._Bars(on_terminal())
    bar = progress._Bar(bars, "fedavg", None)
    bar.on_start(10, (0,))
    last = {"accuracy_mean_clients": 0.5, "client_dissimilarity": 0.25}
    bar.on_end(xr.Dataset({k: ("round", [0.0, v]) for k, v in last.items()}, {"round": [0, 10]}))
    assert "10/10" in text_of(bars)
    assert "accuracy 50.0 %  dissimilarity 25.0 %" in text_of(bars)


@pytest.mark.parametrize("console", [on_terminal, lambda: Console(file=io.StringIO())])
def test_quiet_shows_nothing(console):
    console = console()
    with progress.show_training(console, quiet=True) as show:
        bar = show("fedavg", 4)
        bar.on_start(10, (0, 1))
        bar.on_evaluation(evaluation(0, 5.0))
    with progress.show_steps(console, quiet=True) as step:
        step("greedy")
    assert console.file.getvalue() == ""


@pytest.mark.parametrize("console", [on_terminal, lambda: Console(file=io.StringIO())])
def test_steps_of_work_are_named(console):
    console = console()
    with progress.show_steps(console) as step:
        step("gr[e]edy")
    assert "gr[e]edy" in console.file.getvalue()
