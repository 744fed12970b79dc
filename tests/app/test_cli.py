"""The command line."""

import csv
import io
import itertools
import os
import re
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
import xarray as xr

import fedjax_fair as ff
from fedjax_fair import results
from fedjax_fair.app import build, experiment, overview, presets, registry, settings
from fedjax_fair.app.cli import main
from fedjax_fair.app.commands import training
from fedjax_fair.app.commands.dispatch import COMMANDS
from fedjax_fair.app.config import Config, TrainingConfig
from fedjax_fair.app.console import format_results
from fedjax_fair.app.options import options_of, parse
from fedjax_fair.app.run_folder import locked
from fedjax_fair.app.termination import Terminated
from fedjax_fair.app.values import describe_type
from fedjax_fair.results.comparison_table import comparison_table
from fedjax_fair.results.intervals import format_mean
from fedjax_fair.results.tables import SWEEP_COLUMNS, final_tables

METHODS = ["fedavg", "subtrunc:lam=0.1,b=5"]
SMALL = [
    "--data.clients=10",
    "--model.name=logistic",
    "--solver.steps=2",
    "--training.rounds=4",
    "--training.eval-every=2",
    "--training.seeds",
    "0",
    "1",
    "--methods",
    *METHODS,
]


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def without_figures(monkeypatch):
    monkeypatch.setattr(experiment, "draw", lambda dataset, folder: None)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("cli") / "runs"


@pytest.fixture(scope="module")
def folder(runs):
    assert main(["run", *SMALL, "--output", str(runs)]) == 0
    (path,) = runs.iterdir()
    return path


def test_run_applies_its_options(folder):
    assert folder.name.endswith("-digits")
    dataset = results.open(folder)
    assert dict(dataset["test_accuracy"].sizes) == {
        "algorithm": 2, "seed": 2, "round": 3, "client": 10,
    }  # fmt: skip
    assert set(dataset["cohort_steps"].values.ravel()) == {2}
    assert dataset["algorithm"].values.tolist() == METHODS


def test_show_prints_the_table_of_results(folder, capsys):
    assert main(["show", str(folder)]) == 0
    shown = capsys.readouterr().out
    (table,) = final_tables(results.open(folder))
    settings_line, _, rest = shown.partition("\n\n")
    assert settings_line.startswith("Settings: ")
    assert rest.strip() == format_results(table).strip()
    assert "Definitions: fedjax-fair metrics" in " ".join(shown.split())


def test_show_prints_the_evaluations_of_an_unfinished_run(folder, tmp_path, capsys):
    copy = shutil.copytree(folder, tmp_path / "a copy")
    lines = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copy / "metrics.jsonl").write_text("".join(lines[:-1]) + lines[-1][:-9])
    for has_results in (True, False):  # Of the first method.
        assert main(["show", str(copy)]) == 0
        shown = capsys.readouterr().out
        assert "Evaluations so far" in shown
        assert re.search(rf"{METHODS[0]} +4 of 4 ", shown)
        assert re.search(rf"{METHODS[1]} +2 of 4 ", shown)
        assert shown.endswith(f"Unfinished: `fedjax-fair resume '{copy}'` continues.\n")
        if has_results:
            (copy / "results.nc").unlink()
    with locked(copy):
        assert main(["show", str(copy)]) == 0
    assert capsys.readouterr().out.endswith("continues in another process.\n")
    message = (
        rf"unfinished, after round 4 of '{METHODS[1]}'; `fedjax-fair resume '{copy}'` continues"
    )
    with pytest.raises(ValueError, match=message):
        results.open(copy)
    (copy / "metrics.jsonl").unlink()
    with pytest.raises(ValueError, match=rf"run is unfinished; `fedjax-fair resume '{copy}'`"):
        results.open(copy)
    assert main(["show", str(copy)]) == 2
    assert f"`fedjax-fair resume '{copy}'` continues it" in capsys.readouterr().err
    with pytest.raises(ValueError, match=rf"results\.nc file, such as '{copy}'"):
        results.open(tmp_path)


def test_show_needs_neither_log_nor_configuration_of_a_finished_run(folder, tmp_path, capsys):
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert main(["show", str(copy)]) == 0
    table = capsys.readouterr().out
    for name in ("metrics.jsonl", "config.json"):
        (copy / name).write_text("{")
        assert main(["show", str(copy)]) == 0
        assert capsys.readouterr().out == table


def test_an_unfinished_sweep_says_how_to_continue(tmp_path):
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(ValueError, match="the same `fedjax-fair sweep` command continues it"):
        results.open(tmp_path)


@pytest.mark.parametrize("form", ["terminal", "markdown", "latex", "csv"])
def test_methods_are_compared(form, folder, capsys):
    metrics = ["client_dissimilarity_class_based", "test_loss_mean_clients"]
    baseline = ["--baseline", METHODS[1]]
    command = ["compare", str(folder), "--metrics", *metrics, *baseline, "--format", form]
    assert main(command) == 0
    shown = capsys.readouterr().out
    dataset = results.open(folder)
    dataset = dataset.merge(results.class_based(dataset))
    for metric in metrics:
        compared = results.compare(dataset, metric, METHODS[1])
        if form == "terminal":
            rows = [line.split() for line in shown.splitlines()]
            cell = comparison_table(compared, 1).rows[1][1]
            assert sum(set(cell.split()) <= set(row) for row in rows) == 1
        else:
            _, _, table = results.to_text(compared, form).partition("\n")
            assert table in shown
    heads = {"terminal": " ----", "markdown": "|---|", "latex": "toprule", "csv": "metric,unit"}
    assert shown.count(heads[form]) == (1 if form == "csv" else 2)


def test_runs_are_compared_by_default_metrics(folder, tmp_path, capsys):
    copy = shutil.copytree(folder, tmp_path / "later")
    changed = results.open(folder)
    changed["accuracy_mean_clients"] += 0.01
    results.save(changed, copy / "results.nc")
    assert main(["compare", str(folder), str(copy), "--format", "csv", "--unpaired"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 3 * 4
    assert {row["method"] for row in rows} == {
        f"{name} ({run})" for name in METHODS for run in (folder, copy)
    }
    assert {row["metric"] for row in rows} == {
        "accuracy_mean_clients",
        "accuracy_worst_10pct_class_based",
        "client_dissimilarity_class_based",
    }


@pytest.mark.usefixtures("without_figures")
def test_resuming_a_finished_run_changes_nothing(folder, capsys):
    before = results.open(folder), (folder / "metrics.jsonl").read_text()
    assert main(["resume", str(folder)]) == 0
    assert str(folder) in capsys.readouterr().out
    assert before[0].identical(results.open(folder))
    assert before[1] == (folder / "metrics.jsonl").read_text()


def test_a_run_that_diverges_ends_in_one_line(folder, tmp_path, capsys):
    """It has the compiled functions of the other run."""
    options = ["--methods", "fedavg", "--solver.learning-rate=1e38", "--output", str(tmp_path)]
    assert main(["run", *SMALL, *options, "--quiet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the update of round 0 is not finite" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("rnu", "did you mean 'run'"),
        ("run minst", "did you mean 'mnist'"),
        ("run --solver.learning-rat 1", "did you mean --solver.learning-rate"),
        ("run --solver.learning_rat=1", "did you mean --solver.learning-rate"),
        ("run --completely-different 1", "fedjax-fair run"),
        ("run --methods fedporx", "did you mean 'fedprox'"),
        ("run --methods subtrunc:lamda=1", "did you mean 'lam'"),
        ("run --model.name lenett", "did you mean 'lenet'"),
        ("run --data.partition dirichlt", "did you mean 'dirichlet'"),
        ("run --data.name mnits", "Did you mean 'mnist'?"),
        ("run --data.name MNIST", "Did you mean 'mnist'?"),
        ("run --solver.lr 1", "did you mean --solver.learning-rate?"),
        ("run --rounds 5", "did you mean --training.rounds?"),
        ("run --methods fedavg:lr=1", "did you mean 'learning_rate'?"),
        ("sweep lr=0.1", "did you mean 'learning_rate'?"),
        ("sweep seeds=3:3", "seeds='3:3': expected integers"),
        ("run --training.seeds 0:x", "--training.seeds 0:x: expected integers"),
        ("run --training.seeds 0:3,2", "training.seeds=(0, 1, 2, 2)"),
        ("run --methods fedavg,fedporx:prox=1,steps=2", "method='fedporx': did you mean"),
        (
            "run --methods gifair",
            "such as of planted_clusters (--data.partition planted_clusters)",
        ),
        ("run --data.name mnist --data.dir /nowhere", "/nowhere"),
        ("run --data.classes-per-client 11", "11"),
        ("run --solver.prox much", "--solver.prox"),
        ("run --methods fedprox --solver.prox -1", "prox=-1"),
        ("run --methods fedprox --solver.prox nan", "prox=nan"),
        ("run --solver.prox", "--solver.prox: expected a number."),
        ("run --solver.prox=much --devices 1", "--solver.prox much: expected a number."),
        ("run --solver.batch_size a_b", "--solver.batch-size a_b: expected an integer."),
        ("run --selector.candidates al", "candidates al: expected an integer or 'auto' or 'all'."),
        ("run --selector.scale sam", "--selector.scale sam: expected 'mean' or 'sum'."),
        ("run --model.hidden 5 wide", "--model.hidden 5 wide: expected integers."),
        ("run --distributed maybe", "unexpected argument 'maybe' after --distributed"),
        ("run --faults.dropout nan", "faults.dropout=nan: expected a"),
        ("run --faults.staleness 2 --faults.max-staleness 3", "faults.staleness=2.0: expected"),
        (
            "run --faults.staleness 0.5",
            "faults.staleness=0.5: max_staleness=None: expected a value",
        ),
        (
            "run --faults.byzantine 0.2",
            "faults.byzantine=0.2: attack=None: expected 'sign_flip' or 'scaling' or 'noise' or",
        ),
        ("run --methods median+krum", "two of them set the aggregator;"),
        ("run mnist fedavg", "unexpected argument 'fedavg'; did you mean --methods fedavg?"),
        ("data show mnist", "unexpected argument 'mnist'; did you mean --data.name mnist?"),
        ("data show --data.name mnist --data.dir /nowhere", "(no such folder: /nowhere)"),
        ("data list --data.dir /nowhere", "data.dir='/nowhere': no such folder."),
        ("run digits --data.dir /tmp", "data.dir='/tmp' is not used by data.name='digits'; remove"),
        ("data show --data.dir /tmp", "data.dir='/tmp' is not used by data.name='digits'; remove"),
        ("data info digits --data.dir /tmp", "is not used by digits, which needs no folder;"),
        ("run --config nope.toml", "config='nope.toml': no such file; expected a TOML or JSON"),
        ("run --config /", "config='/': is a folder; expected a TOML or JSON file."),
        ("run --faults.attack alie", "faults.attack='alie' is not used without faults.byzantine;"),
        (
            "run --training.on-nonfinite skip",
            "on-nonfinite skip: expected 'raise' or 'drop_client' or 'skip_round'",
        ),
        ("maximize exemplars --k ten", "--k ten: expected an integer."),
        ("run --training.rounds 1.5", "--training.rounds"),
        ("run --training.rounds -1", "training.rounds=-1"),
        ("run --training.seeds 1 1", "training.seeds"),
        ("run --training.seeds", "training.seeds"),
        ("run --selector.cohort-size 51", "cohort_size=51"),
        ("run --aggregator.weights big", "weights"),
        ("run --devices 1000", "devices=1000"),
        ("run --devices none", "devices='none': expected an integer >= 1, 'auto', 'all' or 'runs="),
        ("run --devices runs=4,client=2", "devices='runs=4,client=2': expected an integer >= 1,"),
        ("run --devices=runs=4", "devices='runs=4': expected an integer >= 1,"),
        ("run --devices runs=0,clients=2", "devices='runs=0,clients=2': expected an integer >= 1,"),
        ("run --devices runs=-1,clients=2", "'runs=-1,clients=2': expected an integer >= 1,"),
        ("run --devices runs=2,clients=2x", "'runs=2,clients=2x': expected an integer >= 1,"),
        ("run --devices runs=1000,clients=2", "'runs=1000,clients=2': expected at most"),
        ("sweep --devices runs=1000,clients=2", "'runs=1000,clients=2': expected at most"),
        (
            "run --devices all --data.partition-per-seed",
            "devices='all': expected 1, 'auto' or 'runs=R,clients=1' with data.partition_per_seed.",
        ),
        ("run --devices all --methods centralized", "'runs=R,clients=1' for centralized."),
        ("run digits mnist", "unexpected argument 'mnist'"),
        ("run --data.alpha 0.1", "data.alpha=0.1 is not used by data.partition="),
        ("run --methods fedavg --selector.lam 3", "selector.lam=3.0 is not used by methods fedavg"),
        (
            "run --model.name logistic --model.hidden 5",
            "model.hidden=(5,) is not used by model.name=",
        ),
        ("run --methods divfl --selector.candidates 0", "candidates=0: expected an integer >= 1"),
        ("run --methods fedavg:alpha=9", "expected one of learning_rate, batch_size, steps"),
        ("run --methods fedavg:rounds=5", "setting='rounds': expected one of learning_rate"),
        ("run --methods divfl:tilt=9", "setting='tilt': expected one of learning_rate"),
        ("run --methods subtrunc:lam=1,lam=2", "expected lam once"),
        ("run --methods fedavg fedavg", "one or more different methods"),
        ("sweep lam=0.1 lam=0.2", "lam: expected once, with values between commas"),
        ("sweep lam=much", "lam='much': expected a number."),
        ("sweep --methods subtrunc lam=much", "lam='much': expected a number."),
        ("sweep --training.rounds 2 lam=much", "lam='much': expected a number."),
        ("sweep candidates=al,2", "candidates='al': expected an integer or 'auto' or 'all'."),
        ("sweep center=maybe", "center='maybe': expected True or False."),
        ("sweep hidden=wide", "hidden='wide': expected integers."),
        ("run --methods subtrunc:scale=sam", "scale='sam': expected 'mean' or 'sum'."),
        ("sweep lam=0.1,0.2 --methods fedavg", "expected a setting that one of fedavg uses"),
        ("show", "show: expected RUN, got nothing"),
        ("show nowhere", "nowhere"),
        ("compare", "compare: expected RUNS, got nothing"),
        ("compare nowhere", "nowhere"),
        ("resume nowhere", "nowhere"),
        ("data", "data list"),
        ("data info mnits", "mnits"),
        (
            "run --communication.aggregation secure --methods divfl",
            "divfl: selector: DivFL needs vectors",
        ),
        (
            "run --communication.aggregation secure --methods krum",
            "krum: aggregator: Krum needs vectors",
        ),
        (
            "run --communication.max-abs-value 4 --methods fedavg",
            "max_abs_value=4.0 is not used without communication.aggregation",
        ),
        (
            "run --communication.aggregation secure --communication.max-abs-value 0",
            "max_abs_value=0.0: expected a number > 0",
        ),
        ("run --communication.top-k 2 --methods fedavg", "top_k=2.0: expected a probability"),
        ("run --communication.bits 40 --methods fedavg", "bits=40: expected an integer"),
        (
            "run --communication.bits 4 --communication.top-k 0.1 --methods fedavg",
            "communication.top_k=0.1 and communication.bits=4: expected one",
        ),
        (
            "run --communication.noise-multiplier 1 --methods fedavg",
            "noise_multiplier=1.0 is not used without communication.clipping_norm or",
        ),
        (
            "run --communication.target-unclipped-quantile 0.5 --methods fedavg",
            "communication.target_unclipped_quantile=0.5: noise_multiplier=None: expected a value",
        ),
        ("run --communication.clipping-norm 1 --methods fedavg", "fedavg: "),
        (
            "run --communication.aggregation secure --communication.bits 4 --methods fedavg",
            "fedavg: compression does not reduce",
        ),
        (
            "run --communication.aggregation secure --methods centralized",
            "communication: expected none with",
        ),
        ("methods fedavg", "fedavg"),
        (
            "run --methods fedavg fedavg:",
            "method='fedavg:': setting='': expected one of learning_rate",
        ),
        ("run --methods fedprox:prox=1 fedprox:solver.prox=1.0", "one or more different methods"),
        ("run --methods divfl+equitable equitable+divfl", "one or more different methods"),
        ("run --solver.learning-rate 1e-400", "--solver.learning-rate 1e-400: 1e-400 is beyond"),
        ("run --solver.learning-rate=1e400", "1e400 is beyond the range of numbers"),
        ("run --methods fedavg:learning_rate=1e-400", "1e-400 is beyond the range of numbers"),
        ("sweep learning_rate=0.1,1e-400", "1e-400 is beyond the range of numbers"),
        ("run --solver.learning-rate 1e39", "learning_rate=1e+39: expected a"),
        ("run --solver.learning-rate 1e-39", "learning_rate=1e-39: expected 0 or a"),
        ("run --faults.dropout 1", "faults.dropout=1.0: no client would respond"),
        (f"run --training.rounds {10**400}", "training.rounds=2**"),
        (f"run --training.rounds {2**31}", "training.rounds=2147483648: expected an integer >= 1"),
        (f"sweep rounds=1,{10**30} --methods fedavg", "training.rounds=2**"),
        (f"run --solver.steps {10**400}", "steps=2**"),
        (f"run --training.eval-every {10**400}", "training.eval_every=2**"),
        ("run --training.seeds 0:20000", "0:20000: expected at most 10,000 integers in a range"),
        ("sweep seeds=5:1000000000000", "expected at most 10,000 integers in a range"),
        ("sweep lam=0.1 selector.lam=0.2", "lam, selector.lam: expected each setting once"),
        ("run --distributed=false", "--distributed=false: expected --distributed without a value"),
        (f"run --model.hidden 5 {10**400}", "hidden=2**"),
        (f"run --faults.staleness 1 --faults.max-staleness {10**400}", "max_staleness=2**"),
        (
            f"run --faults.stragglers 1 --faults.deadline-steps {2**40}",
            "deadline_steps=1099511627776",
        ),
        (f"run --faults.period {-(2**31)}", "period=-2147483648: expected"),
        (f"maximize exemplars --rounds {10**400}", "rounds=2**"),
        ("run --output=", "output='': expected a path"),
        ("run --config=", "config='': expected a path"),
        ("run --data.dir=", "data.dir='': expected a path"),
        (
            "run digits --data.unseen-fraction 1",
            "data.unseen_fraction=1.0: expected a number in [0, 1)",
        ),
        (
            "run digits --data.unseen-fraction 0.995",
            "data.unseen_fraction=0.995 holds out all of 50 clients",
        ),
        (
            "run digits --data.unseen-fraction 0.2 --selector.cohort-size 41",
            "cohort_size=41: expected an integer >= 1 and <= 40",
        ),
        (
            "data show --output partition",
            "output='partition': expected a file such as partition.png",
        ),
    ],
)
def test_a_mistake_ends_in_one_line(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments.split()) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith("fedjax-fair: ")
    assert message in line
    assert not list(tmp_path.iterdir())


def test_types_of_options_are_described_in_plain_words():
    commands = (Config, *COMMANDS.values())
    described = {describe_type(kind) for command in commands for _, kind in options_of(command)}
    assert {"an integer", "a number", "a string", "integers", "strings"} < described
    for text in described:
        unquoted = re.sub(r"'\w+'", "", text)
        assert not re.search(r"Union|Literal|Optional|None|tuple|\[|int\b|str\b", unquoted), text


def test_the_runs_in_a_folder_are_compared(folder, tmp_path, capsys):
    """Equal results are one method; others have a letter of their run."""
    for name in ("a", "b", "c"):
        shutil.copytree(folder, tmp_path / name)
    changed = results.open(folder).isel(algorithm=[0])
    changed["accuracy_mean_clients"] += 0.01
    results.save(changed, tmp_path / "c" / "results.nc")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "config.json").write_text("{}")
    command = ["compare", str(tmp_path), "--metrics", "accuracy_mean_clients"]
    with pytest.warns(UserWarning, match=r": d skipped, unfinished\."):
        assert main([*command, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    first = METHODS[0]
    paths = {name: tmp_path / name for name in ("a", "c")}
    expected = [f"{first} ({paths['a']})", *METHODS[1:], f"{first} ({paths['c']})"]
    assert [row["method"] for row in rows] == expected
    shutil.rmtree(tmp_path / "d")
    assert main([*command, "--format", "markdown", "--baseline", f"{first} (C)"]) == 0
    shown = capsys.readouterr().out
    assert f"A: {paths['a']}; C: {paths['c']}." in shown
    assert f"| {first} (A) |" in shown
    assert main([*command, "--baseline", first]) == 2
    expected = f"baseline='{first}' has several results; expected '{first} (A)' or '{first} (C)'.\n"
    assert capsys.readouterr().err.endswith(expected)


def test_the_configurations_of_a_sweep_are_compared(tmp_path, capsys):
    command = ["sweep", "prox=0,0.1", *SMALL, "--methods=fedprox"]
    assert main([*command, "--output", str(tmp_path)]) == 0
    assert main([*command, "--output", str(tmp_path), "--solver.batch-size=5"]) == 0
    folder, _ = tmp_path.iterdir()  # Other settings have another folder.
    capsys.readouterr()
    assert main(["compare", str(folder), "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["method"] for row in rows} == {"fedprox, prox=0", "fedprox, prox=0.1"}
    dataset = results.open(folder)
    compared = results.compare(dataset, "accuracy_mean_clients")
    finals = dataset["accuracy_mean_clients"].isel(algorithm=0, round=-1).mean("seed")
    assert compared["difference"].item() == pytest.approx(float(finals[1] - finals[0]))


def test_an_interruption_prints_how_to_continue(monkeypatch, capsys, tmp_path):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "execute", interrupt)
    assert main(["run", *SMALL, "--output", str(tmp_path)]) == 130
    (folder,) = tmp_path.iterdir()
    expected = f"fedjax-fair: interrupted; `fedjax-fair resume {folder}` continues\n"
    assert capsys.readouterr().err == expected


def test_sigterm_prints_how_to_continue_a_sweep(monkeypatch, capsys, tmp_path):
    def end(*arguments, **settings):
        raise Terminated

    monkeypatch.setattr(training, "sweep", end)
    assert main(["sweep", "digits", "lam=0,0.5", *SMALL, "--output", str(tmp_path)]) == 143
    assert capsys.readouterr().err == "fedjax-fair: terminated; the same command continues\n"


def test_show_rejects_other_datasets(capsys, tmp_path):
    xr.Dataset({"x": ("y", [1.0])}).to_netcdf(tmp_path / "foreign.nc", engine="h5netcdf")
    assert main(["show", str(tmp_path / "foreign.nc")]) == 2
    assert "foreign.nc': results: expected those of a run" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [MemoryError("unable to allocate"), jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 7 TB")],
)
def test_a_run_without_enough_memory_ends_in_one_line(error, monkeypatch, capsys, tmp_path):
    def exhaust(*arguments):
        raise error

    monkeypatch.setattr(experiment, "execute", exhaust)
    assert main(["run", *SMALL, "--output", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"fedjax-fair: out of memory: {error}\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--solver.batch-size", "1000000000", "--solver.replacement"],
            ["solver.batch_size=1000000000", "minibatches"],
        ),
        (["--solver.steps", "2000000000"], ["solver.steps=2000000000", "minibatches"]),
        (["--model.name", "mlp", "--model.hidden", "2000000000"], ["training.seeds", "model"]),
    ],
    ids=["batch", "steps", "model"],
)
def test_runs_that_exceed_the_memory_are_rejected_before_a_folder_is_made(
    options, words, capsys, tmp_path
):
    output = tmp_path / "runs"
    assert main(["run", *SMALL, *options, "--output", str(output)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    for word in (*words, "GB of memory"):
        assert word in line
    assert not output.exists()


def test_other_runtime_errors_are_raised(monkeypatch, tmp_path):
    def fail(*arguments):
        raise jax.errors.JaxRuntimeError("INTERNAL: a defect")

    monkeypatch.setattr(experiment, "execute", fail)
    with pytest.raises(jax.errors.JaxRuntimeError, match="a defect"):
        main(["run", *SMALL, "--output", str(tmp_path)])


@pytest.mark.parametrize("width", [40, 60, 80])
def test_methods_are_readable_in_narrow_terminals(width, capsys, monkeypatch):
    """A line of the columns, then the summary, indented."""
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("divfl"))
    view = build.server_view(registry.METHODS["divfl"])
    expected = ["divfl:", "num_examples,", view] if width == 40 else ["divfl", "num_examples", view]
    assert lines[place].split() == expected
    summary = list(itertools.takewhile(lambda line: line.startswith("  "), lines[place + 1 :]))
    assert " ".join(map(str.strip, summary)) == registry.METHODS["divfl"].describe()


def test_methods_are_listed(capsys):
    assert main(["methods"]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    groups = [line.strip() for line in lines if line.startswith("[")]
    assert groups == [f"[{name}]" for name in registry.GROUPS]
    listed = dict(line.split(maxsplit=1) for line in lines if not line.startswith("["))
    assert listed.keys() == registry.METHODS.keys()
    for name, method in registry.METHODS.items():
        weights, server_view = listed[name][:14].strip(), listed[name][14:27].strip()
        assert listed[name][27:] == method.describe()
        assert (server_view == "examples") == (method.centralized_fn is not None)
        assert (weights == method.weighting) != (weights == "-"), name
    assert listed["power_of_choice"].startswith("uniform ")
    assert listed["fedavg"].startswith("num_examples ")
    assert listed["agnostic"].startswith("- ")
    server_view = {
        "fedavg": "aggregate",
        "fairfed": "scalars",
        "drfa": "scalars",
        "krum": "vectors",
    }
    assert all(listed[name][14:].startswith(f"{word} ") for name, word in server_view.items())


def test_data_sets_are_listed(capsys):
    assert main(["data", "list"]) == 0
    listed = capsys.readouterr().out
    assert all(preset.config.data.name in listed for preset in presets.PRESETS.values())
    assert main(["data", "info", "digits"]) == 0
    described = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert int(described["num_train"]) + int(described["num_test"]) == 1797
    assert described["validation"].startswith("2 of about 28 training examples per client")


@pytest.mark.parametrize(
    ("arguments", "eval_every"),
    [
        ("run digits", 10),
        ("run digits --training.rounds 10", 1),
        ("run digits --training.rounds 10 --training.eval-every 10", 10),
        ("run groups", 5),
        ("run groups --training.rounds 40", 5),
        ("run groups --training.rounds 9", 1),
        ("run equitable", 5),
        ("run seldom", 10),
        ("run seldom --training.rounds 20", 10),
        ("run seldom --training.rounds 19", 1),
        ("run seldom --config {file}", 2),
        ("run seldom --config {rounds}", 1),
        ("run --config {rounds}", 1),
    ],
)
def test_a_run_has_several_evaluations_unless_asked(arguments, eval_every, tmp_path, capsys):
    files = {"file": "rounds = 4\neval_every = 2", "rounds": "rounds = 4"}
    for name, settings_of_training in files.items():
        (tmp_path / f"{name}.toml").write_text(f"[training]\n{settings_of_training}\n")
    paths = {name: tmp_path / f"{name}.toml" for name in files}
    training = TrainingConfig(rounds=10, eval_every=10)
    seldom = presets.Preset("", Config(training=training))
    words = arguments.format(**paths).split()
    assert main([*words, "--dry-run"], presets.PRESETS | {"seldom": seldom}) == 0
    assert f"\neval_every = {eval_every}\n" in capsys.readouterr().out


def test_a_missing_data_set_is_described_with_how_to_get_it(capsys, tmp_path):
    assert main(["data", "info", "mnist", "--data.dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    described = dict(line.split(maxsplit=1) for line in lines[:5])
    assert described["prepared"] == "False"
    assert "None" not in described.values()
    # Long paths are wrapped.
    assert "run `fedjax-fair data prepare mnist --data.dir" in " ".join(" ".join(lines).split())


@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        (["run", "--training.seeds", "3"], "note: one seed, 3; for 3 seeds write"),
        (["sweep", "--training.seeds=3"], "note: one seed, 3; for 3 seeds write"),
        (["sweep", "seeds=3"], "note: one seed, 3; for 3 seeds write"),
        (["run", "--training.seeds", "1"], ""),
        (["run", "--training.seeds", "3", "4"], ""),
    ],
)
def test_one_seed_is_no_number_of_seeds(arguments, note, capsys):
    small = ["--methods", "fedavg", "--training.rounds", "2", "--dry-run"]
    assert main([*arguments, *small]) == 0
    printed = capsys.readouterr().err
    assert (printed.count(note) == 1) if note else (printed == "")


def test_sweep_runs_every_configuration_and_ranks_them(tmp_path, capsys):
    command = ["sweep", "digits", "lam=0,0.5", "seeds=3:5", "learning_rate=0.01,0.1"]
    command += [*SMALL[:-2], "subtrunc,fedavg", "--output", str(tmp_path)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    (folder,) = tmp_path.iterdir()
    dataset = results.open(folder)
    assert dict(dataset["accuracy_mean_clients"].sizes) == {
        "algorithm": 2, "lam": 2, "learning_rate": 2, "seed": 2, "round": 3,
    }  # fmt: skip
    assert dataset["seed"].values.tolist() == [3, 4]
    rows = [line for line in shown.splitlines() if "learning_rate=" in line]
    level = dataset["accuracy_mean_clients"]
    methods = ("subtrunc", "fedavg")
    is_unused = [np.array_equal(*level.sel(algorithm=name).values) for name in methods]
    assert is_unused[1]  # FedAvg does not read the weight of a bonus.
    assert len(rows) == sum(2 if unused else 4 for unused in is_unused)
    assert f"The best {len(rows)} of {len(rows)} configurations" in shown
    page = (folder / "report.html").read_text("utf8")
    assert "What is the effect of each setting?" in page
    assert "fedavg, learning_rate=0.1" in page  # Which does not read the other setting.
    validation = dataset["validation_accuracy_mean_clients"].isel(round=-1)
    best = validation.stack(configuration=("algorithm", "lam", "learning_rate"))
    best = best.isel(configuration=int(best.mean("seed").argmax("configuration")))
    (table,) = final_tables(dataset)
    assert table.rows[0][1] == format_mean(100 * best.values)
    assert format_results(table) in shown
    assert main(command) == 0  # Nothing is run again.
    again = capsys.readouterr().out
    assert "MiB" not in again
    assert main(["show", str(folder)]) == 0
    assert capsys.readouterr().out in again


def sweep_of(**accuracies):
    """Results over three configurations with these accuracies."""
    shape = ("algorithm", "lam", "seed", "round")
    columns = {
        name: (shape, np.reshape(accuracies.get(name, [0.1, 0.2, 0.3]), (1, 3, 1, 1)))
        for name in [*list(SWEEP_COLUMNS)[1:], *accuracies]
    }
    labels = {"algorithm": ["subtrunc"], "lam": [0.5, 1.5, 2.5], "seed": [0], "round": [4]}
    return xr.Dataset(columns, labels, {"data": "made"})


def shown_configurations(dataset):
    (table,) = final_tables(dataset)
    return [row[0] for row in table.rows], table.note


def test_a_sweep_is_ranked_by_validation_only():
    test = {"accuracy_mean_clients": [0.9, 0.8, 0.7]}
    held = {"validation_accuracy_mean_clients": [0.5, 0.7, 0.6]}
    configurations, caption = shown_configurations(sweep_of(**test, **held))
    assert configurations == [f"subtrunc, lam={lam}" for lam in (1.5, 2.5, 0.5)]
    assert "ranked by validation" in caption
    configurations, caption = shown_configurations(sweep_of(accuracy_mean_clients=[0.7, 0.9, 0.8]))
    assert configurations == [f"subtrunc, lam={lam}" for lam in (0.5, 1.5, 2.5)]
    assert "not ranked: no validation" in caption


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lamda=1"], "lamda"),
        (["lam=much"], "lam"),
        (["lam="], "lam"),
        (["lam=0.1,0.1"], "different"),
        (["seeds=1,1"], "seeds"),
        (["training.seeds=1,2"], "training.seeds"),
        (["prox=-1"], "prox=-1.0"),
        (["lam=1", "--runs-per-batch=0"], "runs_per_batch=0"),
        (
            ["prox=1", "--data.validation-fraction=1"],
            "data.validation_fraction=1.0: expected a number in [0, 1)",
        ),
        (
            ["prox=1", "--data.validation-fraction=0.001"],
            "validation_fraction=0.001: expected a larger fraction",
        ),
        (
            ["prox=1", "--data.unseen-fraction=0.2"],
            "data.unseen_fraction=0.2: expected 0 in a sweep",
        ),
    ],
)
def test_mistakes_in_a_sweep_end_in_one_line(words, message, tmp_path, capsys):
    assert main(["sweep", *words, *SMALL, "--output", str(tmp_path / "new")]) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert message in complaint
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["data", "--help"]])
def test_the_overview_names_every_command_and_preset(arguments, capsys):
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in [*COMMANDS, *presets.PRESETS])


def test_the_overview_has_the_summaries_of_commands_and_presets():
    documented = {name: command.__doc__.splitlines()[0] for name, command in COMMANDS.items()}
    assert documented == overview.COMMANDS
    assert {name: each.summary for name, each in presets.PRESETS.items()} == overview.PRESETS


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_the_overview_and_the_version_need_no_jax(argument):
    code = f"""
import sys
from fedjax_fair.app.cli import main
assert main([{argument!r}]) == 0
heavy = {{"jax", "numpy", "tyro", "fedjax_fair.app.registry"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith({"--help": "usage: ", "--version": "fedjax-fair "}[argument])


def test_the_overview_has_the_presets_of_the_caller(capsys):
    given = {"own": presets.Preset("an own experiment", Config())}
    assert main(["--help"], given) == 0
    shown = capsys.readouterr().out
    assert "an own experiment" in shown
    assert "cifar10" not in shown


def test_help_of_a_preset_shows_its_defaults(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")  # Wide terminals get sections in columns.
    with pytest.raises(SystemExit) as stop:
        main(["run", "mnist", "--help"])
    assert not stop.value.code
    _, _, after = capsys.readouterr().out.partition("--data.clients")
    described, _, _ = after.partition("--data.classes-per-client")
    assert "(default: 100)" in described


@pytest.mark.parametrize("command", ["run", "sweep", "plan", "data show"])
def test_help_wraps_once_and_has_no_latex(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    shown = capsys.readouterr().out
    assert "\\" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    continued = 0
    for line, following in itertools.pairwise(map(str.rstrip, shown.splitlines())):
        is_description = line.startswith(" " * 6) or "  " in line.strip()
        if is_description and following.startswith(" " * 6):
            continued += 1
            assert len(line) + len(f" {following.split()[0]}") > 79, line
    assert continued


@pytest.mark.parametrize(
    ("written", "seeds"), [("0 1 2", (0, 1, 2)), ("0,1,2", (0, 1, 2)), ("0:3 7", (0, 1, 2, 7))]
)
def test_seeds_and_methods_are_written_with_spaces_or_commas(written, seeds):
    methods = ["fedavg,subtrunc:lam=0.1,b=5", "divfl+fedprox:prox=1,steps=2,drfa"]
    arguments = ["--methods", *methods, "--training.seeds", *written.split(), "--devices=1"]
    config = parse(Config, arguments, "run")
    assert config.training.seeds == seeds
    assert config.methods == (
        "fedavg", "subtrunc:lam=0.1,b=5", "divfl+fedprox:prox=1,steps=2", "drfa",
    )  # fmt: skip
    assert config.devices == 1
    joined = parse(Config, [f"--training.seeds={','.join(written.split())}"], "run")
    assert joined.training.seeds == seeds


def test_flags_can_be_negated():
    groups = presets.PRESETS["groups"].config
    assert groups.data.partition_per_seed
    config = parse(Config, ["--data.no-partition-per-seed", "--distributed"], "run", groups)
    assert (config.data.partition_per_seed, config.distributed) == (False, True)


def test_help_of_a_sweep_lists_what_can_be_varied(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["sweep", "digits", "--methods", "subtrunc", "--help"])
    assert not stop.value.code
    shown = capsys.readouterr().out
    listed, _, options = shown.partition("usage:")
    names = set(re.findall(r"^  (\S+)", listed, re.MULTILINE))
    assert {"seeds", "lam", "learning_rate", "cohort_size", "hidden"} < names
    assert "alpha" not in names
    assert "--solver.prox" in options
    for name in names - {"seeds"}:
        assert settings.lookup("setting", name, settings.places(Config()))


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("arguments", [["methods"], ["metrics"], ["data", "list"], []])
def test_lists_fit_the_terminal(arguments, width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    # Words such as links are not broken.
    assert [line for line in lines if len(line) > width and " " in line.strip()] == []


def test_the_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("fedjax-fair 0.")


def test_the_compilation_cache_has_a_default_folder(monkeypatch, tmp_path):
    kept = {}
    monkeypatch.setattr(jax.config, "update", kept.__setitem__)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/elsewhere")
    ff.enable_compilation_cache()
    assert kept == {}
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    ff.enable_compilation_cache()
    assert kept["jax_compilation_cache_dir"].startswith(str(tmp_path))


@pytest.mark.slow
def test_compiled_functions_are_cached_unless_jax_is_configured(tmp_path):
    command = ["run", "--data.clients=10", "--model.name=logistic", "--methods", "fedavg"]
    command += ["--solver.steps=1", "--training.rounds=1", "--training.seeds", "0"]
    program = "import sys; from fedjax_fair.app.cli import main; sys.exit(main(sys.argv[1:]))"
    own = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}

    def kept(name, **switches):
        settings = own | switches | {"XDG_CACHE_HOME": str(tmp_path / name), "JAX_PLATFORMS": "cpu"}
        output = ["--output", str(tmp_path / "runs")]
        subprocess.run([sys.executable, "-c", program, *command, *output], env=settings, check=True)
        return list((tmp_path / name).rglob("*jit_step*"))

    assert kept("on")
    assert not kept("off", JAX_ENABLE_COMPILATION_CACHE="false")
    assert not kept("elsewhere", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "there"))
    assert list((tmp_path / "there").iterdir())


def test_importing_the_package_is_light():
    heavy = {
        "PIL", "array_record", "h5netcdf", "importlib_resources", "matplotlib", "orbax", "pandas",
        "platformdirs", "rich", "scipy", "sklearn", "tensorflow_datasets", "tyro", "xarray",
    }  # fmt: skip
    program = """import sys, jax, flax.linen, flax.nnx, optax, numpy, jaxtyping
needed = set(sys.modules)
import fedjax_fair
print(*set(sys.modules) - needed)"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {module.split(".")[0] for module in done.stdout.split()}
    assert "fedjax_fair" in imported
    assert not imported & heavy


@pytest.mark.parametrize("command", ["--help", "methods", "run --help"])
def test_a_closed_pipe_ends_a_command_without_a_message(command):
    program = "from fedjax_fair.app.cli import program; program()"
    with subprocess.Popen(
        [sys.executable, "-c", program, *command.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 141


def test_a_warning_is_one_line_without_code():
    program = (
        "import warnings; from fedjax_fair.app import cli; "
        "cli.main = lambda presets: warnings.warn('a\\n  b') or 0; cli.program()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.stderr == "fedjax-fair: warning: a b\n"
    assert ended.returncode == 0


def test_differences_are_plotted(folder, tmp_path, capsys):
    file = tmp_path / "differences.svg"
    assert main(["compare", str(folder), "--plot", str(file)]) == 0
    assert file.read_text().startswith("<?xml")
    for bad, message in (
        (tmp_path / "differences", "expected a file name that ends with"),
        (tmp_path / "nowhere" / "a.png", "No such file"),
    ):
        capsys.readouterr()
        assert main(["compare", str(folder), "--plot", str(bad)]) == 2
        assert message in capsys.readouterr().err
