"""The command ``contributions``."""

import csv

import numpy as np
import pytest

import fedjax_fair as ff
from fedjax_fair.app.cli import main
from fedjax_fair.app.commands import options
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.request import request
from fedjax_fair.training.compiled_runs import CompiledRuns

SMALL = [
    *("--data.clients=3", "--model.name=logistic", "--solver.steps=2", "--devices=1"),
    *("--training.rounds=2", "--training.seeds=0,4"),
]

pytestmark = pytest.mark.usefixtures("wide_terminal")


def test_it_writes_and_prints_the_contributions_of_every_method(tmp_path, capsys, monkeypatch):
    command = [
        *("contributions", *SMALL, "--methods", "fedavg", "tilted:tilt=5"),
        *("--metric=test_loss_mean_clients", "--runs-per-batch=8", "--output", str(tmp_path)),
    ]
    assert main(command) == 0
    (folder,) = tmp_path.iterdir()
    printed = capsys.readouterr().out
    assert "fedavg: trainings 9 to 16 of 16" in printed
    found = ff.results.open(folder)
    assert dict(found.shapley_value.sizes) == {"algorithm": 2, "seed": 2, "client": 3}
    assert "rounds=2" in found.attrs["settings"]
    gain = found.utility.isel(coalition=-1) - found.utility.isel(coalition=0)
    np.testing.assert_allclose(found.shapley_value.sum("client"), gain, atol=1e-6)
    assert (found.utility.sel(algorithm="fedavg") < 0).all()
    with (folder / "contributions.csv").open() as file:
        rows = list(csv.DictReader(file))
    expected = found.shapley_value.mean("seed").values.ravel()
    np.testing.assert_allclose([float(row["shapley_value"]) for row in rows], expected)
    for row, value in zip(rows, expected, strict=True):
        assert float(row["low"]) < value < float(row["high"])
        assert f"{value:.3f}"[:5] in printed
    assert (folder / "contributions.png").read_bytes().startswith(b"\x89PNG")

    # The same command trains nothing again.
    monkeypatch.setattr(CompiledRuns, "step", None)
    assert main(command) == 0
    assert capsys.readouterr().out.partition("\n\n")[2] == printed.partition("\n\n")[2]
    assert [*tmp_path.iterdir()] == [folder]

    assert main(["show", str(folder)]) == 0
    shown = capsys.readouterr().out.strip()
    assert shown
    assert shown in printed


def test_approximations_are_compared(tmp_path, capsys):
    command = ["contributions", *SMALL, "--approximations", "--output", str(tmp_path)]
    assert main(command) == 0
    (folder,) = tmp_path.iterdir()
    with (folder / "approximations.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 * 2 * 3  # Approximations, seeds and clients.
    found = ff.results.open(folder)
    left_out = [row for row in rows if row["approximation"] == "leave_one_out"]
    np.testing.assert_allclose(
        [float(row["estimate"]) for row in left_out], found.leave_one_out.values.ravel()
    )
    shown = capsys.readouterr().out
    correlation = np.mean([float(row["rank_correlation"]) for row in left_out])
    (line,) = (line for line in shown.splitlines() if line.strip().startswith("leave_one_out"))
    assert f"{correlation:.2f}" in line


def test_methods_and_output_are_those_of_the_command():
    def read(*arguments):
        return request(options.Contributions, list(arguments), varies=False)

    wanted = read("digits")
    assert wanted.config.methods == ("fedavg",)
    assert wanted.options.output == "contributions"
    assert read("digits", "--methods", "tilted").config.methods == ("tilted",)
    of_preset = presets.PRESETS["equitable"].config.methods
    assert read("equitable").config.methods == of_preset


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "data of 50 clients, which need 3,377,699,720,527,872 trainings: expected 2 to 12"),
        ([*SMALL, "--methods=divfl"], "method.selector=DivFL("),
        ([*SMALL, "--methods=centralized"], "method is a Centralized: expected a Round"),
        ([*SMALL, "--methods=tilted", "--approximations"], "expected aggregators.Mean without"),
        (
            [*SMALL, "--training.metrics=macro_f1", "--metric=macro_f1", "--approximations"],
            "metric='macro_f1': expected one of",
        ),
        ([*SMALL, "--metric=speed"], "metric='speed': expected one of"),
        ([*SMALL, "--data.unseen-fraction=0.4"], "data.unseen_fraction=0.4 has no effect on"),
        ([*SMALL, "--training.on-nonfinite=raise"], "training.on_nonfinite='raise' has no effect"),
        ([*SMALL, "--training.eval-every=1"], "training.eval_every=1 has no effect on contrib"),
        ([*SMALL, "--timing.table=synthetic"], "whose coalitions have no virtual time; remove it"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_folder(
    arguments, message, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["contributions", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not list(tmp_path.iterdir())
