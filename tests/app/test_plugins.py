"""Plugins: files and installed packages."""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedjax_fair import results
from fedjax_fair.app.commands.common import resumable
from fedjax_fair.app.run_folder import RunFolder
from fedjax_fair.app.settings import plugins, registry
from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.constructors import Wrapping, settings_of
from fedjax_fair.app.settings.method import Method
from fedjax_fair.app.settings.presets import resolve

LARGEST = '''
"""The clients with the most examples."""

from __future__ import annotations

import helper
import jax
import jax.numpy as jnp

from fedjax_fair.app.settings.method import Method
from fedjax_fair.roles import Cohort, Number, Selector


class Largest(Selector):
    """Selects the clients with the most examples.

    Args:
        cohort_size: Clients per round.
        noise: Noise on their number.
    """

    cohort_size: int
    noise: Number = 0.0

    def select(self, key, state, context):
        size = self.cohort_size
        noise = self.noise * jax.random.normal(key, context.sizes.shape)
        chosen = jax.lax.top_k(context.sizes + noise, size)[1].astype(jnp.int32)
        return Cohort(chosen, jnp.full(size, helper.ONE / size)), state, {}


METHODS = {"largest": Method("The clients with the most examples", selector=Largest)}
'''

# Several commands in one process, as it takes longest to start.
PROGRAM = """
import sys
from fedjax_fair.app.cli import main
for line in sys.stdin.read().splitlines():
    try:
        print("status", main(line.split("|")), flush=True)
    except SystemExit as end:  # After help.
        print("status", end.code or 0, flush=True)
"""


@pytest.fixture
def folder(tmp_path):
    """Makes a plugin that imports a module, and an installed package."""
    (tmp_path / "my_methods.py").write_text(LARGEST)
    (tmp_path / "helper.py").write_text("ONE = 1.0\n")
    site = tmp_path / "site"
    installed = site / "their_package-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1\n")
    (installed / "entry_points.txt").write_text(
        "[fedjax_fair.methods]\ntheir_turn = their_package:turn\n"
    )
    (site / "their_package.py").write_text(
        "from fedjax_fair import selectors\n"
        "from fedjax_fair.app.settings.method import Method\n"
        'turn = Method("In turn", selector=selectors.RoundRobin, weighting="uniform")\n'
    )
    return tmp_path


def commands(folder: Path, *lines: list[str]) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder / "site"), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input="\n".join("|".join(line) for line in lines),
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "COLUMNS": "200"},
        check=False,
    )


def test_methods_of_plugins_are_methods_like_others(folder):
    small = [
        "--data.clients=12",
        "--model.name=logistic",
        "--solver.steps=1",
        "--training.rounds=1",
    ]
    chosen = ["--plugin", "my_methods.py", *small, "--training.seeds=0"]
    run = ["run", *chosen, "--methods", "largest:noise=2.5", "their_turn", "--dry-run"]
    sweep = ["sweep", "noise=0,1", *chosen, "--methods=largest", "--output=swept", "--quiet"]
    listed = ["methods", "--plugin=my_methods.py"]
    done = commands(folder, listed, ["run", "--help"], run, sweep)
    assert done.stdout.count("status 0") == 4, done.stderr
    assert "The clients with the most examples" in done.stdout
    assert "their_turn" in done.stdout
    # Among the options of `run`.
    assert "Noise on their number (largest). (default: 0.0)" in done.stdout
    assert "2 runs, 6 compilations" in done.stdout
    (swept,) = map(results.open, (folder / "swept").iterdir())
    assert swept["noise"].values.tolist() == [0.0, 1.0]
    assert swept["algorithm"].values.tolist() == ["largest"]


MISTAKES = """
import sys

import jax
import jax.numpy as jnp

from fedjax_fair.app.settings.method import Method
from fedjax_fair.roles import Aggregation, Aggregator, Selector
from fedjax_fair.selectors import Uniform


class Raises(Selector):
    cohort_size: int = 3

    def select(self, key, state, context):
        return {}["missing"]


class Exits(Raises):
    def select(self, key, state, context):
        sys.exit(0)


class Forgets(Raises):
    def init(self, context):
        return jnp.zeros(2)

    def select(self, key, state, context):
        return Uniform(3).select(key, (), context)


class Truncates(Aggregator):
    def aggregate(self, state, cohort, results, context):
        weights = jnp.ones_like(cohort.weights) / cohort.weights.size
        update = context.weighted_sum(weights, results.update)
        update = jax.tree.map(lambda leaf: leaf.astype(jnp.int32), update)
        return update, state, Aggregation(weights, {})


class Broken(Raises):
    def __post_init__(self):
        raise LookupError("no setting")


METHODS = {kind.__name__.lower(): Method("x", kind) for kind in (Raises, Exits, Forgets, Broken)}
METHODS["truncates"] = Method("x", aggregator=Truncates)
"""


def test_a_mistake_of_a_plugin_is_one_line_with_role_and_line(tmp_path):
    (tmp_path / "wrong_methods.py").write_text(MISTAKES)
    (tmp_path / "ends.py").write_text("raise SystemExit(0)")
    chosen = ["--plugin=wrong_methods.py", "--data.clients=12", "--model.name=logistic", "--quiet"]
    names = ("raises", "exits", "forgets", "truncates", "broken")
    lines = [["run", *chosen, "--solver.steps=1", "--methods", name] for name in names]
    done = commands(tmp_path, ["methods", "--plugin=ends.py"], *lines)
    assert done.stdout.count("status 2") == 6
    hint = r" \(--traceback prints the calls\)"
    line = r"line \d+ of wrong_methods\.py"
    expected = [
        rf"plugin='ends\.py', line 1 of ends\.py: SystemExit: 0{hint}",
        rf"selector wrong_methods\.Raises\.select, {line}: KeyError: 'missing'{hint}",
        rf"selector wrong_methods\.Exits\.select, {line}: SystemExit: 0{hint}",
        r"selector wrong_methods\.Forgets\.select: state is \(\): expected float32\[2\], as .*",
        r"aggregator wrong_methods\.Truncates\.aggregate: update\.params.* is int32\[10\]: .*",
        rf"Broken\(\.\.\.\), {line}: LookupError: no setting{hint}",
    ]
    for line, message in zip(done.stderr.splitlines(), expected, strict=True):
        assert re.fullmatch(f"fedjax-fair: {message}", line)
    done = commands(tmp_path, [*lines[0], "--traceback"])
    *calls, last = done.stderr.splitlines()
    assert calls[0].startswith("Traceback")
    assert '    return {}["missing"]' in "\n".join(calls)
    assert last.endswith("KeyError: 'missing'")


def test_a_run_folder_does_not_load_plugins(folder):
    config = resolve(Config(methods=("largest",), output=str(folder)))
    made = RunFolder.create(config, "own").path
    done = commands(folder, ["resume", str(made)], ["resume", str(made), "--plugin"])
    assert done.stdout.count("status 2") == 2
    first, second = done.stderr.splitlines()
    assert "method='largest': a method of your own needs --plugin FILE" in first
    assert "--plugin: expected a Python file" in second


def test_a_changed_file_of_a_plugin_is_refused_unless_it_is_allowed(folder):
    small = ["--data.clients=12", "--model.name=logistic", "--solver.steps=1", "--quiet"]
    run = ["run", "--plugin=my_methods.py", *small, "--methods=largest", "--training.rounds=1"]
    done = commands(folder, [*run, "--output=made"])
    assert done.stdout.count("status 0") == 1, done.stderr
    (made,) = (folder / "made").iterdir()
    (folder / "helper.py").write_text("ONE = 2.0\n")
    resume = ["resume", str(made), "--plugin=my_methods.py", "--training.rounds=2", "--quiet"]
    refused = commands(folder, resume)
    (line,) = refused.stderr.splitlines()
    assert re.search(r"file helper\.py=\w+: the checkpoints in .* of a run with \w+\. ", line)
    assert "--allow-changed-code" in line
    allowed = commands(folder, [*resume, "--allow-changed-code"])
    assert "status 0" in allowed.stdout, allowed.stderr


def test_an_interruption_prints_the_plugins_of_the_run(tmp_path, monkeypatch):
    run = RunFolder.create(Config(output=str(tmp_path)), "own")
    monkeypatch.setattr(plugins, "_files", {Path("/my methods.py"): {}})
    with pytest.raises(KeyboardInterrupt) as end, resumable(run):
        raise KeyboardInterrupt
    (note,) = end.value.__notes__
    assert note == f"`fedjax-fair resume {run.path} --plugin '/my methods.py'` continues"


@pytest.fixture
def new(monkeypatch):
    """Simulates a process that has not imported the registry."""
    monkeypatch.delitem(sys.modules, "fedjax_fair.app.settings.registry", raising=False)
    monkeypatch.setattr(plugins, "_files", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


HEAD = """
from fedjax_fair.app.settings.method import Method
from fedjax_fair import selectors
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("METHODS = [1]", "expected METHODS, a dict of methods by name"),
        ("x = 1", "expected METHODS"),
        (
            "METHODS = {}\nnonsense",
            "line 2 of wrong_methods.py: NameError: name 'nonsense' is not defined",
        ),
        ("METHODS = {", "line 1: SyntaxError"),
        ("import sys\nsys.exit(0)", "line 2 of wrong_methods.py: SystemExit: 0"),
        (
            "from collections import UserDict\nclass Lazy(UserDict):\n"
            "    def __getitem__(self, name):\n        return 1 / 0\nMETHODS = Lazy(a=1)",
            "line 4 of wrong_methods.py: ZeroDivisionError",
        ),
        (
            "class Plain: ...\nMETHODS = {'a': Method('x', selector=Plain)}",
            "a.selector=Plain: expected a class derived from Selector",
        ),
        (
            "def own(power: 'Missing' = 1): ...\nMETHODS = {'a': Method('x', selector=own)}",
            "a.selector: NameError: name 'Missing' is not defined",
        ),
        ("import not_there", "line 1 of wrong_methods.py: ModuleNotFoundError"),
        ("METHODS = {'a': 1}", "a=1: expected a Method"),
        ("METHODS = {'a+b': Method('x')}", "'a\\+b': expected a name of letters"),
        ("METHODS = {1: Method('x')}", "1: expected a name of letters"),
        (
            "METHODS = {'a': Method('x', selector=selectors.Full())}",
            r"a.selector=Full\(\): expected a class derived from Selector",
        ),
        ("METHODS = {'a': Method('x', solver=selectors.Full)}", "a.solver=Full: expected a class"),
        (
            "def own(cohort_size): ...\nMETHODS = {'a': Method('x', selector=own)}",
            "a.selector: cohort_size: expected an annotation",
        ),
        (
            "def own(power: float): ...\nMETHODS = {'a': Method('x', aggregator=own)}",
            "a.aggregator: power: expected a default",
        ),
        ("METHODS = {'a': Method('x', ranges={'q': 1})}", "a.ranges: q=1: expected a Range"),
        (
            "from fedjax_fair.app.settings.method import Range\n"
            "METHODS = {'a': Method('x', ranges={'q': Range(2.0, 1.0)})}",
            "a.ranges: q=.*: expected 0 < low < high",
        ),
        (
            "from fedjax_fair.app.settings.method import Range\n"
            "METHODS = {'a': Method('x', ranges=dict.fromkeys('pqr', Range(1.0, 2.0)))}",
            "a.ranges has 3 settings: expected at most two",
        ),
    ],
)
def test_errors_of_a_plugin_name_the_file(text, message, tmp_path, new):
    file = tmp_path / "wrong_methods.py"
    file.write_text(HEAD + text if "Method(" in text else text)
    with pytest.raises(ValueError, match=f"plugin=.*wrong_methods.py.*{message}"):
        plugins.load(str(file))
    assert plugins.loaded() == []


DAMPED = """
from fedjax_fair.roles import Number, Solver

class Damped(Solver):
    '''SGD with smaller updates.'''

    solver: Solver
    factor: Number = 0.5

    def solve(self, key, variables, client):
        result = self.solver.solve(key, variables, client)
        return result._replace(update=jax.tree.map(lambda leaf: self.factor * leaf, result.update))

METHODS = {"damped": Method(solver=Damped)}
"""


def test_a_solver_that_wraps_sgd_has_the_settings_of_both(tmp_path, new):
    file = tmp_path / "damped_methods.py"
    file.write_text(f"import jax\n{HEAD}{DAMPED}")
    plugins.load(str(file))
    method = plugins.collect("methods", [])["damped"]
    solver = registry.role_classes(method)["solver"]
    assert {"learning_rate", "prox", "factor"} <= settings_of(solver).keys()
    made = solver(learning_rate=0.1, batch_size=5, steps=2, factor=0.25)
    assert (made.factor, made.solver.steps) == (0.25, 2)


class Documented:
    """What the role does. And more."""


@pytest.mark.parametrize(
    "roles",
    [
        {"solver": Documented},
        {"solver": functools.partial(Documented, power=2.0)},
        {"solver": Wrapping(Documented, Documented, "inner")},
        {"selector": Documented, "solver": None},
        {"server_optimizer": Documented},
    ],
)
def test_a_summary_is_the_first_sentence_of_a_role(roles):
    assert Method(**roles).describe() == "What the role does"
    assert Method("Another summary", **roles).describe() == "Another summary"


def test_a_taken_name_is_rejected(tmp_path, new):
    file = tmp_path / "same_methods.py"
    file.write_text(HEAD + "METHODS = {'fedavg': Method('x')}")
    plugins.load(str(file))
    plugins.load(str(file))  # The same again is no mistake.
    assert plugins.loaded() == [file]
    assert plugins.collect("methods", [])["fedavg"].summary == "x"
    with pytest.raises(ValueError, match="'fedavg': expected a name that no other method has"):
        plugins.collect("methods", ["fedavg"])


@pytest.mark.parametrize("name", ["json.py", "not there.py", "missing.py", "methods.txt"])
def test_a_plugin_is_a_file_with_a_unique_name(name, tmp_path, new):
    if name != "missing.py":
        (tmp_path / name).write_text("METHODS = {}")
    with pytest.raises(ValueError, match=r"plugin=.*expected a"):
        plugins.load(str(tmp_path / name))


def test_a_plugin_that_is_loaded_too_late_is_rejected(tmp_path):
    import fedjax_fair.app.settings.registry  # noqa: F401

    (tmp_path / "late.py").write_text("METHODS = {}")
    with pytest.raises(ValueError, match=r"expected to be loaded before app\.registry is imported"):
        plugins.load(str(tmp_path / "late.py"))


def test_a_package_whose_method_is_broken_is_named(tmp_path, new, monkeypatch):
    broken = plugins.metadata.EntryPoint("theirs", "not_there:method", "fedjax_fair.methods")
    other = plugins.metadata.EntryPoint("theirs", "json:dumps", "fedjax_fair.methods")
    for point, message in ((broken, "ModuleNotFoundError"), (other, "expected a Method")):
        monkeypatch.setattr(plugins.metadata, "entry_points", lambda group, point=point: [point])
        with pytest.raises(ValueError, match=f"entry point 'theirs' = .*{message}"):
            plugins.collect("methods", [])
