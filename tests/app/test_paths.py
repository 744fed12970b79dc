"""Paths and names at the command line: they work, or are refused in one line before training."""

from pathlib import Path

import pytest

from fedjax_fair import load_model, results
from fedjax_fair.app import maximize
from fedjax_fair.app.cli import main
from fedjax_fair.app.commands import training
from fedjax_fair.app.commands.dispatch import CLASSES, class_of_command
from fedjax_fair.app.model_files import folder_name
from fedjax_fair.app.settings.command_line import PATHS, options_of, parse_options
from fedjax_fair.app.settings.config import Config

TINY = [
    "--data.clients=10",
    "--model.name=logistic",
    "--solver.steps=1",
    "--selector.cohort-size=2",
    "--training.rounds=1",
    "--training.seeds=0",
    "--quiet",
]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch, without_figures):
    """The current folder and the home folder, without figures of runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def runs_in(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/config.json"))


@pytest.mark.parametrize("words", [["--output", "~/x"], ["--output=~/x"], ["-o", "~/x"]])
def test_a_leading_tilde_is_the_home_folder(words, home):
    assert parse_options(Config, words, "run") == {"--output": str(home / "x")}


def test_the_home_of_an_unknown_user_is_a_name():
    words = ["--output", "~nobody-has-this-name/x"]
    assert parse_options(Config, words, "run") == {"--output": words[1]}


def test_a_run_is_written_to_the_home_folder(home, capsys):
    """Also if names of folders and methods are unusual."""
    odd = "a::b\t'\"c\n/-x/%41#&<b>/grün🎉e\u0301/file:x"
    method = "fedavg:learning_rate=0.1" + 300 * "0"
    assert len(folder_name(method)) <= 120
    assert folder_name(method) != folder_name(method + "0")
    assert main(["run", "--methods", method, *TINY, f"--output=~/{odd}"]) == 0
    (folder,) = runs_in(home / odd)
    for command in (["show"], ["resume", "--quiet"]):
        assert main([*command, f"~/{odd}/{folder.name}"]) == 0
    assert capsys.readouterr().err == ""
    assert load_model(folder, method).rounds.tolist() == [1]
    assert not Path("~").exists()


@pytest.mark.parametrize(
    ("name", "is_refused"),
    [
        ("-dash", False),
        ("./--dashes", False),
        ("runs*", True),
        ("[runs]", True),
        ("runs?", True),
        ("a\\b", True),
        ("a/b\\", True),
        (300 * "a", True),
        ("/".join(38 * [100 * "d"]), True),
        ("nul\0", True),
        ("undecodable-\udcff", True),
    ],
)
def test_a_run_can_use_its_folder_or_is_refused(name, is_refused, tmp_path, capsys):
    before = set(tmp_path.rglob("*"))
    status = main(["run", "--methods=fedavg", *TINY, "--output", name])
    printed = capsys.readouterr()
    if is_refused:
        assert status == 2
        assert printed.err.startswith("fedjax-fair: ")
        assert printed.err.count("\n") == 1
        assert set(tmp_path.rglob("*")) == before
        return
    (folder,) = runs_in(Path(name))
    assert (status, printed.err) == (0, "")
    path = f"./{folder}" if str(folder).startswith("--") else str(folder)
    assert main(["show", path]) == 0
    assert main(["resume", path, "--quiet"]) == 0
    assert load_model(folder, "fedavg").rounds.tolist() == [1]
    assert capsys.readouterr().err == ""


def test_a_sweep_can_use_its_folder(home, capsys, monkeypatch):
    name = "~/-a::b [*]"
    command = ["sweep", "prox=0,0.1", "--methods=fedprox", *TINY, f"--output={name}"]
    assert main(command) == 0
    (folder,) = Path(name.replace("~", str(home))).iterdir()
    first = results.open(folder)
    monkeypatch.setattr("fedjax_fair.app.sweep.fit", None)  # Nothing is run again.
    assert main(command) == 0
    assert main(["show", f"{name}/{folder.name}"]) == 0
    assert capsys.readouterr().err == ""
    assert results.open(folder).identical(first)


def test_every_path_is_expanded_once(home, capsys, monkeypatch):
    (home / "settings.toml").write_text('output = "~/from-file"\n')
    made = []
    monkeypatch.setattr(training, "_execute", lambda ready, folder, *a, **k: made.append(folder))
    monkeypatch.setattr(maximize, "execute", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
    assert main(["run", "--methods=fedavg", *TINY, "--config=~/settings.toml"]) == 0
    assert made[0].path.parent == home / "from-file"
    assert main(["data", "show", "--output", "~/partition.png"]) == 0
    assert (home / "partition.png").exists()
    assert main(["maximize", "exemplars", "--output=~/sets"]) == 130
    assert len(runs_in(home / "sets")) == 1
    capsys.readouterr()
    for command in (
        ["run", "--data.name=mnist", "--data.dir=~/none"],
        ["maximize", "movielens", "--data.dir", "~/none"],
        ["data", "show", "--data.name=mnist", "--data.dir", "~/none"],
        ["show", "~/none"],
        ["compare", "~/none", "~/nothing"],
        ["resume", "~/none"],
        ["run", "--config", "~/none"],
        ["methods", "--plugin", "~/none"],
    ):
        assert main(command) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert str(home / "none") in line
    assert not Path("~").exists()


def test_options_that_are_paths_are_known():
    """Those whose help names a file or a folder."""
    texts = set()
    for kind in (Config, *map(class_of_command, CLASSES)):
        texts |= {flag for flag, type in options_of(kind) if type in (str, str | None)}
    others = {
        *("--data.name", "--data.partition", "--model.name", "--name", "--baseline", "--machine"),
        *("--matroid", "--label", "--client", "--data.label-unit", "--method", "--metric"),
        "--aggregator.last-layer",
        *(
            "--data.clusters",
            "--data.client",
            "--data.features",
            "--data.label",
            "--aggregator.sensitive-feature",
        ),
        *("--solver.sensitive-feature", "--shard", "--track"),
    }
    assert PATHS - {"--runs"} <= texts <= PATHS | others
