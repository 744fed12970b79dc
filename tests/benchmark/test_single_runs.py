"""Runs that are trained one at a time, as in the track large."""

import time
from dataclasses import replace

import numpy as np
import pytest
import short_track

from fedjax_fair import results
from fedjax_fair.app.cli import main
from fedjax_fair.benchmark import federations, protocol, runner, tuning, unit

pytestmark = pytest.mark.integration

TRACK = protocol.Track(("groups",), ("q_fedavg", "ditto"), num_blocks=2)


@pytest.fixture(scope="module", autouse=True)
def few_settings():
    """Blocks that choose among three settings."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (tuning, unit):
            patch.setattr(module, "SETTINGS", 3)
        yield


@pytest.fixture
def prepared(monkeypatch):
    """The embedded track with runs one at a time, on a short federated dataset."""
    short_track.shorten_training(monkeypatch, "groups")
    track = TRACK._replace(one_run_at_a_time=True)
    monkeypatch.setitem(protocol.TRACKS, "embedded", track)


@pytest.fixture(scope="module")
def together(few_settings, tmp_path_factory):
    track = TRACK._replace(methods=("ditto",))
    with short_track.finished(tmp_path_factory.mktemp("together"), track) as folder:
        yield folder


def interrupted(folder, monkeypatch, after):
    """Interrupts training of ``ditto`` after some runs, and returns the files of these."""
    whole, done = unit.train, []

    def count(*arguments, **options):
        if len(done) == after:
            raise KeyboardInterrupt
        done.append(arguments)
        return whole(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(unit, "train", count)
        with pytest.raises(KeyboardInterrupt):
            runner.run(runner.plan("embedded", folder, ["ditto"]), folder)
    return sorted((folder / "programs" / "groups" / "ditto" / "range").iterdir())


def test_interrupted_runs_go_on_and_equal_those_that_are_trained_together(
    together, tmp_path, monkeypatch, prepared
):
    files = interrupted(tmp_path, monkeypatch, after=1)
    assert [file.name for file in files] == ["00.nc"]
    trained, whole = [], unit.train

    def count(config, rounds, runs, *arguments, **options):
        trained.extend(runs)
        return whole(config, rounds, runs, *arguments, **options)

    monkeypatch.setattr(unit, "train", count)
    lines = []
    runner.run(runner.plan("embedded", tmp_path, ["ditto"]), tmp_path, show=lines.append)
    assert trained[0] == (1, 1000)
    assert lines[0] == "groups, ditto, range, 1 runs"
    assert len(lines) == len(trained) + 1
    assert {run.seed for run in trained[1:]} == {1300, 1301, 1200, 1201}
    left = {file.name for file in files[0].parents[1].iterdir()}
    assert not left & {"range", "tuning-0", "final"}
    for phase in ("range", "tuning-0", "final"):
        one, other = (
            results.open(folder / "programs" / "groups" / "ditto" / f"{phase}.nc")
            for folder in (tmp_path, together)
        )
        for each in (one, other):
            each.attrs.pop("methods", None)  # Those of a piece, if there is one piece only.
        assert one.attrs == pytest.approx(other.attrs)
        assert set(one.variables) == set(other.variables)
        for name in other.variables:
            assert one[name].dims == other[name].dims
            if one[name].dtype.kind == "f":
                # Another number of runs may change the order of sums.
                np.testing.assert_allclose(one[name], other[name], rtol=1e-3, atol=2e-3)
            else:
                np.testing.assert_array_equal(one[name], other[name])


def test_runs_of_other_settings_are_refused(tmp_path, monkeypatch, prepared):
    interrupted(tmp_path, monkeypatch, after=1)
    short = federations.FEDERATIONS["groups"]
    config = replace(short.config, solver=replace(short.config.solver, steps=3))
    monkeypatch.setitem(federations.FEDERATIONS, "groups", short._replace(config=config))
    lines = []
    planned = runner.plan("embedded", tmp_path, ["ditto"])
    runner.run(planned, tmp_path, show=lines.append)
    assert "00.nc': expected results of the same methods and data" in lines[0]


def test_unfinished_runs_are_results_that_need_resume(tmp_path, monkeypatch, prepared, capsys):
    interrupted(tmp_path / "embedded", monkeypatch, after=1)
    monkeypatch.setattr(unit, "train", None)  # Nothing is trained.
    assert main(["benchmark", "--output", str(tmp_path), "--methods", "ditto"]) == 2
    assert "has results; --resume continues them" in capsys.readouterr().err


def test_a_device_trains_one_method_at_a_time(tmp_path, monkeypatch, prepared):
    running, most = [], []

    def run_unit(one, *_):
        running.append(one)
        most.append(len(running))
        time.sleep(0.1)
        running.remove(one)

    monkeypatch.setattr(runner, "run_unit", run_unit)
    runner.run(runner.plan("embedded", tmp_path), tmp_path)
    assert most == [1, 1]
