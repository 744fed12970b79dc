"""The command ``plan``, for the local machine and others."""

import json
import subprocess
import sys

import pytest

from fedjax_fair.app import dry_run
from fedjax_fair.app.cli import main
from fedjax_fair.app.settings import plugins
from fedjax_fair.planning import machines
from fedjax_fair.planning.plan import Plan

SMALL = [
    "--data.clients=10",
    "--model.name=logistic",
    "--solver.steps=2",
    "--training.rounds=40",
    "--training.eval-every=20",
    "--training.seeds=0,1",
    "--methods=fedavg",
]


pytestmark = pytest.mark.usefixtures("wide_terminal")


def test_a_local_plan_runs_some_rounds(capsys):
    assert main(["plan", "digits", *SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["machine"] == "local"
    (name, own), *others = found["plans"].items()
    assert (name, others, own["runs"], own["rounds"]) == ("fedavg", [], 2, 40)
    seconds = own["seconds"]
    assert seconds["total"] > 40 * seconds["round"] + 3 * seconds["evaluation"] > 0


def test_a_sweep_is_planned_in_batches(capsys):
    words = ["learning_rate=0.1,0.2,0.3", "seeds=0:4", "steps=2,3"]
    options = [option for option in SMALL if "steps" not in option and "seeds" not in option]
    assert main(["plan", "digits", *words, *options]) == 0
    shown = capsys.readouterr().out
    rows = [line.split() for line in shown.splitlines() if line.strip().startswith("fedavg")]
    # Learning rates and seeds share a program, other numbers of steps do not.
    assert [row[:3] for row in rows] == [["fedavg", "steps=2", "12"], ["fedavg", "steps=3", "12"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--machine=v9"], "machine='v9': expected h100, a100, l4"),
        (["--machine=v5e:3x3"], "machine='v5e:3x3': expected a shape as in v5e:1x1"),
        (["--machine=V5E:3x3"], "machine='V5E:3x3': expected a shape as in v5e:1x1"),
        (["--machin=local"], "unknown option --machin: did you mean --machine?"),
        (["--devices=3"], "devices=3"),
        (["--methods=nothing"], "nothing"),
    ],
)
def test_a_mistake_is_one_line(options, message, capsys):
    assert main(["plan", "digits", *SMALL, *options]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_compiler_that_is_missing_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(machines.importlib.util, "find_spec", lambda module: None)
    assert main(["plan", "digits", *SMALL, "--machine=h200"]) == 2
    assert "pip install 'fedjax-fair[cuda12]'" in capsys.readouterr().err


def test_a_plan_without_a_compiler_counts_a_round(capsys):
    found = {}
    for name in ("h100", "l4"):
        assert main(["plan", "digits", *SMALL, "--machine", name, "--json"]) == 0
        found[name] = json.loads(capsys.readouterr().out)
    (h100, l4) = (each["plans"]["fedavg"] for each in found.values())
    assert h100["work"] == l4["work"]
    assert min(h100["work"].values()) > 0
    assert h100["seconds"] is None
    assert h100["memory"] == l4["memory"]
    assert h100["max_parallel_runs"] / l4["max_parallel_runs"] == pytest.approx(80 / 24, rel=0.01)


def test_a_file_adds_a_machine(tmp_path):
    (tmp_path / "my_machines.py").write_text(
        "from fedjax_fair.planning.machines import find\n"
        "MACHINES = {'mine': find('l4')._replace(name='mine', memory=1e9)}"
    )
    code = "from fedjax_fair.app.cli import program; program()"
    words = ["plan", "digits", *SMALL, "--machine=mine", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "--plugin", str(tmp_path / "my_machines.py")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert (found["machine"]["name"], found["machine"]["memory"]) == ("mine", 1e9)
    assert found["plans"]["fedavg"]["work"]["flops"] > 0


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{'a:b': find('l4')}", "'a:b': expected a name of letters"),
        ("{'mine': 3}", "mine=3: expected a planning.machines.Machine"),
        ("{'mine': find('l4')._replace(memory=0)}", "mine: memory=0: expected a number > 0"),
        ("{'h100': find('l4')}", "'h100': expected a name that no other machine has"),
    ],
)
def test_an_invalid_machine_of_a_file_is_an_error(entry, message, tmp_path, monkeypatch):
    file = tmp_path / f"machines_{abs(hash(entry))}.py"
    file.write_text(f"from fedjax_fair.planning.machines import find\nMACHINES = {entry}")
    monkeypatch.setattr(plugins, "_files", {})
    monkeypatch.delitem(sys.modules, "fedjax_fair.app.settings.registry")

    def load():
        plugins.load(str(file))
        plugins.collect("machines", machines.kinds())

    with pytest.raises(ValueError, match=message):
        load()


def test_a_plan_is_formatted():
    memory = {"data": 2_000_000_000, "states": 10**9, "temporaries": 10**9}
    own = Plan(3, 1000, memory, 12, 20.0, records=10**6, work={"flops": 2e9, "bytes": 5e6})
    shown = " ".join(dry_run.format_plan(machines.find("v5e:2x2"), {"fedavg": own}).split())
    for part in (
        "fedavg 3 4.0 GB 12 2 billion 5.0 MB 20.0 s",
        "data 2.0 GB, states 1.0 GB, temporaries 1.0 GB; a device has 16.0 GB",
        "1.0 MB of records",
        "programs for v5e:2x2",
    ):
        assert part in shown
    seconds = {"round": 0.002, "evaluation": 0.0001, "total": 300.0}
    here = dry_run.format_plan(None, {"fedavg": own._replace(seconds=seconds, work=None)})
    assert "fedavg 3 4.0 GB 12 2 ms 100 us 5.0 min 20.0 s" in " ".join(here.split())
