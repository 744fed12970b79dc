"""Tables in several files, and files as Hugging Face writes them."""

import io
import json

import numpy as np
import pandas as pd
import pyarrow
import pytest
from PIL import Image
from pyarrow import feather, parquet

from fedjax_fair import data

SETTINGS = {"label": "label", "client": "client"}
RNG = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {
        "age": np.arange(24.0),
        "job": ["cook", "clerk", "nurse"] * 8,
        "label": [0, 1] * 12,
        "client": [f"{i % 4:03}" for i in range(24)],
    }
)


def write_stream(table, path):
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as out:
        out.write_table(table)


WRITERS = {
    "parquet": parquet.write_table,
    "feather": feather.write_feather,
    "arrow": write_stream,  # As `Dataset.save_to_disk` writes.
}


def write_shards(folder, kind="parquet", table=TABLE, name="train-{:05}-of-00003.{}", schema=None):
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name.format(number, kind) for number in range(3)]
    for number, path in enumerate(paths):
        rows = table.iloc[8 * number : 8 * number + 8]
        WRITERS[kind](pyarrow.Table.from_pandas(rows, schema, preserve_index=False), path)
    return paths


def same(one, other):
    assert one.client_names == other.client_names
    np.testing.assert_array_equal(one.train.features, other.train.features)
    np.testing.assert_array_equal(one.test.labels, other.test.labels)


@pytest.mark.parametrize("kind", WRITERS)
def test_shards_are_one_table(kind, tmp_path):
    paths = write_shards(tmp_path / "data", kind)
    (tmp_path / "README.md").write_text("no table")
    expected = data.from_table(TABLE, **SETTINGS)
    for given in (paths, list(map(str, paths)), tmp_path, tmp_path / "data" / f"train-*.{kind}"):
        same(data.from_table(given, **SETTINGS), expected)
    for name, one in {
        "data": tmp_path / "data",
        "train": f"{tmp_path}/data/train-*.{kind}",
    }.items():
        assert data.from_table(one, **SETTINGS).name == name
    test = write_shards(tmp_path / "data", kind, name="test-{}.{}")
    with_test = data.from_table(paths, **SETTINGS, test=test)
    assert with_test.test.sizes.tolist() == with_test.train.sizes.tolist() == [6] * 4
    with pytest.raises(ValueError, match=rf"has the tables .*test-\*.{kind}, .*train-\*.{kind}"):
        data.from_table(tmp_path, **SETTINGS)


def test_shards_may_differ_in_what_does_not_change_values(tmp_path):
    """In integers of another width, in the order of columns, and in categories."""
    first, second, third = write_shards(tmp_path)
    frame = pd.read_parquet(second)
    frame[["label", "client", "job", "age"]].astype({"label": np.int8}).to_parquet(second)
    pd.read_parquet(third).astype({"job": "category"}).to_parquet(third)
    pd.read_parquet(first).astype({"job": "category"}).to_parquet(first)
    frame.astype({"job": "category"}).to_parquet(second)
    same(data.from_table(tmp_path, **SETTINGS), data.from_table(TABLE, **SETTINGS))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame.drop(columns="age"), r"no shards of one table: .*columns \['age'\]"),
        (lambda frame: frame.assign(sex="F"), r"no shards of one table: .*columns \['sex'\]"),
        (lambda frame: frame.assign(age="old"), "the types of columns differ between 3 files"),
        (lambda frame: frame.assign(age=[[1.0]] * 8), "the types of columns differ"),
    ],
)
def test_files_of_different_tables_are_no_shards(change, message, tmp_path):
    _, second, _ = write_shards(tmp_path)
    change(pd.read_parquet(second)).to_parquet(second)
    with pytest.raises(ValueError, match=message):
        data.from_table(tmp_path, **SETTINGS)


def test_mistakes_of_paths_are_named(tmp_path):
    TABLE.to_csv(tmp_path / "a.csv")
    (tmp_path / "bad-1.parquet").write_bytes(b"PAR1")
    (tmp_path / "empty").mkdir()
    cases = [
        (tmp_path / "empty", "empty is a folder without .parquet, .feather, .arrow files"),
        (tmp_path / "none-*.parquet", "none-.* no file has such a name"),
        (tmp_path / "*.csv", r"a.csv: expected one file, or shards as .parquet"),
        (tmp_path, r"bad-1.parquet: expected a table in the format .parquet"),
        ([], r"table=\[\]: expected the path of one or more files"),
        ([tmp_path / "b.parquet"], "b.parquet: no such file"),
    ]
    for given, message in cases:
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            data.from_table(given, **SETTINGS)


def test_names_of_classes_are_in_files_of_hugging_face(tmp_path):
    """Also those without rows; class -1 is a missing label."""
    label = {"names": ["cat", "dog", "owl"], "_type": "ClassLabel"}
    features = {"label": label, "age": {"dtype": "float64", "_type": "Value"}, "list": [{}]}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    schema = pyarrow.Schema.from_pandas(TABLE, preserve_index=False).with_metadata(metadata)
    write_shards(tmp_path, schema=schema)
    made = data.from_table(tmp_path, **SETTINGS)
    assert made.encoding.classes == ("cat", "dog", "owl")
    assert made.num_classes == 3
    for wrong, message in {
        -1: "label 'label': 6 values are missing",
        7: "codes need to be",
    }.items():
        write_shards(tmp_path, table=TABLE.assign(label=[0, 1, 1, wrong] * 6), schema=schema)
        with pytest.raises(ValueError, match=message):
            data.from_table(tmp_path, **SETTINGS)


def image(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": "x.png"}


@pytest.mark.parametrize("kind", WRITERS)
def test_columns_of_images_and_lists_are_features(kind, tmp_path):
    pixels = RNG.integers(0, 255, (24, 8, 8, 3), dtype=np.uint8)
    vectors = RNG.normal(size=(24, 5)).astype(np.float32)
    nested = RNG.normal(size=(24, 2, 3)).astype(np.float32)
    columns = {"image": [*map(image, pixels)], "vector": [*vectors], "nested": nested.tolist()}
    write_shards(tmp_path, kind, TABLE.assign(**columns))
    expected = {"image": pixels, "vector": vectors, "nested": nested}
    for name, values in expected.items():
        made = data.from_table(tmp_path, **SETTINGS, features=name, test=0.0)
        # Rows of a client are in another order.
        for client in range(4):
            rows = made.train.order[made.train.offsets[client] :][: made.train.sizes[client]]
            found = {made.train.features[row].tobytes() for row in rows}
            assert found == {row.tobytes() for row in values[client::4]}
        assert made.train.features.dtype == (np.uint8 if name == "image" else np.float32)


@pytest.mark.parametrize("column", [[[1.0, 2.0]] * 24, [{"bytes": b"", "path": None}] * 24])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sensitive_features": ["column"]},
        {"categorical": ["column"]},
        {"label": "column"},
        {"client": "column"},
        {"client": data.dirichlet(2, 0.5, by="column")},
    ],
    ids=["feature", "sensitive", "categorical", "label", "client", "by"],
)
def test_columns_of_objects_are_refused_by_name(column, settings, tmp_path):
    frame = TABLE.assign(column=column)
    frame.to_parquet(tmp_path / "a.parquet")
    for table in (frame, tmp_path / "a.parquet"):
        with pytest.raises(ValueError, match=r"'column'.*expected"):
            data.from_table(table, **SETTINGS | settings)


def test_paths_instead_of_images_are_refused(tmp_path):
    write_shards(tmp_path, table=TABLE.assign(image=[{"bytes": None, "path": "a/x.png"}] * 24))
    with pytest.raises(ValueError, match=r"'image' has the path 'a/x.png' in row 0 instead of"):
        data.from_table(tmp_path, **SETTINGS, features="image")
