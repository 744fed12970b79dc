"""Interruptions, which end the work with one line at any time."""

import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from contextlib import nullcontext
from pathlib import Path

import pytest
import xarray as xr

from fedjax_fair.app import cli
from fedjax_fair.app.commands import training
from fedjax_fair.app.terminal import interruptions
from fedjax_fair.app.terminal.interruptions import Terminated, interruptible
from fedjax_fair.app.terminal.termination import Termination
from fedjax_fair.training import checkpoints
from fedjax_fair.training.loop import Callback


@pytest.fixture(autouse=True)
def signals_have_their_defaults():
    """Undoes `nohup` and `&`, under which this process and its children ignore some."""
    defaults = {signal.SIGHUP: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in defaults.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def noticed_after(cause):
    """Calls a function and waits for an interruption."""
    cause()
    time.sleep(5)


def interrupted(*_):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)  # Any call lets Python raise what the signal asks for.


class Finalized:
    def __del__(self):
        interrupted()


class Watched:
    """Class with weak references."""


def finalize():
    weakref.finalize(Watched(), interrupted)


def collect_garbage():
    gc.callbacks.append(interrupted)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(interrupted)


@pytest.mark.parametrize("cause", [Finalized, finalize, collect_garbage])
def test_an_interruption_that_python_ignores_is_raised_again(cause, monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", shown.append)
    monkeypatch.setattr(interruptions, "_TIMEOUT_S", 60)  # Longer than the test waits.
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interruptible():
        noticed_after(cause)
    assert not shown
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGINT) is before
    assert sys.unraisablehook == shown.append


def test_an_interruption_that_a_library_ignores_is_raised_again(monkeypatch):
    monkeypatch.setattr(interruptions, "_TIMEOUT_S", 0.1)

    def library():
        with contextlib.suppress(KeyboardInterrupt):
            interrupted()

    with pytest.raises(KeyboardInterrupt), interruptible():
        noticed_after(library)


def test_other_ignored_errors_are_reported(monkeypatch):
    class Broken:
        def __del__(self):
            raise OSError("a finalizer's own")

    shown = []
    monkeypatch.setattr(sys, "unraisablehook", lambda own: shown.append(str(own.exc_value)))
    with interruptible():
        Broken()
    assert shown == ["a finalizer's own"]


COMMAND = [sys.executable, "-c", "from fedjax_fair.app.cli import program; program()"]

SEND_IN_IMPORT = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["MODULE"]:
            sys.meta_path.remove(self)
            for _ in range(int(os.environ["TIMES"])):
                os.kill(os.getpid(), int(os.environ["NUMBER"]))

signal.signal(signal.SIGINT, signal.default_int_handler)  # Ignored in the background.
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    ("module", "number", "status"),
    [
        ("numpy", signal.SIGINT, 130),
        ("jax", signal.SIGTERM, 143),
        ("jaxlib.mlir.ir", signal.SIGINT, 130),
        ("jax.numpy", signal.SIGHUP, 129),
        ("tyro", signal.SIGINT, 130),
        ("fedjax_fair.app.commands.dispatch", signal.SIGTERM, 143),
        ("fedjax_fair.app.sweep", signal.SIGHUP, 129),
    ],
)
def test_a_signal_during_imports_ends_with_one_line(tmp_path, module, number, status):
    (tmp_path / "sitecustomize.py").write_text(SEND_IN_IMPORT)
    paths = [str(tmp_path), str(Path(__file__).parents[2])]
    ended = subprocess.run(
        [*COMMAND, "run", "digits", "--training.rounds=1", "--output", str(tmp_path / "runs")],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(paths), "MODULE": module}
        | {"NUMBER": str(int(number)), "TIMES": "2"},
    )
    word = "interrupted" if number == signal.SIGINT else "terminated"
    assert (ended.returncode, ended.stderr) == (status, f"fedjax-fair: {word}\n")


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)
def test_an_interruption_in_an_import_waits_for_its_end(tmp_path, monkeypatch, number, raised):
    name = f"interrupting_{number.name}"
    (tmp_path / f"{name}.py").write_text(
        f"import os\nos.kill(os.getpid(), {int(number)})\nfor _ in range(1000): pass\nx = 1"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(raised), interruptible(), Termination(at_once=True):
        noticed_after(lambda: importlib.import_module(name))
    assert sys.modules.pop(name).x == 1


def test_further_interruptions_do_not_interrupt_the_first():
    notes = []

    def interrupted_again():
        try:
            interrupted()
        finally:
            for i in range(5):
                interrupted()
                notes.append(i)

    with pytest.raises(KeyboardInterrupt), interruptible():
        interrupted_again()
    assert notes == [0, 1, 2, 3, 4]


def test_sighup_ends_a_run_like_sigterm():
    with Termination() as end:
        os.kill(os.getpid(), signal.SIGHUP)
        assert end.requested
        with pytest.raises(Terminated) as raised:
            os.kill(os.getpid(), signal.SIGHUP)
    assert raised.value.status == 129


def test_five_interruptions_do_not_wait_for_compilation(tmp_path):
    """The network compiles for longer than the timeout of this test."""
    command = ["run", "--model.name=resnet18", "--methods=fedavg", "--output", str(tmp_path)]
    own = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    with subprocess.Popen(
        [*COMMAND, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=own
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "compiling" in line:
                break
        time.sleep(1)
        for _ in range(5):
            process.send_signal(signal.SIGINT)
            time.sleep(0.02)
        _, errors = process.communicate(timeout=60)
    (folder,) = tmp_path.iterdir()
    assert process.returncode == 130
    command = f"`fedjax-fair resume {folder}` continues fedavg from round 0"
    assert errors == f"fedjax-fair: interrupted; {command}\n"


@pytest.mark.parametrize(
    ("start", "number", "statuses"),
    [
        ("works", signal.SIGINT, {0, 130}),
        ("fails", signal.SIGINT, {2, 130}),
        ("is interrupted", signal.SIGINT, {130}),
        ("is interrupted", signal.SIGALRM, {130}),
        ("is terminated", signal.SIGINT, {143, 130}),
        ("is terminated", signal.SIGTERM, {143}),
    ],
)
def test_a_signal_at_any_time_after_the_work_ends_without_traceback(start, number, statuses):
    """One signal at every call and return of the command's own code, each in a new process."""
    ended = subprocess.run(
        [sys.executable, Path(__file__).with_name("signal_at_each_event.py"), start, number.name],
        capture_output=True,
        text=True,
        check=True,
    )
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(found) > 20
    for event, status, errors in found:
        lines = errors.splitlines()
        assert status in statuses, (event, errors)
        assert all(line.startswith("fedjax-fair: ") for line in lines), (event, errors)
        assert len(lines) <= 1 + (start == "fails"), (event, errors)


def run_program(dispatch, **settings):
    """Runs ``program`` in a process, with lines of code as the command."""
    lines = textwrap.indent(textwrap.dedent(dispatch), "    ")
    code = (
        "import os, signal, sys, time\nfrom fedjax_fair.app import cli\n"
        f"def dispatch(*arguments):\n{lines}\n"
        "cli._prepare = lambda words: (dispatch, words)\ncli.program()"
    )
    buffered = os.environ | {"PYTHONUNBUFFERED": ""}
    return subprocess.run(
        [sys.executable, "-c", code], text=True, check=False, env=buffered, **settings
    )


INTERRUPT = "os.kill(os.getpid(), signal.SIGINT)"


@pytest.mark.parametrize("output", ["stdout", "stderr"])
def test_an_interruption_also_ends_a_pipeline_whose_reader_has_ended(output):
    """Ctrl-C ends all processes of ``fedjax-fair run | tee log``."""
    reader, writer = os.pipe()
    os.close(reader)
    other = "stderr" if output == "stdout" else "stdout"
    pipes = {output: writer, other: subprocess.PIPE}
    ended = run_program(f"print('Run folder: x')\n{INTERRUPT}", **pipes)
    os.close(writer)
    expected = "fedjax-fair: interrupted\n" if other == "stderr" else "Run folder: x\n"
    assert (ended.returncode, getattr(ended, other)) == (130, expected)


def test_a_signal_while_python_ends_has_no_effect():
    late = """
        class Late:
            def __init__(self):
                self.kill, self.arguments = os.kill, (os.getpid(), signal.SIGINT)

            def __del__(self):
                self.kill(*self.arguments)

        sys.modules["late"] = Late()
        print("done")
    """
    ended = run_program(late, capture_output=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


def test_a_command_runs_in_any_thread(monkeypatch):
    def dispatch(*arguments):
        with Termination():
            done.append(True)

    done, statuses = [], []
    monkeypatch.setattr(cli, "_prepare", lambda words: (dispatch, words))
    thread = threading.Thread(target=lambda: statuses.append(cli.main([])))
    thread.start()
    thread.join()
    assert (done, statuses) == ([True], [0])


class Terminating:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)


def test_a_termination_that_python_ignores_is_raised_again():
    with pytest.raises(Terminated), interruptible(), Termination(at_once=True):
        noticed_after(Terminating)


def test_a_timer_of_others_does_not_delay_an_interruption():
    signal.setitimer(signal.ITIMER_REAL, 60)
    try:
        with pytest.raises(KeyboardInterrupt), interruptible():
            noticed_after(interrupted)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def test_a_command_restores_signal_handlers(monkeypatch):
    def dispatch(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)

    numbers = (signal.SIGALRM, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    monkeypatch.setattr(cli, "_prepare", lambda words: (dispatch, words))
    assert cli.main([]) == 130
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize("saves", [False, True])
def test_an_ignored_ctrl_c_stays_ignored(saves):
    """As of ``fedjax-fair run &`` in a script, whose Ctrl-C is for others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interruptible(), Termination(saves=saves) as end:
        end.on_start(4, (0,))
        end.on_compiled(0)
        for _ in range(3):
            interrupted()
        assert not end.requested
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_an_ignored_ctrl_c_does_not_end_a_program():
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Which the program inherits.
    ended = run_program(f"{INTERRUPT}\ntime.sleep(0.1)\nprint('done')", capture_output=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


def test_ctrl_c_waits_for_a_checkpoint_only_while_rounds_run():
    """Compilation takes long and leaves nothing to save; neither does the time after the rounds."""
    for phase in ("start", "rounds", "end"):
        with interruptible(), Termination(saves=True) as end:
            end.on_start(4, (0,))
            if phase != "start":
                end.on_compiled(0)
            if phase == "end":
                end.on_end(xr.Dataset({"round": [0, 4]}))
            if phase == "rounds":
                interrupted()
                assert end.requested
            with pytest.raises(KeyboardInterrupt):
                interrupted()
    with interruptible(), Termination() as end:
        end.on_start(4, (0,))
        end.on_compiled(0)
        with pytest.raises(KeyboardInterrupt):
            interrupted()


def test_a_run_after_ctrl_c_continues_from_the_last_round(
    tmp_path, capsys, monkeypatch, without_figures
):
    """Which both commands name; a checkpoint of every half minute would not have it."""
    monkeypatch.setattr(checkpoints, "SAVE_INTERVAL_S", 1e9)

    class Interrupting(Callback):
        def on_evaluation(self, evaluation):
            if evaluation.round == 6:
                interrupted()

    def shown(quiet):
        return nullcontext(lambda method: Interrupting())

    small = ["--data.clients=4", "--model.name=logistic", "--solver.steps=2"]
    command = ["run", "--methods", "fedavg", "fedprox", *small, "--training.rounds=8"]
    with monkeypatch.context() as patch:
        patch.setattr(
            training, "show_training", lambda quiet: nullcontext(lambda _: Interrupting())
        )
        assert cli.main([*command, "--training.eval-every=2", "--output", str(tmp_path)]) == 130
    (folder,) = tmp_path.iterdir()
    command = f"`fedjax-fair resume {folder}` continues fedavg from round 6"
    assert capsys.readouterr().err == f"fedjax-fair: interrupted; {command}\n"
    assert cli.main(["resume", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "The run continues fedavg from round 6.\n" in printed
    assert "round 2/8" not in printed.partition("fedprox")[0]
    assert cli.main(["resume", str(folder), "--training.rounds=10"]) == 0
    assert "The run continues fedavg from round 8.\n" in capsys.readouterr().out
    assert cli.main(["resume", str(folder)]) == 0
    assert "The run continues" not in capsys.readouterr().out


CLOSE_TERMINAL = """
import os, pty, sys, time

process, terminal = pty.fork()
if process == 0:
    os.execv(sys.executable, sys.argv[1:])
shown = b""
while b"accuracy" not in shown.rpartition(b"compiling")[2]:
    shown += os.read(terminal, 2**16)
os.close(terminal)
_, status = os.waitpid(process, 0)
print(os.waitstatus_to_exitcode(status))
"""


def test_a_closed_terminal_ends_a_run_after_the_checkpoint(tmp_path):
    command = ["run", "digits", "--methods=fedavg", "--training.rounds=100000"]
    command += ["--training.eval-every=10", "--output", str(tmp_path)]
    ended = subprocess.run(
        [sys.executable, "-c", CLOSE_TERMINAL, *COMMAND, *command],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert ended.stdout == "129\n"
    (folder,) = tmp_path.iterdir()
    assert list((folder / "checkpoints" / "fedavg").glob("[0-9]*"))
