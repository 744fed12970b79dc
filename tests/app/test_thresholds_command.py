"""The command that fits thresholds to the models of a run."""

from io import StringIO

import numpy as np
import pandas as pd
import pytest

from fedjax_fair.app.cli import main
from fedjax_fair.app.run_folder import RunFolder

OPTIONS = (
    "--data.label=salary", "--data.client=town", "--data.sensitive-features=sex",
    "--model.name=logistic", "--training.rounds=2", "--training.seeds", "0", "1", "--quiet",
)  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Runs with and without validation examples."""
    place = tmp_path_factory.mktemp("thresholds")
    rng = np.random.default_rng(0)
    sex, town = rng.integers(0, 2, 600), rng.integers(0, 2, 600)
    hours = rng.normal(38 + 6 * sex, 8)
    table = pd.DataFrame({"hours": hours, "sex": np.array(["F", "M"])[sex]})
    table["town"] = np.array(["Aba", "Bern"])[town]
    table["salary"] = (hours + rng.normal(0, 6, 600) > 42).astype(int)
    table.to_csv(place / "people.csv", index=False)
    found = {}
    for name, fraction in (("with", "0.3"), ("without", "0")):
        output = place / name
        file = f"--data.file={place / 'people.csv'}"
        arguments = [file, *OPTIONS, f"--data.validation-fraction={fraction}"]
        assert main(["run", "--methods", "fedavg", *arguments, "--output", str(output)]) == 0
        (found[name],) = output.iterdir()
    return found


@pytest.mark.integration
def test_the_command_prints_gaps_and_writes_thresholds(folders, tmp_path, capsys):
    file = tmp_path / "thresholds.csv"
    command = ["thresholds", str(folders["with"]), "--max-local-gap", "0.05", "-o", str(file)]
    plot = tmp_path / "thresholds.png"
    assert main([*command, "--plot", str(plot)]) == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "Thresholds of clients and groups (people)" in printed
    assert "gaps of at most 5" in printed
    assert "Rates by sex" in printed
    table = pd.read_csv(StringIO(file.read_text("utf8")))
    assert len(table) == 8  # Two seeds, clients and groups.
    gaps = table.groupby(["seed", "client"])["rate"].agg(lambda rates: rates.max() - rates.min())
    assert gaps.max() == pytest.approx(0.05)
    assert (table["low"] <= table["high"]).all()
    assert set(table["client"]) == {"Aba", "Bern"}
    assert set(table["group"]) == {"F", "M"}
    # Of 600 people 480 are training examples, of which each client holds out 30 %, rounded down.
    assert table.groupby("seed")["people"].sum().isin([142, 143, 144]).all()
    assert RunFolder(folders["with"]).results.is_file()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("run", "options", "message"),
    [
        ("with", [], "max_global_gap=None and max_local_gap=None: expected a bound"),
        ("with", ["--max-local-gap=-1"], "max_local_gap=-1.0: expected a number >= 0"),
        ("with", ["--max-local-gap=0", "--method=divfl"], "method='divfl'"),
        ("with", ["--max-local-gap=0", "--features=age"], "features=['age']: expected some of"),
        ("with", ["--max-local-gap=0", "--plot=x.txt"], "plot='x.txt': expected a file name"),
        ("with", ["--max-local-gap=0", "--personalized"], "there are no personalized models"),
        ("without", ["--max-local-gap=0"], "data has no validation examples"),
    ],
)
def test_mistakes_in_thresholds_end_with_one_line(folders, run, options, message, capsys):
    assert main(["thresholds", str(folders[run]), *options]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed
