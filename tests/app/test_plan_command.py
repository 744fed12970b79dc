"""The command ``plan``, for the local machine and others."""

import json

import pytest

from fedjax_fair.app import plan
from fedjax_fair.app.cli import main
from fedjax_fair.planning import machines
from fedjax_fair.planning.costs import Cost
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


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


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
    assert main(["plan", "digits", *words, *SMALL]) == 0
    shown = capsys.readouterr().out
    rows = [line.split() for line in shown.splitlines() if line.strip().startswith("fedavg")]
    # Learning rates and seeds share a program, other numbers of steps do not.
    assert [row[:3] for row in rows] == [["fedavg", "steps=2", "12"], ["fedavg", "steps=3", "12"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--machine=v9"], "machine='v9': expected v5e:1x1"),
        (["--machine=v5e:3x3"], "machine='v5e:3x3': expected a shape as in v5e:1x1"),
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


def test_a_plan_is_formatted():
    work = Cost(
        cycles=3e6,
        kernels=700,
        flops=2e9,
        fp32_flops=5e8,
        bytes=5e6,
        collectives=2,
        collective_bytes=1e6,
    )
    seconds = {"round": 0.002, "evaluation": 0.0001, "total": 300.0}
    memory = {"data": 2_000_000_000, "states": 10**9, "temporaries": 10**9}
    own = Plan(3, 1000, memory, 12, seconds, 20.0, 10**6, work, unknown_loops=1)
    table, notes = plan.format_plan(machines.find("v5e:2x2"), {"fedavg": own})
    cells = [next(iter(column.cells)) for column in table.columns]
    assert cells == ["fedavg", "3", "4.0 GB", "12", "2 ms", "100 us", "5.0 min", "20.0 s"]
    for said in (
        "data 2.0 GB, states 1.0 GB, temporaries 1.0 GB; a device has 16.0 GB",
        "3,000,000 cycles, 700 kernels, 2 billion operations in products",
        "in products (0.5 billion in full precision), 5.0 MB moved",
        "2 collectives of 1.0 MB",
        "1.0 MB of records",
        "loops of unknown length, 1 in all, count once",
    ):
        assert said in " ".join(notes.split())
