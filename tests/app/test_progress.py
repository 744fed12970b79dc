"""Progress displays of runs."""

import io
import re
import time

import numpy as np
import pytest
import xarray as xr
from rich.console import Console

from fedjax_fair.app.terminal import progress
from fedjax_fair.training.loop import Evaluation


def evaluation(done, seconds):
    summaries = {
        "accuracy_mean_clients": np.array([0.5, 0.7]),
        "client_dissimilarity": np.array([0.1, 0.2]),
    }
    return Evaluation(done, 10, (0, 1), summaries, clients=None, seconds=seconds)  # type: ignore


def test_a_pipe_gets_a_line_for_each_evaluation():
    file = io.StringIO()
    with progress.show_training(Console(file=file)) as show:
        bar = show("a [b]")
        bar.on_start(10, (0, 1))
        bar.on_compiled(3 * 2**20)
        bar.on_evaluation(evaluation(0, 5.0))
        bar.on_evaluation(evaluation(4, 7.0))
        bar.on_evaluation(evaluation(10, 10.0))
    quality = "accuracy 60.0%  dissimilarity 15.0%"
    assert re.sub(r"in \d+ s", "in 0 s", file.getvalue()).splitlines() == [
        "a [b]: compiling",
        "a [b]: compiled in 0 s, 3 MiB",
        f"a [b]: round 0/10  {quality}",
        f"a [b]: round 4/10  {quality}  2 rounds/s, 0:00:03 left",
        f"a [b]: round 10/10  {quality}  2 rounds/s",
    ]


def on_terminal(width=80):
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)


def text_of(bars):
    console = on_terminal()
    console.print(bars.get_renderable())
    return console.file.getvalue()  # type: ignore


def test_progress_fits_eighty_columns():
    bars = progress._bars(on_terminal())
    bar = progress._Bar("fedavg", bars)
    bar.on_start(10, (0, 1))
    assert "compiling" in text_of(bars)
    bar.on_compiled(3 * 2**20)
    assert "3 MiB" in text_of(bars)
    bar.on_evaluation(evaluation(2, 1.0))
    bar.on_evaluation(evaluation(5, 4.0))
    shown = text_of(bars)
    for part in ("5/10", "dissimilarity 15.0%", "1 rounds/s, 0:00:05 left"):
        assert part in shown


def test_control_characters_in_names_are_escaped():
    bars = progress._bars(on_terminal(200))
    progress._Bar("a [/x] \x1b[2J", bars).on_start(10, (0,))
    assert "a [/x] \\x1b[2J" in text_of(bars)


def test_a_finished_run_shows_its_results():
    bars = progress._bars(on_terminal())
    bar = progress._Bar("fedavg", bars)
    bar.on_start(10, (0,))
    last = {"accuracy_mean_clients": 0.5, "client_dissimilarity": 0.25}
    bar.on_end(xr.Dataset({k: ("round", [0.0, v]) for k, v in last.items()}, {"round": [0, 10]}))
    assert "10/10" in text_of(bars)
    assert "accuracy 50.0%  dissimilarity 25.0%" in text_of(bars)


@pytest.mark.parametrize("console", [on_terminal, lambda: Console(file=io.StringIO())])
def test_quiet_shows_nothing(console):
    console = console()
    with progress.show_training(console, quiet=True) as show:
        bar = show("fedavg")
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


def test_the_last_line_is_repeated_after_a_silence(monkeypatch):
    monkeypatch.setattr(progress, "_MAX_SILENCE_S", 0.05)
    file = io.StringIO()
    with progress.show_training(Console(file=file)) as show:
        show("fedavg").on_start(10, (0,))
        ends = time.monotonic() + 30
        while file.getvalue().count("\n") < 3 and time.monotonic() < ends:
            time.sleep(0.01)
    first, *repeated = file.getvalue().splitlines()
    assert first == "fedavg: compiling"
    assert len(repeated) >= 2
    assert all(re.fullmatch(rf"{first}  \(0:00:\d\d ago\)", line) for line in repeated)
