"""Configuration files and dry runs."""

from dataclasses import replace

import jax
import pytest

import fedjax_fair as ff
from fedjax_fair.app import settings
from fedjax_fair.app.build import build
from fedjax_fair.app.cli import main
from fedjax_fair.app.config import Config, MaximizeExemplars
from fedjax_fair.app.dry_run import as_toml, num_compilations
from fedjax_fair.app.presets import PRESETS, resolve
from fedjax_fair.app.run_folder import RunFolder
from fedjax_fair.app.settings import load_into
from fedjax_fair.app.variants import drop_unused_settings
from fedjax_fair.training import executables

TINY = """
methods = ["fedavg", "fedprox"]

[data]
clients = 10

[model]
name = "logistic"

[solver]
steps = 1
prox = 0.5

[training]
rounds = 3
eval_every = 2
seeds = [4, 5]
"""


@pytest.fixture
def tiny(tmp_path):
    file = tmp_path / "tiny.toml"
    file.write_text(TINY)
    return file


def dry_run(capsys, *words):
    status = main([*map(str, words), "--dry-run"])
    shown = capsys.readouterr()
    assert status == 0, shown.err
    return shown.out


@pytest.mark.parametrize("name", PRESETS)
def test_a_dry_run_prints_its_configuration(name, tmp_path, capsys):
    """Including settings that differ from the defaults."""
    file = tmp_path / "same.toml"
    config = drop_unused_settings(resolve(PRESETS[name].config))
    file.write_text(as_toml(config))
    assert resolve(load_into(file, Config())) == config
    if name == "groups":
        file.write_text(dry_run(capsys, "run", name, "--solver.prox=0.7"))
        again = resolve(load_into(file, Config()))
        assert again == replace(config, solver=replace(config.solver, prox=0.7))


def test_options_override_a_file_which_overrides_a_preset(tiny, tmp_path, capsys):
    shown = dry_run(capsys, "run", "--config", tiny, "--solver.prox=0.25", f"--output={tmp_path}")
    (tmp_path / "shown.toml").write_text(shown)
    found = load_into(tmp_path / "shown.toml", Config())
    assert (found.solver.prox, found.solver.steps, found.training.seeds) == (0.25, 1, (4, 5))
    assert (found.data.name, found.data.clients, found.solver.epochs) == ("digits", 10, None)
    assert "runs          2 methods x 2 seeds, 3 rounds each" in shown
    assert "compilations  8, 4 per method" in shown  # One is for the last round, a shorter chunk.
    # Settings of the preset remain if the file does not set them.
    tiny.write_text(TINY.replace("steps = 1", "epochs = 1"))
    of_groups = dry_run(capsys, "run", "groups", "--config", tiny, "--data.partition=iid")
    assert "cohort_size = 4\n" in of_groups
    assert "epochs = 1\n" in of_groups
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_groups_of_devices_are_written_as_text(tiny, tmp_path, capsys):
    # Groups of one device have room for a partition of each run, and for pooled examples.
    words = ["--data.partition-per-seed", "--methods", "fedavg", "centralized"]
    without_prox = TINY.replace("prox = 0.5", "")
    tiny.write_text("devices = 'runs=1,clients=1'" + without_prox)
    shown = dry_run(capsys, "run", "--config", tiny, *words, f"--output={tmp_path}")
    assert 'devices = "runs=1,clients=1"\n' in shown
    shown = dry_run(capsys, "run", "--config", tiny, "--devices=1", f"--output={tmp_path}")
    assert "devices = 1\n" in shown


def test_the_configuration_of_a_run_can_be_loaded(tiny, tmp_path):
    config = drop_unused_settings(resolve(load_into(tiny, Config())))
    folder = RunFolder.create(replace(config, output=str(tmp_path)), "tiny")
    again = load_into(folder.path / "config.json", Config())
    assert again == folder.config()
    settings.save(MaximizeExemplars(), tmp_path / "other.json")
    with pytest.raises(ValueError, match=r"expected settings of a run, not of a maximization"):
        load_into(tmp_path / "other.json", Config())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("methods = [", "not a configuration: Invalid value"),
        ("[solver]\nprx = 1.0", "setting='prx': did you mean 'prox'?"),
        ("[solver]\nprox = 'much'", "prox='much': expected a number"),
        ("solver = 3", "solver=3: expected settings by name"),
        ("methods = 'fedavg'", "methods='fedavg': expected strings"),
        ("methods = ['newest']", "method='newest': a method of your own needs --plugin FILE"),
        ("methods = ['fedporx']", "did you mean 'fedprox'?"),
        (
            "methods = ['newest']\n[selector]\nage = 1",
            "setting='age': expected one of",
        ),
        (
            "methods = ['newest']\n[selector]\nage = 1",
            "method='newest': a method of your own needs",
        ),
        ("methods = ['fedavg']\n[solver]\nprox = -1.0", "prox=-1.0: expected"),
        ("devices = 'runs=2,client=1'", "devices='runs=2,client=1': expected an integer >= 1,"),
        # A setting of another method is not ignored.
        ("methods = ['fedavg']\n[selector]\nlam = 1.0", "is not used by methods fedavg"),
    ],
)
@pytest.mark.parametrize("command", ["run", "sweep"])
def test_mistakes_in_a_file_end_in_one_line(command, text, message, tmp_path, capsys):
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    words = [f"--config={file}", f"--output={tmp_path / 'new'}"]
    assert main([command, *words, "--training.rounds=1"]) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert message in complaint
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_a_missing_file_is_named(command, capsys):
    assert main([command, "--config", "not_there.toml"]) == 2
    assert "not_there.toml" in capsys.readouterr().err
    assert main([command, "--config"]) == 2
    assert "--config: expected a string" in capsys.readouterr().err


def test_a_dry_run_of_a_sweep_counts_runs_and_compilations(tiny, tmp_path, capsys):
    """Each number of steps is compiled separately; values of ``lam`` are compiled together."""
    words = ["steps=1,2", "lam=0,0.5,1", "--config", tiny, "--methods", "fedavg", "subtrunc"]
    shown = dry_run(capsys, "sweep", *words, f"--output={tmp_path / 'new'}")
    lines = [line.split(maxsplit=3)[2:] for line in shown.splitlines() if line.startswith("# ")]
    assert [" ".join(line) for line in lines] == [
        "fedavg 2 runs, 4 compilations; steps=1",
        "subtrunc 6 runs, 4 compilations; steps=1; lam=0.0,0.5,1.0",
        "fedavg 2 runs, 4 compilations; steps=2",
        "subtrunc 6 runs, 4 compilations; steps=2; lam=0.0,0.5,1.0",
        "16 runs, 16 compilations",
    ]
    assert "validation_fraction = 0.1" in shown  # A sweep ranks by validation.
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("rounds", "chunk"), [(4, 2), (5, 2), (2, 3)])
def test_the_number_of_compilations_is_predicted(rounds, chunk, tiny, monkeypatch):
    config = resolve(load_into(tiny, Config()))
    training = replace(config.training, rounds=rounds, eval_every=chunk)
    config = replace(config, methods=("fedavg",), training=training)
    config = replace(config, solver=replace(config.solver, prox=None))
    experiment = build(config)
    jax.clear_caches()
    executables.clear()
    compiled, compile_one = [], jax.stages.Lowered.compile

    def counted(*arguments, **options):
        compiled.append(arguments)
        return compile_one(*arguments, **options)

    monkeypatch.setattr(jax.stages.Lowered, "compile", counted)
    ff.fit(
        experiment.rounds["fedavg"], experiment.data, rounds=rounds, eval_every=chunk, seeds=(0,)
    )
    assert len(compiled) == num_compilations(config)
