"""Tasks of the American Community Survey on made-up rows."""

import importlib.util

import numpy as np
import pandas as pd
import pytest

from fedjax_fair import data
from fedjax_fair.app.cli import main
from fedjax_fair.data.conversion import DamagedError

COLUMNS = ("COW", "SCHL", "MAR", "OCCP", "POBP", "RELP", "RAC1P", "PWGTP")


def make_rows():
    """Rows 1, 2, 4 and 5 are of adults who work and have an income."""
    rows = {
        "AGEP": [15, 20, 30, 40, 50, 60, 70, 33],
        "PINCP": [60000, 60000, 40000, 50, 50000, 50001, 80000, 90000],
        "WKHP": [40, 40, 40, 40, 40, 40, 0, np.nan],
        "ST": [1, 1, 1, 1, 2, 2, 2, 2],
        "SEX": [1, 2, 2, 1, 1, 2, 1, 2],
    }
    return pd.DataFrame(rows | {name: [1.0] * 8 for name in COLUMNS})


def test_states_are_clients_of_the_chosen_rows():
    pytest.importorskip("folktables")
    made = data.acs(make_rows(), test=0.0)
    assert made.client_names == ("01", "02")
    train = made.train
    labels = [
        sorted(train.labels[train.order[start : start + size]].tolist())
        for start, size in zip(train.offsets, train.sizes, strict=True)
    ]
    assert labels == [[0, 1], [0, 1]]  # Incomes of 40,000 and 60,000; of 50,000 and 50,001.
    assert made.sensitive_names[0] == data.SensitiveFeature("SEX", ("1", "2"))
    men = train.sensitive_features[:, 0] == 0
    assert train.labels[men].tolist() == [0]  # The incomes of 50,000, and of two women above.
    assert sorted(train.labels[~men].tolist()) == [0, 1, 1]
    names = made.encoding.feature_names
    assert "SEX=1" in names
    assert "AGEP" in names
    assert not any(name.startswith("ST") for name in names)


def write_states(folder):
    """Writes 25 copies of each row into a file of each state."""
    rows = pd.concat([make_rows()] * 25)
    for state, own in rows.groupby("ST"):
        own.to_csv(folder / f"psam_p{state:02}.csv", index=False)
    return rows


def test_files_of_states_are_a_data_set(tmp_path):
    pytest.importorskip("folktables")
    rows = write_states(tmp_path)
    found = data.load("acs_income", data_dir=tmp_path)
    made = data.acs(rows, test=0.0)
    assert found.client_names == made.client_names == ("01", "02")
    assert found.num_classes == 2
    assert sorted(found.encoding.feature_names) == sorted(made.encoding.feature_names)
    both = np.concatenate([found.train.labels, found.test.labels])
    assert (len(both), both.sum()) == (len(made.train.labels), made.train.labels.sum()) == (100, 50)
    assert found.sensitive_names == made.sensitive_names
    biased = data.biased(2, ["SEX"], "prevalence")
    assert data.load("acs_income", biased, data_dir=tmp_path).num_clients == 2
    (tmp_path / "psam_p01.csv").write_text("AGEP\n1\n")
    (tmp_path / "psam_p02.csv").unlink()
    with pytest.raises(DamagedError, match=r"psam_p01.csv: expected the table acs_income \(f"):
        data.load("acs_income", data_dir=tmp_path)


@pytest.mark.integration
def test_a_command_trains_with_the_files_of_states(tmp_path, capsys):
    pytest.importorskip("folktables")
    write_states(tmp_path)
    command = ["run", "--data.name=acs_income", f"--data.dir={tmp_path}", "--methods", "fedavg"]
    command += [
        "--training.rounds=1",
        "--training.seeds",
        "0",
        "1",
        f"--output={tmp_path / 'runs'}",
    ]
    assert main([*command, "--quiet"]) == 0
    assert "Group fairness by SEX x RAC1P (acs_income)" in capsys.readouterr().out


def test_other_tasks_have_their_rows_and_labels():
    """Missing codes become 0; the state is no feature."""
    pytest.importorskip("folktables")
    rows = make_rows()
    more = "DIS ESP CIT MIG MIL ANC NATIVITY DEAR DEYE DREM ESR GCL JWMNP"
    rows = rows.assign(**{name: [1.0, np.nan] * 4 for name in more.split()})
    made = data.acs(rows, "mobility", client=data.iid(1), test=0.0)
    assert made.train.sizes.tolist() == [3]  # Of 19 to 34 years.
    assert made.train.labels.sum() == 1
    employed = data.acs(rows, "employment", test=0.0)
    assert employed.train.sizes.tolist() == [4, 4]
    assert employed.train.labels.sum() == 4
    assert "MIL=0" in employed.encoding.feature_names


def test_mistakes_in_the_survey_are_explained(monkeypatch):
    pytest.importorskip("folktables")
    rows = make_rows()
    for frame, task, message in (
        (rows.drop(columns="RELP"), "income", "frame lacks RELP: expected .* RELSHIPP from 2019"),
        (rows.drop(columns="PWGTP"), "income", "frame lacks 'PWGTP', by which rows of income are"),
        (rows[rows.AGEP < 16], "income", "frame has no rows for task='income'"),
        (rows, "wealth", "task='wealth'"),
    ):
        with pytest.raises(ValueError, match=message):
            data.acs(frame, task)


def test_the_extra_is_named_where_folktables_is_absent(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "folktables" else find(name)
    )
    with pytest.raises(ImportError, match=r"data.acs: .*folktables; pip install .*\[acs\]"):
        data.acs(make_rows())
