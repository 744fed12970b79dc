"""Methods of plugins: the example of the documentation enters, and bad ones are refused."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import short_track

from fedjax_fair.benchmark import collected, entry, published, report, run_cells

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[2] / "docs" / "benchmark" / "enter.md"
(EXAMPLE,) = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
HEAD = """
import jax
import jax.numpy as jnp
import fedjax_fair as ff
from fedjax_fair.app.settings.method import Method, Range
"""
AGGREGATOR = '''
class Scaled(ff.Aggregator):
    """A mean that is multiplied by a number."""

    def init(self, context):
        return jnp.ones(())

    def aggregate(self, state, cohort, results, context):
        weights = cohort.renormalize_weights(cohort.weights)
        scale = {scale}
        update = context.weighted_sum(weights, results.update)
        update = jax.tree.map(lambda u: scale * u, update)
        return update, {state}, ff.Aggregation(weights, {{}})


METHODS = {{"{name}": Method(aggregator=Scaled)}}
'''
MEAN_LABEL = "1 + 0.01 * jnp.mean(context.examples.labels.astype(jnp.float32))"
PLUGINS = {
    "my_method.py": EXAMPLE,
    "peeking.py": AGGREGATOR.format(name="peeking", scale=MEAN_LABEL, state="state"),
    "broken.py": AGGREGATOR.format(name="broken", scale="results.updates", state="state"),
    # Finite in the rounds of the checks, and infinite in the fourth round.
    "growing.py": AGGREGATOR.format(name="growing", scale="state", state="1e13 * state"),
    "unknown.py": 'METHODS = {"unknown": Method("-", ranges={"pwer": Range(0.1, 2.0)})}',
    "integers.py": 'METHODS = {"integers": Method("-", selector=ff.selectors.PowerOfChoice, '
    'ranges={"pool": Range(6.0, 9.0)})}',
}
# Each ends its command before methods are registered.
UNLOADED = {
    "missing.py": (None, "plugin='missing.py': expected a Python file."),
    "nothing.py": ("x = 1", "plugin='nothing.py': expected METHODS, a dict of methods by name"),
    "opened.py": ("METHODS = {", "plugin='opened.py', line 1: SyntaxError: '{' was never closed"),
    "steps.py": (
        f"{HEAD}class Two(ff.Solver):\n    steps: int\nMETHODS = {{'two': Method(solver=Two)}}",
        "plugin='steps.py': two.solver: steps: expected a default.",
    ),
    "taken.py": (
        f"{HEAD}METHODS = {{'fedavg': Method(solver=ff.solvers.SGD)}}",
        "'fedavg': expected a name that no other method has.",
    ),
}
COMMANDS = {
    **{name: ["enter", name] for name in PLUGINS if name != "growing.py"},
    "again": ["enter", "my_method.py"],
    "others": ["--methods", "fedavg", "fedprox+size_power", "growing", "fedbn", "--resume"],
    "published": [
        *("enter", "growing.py", "--output", "elsewhere"),
        *("--published", "benchmarks/embedded/report"),
    ],
    "no report": ["enter", "growing.py", "--output", "elsewhere", "--published", "benchmarks"],
    "other file": ["enter", "text.txt"],
    "missing data": [
        *("enter", "my_method.py", "--track", "standard", "--federations", "adult"),
        *("--data.dir", "nowhere"),
    ],
    "unknown track": ["enter", "my_method.py", "--track", "standrad"],
}


@pytest.fixture(scope="module")
def entered(tmp_path_factory):
    """Returns the folder of all commands, and the outcome of each."""
    folder = tmp_path_factory.mktemp("entered")
    for name, text in PLUGINS.items():
        (folder / name).write_text(text if text == EXAMPLE else HEAD + text)
    for name, (text, _) in UNLOADED.items():
        if text is not None:
            (folder / name).write_text(text)
    unloaded = short_track.start(
        folder, unloaded=[["benchmark", "enter", name] for name in UNLOADED]
    )
    commands = [["benchmark", *words] for words in COMMANDS.values()]
    loaded = short_track.start(folder, commands, [*PLUGINS])
    found = [*short_track.finish(unloaded), *short_track.finish(loaded)]
    return folder, dict(zip([*UNLOADED, *COMMANDS], found, strict=True))


def test_the_example_of_the_documentation_enters(entered):
    folder, outcomes = entered
    first, again = outcomes["my_method.py"], outcomes["again"]
    assert (first.status, first.err) == (0, "")
    assert "checking size_power on groups\n" in first.out
    assert re.search(r"\n size_power(?: \(limit\))? +\d\d\.\d ± ", first.out)
    assert "\nsize_power: benchmarks/embedded/entries/size_power.jsonl\n" in first.out
    assert (again.status, again.err) == (0, "")
    assert "checking" not in again.out
    assert "1/1" not in again.out
    benchmark = folder / "benchmarks" / "embedded"
    file = benchmark / "entries" / "size_power.jsonl"
    described = json.loads(file.read_text().splitlines()[0])
    assert described["file"] == "my_method.py"
    assert described["code"]["method.ranges.power.high"] == "2.0"
    found = entry.read(file)
    assert {cell["phase"] for cell in found} == {"range", "tuning", "final"}
    assert {len(cell["settings"]) for cell in found} == {2}


def test_reports_need_no_plugin(entered):
    folder, outcomes = entered
    assert outcomes["others"].status == 0
    found = collected.collect(folder / "benchmarks" / "embedded")
    shown = found.methods.set_index("method")
    assert shown.loc["size_power", "summary"] == "Weights by a power of the number of examples."
    assert shown.loc["size_power", "kind"] == "plugin"
    assert shown.loc["size_power", "command"] == "fedjax-fair benchmark enter my_method.py"
    command = "fedjax-fair benchmark embedded --plugin my_method.py --methods fedprox+size_power"
    assert shown.loc["fedprox+size_power", "command"] == f"{command} --resume"
    assert set(report.contents(found).differences["method"]) >= {"size_power", "growing"}


def test_a_method_is_ranked_among_published_ones(entered):
    folder, outcomes = entered
    assert outcomes["published"].status == 0
    found = published.read(folder / "elsewhere" / "embedded" / "report", "embedded")
    compared = report.contents(found).differences
    compared = compared[(compared["method"] == "growing") & (compared["measure"] == "accuracy")]
    assert np.isfinite(compared["difference"]).all()
    assert len(compared)
    assert {"fedavg", "size_power"} <= set(found.methods["method"])
    programs = folder / "elsewhere" / "embedded" / "programs" / "groups"
    assert [path.name for path in programs.iterdir()] == ["growing"]
    refused = outcomes["no report"]
    assert refused.status == 2
    assert "published='benchmarks': expected the folder of a report" in refused.err
    assert "checking" not in refused.out


def test_a_method_that_cannot_run_is_shown_and_the_others_are_run(entered):
    _, outcomes = entered
    (line,) = (line for line in outcomes["others"].out.splitlines() if line.startswith("Not run"))
    assert line.startswith("Not run: fedbn on groups: ")


def test_diverging_methods_are_shown_with_their_share(entered):
    folder, outcomes = entered
    assert re.search(r"growing(?: \(limit\))?, 100% diverged", outcomes["others"].out)
    found = run_cells.read(folder / "benchmarks" / "embedded" / "cells.jsonl")
    finals = [cell for cell in found if cell["phase"] == "final"]
    assert {cell["method"] for cell in finals if cell["status"] == "diverged"} == {"growing"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, message) for name, (_, message) in UNLOADED.items()),
        ("peeking.py", "peeking: test examples: other labels"),
        ("broken.py", "line 15 of broken.py: AttributeError"),
        ("unknown.py", "setting='pwer': expected one of"),
        ("integers.py", "pool='7.35': expected an integer"),
        ("other file", "file='text.txt': expected a Python file with METHODS"),
        ("missing data", "'adult' is not in nowhere: expected tables/adult.csv.gz"),
        ("unknown track", "track='standrad': expected one of"),
    ],
)
def test_bad_files_are_refused_in_one_line(entered, name, message):
    folder, outcomes = entered
    outcome = outcomes[name]
    assert outcome.status == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    if name in PLUGINS:
        assert not list(folder.glob(f"benchmarks/*/programs/*/{Path(name).stem}"))
