"""Mistakes in tables and in arguments are explained."""

import re

import numpy as np
import pandas as pd
import pytest
from tables_of_people import BASE, TABLE, TOTAL, ordered

from fedjax_fair import data

WRONG = {
    "one category": (
        TABLE.assign(salary=ordered(["low"] * TOTAL, ["low"])),
        {},
        "label 'salary' has one class, low: expected two or more",
    ),
    "missing level": (
        TABLE.assign(salary=ordered(["low", None] * (TOTAL // 2))),
        {},
        "label 'salary': 60 values are missing, first in row 1",
    ),
    "another level": (
        TABLE.assign(salary=ordered(["low", "high"] * (TOTAL // 2))),
        {"test": TABLE},
        "label 'salary' has the value ",
    ),
    "no column": (TABLE, {"label": "salari"}, "label: no column 'salari'; did you mean 'salary'?"),
    "no client": (TABLE, {"client": "city"}, "client: no column 'city'"),
    "no sensitive": (TABLE, {"sensitive_features": ["gender"]}, "no column 'gender'"),
    "no excluded": (TABLE, {"exclude": ["x"]}, "exclude: no column 'x'"),
    "no categorical": (TABLE, {"categorical": ["x"]}, "categorical: no column 'x'"),
    "string": (TABLE, {"sensitive_features": "sex"}, "sensitive_features='sex': expected names"),
    "repeated": (TABLE, {"exclude": ["sex", "sex"]}, "expected each column once"),
    "sensitive label": (
        TABLE,
        {"sensitive_features": ["salary"]},
        "sensitive_features: column 'salary' is the label",
    ),
    "copy of the label": (
        TABLE.assign(sex=TABLE.salary.str.replace("K", "T")),
        {},
        "sensitive_features['sex'] equals the labels",
    ),
    "label as client": (TABLE, {"client": "salary"}, "client: column 'salary' is the label"),
    "missing label": (
        TABLE.assign(salary=TABLE.salary.where(TABLE.index != 7)),
        {},
        "label 'salary': 1 values are missing, first in row 7",
    ),
    "missing client": (
        TABLE.assign(town=TABLE.town.where(TABLE.index != 9)),
        {},
        "1 values of column 'town' are missing, first in row 9",
    ),
    "missing sensitive": (
        TABLE.assign(sex=TABLE.sex.where(TABLE.index > 1)),
        {},
        "sensitive_features['sex']: 2 values are missing, first at 0",
    ),
    "one class": (TABLE.assign(salary="a"), {}, "label 'salary' has one class"),
    "floats": (TABLE, {"label": "hours"}, "label 'hours' has 120 different numbers"),
    "text target": (TABLE, {"target": "regression"}, "expected numbers for target='regression'"),
    "no indicator": (
        TABLE,
        {"label": "age", "target": "multi_label"},
        "expected 0 and 1 for target='multi_label'",
    ),
    "two labels": (TABLE, {"label": ["salary", "job"]}, "expected one column for classes"),
    "sensitive numbers": (
        TABLE,
        {"sensitive_features": ["hours"]},
        "float64: expected strings, integers or booleans",
    ),
    "10,000 groups": (
        pd.concat([TABLE] * 100, ignore_index=True).assign(id=lambda rows: rows.index // 1),
        {"sensitive_features": ["id"]},
        "12,000 different values: expected at most 1,000",
    ),
    "identifiers": (
        pd.concat([TABLE] * 12, ignore_index=True).assign(id=lambda rows: rows.index.astype(str)),
        {},
        "column 'id' has 1",
    ),
    "many classes": (
        pd.concat([TABLE] * 9, ignore_index=True).assign(salary=lambda rows: rows.index),
        {"sensitive_features": []},
        "label 'salary' has 1,080 different numbers",
    ),
    "dates": (
        TABLE.assign(day=pd.Timestamp("2017-01-01")),
        {},
        "column 'day' has the value Timestamp('2017-01-01 00:00:00') of Timestamp",
    ),
    "infinite": (TABLE.assign(hours=np.inf), {}, "values are infinite"),
    "no values": (TABLE.assign(hours=np.nan), {}, "column 'hours' has no values; exclude it"),
    "no features": (TABLE[["salary", "town"]], {"sensitive_features": []}, "no column is left"),
    "no test rows": (TABLE, {"test": TABLE[:0]}, "test has no rows"),
    "no rows": (TABLE[:0], {}, "table has no rows"),
    "test fraction": (TABLE, {"test": 1.0}, "test=1.0"),
    "test columns": (TABLE, {"test": TABLE.drop(columns="sex")}, "no column 'sex'"),
    "test feature": (TABLE, {"test": TABLE.drop(columns="job")}, "test: no column 'job'"),
    "test type": (
        TABLE,
        {"test": TABLE.assign(age="old")},
        "column 'age' of str: expected numbers",
    ),
    "kind": ([1, 2], {}, "table of type list: expected a table of pandas, Polars or Arrow"),
    "names": (TABLE.rename(columns={"age": 0}), {}, "expected names that are strings"),
    "twice": (
        pd.concat([TABLE, TABLE.age], axis=1),
        {},
        "table has the columns ['age'] repeatedly",
    ),
    "client": (TABLE, {"client": 3}, "client is a int"),
    "no column to split by": (
        TABLE,
        {"client": data.dirichlet(2, by="gender")},
        "client: no column 'gender'",
    ),
    "small clients": (
        TABLE,
        {"client": data.dirichlet(100, by="sex")},
        "expected at least 1000, 10 per client",
    ),
    "target": (TABLE, {"target": "ordinal"}, "target='ordinal'"),
    "encoding": (TABLE, {"encoding": "embedding"}, "encoding='embedding'"),
    "suffix": ("people.json", {}, "people.json: expected a file ending in .csv"),
}


@pytest.mark.parametrize(("table", "changes", "message"), WRONG.values(), ids=WRONG)
def test_mistakes_are_explained(table, changes, message, as_users_call):
    with pytest.raises(ValueError, match=re.escape(message)):
        data.from_table(table, **BASE | changes)


def test_damaged_and_missing_files_are_explained(tmp_path):
    for name, content in (
        ("a.parquet", b"PAR1"),
        ("a.csv", b""),
        ("a.csv.gz", b"x"),
        ("b.csv", b"a\n"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}"):
            data.from_table(path, **BASE)
    with pytest.raises(FileNotFoundError, match=r"none.csv: no such file"):
        data.from_table(tmp_path / "none.csv", **BASE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"job": "pilot"}, "column 'job' has the categories ['pilot'], which the rows"),
        ({"age": "old"}, "column 'age' of str: expected numbers"),
        ({"sex": 1.5}, "column 'sex' has the value 1.5 of float"),
        ({"hours": np.inf}, "values are infinite"),
    ],
)
def test_new_rows_that_do_not_fit_are_explained(change, message):
    encoding = data.from_table(TABLE, **BASE).encoding
    with pytest.raises(ValueError, match=re.escape(message)):
        encoding.encode(TABLE[:2].assign(**change))
    with pytest.raises(ValueError, match="table: no column 'job'"):
        encoding.encode(TABLE.drop(columns="job"))
