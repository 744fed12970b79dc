"""Configuration files and dry runs."""

import json
from dataclasses import replace

import jax
import pytest

import fedjax_fair as ff
from fedjax_fair.app.build import build
from fedjax_fair.app.cli import main
from fedjax_fair.app.dry_run import as_toml, num_compilations
from fedjax_fair.app.run_folder import RunFolder
from fedjax_fair.app.settings import config_files
from fedjax_fair.app.settings.config import Config, MaximizeExemplars
from fedjax_fair.app.settings.config_files import load_into
from fedjax_fair.app.settings.names import change as change_setting
from fedjax_fair.app.settings.presets import PRESETS, resolve
from fedjax_fair.app.settings.usage import drop_unused_settings
from fedjax_fair.training import executable_cache

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
    assert "# 1. fedavg   2 runs, 4 compilations\n" in shown  # One is for the last, shorter, chunk.
    assert "# total       4 runs, 8 compilations\n" in shown
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
    config_files.save(MaximizeExemplars(), tmp_path / "other.json")
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
        ("methods = ['fedporx']", "did you mean 'fedprox' or"),
        (
            "methods = ['newest']\n[selector]\nage = 1",
            "method='newest': a method of your own needs",
        ),
        ("methods = ['fedavg']\n[solver]\nprox = -1.0", "prox=-1.0: expected"),
        ("devices = 'runs=2,client=1'", "devices='runs=2,client=1': expected an integer >= 1,"),
        # A setting of another method is not ignored.
        (
            "methods = ['fedavg']\n[selector]\nlam = 1.0",
            "--selector.lam has no effect: fedavg does not use it",
        ),
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


def without(*names):
    """Removes a setting, or a section, of a configuration."""

    def change(config):
        for name in names[:-1]:
            config = config[name]
        del config[names[-1]]

    return change


def with_value(section, name, value):
    def change(config):
        (config[section] if section else config)[name] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("methods"), "methods is missing: expected strings"),
        (without("solver"), "solver is missing: expected settings by name"),
        (without("faults"), "faults is missing: expected settings by name"),
        (without("training", "seeds"), "seeds is missing: expected integers"),
        (without("training", "eval_every"), "training.eval_every is missing: expected an integer"),
        (without("training", "rounds"), "training.rounds is missing: expected an integer or null"),
        (without("solver", "learning_rate"), "solver.learning_rate is missing: expected a number"),
        (
            without("selector", "cohort_size"),
            "selector.cohort_size is missing: expected an",
        ),
        (without("communication", "delta"), "communication.delta is missing: expected a number or"),
        (without("data", "file"), "data.file is missing: expected a string or null"),
        (without("model", "norm"), "model.norm is missing: expected"),
        (
            with_value("selector", "cohort_size", None),
            "selector.cohort_size=None: expected a",
        ),
        (with_value("aggregator", "weights", None), "aggregator.weights=None: expected a value"),
        (without("defaults"), "defaults is missing: expected settings by name"),
        (without("defaults", "solver"), "solver.momentum=None: expected a value; defaults.solver"),
        (with_value("", "defaults", None), "defaults=None: expected settings by name"),
        (with_value("", "defaults", [1]), "defaults=[1]: expected settings by name"),
        (with_value("defaults", "data", None), "defaults.data=None: expected settings by name"),
        (with_value("defaults", "solver", [1]), "defaults.solver=[1]: expected settings by name"),
        (with_value("defaults", "training", "a"), "defaults.training='a': expected settings by"),
        (with_value("defaults", "other", 3), "defaults.other=3: expected settings by name"),
        (with_value("solver", "learning_rate", None), "solver.learning_rate=None: expected a"),
        (with_value("solver", "batch_size", None), "solver.batch_size=None: expected a value"),
        (with_value("solver", "steps", None), "solver.epochs=None: expected a value"),
        (with_value("model", "name", None), "model.name=None: expected a value"),
        (with_value("data", "partition", None), "data.partition=None: expected a value"),
        (with_value("data", "clients", None), "data.clients=None: expected a value"),
        (with_value("data", "name", None), "name=None: expected a string"),
        (with_value("", "output", None), "output=None: expected a string"),
        (with_value("", "data", None), "data=None: expected settings by name"),
        (with_value("", "methods", []), "expected one or more different methods"),
        (with_value("", "methods", ["fedavg", "fedavg:steps=2", "fedavg:steps= 2"]), "different"),
        (with_value("training", "rounds", 10**400), "training.rounds=2**"),
        (with_value("training", "seeds", None), "seeds=None: expected integers"),
        (with_value("solver", "learning_rate", True), "learning_rate=True: expected a number"),
        (with_value("solver", "learning_rate", 1e39), "learning_rate=1e+39: expected a"),
        (with_value("faults", "dropout", 1.0), "faults.dropout=1.0: no client would respond"),
    ],
)
def test_the_configuration_of_a_run_is_complete(change, message, tiny, tmp_path, capsys):
    """What is missing must not silently become a default."""
    config = resolve(replace(load_into(tiny, Config()), output=str(tmp_path / "runs")))
    config = change_setting(config, "selector", "cohort_size", 3)
    config = change_setting(config, "aggregator", "weights", "uniform")
    file = RunFolder.create(config, "tiny").path / "config.json"
    values = json.loads(file.read_text())
    change(values)
    file.write_text(json.dumps(values))
    assert main(["resume", str(file.parent)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert {path.name for path in file.parent.iterdir()} == {"config.json", "env.json"}


def test_no_setting_of_a_run_can_be_dropped(tiny, tmp_path):
    """Also none that was null, although its default is known."""
    config = drop_unused_settings(resolve(load_into(tiny, Config())))
    values = config_files.as_dict(config)
    assert values["solver"]["weight_decay"] is None
    file = tmp_path / "config.json"
    for section in values.keys() - {"defaults"}:
        names = list(values[section]) if isinstance(values[section], dict) else [None]
        for name in names:
            fewer = json.loads(json.dumps(values))
            without(*filter(None, (section, name)))(fewer)
            file.write_text(json.dumps(fewer))
            with pytest.raises(ValueError, match=f"{name or section} is missing: expected"):
                config_files.load(file)


@pytest.mark.parametrize(
    "own", [{"file": "people.npz", "clients": None, "partition": None}, {"unseen_fraction": 0.5}]
)
def test_the_cohort_of_a_run_with_an_unknown_number_of_clients_cannot_be_dropped(
    own, tiny, tmp_path
):
    config = drop_unused_settings(resolve(load_into(tiny, Config())))
    config = replace(config, data=replace(config.data, **own))
    file = tmp_path / "config.json"
    config_files.save(config, file, num_clients=4)
    assert json.loads(file.read_text())["defaults"]["selector"]["cohort_size"] == 4
    assert config_files.load(file) == config
    config_files.save(change_setting(config, "selector", "cohort_size", 3), file, num_clients=4)
    values = json.loads(file.read_text())
    values["selector"]["cohort_size"] = None
    file.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"selector\.cohort_size=None: expected a value"):
        config_files.load(file)


def test_a_setting_is_given_once(tmp_path):
    for text in ('{"methods": ["full"], "methods": []}', '{"solver": {"prox": 1, "prox": 2}}'):
        (tmp_path / "twice.json").write_text(text)
        with pytest.raises(ValueError, match=r"twice\.json'.*: (methods|prox): expected once"):
            load_into(tmp_path / "twice.json", Config())


def test_the_configuration_of_a_maximization_is_complete(tmp_path, capsys):
    file = RunFolder.create(MaximizeExemplars(output=str(tmp_path)), "sets").path / "config.json"
    values = json.loads(file.read_text())
    for name in values.keys() - {"command"}:
        file.write_text(json.dumps({key: value for key, value in values.items() if key != name}))
        assert main(["resume", str(file.parent)]) == 2
        assert f"{name} is missing: expected" in capsys.readouterr().err


@pytest.mark.parametrize(("suffix", "template"), [
    ("json", '{"solver": {"learning_rate": %s}}'), ("toml", "[solver]\nlearning_rate = %s")
])  # fmt: skip
@pytest.mark.parametrize("text", ["1e-400", "0.001e-500", "-1e-400", "1e400", "-1e999"])
def test_numbers_in_a_file_are_not_rounded_to_zero(suffix, template, text, tmp_path, capsys):
    file = tmp_path / f"small.{suffix}"
    file.write_text(template % text)
    assert main(["run", f"--config={file}", f"--output={tmp_path / 'new'}"]) == 2
    assert f"{text} is beyond the range of numbers" in capsys.readouterr().err
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
    costs = shown.partition("# 1. ")[2].splitlines()
    lines = [line.split(maxsplit=3)[2:] for line in (f"# 1. {costs[0]}", *costs[1:])]
    assert "MB of data; subtrunc needs" in shown
    assert [" ".join(line) for line in lines[:5]] == [
        "fedavg 2 runs, 4 compilations; steps=1",
        "subtrunc 6 runs, 4 compilations; steps=1; lam=0.0,0.5,1.0",
        "fedavg 2 runs, 4 compilations; steps=2",
        "subtrunc 6 runs, 4 compilations; steps=2; lam=0.0,0.5,1.0",
        "16 runs, 16 compilations",
    ]
    assert "# lam" not in shown  # It has no single value.
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
    executable_cache.clear()
    compiled, compile_one = [], jax.stages.Lowered.compile

    def counted(*arguments, **options):
        compiled.append(arguments)
        return compile_one(*arguments, **options)

    monkeypatch.setattr(jax.stages.Lowered, "compile", counted)
    ff.fit(
        experiment.rounds["fedavg"], experiment.data, rounds=rounds, eval_every=chunk, seeds=(0,)
    )
    assert len(compiled) == num_compilations(config)
