"""Defaults that a run uses: where they appear, and that they are those of the constructors."""

import json
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from conftest import with_people

from fedjax_fair import results
from fedjax_fair.app.build import build, method_round
from fedjax_fair.app.cli import main
from fedjax_fair.app.commands.dispatch import CLASSES
from fedjax_fair.app.dry_run import as_toml
from fedjax_fair.app.settings import config_files, presets
from fedjax_fair.app.settings.config import (
    Config,
    DataConfig,
    ModelConfig,
    SolverConfig,
    TimingConfig,
)
from fedjax_fair.app.settings.defaults import format_settings, unset_defaults
from fedjax_fair.app.settings.named_methods import method_settings
from fedjax_fair.app.settings.names import change
from fedjax_fair.app.settings.registry import GROUPS, METHODS
from fedjax_fair.app.settings.usage import drop_unused_settings

SMALL = [
    "--data.clients=8",
    "--data.partition=dirichlet",
    "--data.min-partition-size=1",
    "--model.name=logistic",
    "--solver.steps=1",
    "--selector.cohort-size=4",
    "--training.rounds=2",
    "--training.seeds=0",
    "--quiet",
]
PRIVATE = [
    "--communication.clipping-norm=1",
    "--communication.noise-multiplier=4",
]


WRAPPED = ("inner", "solver", "staleness")
RENAMED = {"global_learning_rate": "learning_rate", "buffer_weights": "weights"}


def resolved(*methods):
    """A configuration that all methods accept: with groups and local steps."""
    data = DataConfig(partition="planted_clusters", clusters="digits")
    config = Config(methods=methods, data=data, solver=SolverConfig(steps=2))
    if "fedbn" in methods:
        config = replace(config, model=ModelConfig(name="resnet18", norm="batch"))
    if set(methods) & set(GROUPS["adapters"]):
        config = replace(config, model=ModelConfig(lora=2))
    if set(methods) & set(GROUPS["asynchronous"]):
        config = replace(config, timing=TimingConfig(table="synthetic"))
    return drop_unused_settings(presets.resolve(config))


@cache
def people():
    """The data of all configurations, with a sensitive feature."""
    return with_people(build(resolved("fedavg")).data)


def built(config):
    return build(config, people()).rounds


@pytest.mark.parametrize("name", METHODS)
def test_defaults_are_those_of_the_built_roles(name):
    config = resolved(name)
    method = built(config)[name]
    for (section, setting), by_method in unset_defaults(config).items():
        role = getattr(method, section, None)
        if section in ("solver", "selector", "aggregator", "schedule") and role is not None:
            outer, attribute = role, RENAMED.get(setting, setting)
            while not hasattr(outer, attribute):  # Wrappers have the settings of what they wrap.
                outer = next(getattr(outer, each) for each in WRAPPED if hasattr(outer, each))
            assert getattr(outer, attribute) == by_method[name], setting


@pytest.mark.parametrize("name", METHODS)
def test_a_run_with_its_defaults_set_is_the_same(name):
    config = resolved(name)
    explicit = config
    for key, by_method in unset_defaults(config).items():
        explicit = change(explicit, *key, by_method[name])
    assert explicit != config
    assert not [key for key in unset_defaults(explicit) if key[0] == "solver"]
    assert built(explicit) == built(config)


def test_the_default_cohort_has_at_most_all_clients():
    config = resolved("fedavg")
    assert unset_defaults(config, num_clients=6)["selector", "cohort_size"] == {"fedavg": 6}
    assert unset_defaults(config)["selector", "cohort_size"] == {"fedavg": 10}


def test_settings_in_names_are_not_defaults():
    used = unset_defaults(resolved("fedprox:prox=0.1", "fedavg"))
    assert used["solver", "prox"] == {"fedavg": 0.0}


def test_no_help_shows_none_as_a_default(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for command in CLASSES:
        with pytest.raises(SystemExit):
            main([*command.split(), "--help"])
        assert "default: None" not in capsys.readouterr().out, command


def test_help_shows_the_defaults_of_constructors(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    shown = " ".join(re.sub("[│╭╰─]", " ", capsys.readouterr().out).split())
    assert ">= 0 (subtrunc). (default: 0.5)" in shown
    assert "Clients per round (most methods). (default: 10)" in shown
    assert "(most methods). (default: 0.0; 1.0 for fedprox)" in shown


def test_commented_defaults_are_the_values_in_use(tmp_path):
    """A line without its comment mark sets what was used."""
    config = resolved("divfl", "fedavg")
    shown = as_toml(config)
    assert "# weights: num_examples" not in shown  # Both have these weights.
    file = tmp_path / "explicit.toml"
    file.write_text(shown.replace("# ", ""))
    explicit = config_files.load_into(file, Config())
    assert (explicit.selector.cohort_size, explicit.aggregator.weights) == (10, "num_examples")
    assert build(explicit).rounds == build(config).rounds


def test_defaults_appear_in_configuration_table_and_report(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["run", *SMALL, "--methods=tilted", f"--output={tmp_path}"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    (folder,) = tmp_path.iterdir()
    recorded = json.loads((folder / "config.json").read_text())
    assert recorded["defaults"]["data"]["alpha"] == 0.5
    assert recorded["defaults"]["aggregator"] == {"tilt": 1.0, "weights": "num_examples"}
    line = results.open(folder).attrs["settings"]
    for text in (
        "data.alpha=0.5",
        "cohort_size=4",
        "tilt=1",
        "weights=num_examples",
        "batch_size=10",
    ):
        assert text in line.split("; ")
    assert 0 < shown.index(line) < shown.index("Test accuracy")
    assert line in (folder / "report.html").read_text()
    assert '"alpha": 0.5' in (folder / "report.html").read_text().replace("&quot;", '"')


def test_a_recorded_configuration_gives_the_same_run(tmp_path):
    config = replace(resolved("divfl", "fedprox"), output=str(tmp_path))
    file = tmp_path / "config.json"
    config_files.save(config, file)
    assert config_files.load(file) == config
    # Changed methods still have their defaults, and options still override.
    assert main(["run", f"--config={file}", "--methods=fedavg", "--dry-run"]) == 0


def test_edited_defaults_are_refused(tmp_path):
    file = tmp_path / "config.json"
    config_files.save(resolved("fedavg"), file)
    file.write_text(file.read_text().replace('"cohort_size": 10', '"cohort_size": 20'))
    with pytest.raises(ValueError, match=r"cohort_size=20: the default is 10; set selector"):
        config_files.load(file)


def test_unused_settings_are_refused_also_with_their_default(tmp_path, capsys):
    config_files.save(resolved("fedavg"), tmp_path / "config.json")
    words = ["run", f"--config={tmp_path / 'config.json'}", "--selector.lam=0.5", "--dry-run"]
    assert main(words) == 2
    assert "--selector.lam has no effect: fedavg does not use it" in capsys.readouterr().err


def test_varied_settings_have_no_single_value():
    config = resolved("subtrunc")
    assert "lam=0.5" in format_settings(config)
    assert "lam" not in format_settings(config, [("selector", "lam")])


def test_paths_are_not_in_the_text_of_settings():
    config = resolved("fedavg")
    files = {"file": "/private/people.csv", "central_test": "/private/test.csv", "label": "y"}
    shown = format_settings(replace(config, data=replace(config.data, **files)))
    assert "label=y" in shown
    assert "private" not in shown


def test_epsilon_appears_with_every_run_that_clips(tmp_path, capsys, monkeypatch):
    from fedjax_fair import communication, selectors

    monkeypatch.setenv("COLUMNS", "80")
    methods = ["--methods", "fedavg:weights=uniform", "power_of_choice"]
    assert main(["run", *SMALL, *PRIVATE, *methods, f"--output={tmp_path}"]) == 0
    spent = communication.epsilon(
        communication.DifferentialPrivacy(1.0, 4.0),
        selectors.Uniform(4),
        num_clients=8,
        rounds=2,
        delta=1 / 8,
    )
    run = results.open(next(tmp_path.iterdir()))
    np.testing.assert_array_equal(run["epsilon"].values, [spent, np.nan])
    text = run.attrs["privacy"]
    assert "delta = 0.125" in text
    assert f"fedavg:weights=uniform: epsilon = {spent:.3g}" in text
    assert "no guarantee: power_of_choice selects by data" in text
    assert text in " ".join(capsys.readouterr().out.split())
    assert text in next(tmp_path.glob("*/report.html")).read_text()


def test_a_sweep_of_noise_has_an_epsilon_for_each(tmp_path, without_figures):
    chosen = ["--methods=power_of_choice", "--communication.clipping-norm=1"]
    words = ["sweep", "noise_multiplier=2,4", *SMALL, *chosen, "--methods=fedavg:weights=uniform"]
    delta = "--communication.delta=0.01"
    assert main([*words, delta, f"--output={tmp_path / 'swept'}"]) == 0
    (folder,) = (tmp_path / "swept").iterdir()
    swept = results.open(folder)
    weak, strong = swept["epsilon"].squeeze("algorithm").values
    assert weak > strong > 0
    assert (
        f"delta = 0.01: fedavg:weights=uniform: epsilon = {strong:.3g} to {weak:.3g}."
        in (swept.attrs["privacy"])
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--communication.delta=0.1"], "--communication.delta has no effect without"),
        ([*PRIVATE, "--communication.delta=1.5"], "communication.delta=1.5: expected"),
    ],
)
def test_a_delta_that_cannot_be_used_is_refused(words, message, capsys):
    assert main(["run", *SMALL, "--methods=power_of_choice", *words, "--dry-run"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--communication.noise-multiplier=0"], "there is no noise"),
        ([*PRIVATE, "--faults.period=4"], "cohorts depend on the availability of clients"),
        ([*PRIVATE, "--faults.byzantine=0.2", "--faults.attack=noise"], "Byzantine clients do"),
    ],
)
def test_runs_without_a_guarantee_give_the_reason(words, reason, tmp_path, capsys):
    words = ["--communication.clipping-norm=1", *words, "--methods=fedavg:weights=uniform"]
    assert main(["run", *SMALL, *words, f"--output={tmp_path}"]) == 0
    assert f"no guarantee: {reason}" in results.open(next(tmp_path.iterdir())).attrs["privacy"]
    (page,) = tmp_path.glob("*/report.html")
    for text in (" ".join(capsys.readouterr().out.split()), page.read_text()):
        assert ("all clients, Byzantine ones included" in text) == ("Byzantine" in reason)


def test_a_sweep_with_byzantine_clients_says_that_metrics_include_them(
    tmp_path, capsys, without_figures
):
    words = [
        "sweep",
        "faults.byzantine=0.25,0.5",
        *SMALL,
        "--faults.attack=noise",
        "--methods=fedavg",
    ]
    assert main([*words, f"--output={tmp_path}"]) == 0
    assert "all clients, Byzantine ones included" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", ["fedavg:steps=7", "fedprox:prox=0.1,steps=7"])
def test_steps_in_a_name_replace_the_default_epochs(name):
    config = presets.resolve(Config(methods=(name,)))
    assert config.solver.epochs == 5
    solver = method_round(config, name, num_classes=10, largest_client=9).solver
    assert (solver.steps, solver.epochs) == (7, None)
    assert ("solver", "epochs") not in method_settings(config, name)
