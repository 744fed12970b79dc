"""Interruptions, which end the work with one line at any time."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
import weakref

import pytest

from fedjax_fair.app import termination
from fedjax_fair.app.termination import interruptible


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
    monkeypatch.setattr(termination, "_TIMEOUT_S", 60)  # Longer than the test waits.
    before = signal.getsignal(signal.SIGINT)  # Ignored, where tests run in the background.
    with pytest.raises(KeyboardInterrupt), interruptible():
        noticed_after(cause)
    assert not shown
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGINT) is before
    assert sys.unraisablehook == shown.append


def test_an_interruption_that_a_library_ignores_is_raised_again(monkeypatch):
    monkeypatch.setattr(termination, "_TIMEOUT_S", 0.1)

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


def test_an_interruption_does_not_wait_for_compilation(tmp_path):
    """The network compiles for longer than the timeout of this test."""
    command = ["run", "--model.name=resnet18", "--methods=fedavg", "--output", str(tmp_path)]
    program = "from fedjax_fair.app.cli import program; program()"
    own = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    with subprocess.Popen(
        [sys.executable, "-c", program, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=own,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "compiling" in line:
                break
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    (folder,) = tmp_path.iterdir()
    assert process.returncode == 130
    assert errors == f"fedjax-fair: interrupted; `fedjax-fair resume {folder}` continues\n"
