"""Models of a run folder predict for the rows of a table, encoded as in training."""

import json
import shutil

import numpy as np
import pandas as pd
import polars
import pyarrow
import pytest

import fedjax_fair as ff
from fedjax_fair.app.cli import main

RNG = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {
        "age": RNG.integers(18, 90, 120).astype(float),
        "hours": np.where(RNG.random(120) < 0.2, np.nan, RNG.normal(40, 10, 120)),
        "job": RNG.choice(["cook", "clerk", "nurse"], 120),
        "owner": RNG.random(120) < 0.5,
        "sex": RNG.choice(["F", "M"], 120),
        "town": RNG.choice(["north", "south", "west"], 120),
        "salary": RNG.choice(["<=50K", ">50K"], 120),
    }
)
NEW = TABLE.drop(columns=["salary", "town"]).iloc[:7]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    base = tmp_path_factory.mktemp("runs")
    TABLE.to_csv(base / "people.csv", index=False)
    words = ["run", f"--data.file={base / 'people.csv'}", "--data.label=salary"]
    words += ["--data.client=town", "--methods=fedavg", "--training.rounds=2"]
    words += ["--training.seeds", "0", "1", f"--output={base / 'out'}", "--quiet"]
    assert main(words) == 0
    (path,) = (base / "out").iterdir()
    return path


@pytest.fixture(scope="module")
def data(folder):
    return ff.data.from_table(folder.parents[1] / "people.csv", label="salary", client="town")


def test_raw_rows_are_encoded_as_in_training(folder, data):
    fitted = ff.load_model(folder, "fedavg")
    assert fitted.encoding == data.encoding
    assert fitted.encoding.classes == ("<=50K", ">50K")
    expected = fitted.predict_proba(data.encoding.encode(NEW))
    assert expected.shape == (2, 7, 2)
    tables = [NEW, NEW[NEW.columns[::-1]], NEW.assign(town="east", unused=1j)]
    tables += [polars.from_pandas(NEW), pyarrow.Table.from_pandas(NEW)]
    for table in tables:
        np.testing.assert_array_equal(fitted.predict_proba(table), expected)
    np.testing.assert_array_equal(fitted.predict(NEW), expected.argmax(-1))
    one = ff.load_model(folder, "fedavg", seed=1)
    np.testing.assert_array_equal(one.predict(NEW), fitted.predict(NEW)[1:])
    with pytest.raises(TypeError):
        ff.load_model(folder, "fedavg")._replace(encoding=None).predict(NEW)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.assign(job="pilot"), r"column 'job' has the categories \['pilot'\]"),
        (lambda rows: rows.drop(columns="age"), "table: no column 'age'.*Columns: hours, job"),
        (lambda rows: rows.rename(columns={"job": "Job"}), "no column 'job'; did you mean 'Job'"),
        (lambda rows: rows.assign(age="old"), "column 'age' of .*: expected numbers"),
        (lambda rows: rows.assign(age=np.nan), "column 'age': 7 values are missing"),
    ],
)
def test_rows_that_cannot_be_encoded_are_named(change, message, folder):
    with pytest.raises(ValueError, match=message):
        ff.load_model(folder, "fedavg").predict(change(NEW))


def test_a_fit_predicts_for_rows_of_its_table(data):
    method = ff.Round(
        ff.models.logistic(2),
        ff.selectors.Full(),
        ff.solvers.SGD(0.1, batch_size=10, epochs=1),
        ff.aggregators.Mean(),
    )
    fitted = ff.fit(method, data, rounds=1)
    np.testing.assert_array_equal(fitted.predict(NEW), fitted.predict(data.encoding.encode(NEW)))


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-20],
        lambda text: text.replace('"cook"', '"cool"'),
        lambda text: json.dumps(json.loads(text)["encoding"]),
        lambda text: "[]",
    ],
    ids=["truncated", "edited", "without a digest", "a list"],
)
def test_a_damaged_encoding_is_named(damage, folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "run")
    file = copy / "encoding.json"
    file.write_text(damage(file.read_text()))
    with pytest.raises(ValueError, match=r"encoding.json is damaged .*`fedjax-fair resume` writes"):
        ff.load_model(copy, "fedavg")
    assert main(["resume", str(copy), "--quiet"]) == 0
    assert ff.load_model(copy, "fedavg").encoding is not None
