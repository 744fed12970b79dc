"""Files of results, of which any damage is noticed, and the log of a run."""

import errno
import json
import logging
import re
import shutil
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from experiments.reliability.disks import REASON, full_disk
from fedjax_fair import results
from fedjax_fair.app.model_files import _read as read_model
from fedjax_fair.app.model_files import save_model
from fedjax_fair.app.run_folder import MetricsLog, RunFolder
from fedjax_fair.app.settings.config import Config
from fedjax_fair.results.files import (
    read_evaluations,
    verify_checksum,
    write_text,
    written_by_orbax,
)
from fedjax_fair.roles import Variables
from fedjax_fair.training.checkpoints import Checkpoints
from fedjax_fair.training.loop import Evaluation

RNG = np.random.default_rng(0)
DATASET = xr.Dataset(
    {"accuracy": (("algorithm", "seed"), RNG.uniform(size=(2, 3)))},
    {"algorithm": ["fedavg", "divfl"], "seed": [0, 1, 2]},
    {"data": "digits"},
)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("results") / "results.nc"
    results.save(DATASET, path)
    return path


def test_they_come_back(file):
    xr.testing.assert_identical(results.open(file), DATASET)
    xr.testing.assert_identical(results.open(file.parent), DATASET)


def test_threads_write_and_read_at_the_same_time(tmp_path):
    def write_and_read(i):
        results.save(DATASET.assign_attrs(index=i), tmp_path / f"{i}.nc")
        return results.open(tmp_path / f"{i}.nc").attrs["index"]

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(write_and_read, range(16))) == list(range(16))


def test_writers_of_the_same_file_do_not_disturb_each_other(tmp_path):
    """As processes that make the folder of a benchmark at the same time."""
    file, texts = tmp_path / "benchmark.json", [str(i) * 100_000 for i in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda text: write_text(file, text), texts * 20))
    assert file.read_text() in texts
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    "name",
    [
        *("~", "~root", "~/runs", "a::b", "simplecache::b", "file://runs", "http://localhost/runs"),
        *(
            "s3://bucket",
            "*",
            "[ab]",
            "a?",
            "{a,b}",
            "-dash",
            "--flag=1",
            "$HOME",
            "%20#",
            "Läufe ☃",
        ),
        *(" spaces ", "line\nfeed", "x" * 250, "runs.zip", "a:b@c"),
    ],
)
def test_paths_are_used_as_they_are(name, tmp_path, monkeypatch):
    """No ``~``, URL, chain of file systems, variable or pattern is looked for in a path."""
    home, here = tmp_path / "home", tmp_path / "here"
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    for folder in (home, home / "runs", here / "a", here / "b", here / "runs"):
        folder.mkdir(parents=True, exist_ok=True)
        results.save(DATASET + 1, folder / "results.nc")
    (here / name).mkdir(parents=True, exist_ok=True)
    results.save(DATASET, f"{name}/results.nc")
    xr.testing.assert_identical(results.open(name), DATASET)
    xr.testing.assert_identical(results.open(f"{name}/results.nc"), DATASET)
    results.save(DATASET, f"{name}/{name.replace('/', '')}")
    xr.testing.assert_identical(results.open(f"{name}/{name.replace('/', '')}"), DATASET)
    monkeypatch.chdir(home)
    xr.testing.assert_identical(results.open(here / name), DATASET)


@pytest.mark.parametrize("name", ["~", "file://a::b", "-dash", "Läufe ☃\n"])
def test_paths_of_models_are_used_as_they_are(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, absolute = Path(name, "model"), Path(name, "model").absolute()
    absolute.parent.mkdir(parents=True)
    save_model(Variables({"kernel": np.arange(3.0)}, {}), model)
    monkeypatch.chdir("/")
    np.testing.assert_array_equal(read_model(absolute).params["kernel"], np.arange(3.0))


@pytest.mark.parametrize("name", ["[1] a", "a*", "a?", "a\\b", "\\a", "a\\"])
def test_runs_are_refused_where_orbax_cannot_read_them(name, tmp_path):
    """Before a folder is made, and before anything is compiled."""
    with pytest.raises(ValueError, match="path"):
        RunFolder.create(Config(output=str(tmp_path / name)), "digits")
    with pytest.raises(ValueError, match="path"):
        save_model(Variables({}, {}), tmp_path / name)
    with pytest.raises(ValueError, match="path"):
        Checkpoints(tmp_path / name / "fedavg", (0,), {}, 1, 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["", ".", "/", "folder", "file/results.nc"])
def test_paths_that_cannot_be_written_are_named(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").write_text("")
    with pytest.raises(OSError, match=re.escape(str(Path(path)))):
        results.save(DATASET, path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
    with pytest.raises(ValueError, match=re.escape(f"path='{Path(path)}': expected a run folder")):
        results.open(path)


def test_a_home_folder_is_not_looked_for():
    with pytest.raises(ValueError, match="path="):
        results.open("~/nothing")


def test_a_full_disk_is_named_and_leaves_what_was_there(tmp_path, capfd):
    """HDF5 itself would print hundreds of lines, or end the process."""
    results.save(DATASET, tmp_path / "results.nc")
    write_text(tmp_path / "config.json", "{}")
    with full_disk(4000), pytest.raises(OSError, match=rf"{REASON}: .*results\.nc'"):
        results.save(DATASET + 1, tmp_path / "results.nc")
    with full_disk(), pytest.raises(OSError, match=rf"{REASON}: .*config\.json'"):
        write_text(tmp_path / "config.json", "[]")
    xr.testing.assert_identical(results.open(tmp_path), DATASET)
    assert (tmp_path / "config.json").read_text() == "{}"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("room", [0, 300, 600])
def test_a_model_that_a_full_disk_has_no_room_for_is_named(room, tmp_path, capfd):
    variables = Variables({"kernel": np.arange(2000.0)}, {})
    with full_disk(room), pytest.raises(OSError, match=REASON) as error:
        save_model(variables, tmp_path / "model")
    assert str(tmp_path / "model") in str(error.value)
    assert capfd.readouterr().err == ""
    save_model(variables, tmp_path / "model")
    verify_checksum(tmp_path / "model")


def test_room_for_what_orbax_writes_is_checked_first(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=2**20 + 99)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with written_by_orbax(tmp_path / "model", 99):
        pass
    begun = []
    full = pytest.raises(OSError, match="space")
    with full, written_by_orbax(tmp_path / "model", 100):
        begun.append(1)
    assert not begun


def test_threads_that_fail_later_are_not_heard(tmp_path, capsys, caplog):
    def fail():
        time.sleep(0.1)
        logging.getLogger("absl").error("in the log")
        sys.stderr.write("on the screen")

    full = pytest.raises(OSError, match="large")
    with full, written_by_orbax(tmp_path / "model", 0):
        threading.Thread(target=fail).start()
        raise OSError(errno.EFBIG, REASON)
    assert capsys.readouterr().err == ""
    assert not caplog.records
    fail()
    assert (capsys.readouterr().err, caplog.messages) == ("on the screen", ["in the log"])


def test_other_programs_read_them_and_theirs_are_read(file, tmp_path):
    xr.testing.assert_identical(xr.load_dataset(file, engine="h5netcdf"), DATASET)
    DATASET.to_netcdf(tmp_path / "own.nc", engine="h5netcdf")
    xr.testing.assert_identical(results.open(tmp_path / "own.nc"), DATASET)


@given(st.integers(min_value=0), st.integers(0, 7))
def test_no_flipped_bit_changes_what_is_read(file, position, bit):
    content = bytearray(file.read_bytes())
    content[position % len(content)] ^= 1 << bit
    damaged = file.with_name("damaged.nc")
    damaged.write_bytes(content)
    try:
        found = results.open(damaged)
    except ValueError as error:
        assert "damaged.nc" in str(error)  # noqa: PT017
        assert "\n" not in str(error)  # noqa: PT017
    else:
        pytest.fail(f"not noticed: {found}")


@pytest.mark.parametrize("content", [b"", b"not a file of results", b"\x89HDF\r\n\x1a\n"])
def test_foreign_files_are_refused(tmp_path, content):
    (tmp_path / "foreign.nc").write_bytes(content)
    with pytest.raises(ValueError, match=r"foreign\.nc"):
        results.open(tmp_path / "foreign.nc")


@pytest.mark.parametrize("place", [96, 128, 160])
def test_what_is_wrong_is_said_once(place, file, tmp_path, monkeypatch):
    """An object that is half open could print a traceback when it goes."""
    complaints = []
    monkeypatch.setattr(sys, "unraisablehook", lambda own: complaints.append(own.exc_value))
    content = bytearray(file.read_bytes()[:-40])  # Without the digest, which would notice sooner.
    content[place : place + 16] = b"\xff" * 16  # Of the root group.
    (tmp_path / "foreign.nc").write_bytes(content)
    with pytest.raises(ValueError, match=r"foreign\.nc"):
        results.open(tmp_path / "foreign.nc")
    assert not complaints


@pytest.mark.parametrize("added", [b"x", b"\n", b"\0", b"\0" * 100, 40 * b"x"])
def test_added_bytes_are_noticed(added, file, tmp_path):
    path = tmp_path / "longer.nc"
    path.write_bytes(file.read_bytes() + added)
    with pytest.raises(ValueError, match="its content has changed since it was written"):
        results.open(path)
    path.write_bytes(file.read_bytes()[:-40] + added)  # Without a checksum, as of other programs.
    if added.strip(b"\0"):
        with pytest.raises(ValueError, match="its content has changed since it was written"):
            results.open(path)
    else:  # The NetCDF library allocates zeros.
        xr.testing.assert_identical(results.open(path), DATASET)


def test_a_truncated_file_is_refused(file, tmp_path):
    content = file.read_bytes()
    for length in (len(content) - 1, len(content) - 32, len(content) // 2, 100):
        (tmp_path / "short.nc").write_bytes(content[:length])
        with pytest.raises(ValueError, match="short"):
            results.open(tmp_path / "short.nc")


def log_of(path, rounds=(0, 2), seeds=(0, 1)):
    """A log whose file holds all lines of its results."""
    rng = np.random.default_rng(0)
    shape = (len(seeds), len(rounds))
    values = rng.uniform(size=shape).astype(np.float32)
    columns = {"sigma_acc": values, "accuracy_mean_clients": np.where(values > 0.9, np.nan, values)}
    results = xr.Dataset(
        {name: (("seed", "round"), value) for name, value in columns.items()},
        {"seed": list(seeds), "round": list(rounds)},
    )
    log = MetricsLog(path, "fedavg", ["fedavg", "divfl"])
    for i, done in enumerate(rounds):
        summaries = {name: value[:, i] for name, value in columns.items()}
        log.on_evaluation(Evaluation(done, rounds[-1], seeds, summaries, clients=None, seconds=0.5))  # type: ignore
    return results


def without_times(path):
    return [line | {"seconds": None} for line in map(json.loads, path.read_text().splitlines())]


def test_any_flipped_bit_is_noticed(tmp_path):
    """Except in the time, which the results do not have."""
    path = tmp_path / "metrics.jsonl"
    results = log_of(path, rounds=(0,), seeds=(0,))
    content, lines = path.read_bytes(), without_times(path)
    time = content.index(b"0.5,")
    for position, bit in np.ndindex(len(content), 8):
        damaged = bytearray(content)
        damaged[position] ^= 1 << bit
        path.write_bytes(damaged)
        try:
            log = MetricsLog(path, "fedavg", ["fedavg", "divfl"])
            log.on_start(0, (0,))
        except ValueError as error:
            assert "metrics.jsonl" in str(error)  # noqa: PT017
            continue
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            log.on_end(results)
        assert without_times(path) == lines
        is_incomplete = position == len(content) - 1
        assert warned or is_incomplete or position in range(time, time + 3)


def test_evaluations_are_those_of_the_log(tmp_path):
    path = tmp_path / "metrics.jsonl"
    results = log_of(path)
    evaluations = read_evaluations(path).sel(algorithm="fedavg", drop=True)
    for name in results:
        np.testing.assert_allclose(evaluations[name].transpose("seed", "round"), results[name])
    lines = path.read_text().splitlines()
    edited = lines[0].replace('"sigma_acc": 0', '"sigma_acc": {}, "x": 0')
    path.write_text("\n".join([edited, *lines[1:-1], lines[-1][:-9]]))
    evaluations = read_evaluations(path).sel(algorithm="fedavg")
    missing = evaluations.sigma_acc.transpose("seed", "round").isnull().values
    np.testing.assert_array_equal(missing, [[True, False], [False, True]])
    path.write_text('{"algorithm": "fedavg", "seed": 0, "round": 0}\n')
    with pytest.raises(ValueError, match="evaluations"):
        read_evaluations(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 7}, r"line 5 is of 'fedavg', seed 7, round 0, which are not of this run"),
        ({"algorithm": "krum"}, r"line 5 is of 'krum', seed 0, round 0"),
        ({"round": 4}, r"line 5 is of 'fedavg', seed 0, round 4"),
        ({"round": -1}, r"line 5 is of 'fedavg', seed 0, round -1"),
    ],
)
def test_lines_of_another_run_are_refused(changes, message, tmp_path):
    path = tmp_path / "metrics.jsonl"
    log_of(path)
    line = json.loads(path.read_text().splitlines()[0]) | changes
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(ValueError, match=rf"metrics\.jsonl': {message}"):
        MetricsLog(path, "fedavg", ["fedavg", "divfl"]).on_start(2, (0, 1))


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [*lines, lines[0]],
        lambda lines: [lines[0], *lines],
        lambda lines: [lines[0].replace("sigma_acc", "sigma_bcc"), *lines[1:]],
        lambda lines: [lines[0].replace(", ", ",  "), *lines[1:]],
        lambda lines: [*lines[:2], lines[2].replace("0.5", "NaN"), lines[3]],
        lambda lines: [*lines[:2], lines[2].replace("0.5", '"0.5"'), lines[3]],
        lambda lines: [lines[0].replace(": 0.5", ": -0.5"), *lines[1:]],
        lambda lines: [lines[0][:-1] + ', "sigma_acc": 0.5}', *lines[1:]],
        lambda lines: [lines[0] + "\r", *lines[1:]],
        lambda lines: ["\ufeff" + lines[0], *lines[1:]],
    ],
)
def test_changed_and_repeated_lines_are_written_again(change, tmp_path):
    path = tmp_path / "metrics.jsonl"
    results = log_of(path)
    lines, other = path.read_text().splitlines(), '{"algorithm": "divfl", "seed": 0, "round": 0}'
    expected = without_times(path)
    path.write_text("\n".join([*change(lines), other, ""]))
    log = MetricsLog(path, "fedavg", ["fedavg", "divfl"])
    log.on_start(2, (0, 1))
    with pytest.warns(UserWarning, match=r"metrics\.jsonl"):
        log.on_end(results)
    *after, last = without_times(path)
    assert after == expected
    assert last == json.loads(other) | {"seconds": None}
