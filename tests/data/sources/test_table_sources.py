"""The tables Adult, COMPAS, Census-Income and Minneapolis, and tables on the command line."""

import gzip
import json
import re
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

from fedjax_fair import data, results
from fedjax_fair.app.cli import main
from fedjax_fair.data.conversion import DamagedError
from fedjax_fair.data.sensitive_counts import client_counts
from fedjax_fair.data.sources.table_sources import TABLES

SHARED = Path(__file__).parents[3] / "shared" / "data"

# Excerpts in the format of https://archive.ics.uci.edu/dataset/2/adult.
ADULT = """39, State-gov, 77516, Bachelors, 13, Never-married, Sales, Not-in-family, White, Male, \
2174, 0, 40, United-States, <=50K
50, Private, 83311, Bachelors, 13, Never-married, Sales, Husband, Black, Female, \
0, 0, 13, United-States, >50K
28, ?, 338409, Bachelors, 13, Never-married, ?, Wife, White, Female, 0, 0, 40, Cuba, >50K
31, Private, 45781, Masters, 14, Never-married, Tech-support, Not-in-family, White, Male, \
14084, 0, 50, United-States, >50K
42, Private, 159449, Bachelors, 13, Divorced, Tech-support, Husband, Other, Female, \
5178, 0, 40, United-States, <=50K
"""
# Some columns of https://github.com/propublica/compas-analysis, two of which occur twice.
COMPAS = """id,name,sex,age,age_cat,race,juv_fel_count,decile_score,juv_misd_count,juv_other_count,\
priors_count,days_b_screening_arrest,c_charge_degree,is_recid,decile_score,score_text,priors_count,\
two_year_recid
1,a,Male,69,Greater than 45,Other,0,1,0,0,0,-1,F,0,1,Low,0,0
2,b,Male,34,25 - 45,African-American,0,3,0,0,0,-1,F,1,3,Low,0,1
3,c,Male,24,Less than 25,African-American,0,4,0,1,4,,F,1,4,Low,4,1
4,d,Male,23,Less than 25,African-American,0,8,1,0,1,31,F,0,8,High,1,0
5,e,Male,43,25 - 45,Other,0,1,0,0,2,0,F,-1,1,Low,2,0
6,f,Female,44,25 - 45,Caucasian,0,1,0,0,0,0,O,0,1,Low,0,0
7,g,Female,41,25 - 45,Caucasian,0,6,0,0,14,-1,M,1,6,N/A,14,1
8,h,Female,39,25 - 45,Caucasian,0,1,0,0,0,30,M,0,1,Low,0,0
9,i,Male,21,Less than 25,Caucasian,0,3,0,0,1,428,F,1,3,Low,1,1
10,j,Female,27,25 - 45,Caucasian,0,4,0,0,0,-1,F,0,4,Low,0,0
11,k,Male,23,Less than 25,African-American,0,6,0,0,3,0,M,1,6,Medium,3,1
"""


def write_adult(folder, compress=False):
    files = {
        "adult.data": f"{ADULT}\n",
        "adult.test": "|1x3 Cross validator\n" + ADULT.replace("50K", "50K."),
    }
    for name, text in files.items():
        if compress:
            (folder / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (folder / name).write_text(text)


@pytest.mark.parametrize("compress", [False, True])
def test_original_files_of_adult(tmp_path, compress):
    write_adult(tmp_path, compress)
    adult = data.load("adult", data_dir=tmp_path)
    assert adult.client_names == ("Sales", "Tech-support")
    assert adult.train.sizes.tolist() == adult.test.sizes.tolist() == [2, 2]
    assert adult.encoding.classes == ("<=50K", ">50K")
    assert adult.train.labels.tolist() == adult.test.labels.tolist() == [0, 1, 1, 0]
    assert adult.sensitive_names == (
        ("sex", ("Female", "Male")),
        ("race", ("Black", "Other", "White")),
    )
    assert adult.train.sensitive_features.tolist() == [[1, 2], [0, 0], [1, 2], [0, 1]]
    ages = np.array([39, 50, 31, 42])
    np.testing.assert_allclose(
        adult.train.features[:, 0], (ages - ages.mean()) / ages.std(), rtol=1e-5
    )
    assert adult.train.features.shape == (4, len(adult.encoding.feature_names))
    assert not any("?" in name or "occupation" in name for name in adult.encoding.feature_names)


def test_original_file_of_compas_has_the_filter_of_propublica(tmp_path):
    (tmp_path / "compas-scores-two-years.csv").write_text(COMPAS)
    compas = data.load("compas", data.iid(2), data_dir=tmp_path)
    assert int(compas.train.sizes.sum() + compas.test.sizes.sum()) == 5
    rows = pd.concat([pd.read_csv(tmp_path / "compas-scores-two-years.csv")])
    kept = rows[rows.id.isin([1, 2, 8, 10, 11])]
    ages = compas.encoding.columns[1]
    assert ages.name == "age_num"
    both = np.concatenate([compas.train.features[:, 2], compas.test.features[:, 2]])
    np.testing.assert_allclose(
        sorted(both * ages.scale + ages.mean), sorted(kept.age.to_numpy()), rtol=1e-5
    )
    names = set(" ".join(compas.encoding.feature_names).split())
    assert not {"decile_score", "score_text", "is_recid", "id", "name"} & names
    every = np.concatenate([compas.train.labels, compas.test.labels])
    assert every.sum() == kept.two_year_recid.sum()


def write_stops(folder):
    total = 40
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(
        {
            "date": [f"2017-01-{1 + day % 28:02}T{day % 24:02}:00:42Z" for day in range(total)],
            "problem": rng.choice(["traffic", "suspicious"], total),
            "mdc": "MDC",
            "citationissued": "NO",
            "personsearch": np.where(np.arange(total) % 4, "NO", "YES"),
            "vehiclesearch": "NO",
            "prerace": "Unknown",
            "race": np.where(np.arange(total) % 3, "Black", "White"),
            "gender": np.where(np.arange(total) % 5, "Male", None),
            "lat": rng.normal(size=total),
            "long": rng.normal(size=total),
            "policeprecinct": 1,
            "neighborhood": np.where(np.arange(total) < 30, "Bryant", "Harrison"),
        }
    )
    rows.loc[7, "personsearch"] = None
    (folder / "tables").mkdir()
    rows.to_csv(folder / "tables" / "mpls_stops.csv.gz", index=False)


def test_stops_without_outcome_are_left_out_and_unknown_groups_kept(tmp_path):
    write_stops(tmp_path)
    stops = data.load("mpls_stops", data_dir=tmp_path)
    assert stops.client_names == ("Bryant", "Harrison")
    assert int(stops.train.sizes.sum() + stops.test.sizes.sum()) == 39
    assert stops.sensitive_names[1] == ("gender", ("Male", "Unknown"))
    names = " ".join(stops.encoding.feature_names)
    assert "hour" in names
    for absent in ("date", "citation", "vehicle", "prerace", "neighborhood"):
        assert absent not in names


def test_columns_with_missing_values_make_no_clients(tmp_path):
    write_stops(tmp_path)
    path = tmp_path / "tables" / "mpls_stops.csv.gz"
    pd.read_csv(path).assign(prerace=None).to_csv(path, index=False)
    with pytest.raises(ValueError, match="column='prerace': 32 values are missing"):
        data.load("mpls_stops", data.by_column("prerace"), data_dir=tmp_path)


def test_publisher_split_is_kept(tmp_path):
    total = 20
    rows = pd.DataFrame(
        {
            "age": range(total),
            "industry": ["Mining", "Education"] * 10,
            "sex": ["Male", "Female", "Female", "Male"] * 5,
            "race": ["White", "Black", "Other", "White"] * 5,
            "income": ["<=50K", "<=50K", ">50K", ">50K"] * 5,
            "split": ["train"] * 12 + ["test"] * 8,
        }
    )
    rows.to_csv(tmp_path / "census_income.csv", index=False)
    census = data.load("census_income", data_dir=tmp_path)
    assert census.train.sizes.tolist() == [6, 6]
    assert census.test.sizes.tolist() == [4, 4]
    assert census.encoding.columns[0].mean == np.mean(range(12))
    assert not any("split" in name for name in census.encoding.feature_names)


def test_partitions_of_tables_share_test_rows(tmp_path):
    write_stops(tmp_path)
    partition = data.dirichlet(3, 0.5, min_partition_size=1, by="race")
    stops = data.load("mpls_stops", partition, seed=(0, 1), data_dir=tmp_path)
    assert stops.num_partitions == 2
    assert not np.array_equal(stops.train.order[0], stops.train.order[1])
    first = data.load("mpls_stops", partition, seed=0, data_dir=tmp_path)
    for leaf, other in zip(
        jax.tree.leaves(stops.partition(0)), jax.tree.leaves(first), strict=True
    ):
        np.testing.assert_array_equal(leaf[: len(other)], other)


def test_missing_and_damaged_tables_are_explained(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"tables/adult.csv.gz or the original files: adult"
    ):
        data.load("adult", data_dir=tmp_path)
    write_adult(tmp_path)
    (tmp_path / "adult.test").unlink()
    with pytest.raises(DamagedError, match=r"adult.test: expected it beside adult.data"):
        data.load("adult", data_dir=tmp_path)
    (tmp_path / "adult.csv").write_text("age,sex\n3,F\n")
    with pytest.raises(DamagedError, match=r"adult.csv: expected the table adult \(.*'salary'"):
        data.load("adult", data_dir=tmp_path)
    (tmp_path / "compas-scores-two-years.csv").write_text("id,sex\n1,Male\n")
    with pytest.raises(DamagedError, match=r"compas-scores-two-years.csv: expected the table"):
        data.load("compas", data_dir=tmp_path)
    (tmp_path / "mpls_stops.csv.gz").write_bytes(b"no gzip")
    assert data.describe("census_income", tmp_path).damage is None
    described = {entry.name: entry for entry in data.available(tmp_path)}
    assert "mpls_stops.csv.gz: expected the table" in described["mpls_stops"].damage
    with pytest.raises(ValueError, match="downloaded by hand"):
        data.prepare("adult", tmp_path)


def test_client_counts_equal_a_table_of_pandas(tmp_path):
    write_stops(tmp_path)
    stops = data.load("mpls_stops", data_dir=tmp_path)
    counts = client_counts(stops.train, stops.sensitive_names, range(2))
    part = stops.train
    frame = pd.DataFrame(part.sensitive_features[part.order], columns=["race", "gender"])
    frame["client"] = np.repeat([0, 1], part.sizes)
    frame["label"] = part.labels[part.order]
    expected = {}
    for column, names in {
        "label": {0: "class 0", 1: "class 1"},
        "race": {0: "race=Black", 1: "race=White"},
        "gender": {0: "gender=Male", 1: "gender=Unknown"},
    }.items():
        table = pd.crosstab(frame.client, frame[column])
        expected |= {names[code]: table[code].tolist() for code in table}
    assert {name: column.tolist() for name, column in counts.items()} == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--data.name table", "data.file=None: expected a file with data.name='table'"),
        ("--data.file x.csv", "x.csv': no such file"),
        ("--data.file {csv}", "data.label=None: expected the column of '"),
        ("--data.file {csv} --data.label y", "data.client=None: expected a column whose values"),
        ("--data.file x.csv --data.label y --data.client z", "x.csv': no such file"),
        (
            "--data.name mnist --data.label y",
            "--data.label has no effect: data.partition='classes_per_client'",
        ),
        ("--data.name adult --data.by sex", "--data.by has no effect: data.partition='by_c"),
        ("--data.name adult --data.client town", "column='town': expected one of"),
        ("--data.file {csv} --data.label no --data.client town", "label: no column 'no'"),
        (
            "--data.file {csv} --data.label ill --data.client town --data.sensitive-features ill",
            "column 'ill' is the label",
        ),
        (
            "--data.file {csv} --data.label ill --data.client town --data.partition-per-seed",
            "expected False with data.file",
        ),
        (
            "--data.file {csv} --data.label ill --data.partition dirichlet --data.by height",
            "no column 'height'",
        ),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(arguments, message, tmp_path, capsys):
    write_adult(tmp_path)
    csv = tmp_path / "towns.csv"
    make_towns().to_csv(csv, index=False)
    own = [*arguments.format(csv=csv).split(), "--data.dir", str(tmp_path)]
    if "--data.file" in arguments:
        own = own[:-2]
    assert main(["run", *own]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(re.findall(r"^error", error, flags=re.MULTILINE | re.IGNORECASE)) <= 1


def make_towns():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.integers(18, 90, 60),
            "sex": rng.choice(["F", "M"], 60),
            "town": ["north", "south", "west"] * 20,
            "ill": rng.choice(["no", "yes"], 60),
        }
    )


@pytest.mark.integration
def test_a_table_is_shown_run_and_resumed(tmp_path, capsys, without_figures):
    csv = tmp_path / "towns.csv"
    make_towns().to_csv(csv, index=False)
    own = ["--data.name", "table", "--data.file", str(csv), "--data.label", "ill"]
    own += ["--data.client", "town", "--data.sensitive-features", "sex"]
    assert main(["data", "show", *own]) == 0
    shown = capsys.readouterr().out
    assert "3: north, south, west" in shown
    assert re.search(r"client +class no +class yes +sex=F +sex=M", shown)
    own += ["--methods", "fedavg", "--training.rounds", "2", "--quiet"]
    assert main(["run", *own, "--output", str(tmp_path / "runs")]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    config = json.loads((folder / "config.json").read_text())
    assert config["data"]["sensitive_features"] == ["sex"]
    assert main(["resume", str(folder), "--training.rounds", "4", "--quiet"]) == 0
    assert results.open(folder).client.values.tolist() == ["north", "south", "west"]


@pytest.fixture(scope="module")
def shared():
    if not (SHARED / "tables").is_dir():
        pytest.skip(f"no prepared tables in {SHARED}")
    return SHARED


EXPECTED = {
    "adult": (45_222, "sex", {"Female": 14_695}, 0.248, 14),
    "compas": (6_167, "race", {"Caucasian": 2_100}, 0.456, 3),
    "census_income": (148_318, "sex", {"Female": 70_093}, 0.116, 23),
    "mpls_stops": (51_920 - 8_221, "race", {"Black": 15_220}, 5_237 / 43_699, 87),
}


@pytest.mark.integration
@pytest.mark.parametrize("name", [*TABLES])
def test_prepared_tables(name, shared):
    loaded = data.load(name, data_dir=shared)
    total, feature, sizes, positives, clients = EXPECTED[name]
    parts = (loaded.train, loaded.test)
    assert sum(int(part.sizes.sum()) for part in parts) == total
    assert loaded.num_clients == clients
    assert loaded.sensitive_names[0].name == feature
    labels = np.concatenate([part.labels for part in parts])
    assert abs(labels.mean() - positives) < 0.001
    codes = np.concatenate([part.sensitive_features[:, 0] for part in parts])
    names = np.array(loaded.sensitive_names[0].values)[codes]
    for value, size in sizes.items():
        assert (names == value).sum() == size
