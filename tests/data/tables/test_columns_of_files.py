"""Columns of files as they are written: ids of clients, groups, labels, and names of columns."""

import io

import numpy as np
import pandas as pd
import polars
import pytest
from PIL import Image

from fedjax_fair import data


def write(path, ids, header="client,age,sex,label", separator=","):
    rows = [f"{ids[i % len(ids)]},{20 + i},{'FM'[i % 2]},{i // 2 % 2}" for i in range(24)]
    path.write_text("\n".join([header, *rows]).replace(",", separator) + "\n", "utf-8")
    return path


def names_of(path, **settings):
    return data.from_table(path, **{"label": "label", "client": "client"} | settings).client_names


@pytest.mark.parametrize("separator", [",", "\t"])
@pytest.mark.parametrize(
    ("ids", "names"),
    [
        (["007", "012"], ("007", "012")),
        (["01", "1"], ("01", "1")),
        (["10", "2"], ("2", "10")),
        (["-2", "10", "-10"], ("-10", "-2", "10")),
        (["NA", "DE"], ("DE", "NA")),
        (["null", "nan", "None"], ("None", "nan", "null")),
        (["1e3", "1000"], ("1000", "1e3")),
        (["1.0", "1", "1.00"], ("1", "1.0", "1.00")),
        (["True", "TRUE", "true"], ("TRUE", "True", "true")),
        (["0x10", "16"], ("0x10", "16")),
        (['"007"', '"a b"'], ("007", "a b")),
        (["a b", "a  b"], ("a  b", "a b")),
        (["2020-01-01", "2020-1-1"], ("2020-01-01", "2020-1-1")),
        (["9223372036854775808", "9223372036854775809"],) * 2,
        (["18446744073709551616", "18446744073709551617"],) * 2,
    ],
)
def test_ids_of_clients_are_the_texts_of_the_file(ids, names, separator, tmp_path):
    path = write(tmp_path / ("a.csv" if separator == "," else "a.tsv"), ids, separator=separator)
    assert names_of(path) == tuple(names)
    tested = data.from_table(path, label="label", client="client", test=path)
    assert tested.client_names == tuple(names)
    assert tested.test.sizes.tolist() == tested.train.sizes.tolist()


def test_a_byte_order_mark_and_spaces_around_names_do_not_count(tmp_path):
    path = write(tmp_path / "a.csv", ["01", "1"], "\ufeffclient , age,  sex ,label ")
    assert names_of(path) == ("01", "1")
    quoted = write(tmp_path / "b.csv", ["01", "1"], '\ufeff"client","age","sex","label"')
    assert names_of(quoted) == ("01", "1")


@pytest.mark.parametrize("cell", ["", '""', "  "])
def test_empty_ids_are_missing(cell, tmp_path):
    with pytest.raises(
        ValueError, match="12 values of column 'client' are missing, first in row 1"
    ):
        names_of(write(tmp_path / "a.csv", ["x", cell]))


@pytest.mark.parametrize(
    ("ids", "names"),
    [
        (np.array([10, 2]), ("2", "10")),
        (np.array([10, 2], "u2"), ("2", "10")),
        (np.array([10.0, 2.0]), ("2", "10")),
        (["010", "10"], ("010", "10")),
        (pd.Categorical([10, 2], [10, 2, 5]), ("2", "10")),
        (pd.Categorical(["10", "2"]), ("2", "10")),
        (pd.array([10, 2], "Int64"), ("2", "10")),
        (np.array([2**70, 7], object), ("7", str(2**70))),
    ],
)
def test_ids_of_other_tables_are_their_values(ids, names, tmp_path):
    frame = pd.DataFrame({"client": ids}).loc[np.arange(24) % 2].reset_index(drop=True)
    frame = frame.assign(age=np.arange(24), label=np.arange(24) // 2 % 2)
    assert names_of(frame) == names
    if frame.client.dtype != object:
        frame.to_parquet(tmp_path / "a.parquet")
        assert names_of(tmp_path / "a.parquet") == names
        assert names_of(polars.from_pandas(frame)) == names


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, "1"], "different values with the same text"),
        ([1.5, 2.0], "value 1.5 of float"),
        ([1.0, np.nan], "values of column 'client' are missing"),
        (["a", None], "values of column 'client' are missing"),
        ([1j, 2j], "of complex"),
    ],
)
def test_ids_without_meaning_are_refused(ids, message):
    frame = pd.DataFrame({"client": ids * 12, "age": range(24), "label": [0, 0, 1, 1] * 6})
    with pytest.raises(ValueError, match=message):
        names_of(frame)


@pytest.mark.parametrize("owners", [[1, "1"], ["a", float("nan")], ["a", 2.5]])
def test_owners_of_two_types_are_refused(owners):
    with pytest.raises(ValueError, match="clients: expected integers or strings, not both"):
        data.from_arrays(np.eye(4), [0, 1, 0, 1], clients=owners * 2)


def test_values_of_groups_are_the_texts_of_the_file(tmp_path):
    for values, expected in {
        ("NA", "EU"): ("EU", "NA"),
        ("01", "1"): ("01", "1"),
        ("0", "1"): ("0", "1"),
        ("TRUE", "FALSE"): ("FALSE", "TRUE"),
    }.items():
        rows = [f"{'xy'[i % 2]},{i},{values[i // 3 % 2]},{i // 2 % 2}" for i in range(24)]
        (tmp_path / "a.csv").write_text("\n".join(["client,age,race,label", *rows]))
        settings = {"label": "label", "sensitive_features": ["race"]}
        for client in ("client", data.dirichlet(2, 5.0, 1, by="race")):
            made = data.from_table(tmp_path / "a.csv", client=client, **settings)
            assert made.sensitive_names[0].values == expected
    (tmp_path / "b.csv").write_text("client,age,race,label\n" + "x,1,0.50,0\ny,2,0.7,1\n" * 9)
    with pytest.raises(ValueError, match="float64: expected strings, integers or booleans"):
        data.from_table(tmp_path / "b.csv", client="client", **settings)


def test_one_number_in_two_spellings_is_no_class(tmp_path):
    for labels in (("01", "1"), ("1e3", "1000"), ("1.0", "1")):
        rows = [f"{'xy'[i % 2]},{i},{(*labels, '7')[i % 3]}" for i in range(24)]
        (tmp_path / "a.csv").write_text("\n".join(["client,age,label", *rows]))
        with pytest.raises(
            ValueError, match=f"label 'label' has the texts .*'{labels[0]}'.* number"
        ):
            names_of(tmp_path / "a.csv")
        targets = {"target": "regression"}
        assert names_of(tmp_path / "a.csv", **targets) == ("x", "y")


@pytest.mark.parametrize(
    "header",
    [
        "client,salary,x,salary",
        "client,salary,x, salary",
        "client,salary ,x,salary",
        '"client","salary","x","salary"',
        "\ufeffsalary,x,client,salary",
        "client,salary,salary,salary.1",
    ],
)
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz"])
def test_repeated_names_of_columns_are_refused(header, name, tmp_path):
    separator = "\t" if "tsv" in name else ","
    frame = pd.DataFrame([header.replace(",", separator), *[separator.join("0123")] * 9])
    text = "\n".join(frame[0])
    if name.endswith("gz"):
        import gzip

        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
    else:
        (tmp_path / name).write_text(text, "utf-8")
    with pytest.raises(ValueError, match=r"has the columns \['salary'\] repeatedly"):
        data.from_table(tmp_path / name, label="salary", client="client")


def test_names_that_pandas_gives_to_copies_may_be_in_a_file(tmp_path):
    path = write(tmp_path / "a.csv", ["x", "y"], "client,label.1,age,label")
    assert (
        data.from_table(path, label="label", client="client").encoding.feature_names[0] == "label.1"
    )


def test_more_values_than_names_are_refused(tmp_path):
    path = write(tmp_path / "a.csv", ["x", "y"], "client,age,label")
    with pytest.raises(ValueError, match="more values in a row than the 3 names of columns"):
        names_of(path)


TABLE = pd.DataFrame({"client": ["x", "y"] * 12, "age": range(24), "label": np.arange(24) // 2 % 2})


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (np.arange(24) * 1j, "column 'extra' of complex128: expected real numbers"),
        (np.arange(24).astype("c8"), "column 'extra' of complex64: expected real numbers"),
        (np.arange(24).astype(object) + 2**64, "has the integer .*: expected integers below 2"),
        (np.arange(24, dtype="u8") + 2**63, "has the integer .*: expected integers below 2"),
        ([-1, 2**63] * 12, "has the integer 9223372036854775808: expected"),
        ([str(2**64), "1"] * 12, "has the integer 18446744073709551616: expected"),
        ([{"a": 1}] * 24, "column 'extra' has a value of dict in row 0"),
        ([None, [1.0, 2.0]] * 12, "column 'extra' has a value of list in row 1"),
        ([np.ones(2)] * 24, "column 'extra' has a value of ndarray in row 0"),
    ],
)
def test_columns_that_would_lose_values_are_refused(column, message, tmp_path):
    frame = TABLE.assign(extra=column)
    with pytest.raises(ValueError, match=message):
        names_of(frame)
    if "integer" in message:
        frame.to_csv(tmp_path / "a.csv", index=False)
        with pytest.raises(ValueError, match=r"has the integer .*: expected integers below 2"):
            names_of(tmp_path / "a.csv")
        assert (
            names_of(tmp_path / "a.csv", categorical=["extra"])
            if frame.extra.dtype == object
            else 1
        )
    assert names_of(frame, exclude=["extra"]) == ("x", "y")


@pytest.mark.parametrize("target", ["regression", "classification", "classes", None])
def test_labels_that_would_lose_values_are_refused(target):
    for values in (np.arange(24) * 1j, np.arange(24, dtype="u8") + 2**63):
        with pytest.raises(ValueError, match=r"column 'label' .*expected (real|integers below)"):
            names_of(TABLE.assign(label=values), target=target)


def png(rng, shape=(8, 8), kind="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, shape, dtype=np.uint8)).save(buffer, kind)
    return {"bytes": buffer.getvalue(), "path": None}


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 3), (6, 9, 4)])
def test_images_of_hubs_are_decoded(shape, tmp_path):
    rng = np.random.default_rng(0)
    frame = TABLE.assign(image=[png(rng, shape) for _ in range(24)])
    frame.to_parquet(tmp_path / "a.parquet")
    settings = {"label": "label", "client": "client", "features": "image"}
    made = data.from_table(tmp_path / "a.parquet", **settings)
    assert made.train.features.dtype == np.uint8
    assert made.train.features.shape[1:] == (*shape, 1)[:3]
    frame.at[3, "image"] = {"bytes": b"no image", "path": None}
    with pytest.raises(ValueError, match="column 'image': cannot read the image in row 3"):
        data.from_table(frame, **settings)
