"""Methods of low-rank adapters on the command line."""

import numpy as np
import pytest

import fedjax_fair as ff
from fedjax_fair.app.cli import main
from fedjax_fair.app.settings.registry import GROUPS

SMALL = [
    *("run", "digits", "--quiet", "--devices=1", "--data.clients=10", "--solver.steps=2"),
    *("--training.rounds=2", "--training.seeds=0,1", "--model.name=mlp", "--model.hidden=16"),
]
SIDES = 64 + 16, 16 + 10
"""Sums of the sides of the kernels."""


def test_stored_models_are_those_that_were_evaluated(tmp_path, without_figures):
    """Also the residual of the server, and factors that are no variables."""
    methods = ("fedex_lora", "ffa_lora", "flexlora")
    options = ["--model.lora=4", "--solver.ranks", "1", "4", "--output", str(tmp_path)]
    assert main([*SMALL, *options, "--methods", *methods]) == 0
    (folder,) = tmp_path.iterdir()
    dataset = ff.results.open(folder)
    data = ff.data.load("digits", ff.data.classes_per_client(num_clients=10, classes=3))
    for name in methods:
        fitted = ff.load_model(folder, name)
        again = fitted.evaluate(data)
        expected = dataset.sel(algorithm=name).isel(round=-1)
        np.testing.assert_allclose(again.test_loss, expected.test_loss, rtol=1e-5)
        whole = fitted.variables_for(1, merged=True)
        assert whole.params["head"]["kernel"].shape == (16, 10)
    final = dataset.bytes_up.isel(round=-1)
    assert (final.sel(algorithm="fedex_lora") == 2 * 10 * 4 * 4 * sum(SIDES)).all()
    assert (final.sel(algorithm="flexlora") == 2 * 5 * 4 * (1 + 4) * sum(SIDES)).all()


@pytest.mark.parametrize("name", GROUPS["adapters"])
def test_a_network_without_adapters_is_one_line(name, tmp_path, capsys):
    assert main([*SMALL, "--output", str(tmp_path), "--methods", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"fedjax-fair: {name}: ")
    assert line.endswith("which is --model.lora 4 on the command line.")
