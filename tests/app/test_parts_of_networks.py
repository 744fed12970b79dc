"""Frozen parameters, adapters and given weights on the command line."""

import json
import re
import shutil

import jax
import numpy as np
import pytest

import fedjax_fair as ff
from fedjax_fair.app import experiment
from fedjax_fair.app.build import build
from fedjax_fair.app.cli import main
from fedjax_fair.app.run_groups import groups_of
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.config import Config, ModelConfig
from fedjax_fair.numerics.trees import tree_bytes

pytestmark = pytest.mark.usefixtures("wide_terminal")

SMALL = [
    "--quiet",
    "--devices=1",
    "--data.clients=10",
    "--model.hidden=16",
    "--solver.steps=2",
    "--training.rounds=2",
    "--training.eval-every=1",
]
HEAD = 4 * (16 * 10 + 10)
BODY = 4 * (64 * 16 + 16)
IMAGES = ff.data.load("digits").test.features[:20]


def run(folder, *options):
    assert main(["run", "digits", *SMALL, "--output", str(folder), *options]) == 0
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A run of the whole network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "draw", lambda dataset, folder: None)
        folder = tmp_path_factory.mktemp("base")
        return run(folder, "--methods=fedavg", "--training.seeds=0,1")


def test_only_a_part_is_trained_sent_and_stored(base, tmp_path, capsys):
    weights = f"{base}/fedavg/1"
    options = ("--model.weights", weights, "--model.trainable=head", "--training.seeds=3,4")
    folder = run(tmp_path, "--methods", "fedavg", "ditto", *options)
    printed = capsys.readouterr().out
    assert "fedavg trains 170 and freezes 1,040 (14% trained)" in printed
    assert "fedavg trains 170 and freezes 1,040" in (folder / "report.html").read_text()
    assert main(["show", str(folder)]) == 0
    assert "fedavg trains 170 and freezes 1,040" in capsys.readouterr().out
    dataset = ff.results.open(folder).sel(algorithm="fedavg")
    assert (dataset.bytes_up.isel(round=-1) == 2 * 10 * HEAD).all()
    assert (dataset.trained_parameters == 170).all()
    assert (dataset.frozen_parameters == 1040).all()
    # One file for both methods and both seeds.
    (file,) = (folder / "models").glob("base-*.npz")
    assert BODY + HEAD < file.stat().st_size < BODY + HEAD + 2000
    start = ff.load_model(base, "fedavg", seed=1).variables_for(1)
    fitted = ff.load_model(folder, "fedavg")
    assert tree_bytes(fitted.variables) == 2 * HEAD
    whole = fitted.variables_for(4, merged=True)
    jax.tree.map(np.testing.assert_array_equal, whole.params["body"], start.params["body"])
    assert (whole.params["head"]["kernel"] != start.params["head"]["kernel"]).any()


@pytest.mark.parametrize(
    "options",
    [
        ["--model.trainable=head", "--model.fresh", "--solver.steps=20"],
        ["--model.lora=2", "--model.lora-alpha=4", "--model.trainable=head"],
        ["--model.lora=2", "--model.lora-targets=body"],
    ],
)
def test_stored_models_are_those_that_were_evaluated(options, base, tmp_path, without_figures):
    """They need no file from outside of the run folder."""
    weights = tmp_path / "weights.npz"
    variables = ff.load_model(base, "fedavg").variables_for(0)
    np.savez(weights, **{
        "/".join(key.key for key in path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(variables.params)
    })  # fmt: skip
    folder = run(tmp_path / "runs", "--methods=fedavg", "--model.weights", str(weights), *options)
    weights.unlink()
    fitted = ff.load_model(folder, "fedavg")
    data = ff.data.load("digits", ff.data.classes_per_client(10, classes=3))
    measured = ff.results.open(folder).test_loss.sel(algorithm="fedavg").isel(round=-1)
    np.testing.assert_allclose(fitted.evaluate(data).test_loss, measured, rtol=1e-6)
    # The merged network of another library needs no adapters.
    network, logits = ff.models.mlp(10, hidden=(16,)), fitted.outputs(IMAGES)
    for index, seed in enumerate((0, 1, 2)):
        whole = fitted.variables_for(seed, merged=True)
        plain, _ = network.apply(*whole, IMAGES, train=False, key=None)
        np.testing.assert_allclose(plain, logits[index], rtol=1e-5, atol=1e-5)


def test_a_run_continues_from_the_same_weights_only(base, tmp_path, without_figures, capsys):
    variables = ff.load_model(base, "fedavg").variables_for(0).params
    arrays = {f"{layer}/{name}": leaf for layer, name, leaf in (
        ("head", "kernel", variables["head"]["kernel"]),
        ("head", "bias", variables["head"]["bias"]),
        ("body/Dense_0", "kernel", variables["body"]["Dense_0"]["kernel"]),
        ("body/Dense_0", "bias", variables["body"]["Dense_0"]["bias"]),
    )}  # fmt: skip
    np.savez(tmp_path / "weights.npz", **arrays)
    options = [
        "--methods=fedavg",
        "--model.trainable=head",
        f"--model.weights={tmp_path}/weights.npz",
    ]
    short = run(tmp_path / "short", *options)
    long = run(tmp_path / "long", *options, "--training.rounds=4")
    other = tmp_path / "other"
    shutil.copytree(short, other)
    resume = ["--quiet", "--training.rounds=4"]
    assert main(["resume", str(short), *resume]) == 0
    expected, actual = (ff.load_model(path, "fedavg").variables for path in (long, short))
    jax.tree.map(np.testing.assert_array_equal, actual, expected)
    arrays["body/Dense_0/bias"] = arrays["body/Dense_0/bias"] + 1
    np.savez(tmp_path / "weights.npz", **arrays)
    capsys.readouterr()
    assert main(["resume", str(other), *resume]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "model.base.params.body.Dense_0.bias" in line


def test_a_damaged_or_missing_base_is_named(base, tmp_path, without_figures):
    folder = run(
        tmp_path, "--methods=fedavg", "--model.trainable=head", f"--model.weights={base}/fedavg/0"
    )
    (file,) = (folder / "models").glob("base-*.npz")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=f"{file.name} is damaged"):
        ff.load_model(folder, "fedavg")
    file.unlink()
    with pytest.raises(ValueError, match=f"{file.name} is missing"):
        ff.load_model(folder, "fedavg")


def test_a_sweep_of_ranks_is_one_table(base, tmp_path, capsys, without_figures):
    arguments = [
        "sweep",
        "digits",
        "lora=1,2",
        "--methods=fedavg",
        f"--model.weights={base}/fedavg/0",
    ]
    assert main([*arguments, "--output", str(tmp_path), *SMALL]) == 0
    (folder,) = tmp_path.iterdir()
    dataset = ff.results.open(folder)
    sides = 64 + 16 + 16 + 10
    trained = dataset.trained_parameters.squeeze("algorithm")
    assert trained.sel(lora=1).values.tolist() == [sides] * 3
    assert trained.sel(lora=2).values.tolist() == [2 * sides] * 3
    assert f"fedavg trains {sides} to {2 * sides}" in capsys.readouterr().out


def test_frozen_parameters_are_in_plans(capsys):
    """Random ones without a file of weights."""
    arguments = ["--methods=fedavg", "--model.trainable=head", *SMALL]
    assert main(["run", "digits", "--dry-run", *arguments, "--model.hidden=20000"]) == 0
    assert re.search("# frozen parameters +5.2 MB, once", capsys.readouterr().out)
    arguments.remove("--quiet")
    assert main(["plan", "digits", "--json", *arguments]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["plans"].values()
    assert plan["memory"]["model"] == BODY + HEAD


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--model.trainable haed", "model.trainable='haed' matches no parameter; expected some of"),
        ("--model.trainable (", "model.trainable='(': expected a regular expression"),
        ("--model.lora 11", "model.lora=11: expected at most 10, the smaller side of head/kernel"),
        ("--model.lora 0", "model.lora=0: expected an integer >= 1."),
        ("--model.lora 2 --model.lora-alpha 0", "model.lora_alpha=0.0: expected a number > 0."),
        ("--model.lora 2 --model.lora-targets body/Dense_0/bias", "model.lora_targets: body/"),
        ("--model.lora 2 --model.lora-targets head --model.trainable head", "model: head/kernel "),
        ("--model.lora 2 --model.trainable head --model.fresh", "model.fresh=True: expected no"),
        ("--model.lora-alpha 2", "--model.lora-alpha has no effect without --model.lora; remove"),
        ("--model.lora-targets x", "--model.lora-targets has no effect without --model.lora; rem"),
        ("--model.fresh", "--model.fresh has no effect without --model.trainable; remove it."),
        ("--model.weights-names x", "--model.weights-names has no effect without --model.weights"),
        ("--methods fedavg:lora_alpha=2", "--model.lora-alpha has no effect without --model.lora;"),
        ("--model.weights x.npz", "model.weights='x.npz': expected a .npz or .safetensors file"),
        ("--model.weights BASE", "expected RUN/METHOD/SEED, such as"),
        ("--model.weights BASE/fedprox/0", "method='fedprox': expected one of 'fedavg'"),
        ("--model.weights BASE/fedavg/7", "seed=7: expected one of 0, 1."),
        ("--model.weights BASE/fedavg/0 --model.hidden 5", "model.weights: .params['body']"),
        ("--model.weights BASE/fedavg/0 --model.hidden 5 5", "model.weights: expected .params['bo"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(options, message, base, capsys):
    options = options.replace("BASE", str(base)).split()
    assert main(["run", "digits", *SMALL, "--methods=fedavg", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_network_that_does_not_fit_is_refused():
    """Before it is placed on a device."""
    model = ModelConfig(hidden=(20000,), trainable=("head",))
    config = presets.resolve(Config(methods=("fedavg",), model=model))
    with pytest.raises(ValueError, match="model: the arrays that runs share need"):
        build(config, memory=5.9e6)


def test_methods_and_configurations_share_weights(base):
    model = ModelConfig(weights=f"{base}/fedavg/0", hidden=(16,), trainable=("head",))
    config = presets.resolve(Config(methods=("fedavg", "fedavg:lora=2"), model=model))
    groups = groups_of(config)
    kernels = [
        leaf
        for group in groups
        for round in group.rounds.values()
        for leaf in jax.tree.leaves(round.model)
        if np.shape(leaf) == (64, 16)
    ]
    assert len(kernels) == 2
    assert kernels[0] is kernels[1]


def test_training_everything_is_noted(base):
    weights = f"--model.weights={base}/fedavg/0"
    with pytest.warns(UserWarning, match="all parameters are trained"):
        main(
            [
                "run",
                "digits",
                *SMALL,
                "--methods=fedavg",
                weights,
                "--model.trainable=.*",
                "--dry-run",
            ]
        )
