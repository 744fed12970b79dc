"""What a run folder records, and what `resume` and `compare` make of it."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedjax_fair
from fedjax_fair.app import run_record
from fedjax_fair.app.cli import main

RNG = np.random.default_rng(0)
ARRAYS = {
    "features": RNG.normal(size=(60, 3)).astype(np.float32),
    "labels": np.arange(60) % 3,
    "client": np.array([f"c{i % 4}" for i in range(60)]),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    base = tmp_path_factory.mktemp("record")
    np.savez(base / "a.npz", **ARRAYS)
    words = [
        "run",
        f"--data.file={base / 'a.npz'}",
        "--training.rounds=1",
        "--methods",
        "fedavg",
        "fedprox",
    ]
    words += ["--model.name=logistic", "--training.seeds", "0", "1", f"--output={base / 'out'}"]
    assert main([*words, "--quiet"]) == 0
    (folder,) = (base / "out").iterdir()
    return folder


def record_of(folder):
    return json.loads((Path(folder) / "env.json").read_text())


def change_record(folder, change):
    record = record_of(folder)
    change(record)
    (Path(folder) / "env.json").write_text(json.dumps(record))


def test_a_run_records_what_its_numbers_depend_on(run):
    record = record_of(run)
    needed = {"jax", "jaxlib", "numpy", "optax", "flax", "pandas", "scipy", "scikit-learn"}
    assert set(record["versions"]) >= needed | {"xarray", "fedjax-fair"}
    assert record["versions"]["fedjax-fair"] == fedjax_fair.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", fedjax_fair.__version__)
    assert re.fullmatch("[0-9a-f]{64}", record["data"])
    assert shlex.split(record["command"])[1:] == sys.orig_argv[1:]
    assert record["python"] == ".".join(map(str, sys.version_info[:3]))


def test_the_command_can_be_repeated(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/bin/fedjax-fair", "run", "a b", "--quiet"])
    assert run_record.command() == "fedjax-fair run 'a b' --quiet"
    monkeypatch.setattr(sys, "argv", ["/lib/fedjax_fair/__main__.py", "run"])
    monkeypatch.setattr(sys, "orig_argv", ["/bin/python3", "-m", "fedjax_fair", "run"])
    assert run_record.command() == "python3 -m fedjax_fair run"


CHANGES = {
    "features": lambda x: {"features": x["features"] + np.float32(1e-6)},
    "labels": lambda x: {"labels": x["labels"][::-1]},
    "owners": lambda x: {"client": x["client"][::-1]},
    "names": lambda x: {"client": np.char.replace(x["client"], "c3", "d3")},
    "fewer rows": lambda x: {name: values[:-1] for name, values in x.items()},
    "a class": lambda x: {"num_classes": 4},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_other_data_do_not_continue_a_run(change, run, tmp_path, capsys):
    folder = shutil.copytree(run, tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    config["data"]["file"] = str(tmp_path / "a.npz")
    (folder / "config.json").write_text(json.dumps(config))
    # Also without checkpoints, which would notice some changes.
    shutil.rmtree(folder / "checkpoints")
    np.savez(tmp_path / "a.npz", **ARRAYS | change(ARRAYS))
    before = (folder / "results.nc").read_bytes()
    assert main(["resume", str(folder), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert "the data have changed since the run started" in error
    assert error.count("\n") == 1
    assert (folder / "results.nc").read_bytes() == before


RECORDS = {
    "jax 0.0.1": lambda record: record["versions"].update(jax="0.0.1"),
    "pandas 1.0": lambda record: record["versions"].update(pandas="1.0"),
    "python 3.0": lambda record: record.update(python="3.0"),
    "git_commit 12ab": lambda record: record.update(git_commit="12ab"),
    "device abacus": lambda record: record.update(device="abacus"),
}


@pytest.mark.parametrize(("said", "change"), RECORDS.items())
def test_resume_and_compare_name_what_differs(said, change, run, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    folder = shutil.copytree(run, tmp_path / "run")
    change_record(folder, change)
    name, value = said.split()
    assert main(["compare", str(run), str(folder), "--metrics=accuracy_mean_clients"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"The runs were made with different {name}: " in shown
    assert f"{value} (B)" in shown
    with pytest.warns(UserWarning, match=rf"what the run started with: {said} \(now [^,]+\)\.$"):
        assert main(["resume", str(folder), "--quiet"]) == 0
    assert record_of(folder)["command"] == record_of(run)["command"]


def test_equal_records_need_no_note(run, tmp_path, capsys, monkeypatch):
    """Nor do runs of an earlier version, which recorded less; resuming adds the digest."""
    monkeypatch.setenv("COLUMNS", "1000")
    old = shutil.copytree(run, tmp_path / "old")

    def forget(record):
        del record["data"], record["command"], record["versions"]["pandas"]

    change_record(old, forget)
    for other in (old, shutil.copytree(run, tmp_path / "same")):
        assert main(["compare", str(run), str(other), "--metrics=accuracy_mean_clients"]) == 0
        assert "different" not in capsys.readouterr().out
        assert main(["resume", str(other), "--quiet"]) == 0
        assert record_of(other)["data"] == record_of(run)["data"]
    change_record(old, lambda record: record.update(data="12ab"))
    assert main(["compare", str(run), str(old), "--metrics=accuracy_mean_clients"]) == 0
    assert "The runs were made with different data: " in " ".join(capsys.readouterr().out.split())


def test_the_commit_of_a_build_comes_before_that_of_a_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(run_record, "_BUILT", tmp_path / "commit.txt")
    checkout = run_record.environment()["git_commit"]
    (tmp_path / "commit.txt").write_text("12ab\n")
    assert run_record.environment()["git_commit"] == "12ab" != checkout


@pytest.mark.parametrize("has_git", [True, False])
def test_builds_have_the_commit_of_the_checkout(has_git, tmp_path):
    """A source tree without git has none, also inside the checkout of another project."""
    root = Path(fedjax_fair.__file__).parents[1]

    def git(*words):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", tmp_path, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    (tmp_path / "p" / "fedjax_fair" / "utils").mkdir(parents=True)
    package = ("__init__.py", "utils/__init__.py", "utils/version.py")
    files = ["setup.py", "pyproject.toml", "README.md", "LICENSE"]
    for name in [*files, *(f"fedjax_fair/{file}" for file in package)]:
        shutil.copy(root / name, tmp_path / "p" / name)
    git("init", "-q")
    (tmp_path / "other").write_text("")
    git("add", *(["p"] if has_git else ["other"]))
    git("commit", "-qm", "a")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path / "dist"]
    subprocess.run([*build, tmp_path / "p"], check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    shutil.unpack_archive(wheel, tmp_path / "installed", "zip")
    assert f"-{fedjax_fair.__version__}-" in wheel.name
    commit = tmp_path / "installed" / "fedjax_fair" / "commit.txt"
    assert commit.exists() == has_git
    assert not has_git or commit.read_text().strip() == git("rev-parse", "HEAD")
