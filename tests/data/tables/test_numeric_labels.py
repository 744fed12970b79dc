"""Labels that are numbers: classes, targets, or a question to the user."""

import numpy as np
import pandas as pd
import pytest

from fedjax_fair import data

ROWS = 120
RNG = np.random.default_rng(0)
TABLE = pd.DataFrame({"town": RNG.choice(list("abc"), ROWS), "x": RNG.normal(size=ROWS)})


def read(values, **settings):
    table = TABLE.assign(y=np.resize(values, ROWS) if not isinstance(values, pd.Series) else values)
    return data.from_table(table, label="y", client="town", **settings)


@pytest.mark.parametrize(
    "values",
    [
        np.arange(17, 90),
        np.arange(21),
        np.arange(30, dtype=np.uint8),
        np.array([0.5, 1.0, 1.5]),
        RNG.normal(size=ROWS),
        pd.Series(np.arange(ROWS), dtype="Int64"),
        pd.Series(np.arange(ROWS) / 2, dtype="Float64"),
    ],
    ids=["ages", "twenty-one", "bytes", "halves", "normal", "nullable", "nullable floats"],
)
def test_many_numbers_are_a_question(values):
    with pytest.raises(ValueError, match="different numbers") as caught:
        read(values)
    message = str(caught.value)
    assert "\n" not in message
    for target in ("regression", "classification"):
        assert f"'{target}'" in message
        assert f"--data.target {target}" in message
    assert read(values, target="regression").train.has_targets
    classified = read(values, target="classification")
    assert classified.num_classes == pd.Series(values).nunique()
    assert not classified.train.has_targets


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (np.array([0, 1]), ("0", "1")),
        (np.array([0.0, 1.0, 2.0]), ("0", "1", "2")),
        (np.arange(20), tuple(map(str, range(20)))),
        (np.array([True, False]), ("False", "True")),
        (np.array([f"c{i:02}" for i in range(40)]), tuple(f"c{i:02}" for i in range(40))),
    ],
    ids=["0 and 1", "whole floats", "twenty", "booleans", "texts"],
)
def test_few_numbers_and_texts_are_classes(values, classes):
    assert read(values).encoding.classes == classes


def test_classes_of_fractions_are_ascending():
    assert read([1.5, 0.5, 10.0], target="classification").encoding.classes == (
        "0.5",
        "1.5",
        "10.0",
    )


def test_a_file_with_labels_0_and_1_has_classes(tmp_path):
    TABLE.assign(y=np.arange(ROWS) % 2).to_csv(tmp_path / "a.csv", index=False)
    read_back = data.from_table(tmp_path / "a.csv", label="y", client="town")
    assert (read_back.num_classes, read_back.encoding.classes) == (2, ("0", "1"))


def test_rows_of_both_tables_count():
    test = TABLE.assign(y=np.arange(ROWS) % 30)
    with pytest.raises(ValueError, match="30 different numbers, 0 to 29"):
        read(np.arange(3), test=test)
