"""Invalid inputs, and whether each is answered in one line with the name of the setting or file.

Values of a wrong type for every option of the command line, every setting of a run folder and every
numeric argument of a public constructor; damaged and inconsistent data files. An outcome is

* good: a line (on the command line with status 2) or a ``ValueError`` with the name;
* misleading: a line without the name;
* traceback: another exception;
* accepted: the run would have started;
* hang: no answer within two minutes.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, get_args
from unittest import mock

import numpy as np

from experiments.reliability import factories
from fedjax_fair import data
from fedjax_fair.app import cli, experiment, maximize
from fedjax_fair.app.commands.options import Exemplars, Sweep
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.command_line import options_of
from fedjax_fair.app.settings.config import Config

__all__ = ["Case", "cases", "outcome", "trials"]

_TIMEOUT_S = 120
COMMANDS: dict[str, Any] = {
    "run digits": Config,
    "sweep digits": Sweep,
    "maximize exemplars": Exemplars,
}
# Options with arbitrary text, or with names that other cases cover.
TEXTS = {"--output", "--data.dir", "--methods"}
DAMAGES = 40


class Accepted(BaseException):
    """The run would have started."""


class Case(NamedTuple):
    """A bad input.

    Attributes:
        source: Kind of the input.
        description: The input.
        words: Valid names, one of which must be in the answer.
        call: Returns the error line, or None without an error.
    """

    source: str
    description: str
    words: tuple[str, ...]
    call: Callable[[], str | None]


def trials(count: int, first: int = 0) -> Iterator[dict[str, Any]]:
    """Yields the outcomes of at most ``count`` cases from number ``first`` on."""
    with TemporaryDirectory() as name:
        for number, case in enumerate(cases(Path(name))):
            if first <= number < first + count:
                result = outcome(case)
                yield {
                    "trial": number,
                    "source": case.source,
                    "input": case.description,
                    "outcome": result,
                    "passed": result == "good",
                }


def outcome(case: Case) -> str:
    """Returns the outcome of an input."""

    def give_up(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(_TIMEOUT_S)
    try:
        answer = case.call()
    except Accepted:
        return "accepted"
    except TimeoutError:
        return "hang"
    except ValueError as error:
        answer = str(error)
    except Exception:
        return "traceback"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    if answer is None:
        return "accepted"
    named = (re.search(rf"(?<!\w){re.escape(word)}(?!\w)", answer) for word in case.words)
    return "good" if any(named) else "misleading"


def cases(folder: Path) -> Iterator[Case]:
    """Yields all inputs; files are in a folder."""
    yield from _of_options(folder)
    yield from _of_settings(folder)
    yield from _of_files(folder)
    yield from _of_factories(folder)


def _bad_words(kind: Any) -> tuple[str, ...]:
    """Strings that are no valid values of a type."""
    kinds = set(get_args(kind) or (kind,))
    if kind is tuple[str, ...]:
        return ()
    if str in kinds:
        return ("", "no such thing")
    if float in kinds:
        return ("much", "nan", "inf", "")
    return ("much", "1.5", "nan", "")


def _of_options(folder: Path) -> Iterator[Case]:
    for command, kind in COMMANDS.items():
        for option, own in options_of(kind):
            for word in () if option in TEXTS else _bad_words(own):
                said = [*command.split(), option, word, "--output", str(folder / "runs")]
                if option in ("--data.name", "--data.partition") and not word:
                    continue
                setting = _setting(option)
                names = (option, setting, setting.rpartition(".")[2], *([word] if word else []))
                yield Case(
                    "command line", " ".join(said[:-2]), names, lambda said=said: _line(said)
                )


def _setting(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def _line(arguments: list[str]) -> str | None:
    """The error line of a command, or None without an error."""
    error = io.StringIO()

    def begin(*_: Any, **__: Any) -> None:
        raise Accepted

    with (
        mock.patch.object(experiment, "execute", begin),
        mock.patch.object(maximize, "execute", begin),
        mock.patch.object(sys.modules["fedjax_fair.app.sweep"], "fit", begin),
        contextlib.redirect_stderr(error),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        status = cli.main(arguments)
    lines = error.getvalue().splitlines()
    if status == 0:
        return None
    return lines[0] if status == 2 and len(lines) == 1 else ""


def _of_settings(folder: Path) -> Iterator[Case]:
    """Run folders with a wrong type in their configuration."""
    config = asdict(presets.resolve(presets.PRESETS["digits"].config))
    for number, (option, kind) in enumerate(options_of(Config)):
        *section, name = _setting(option).split(".")
        for bad in ({"a": 1}, ["much", None], float("nan") if kind is float else [[]]):
            changed = json.loads(json.dumps(config))
            (changed[section[0]] if section else changed)[name] = bad
            run = folder / f"folder-{number}"
            said = f"{_setting(option)}={bad!r}"

            def resume(run: Path = run, changed: Any = changed) -> str | None:
                run.mkdir(exist_ok=True)
                (run / "config.json").write_text(json.dumps(changed))
                return _line(["resume", str(run)])

            yield Case("configuration file", said, (name, "config.json"), resume)
    for number, content in enumerate(("", "{", "[]", '{"a": 1}', "\0\1", '{"data": 3}')):
        run = folder / f"content-{number}"

        def resume_content(run: Path = run, content: str = content) -> str | None:
            run.mkdir(exist_ok=True)
            (run / "config.json").write_text(content)
            return _line(["resume", str(run)])

        yield Case("configuration file", repr(content), ("config.json",), resume_content)
    places = {"nowhere": "nowhere", "nothing": "", "no run": str(folder), "a device": "/dev/null"}
    for said, word in places.items():
        for command in ("show", "resume"):
            yield Case(
                "folder", f"{command} {said}", ("path=", "run="),
                lambda command=command, word=word: _line([command, word]),
            )  # fmt: skip


def _of_files(folder: Path) -> Iterator[Case]:
    """Damaged files of a federated dataset, and inconsistent arrays."""
    rng = np.random.default_rng(0)
    good: dict[str, Any] = {
        "features": rng.normal(size=(20, 3)),
        "labels": rng.integers(0, 2, 20),
        "client": np.arange(20) % 4,
    }
    changes: dict[str, dict[str, Any]] = {
        "no features": {"features": None},
        "no labels": {"labels": None},
        "no clients": {"client": None},
        "few labels": {"labels": good["labels"][:-1]},
        "few clients": {"client": good["client"][1:]},
        "labels of words": {"labels": np.array(["a"] * 20)},
        "features of words": {"features": np.array([["a"] * 3] * 20)},
        "NaN": {"features": np.full((20, 3), np.nan)},
        "negative labels": {"labels": good["labels"] - 1},
        "labels of NaN": {"labels": np.full(20, np.nan)},
        "nothing": {name: value[:0] for name, value in good.items()},
        "one number": {"features": np.float64(1)},
        "objects": {"features": np.array([None] * 20, object)},
    }
    for number, (said, change) in enumerate(changes.items()):
        arrays = {name: value for name, value in (good | change).items() if value is not None}
        path = folder / f"arrays-{number}.npz"
        np.savez(path, **arrays, allow_pickle=True)
        yield Case("data file", said, (*change, path.name), lambda path=path: _read(path))
    np.savez(folder / "good.npz", **good)
    content = (folder / "good.npz").read_bytes()
    for number in range(DAMAGES):
        path = folder / f"damaged-{number}.npz"
        cut = int(rng.integers(0, len(content)))
        path.write_bytes(content[:cut] if number % 2 else rng.bytes(cut))
        said = f"cut at {cut}" if number % 2 else f"{cut} random bytes"
        yield Case("data file", said, (path.name,), lambda path=path: _read(path))


def _of_factories(folder: Path) -> Iterator[Case]:
    """Calls of public functions with one invalid numeric argument."""
    for function, name in factories.TAKES_NUMBERS:
        for said, value in factories.bad_values(function, name):

            def call(function: Any = function, name: str = name, value: Any = value) -> None:
                factories.call_with(function, name, value, folder)

            yield Case("factory", f"{function.__name__}({name}={said})", (name,), call)


def _read(path: Path) -> str | None:
    data.from_npz(os.fspath(path))
    return None
