"""Names of clients: from arrays to results, their files, tables and pages; and data files."""

import numpy as np
import pytest
import xarray as xr

from fedjax_fair import aggregators, models, report, results, selectors, solvers
from fedjax_fair.app.cli import main
from fedjax_fair.data import from_arrays, on_device, stack
from fedjax_fair.results.tables import clients_table
from fedjax_fair.rounds.round import Round
from fedjax_fair.training.fingerprint import describe_run
from fedjax_fair.training.fit import fit

NAMES = ("north", "south", "children")
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(90, 4)).astype(np.float32)
LABELS = (FEATURES[:, 0] > 0).astype(np.int32)
PARTS = [range(30), range(30, 60), range(60, 90)]
METHOD = Round(
    models.logistic(2), selectors.Uniform(2), solvers.SGD(0.1, 10, epochs=1), aggregators.Mean()
)


def make(indices=None, **settings):
    indices = dict(zip(NAMES, PARTS, strict=True)) if indices is None else indices
    return from_arrays(FEATURES, LABELS, indices, **settings)


def test_names_change_only_the_coordinate(tmp_path):
    named, unnamed = make(validation_fraction=0.2), make(PARTS, validation_fraction=0.2)
    assert named.client_names == NAMES
    assert unnamed.client_names is None
    result = fit(METHOD, named, rounds=2, checkpoints=tmp_path).dataset
    expected = fit(METHOD, unnamed, rounds=2).dataset
    assert "client" not in expected.coords
    assert result.client.values.tolist() == list(NAMES)
    xr.testing.assert_identical(result.drop_vars("client"), expected)
    assert describe_run(METHOD, named) == describe_run(METHOD, unnamed)
    resumed = fit(METHOD, named, rounds=4, checkpoints=tmp_path).dataset
    assert resumed.client.values.tolist() == list(NAMES)
    assert set(resumed.test_accuracy.to_dataframe().index.get_level_values("client")) == set(NAMES)


def test_names_survive_transformations_and_files(tmp_path):
    data = make()
    both = stack([data, data])
    for each in (both, both.partition(1), on_device(data), data.map_parts(lambda part: part)):
        assert each.client_names == NAMES
    assert "3: north, south, children" in str(data)
    fitted = fit(METHOD, data, rounds=2)
    assert fitted.evaluate(data).client.values.tolist() == list(NAMES)
    runs = results.combine({"fedavg": fitted.dataset})
    results.save(runs, tmp_path / "results.nc")
    opened = results.open(tmp_path / "results.nc")
    xr.testing.assert_identical(opened, runs)
    merged = results.merge_runs({"one": runs, "other": opened})
    assert merged.client.values.tolist() == list(NAMES)
    with pytest.raises(ValueError, match="other:"):
        results.merge_runs({"one": runs, "other": runs.isel(client=[1, 0, 2])})
    with pytest.raises(ValueError, match=r"datasets\[1\].client_names:"):
        stack([data, make(PARTS)])


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ({" ": range(30), "b": range(30, 90)}, r"a client is named \[' '\]; expected non-empty"),
        ({"a\0": range(30), "b": range(30, 90)}, "a client is named"),
        ({"a": range(30), 1: range(30, 90)}, "expected strings only, or none"),
    ],
)
def test_invalid_names_are_errors(indices, message):
    with pytest.raises(ValueError, match=message):
        make(indices)


def test_repeated_and_missing_names_are_errors():
    for names, message in [
        (("a", "a", "b"), r"client_names: several clients are named \['a'\]"),
        (("a", "b"), "client_names: expected a tuple of 3 strings"),
    ]:
        with pytest.raises(ValueError, match=message):
            fit(METHOD, make()._replace(client_names=names), rounds=1)
    with pytest.raises(ValueError, match="clients:"):
        from_arrays(FEATURES, LABELS, clients=["", "a", "b"] * 30)
    assert make({7: range(30), 9: range(30, 90)}).client_names is None


def test_the_worst_clients_are_listed_by_name():
    runs = results.combine({"fedavg": fit(METHOD, make(), rounds=1, seeds=(0, 1)).dataset})
    accuracy = np.broadcast_to([0.5, 0.2, np.nan], runs.test_accuracy.shape)
    runs["test_accuracy"] = (runs.test_accuracy.dims, accuracy)
    (row,) = clients_table(runs).rows
    assert [cell.splitlines()[0] for cell in row] == ["fedavg", "south", "north", "-"]
    page = report.page(runs)
    assert "Clients with the lowest test accuracy" in page
    assert '"names":["north","south","children"]' in page
    assert "Clients with the lowest" not in report.page(runs.drop_vars("client"))


def test_page_of_a_fit_needs_no_other_argument():
    page = report.page(fit(METHOD, make(), rounds=1).dataset)
    assert page.startswith("<!DOCTYPE html>")
    assert "<summary>Configuration" not in page


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "wards.npz"
    np.savez(path, features=FEATURES, labels=LABELS, client=np.repeat(NAMES, 30))
    return path


@pytest.mark.integration
def test_a_file_is_run_resumed_swept_and_compared(file, tmp_path, capsys, without_figures):
    own = ["--data.file", str(file), "--methods", "fedavg", "divfl", "--quiet"]
    own += ["--training.rounds", "2", "--training.seeds", "0", "1"]
    assert main(["run", *own, "--output", str(tmp_path / "runs")]) == 0
    assert "Clients with the lowest test accuracy (wards)" in capsys.readouterr().out
    (folder,) = (tmp_path / "runs").iterdir()
    assert main(["resume", str(folder), "--training.rounds", "4", "--quiet"]) == 0
    run = results.open(folder)
    assert run.client.values.tolist() == sorted(NAMES)
    assert int(run["round"].max()) == 4
    assert main(["compare", str(folder)]) == 0
    swept = tmp_path / "swept"
    assert main(["sweep", "digits", "learning_rate=0.1,0.2", *own, "--output", str(swept)]) == 0
    (folder,) = swept.iterdir()
    assert results.open(folder).client.values.tolist() == sorted(NAMES)
    assert main(["data", "show", "--data.file", str(file)]) == 0
    assert "3: children, north, south" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--data.file {xlsx}", "expected a table as .csv, .tsv, .parquet or .feather, an .npz"),
        ("--data.file nowhere.npz", "no such file"),
        ("--data.file {file} --data.partition iid", "expected no partition with it"),
        ("--data.file {file} --data.name mnist", "data.name='mnist' is not used with data.file"),
        ("--data.file {file} --data.partition-per-seed", "expected False with data.file"),
    ],
)
def test_mistakes_with_data_files_are_explained(arguments, message, file, tmp_path, capsys):
    xlsx = tmp_path / "table.xlsx"
    xlsx.touch()
    assert main(["run", *arguments.format(file=file, xlsx=xlsx).split()]) == 2
    assert message in capsys.readouterr().err
