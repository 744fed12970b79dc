"""Data sets by name, and the cache of decoded arrays."""

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from fedjax_fair import data
from fedjax_fair.app.cli import main
from fedjax_fair.data.conversion import DamagedError
from fedjax_fair.data.npz import cached
from fedjax_fair.data.sources import tfds_images
from fedjax_fair.data.sources.ratings import read_ratings
from fedjax_fair.data.sources.tfds_folder import read_chunks


@pytest.fixture(autouse=True)
def user_cache(tmp_path, monkeypatch):
    """Keeps the tests out of the real cache."""
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / "user" / name))
    return tmp_path / "user" / "fedjax_fair"


def times_assigned(part):
    """Counts the clients of each example."""
    return np.bincount(part.order, minlength=len(part.labels))


def test_digits_equal_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    dataset = data.load("digits", data.iid(10))
    described = data.describe("digits")
    train, test = dataset.train, dataset.test
    assert (len(train.labels), len(test.labels)) == (described.num_train, described.num_test)
    assert (train.features.dtype, train.features.max()) == (np.uint8, 255)
    assert times_assigned(train).tolist() == [1] * len(train.labels)
    assert times_assigned(test).tolist() == [1] * len(test.labels)
    expected = load_digits()
    images = np.concatenate([train.features, test.features])[..., 0]
    labels = np.concatenate([train.labels, test.labels])
    pixels = sorted(
        (*np.rint(i.ravel() / 255 * 16), y) for i, y in zip(images, labels, strict=True)
    )
    assert pixels == sorted(
        (*i.ravel(), y) for i, y in zip(expected.images, expected.target, strict=True)
    )
    ratio = np.bincount(test.labels) / np.bincount(labels)
    assert ratio.min() > 0.19
    assert ratio.max() < 0.21


def test_default_partition_of_digits():
    train = data.load("digits").train
    runs = np.split(train.labels[train.order], train.offsets[1:])
    assert [len(set(run.tolist())) for run in runs] == [3] * 50


def test_invalid_seeds_are_rejected():
    with pytest.raises(ValueError, match="seed=-1"):
        data.load("digits", seed=-1)


# A data set as written by tensorflow-datasets, with invalid records, which a stand-in decodes.

IMAGES = np.random.default_rng(0).integers(0, 256, (40, 3, 2, 1), np.uint8)
COLUMNS = {"label": np.arange(40) % 4, "writer": np.repeat([b"x", b"y", b"z", b"x"], 10)}


FEATURES = "tensorflow_datasets.core.features"


def write_set(
    folder, version="1.0.0", splits=("train", "test"), file_format="array_record", **feature
):
    folder = folder / version
    folder.mkdir(parents=True)
    image = {"dtype": "uint8", "shape": {"dimensions": ["3", "2", "1"]}} | feature
    keys = [{"featureKey": "image"}, {"featureKey": "label"}]
    info = {
        "fileFormat": file_format,
        "splits": [{"name": name, "shardLengths": ["15", "5"]} for name in splits],
        "supervisedKeys": {"tuple": {"items": keys}},
    }
    features = {
        "image": {"image": image, "pythonClassName": f"{FEATURES}.image_feature.Image"},
        "label": {"classLabel": {"numClasses": "4"}},
    }
    for split in splits:
        for number, length in enumerate((15, 5)):
            shard = f"{folder.parent.name}-{split}.array_record-{number:05d}-of-00002"
            writer = ArrayRecordWriter(str(folder / shard), "group_size:1")
            for _ in range(length):
                writer.write(b"a stand-in")
            writer.close()
    info["name"] = folder.parent.name
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "features.json").write_text(json.dumps({"featuresDict": {"features": features}}))
    return folder


@pytest.fixture
def decoded(monkeypatch):
    """Replaces decoding, and returns the list of decoded sets."""
    calls = []

    def decode(images):
        calls.append(images.name)
        splits = ["train", "test"] if images.info.num_test else ["train"]
        rows = {split: slice(20 * i, 20 * i + 20) for i, split in enumerate(splits)}
        columns = {"image": IMAGES, **COLUMNS}
        return {f"{s}.{name}": a[r] for s, r in rows.items() for name, a in columns.items()}

    monkeypatch.setattr(tfds_images, "_decode", decode)
    return calls


def test_second_load_reads_the_cache(tmp_path, decoded):
    write_set(tmp_path / "tiny")
    first = data.load("tiny", data.iid(3), data_dir=tmp_path)
    second = data.load("tiny", data.iid(3), data_dir=tmp_path)
    assert decoded == ["tiny"]
    for a, b in zip(first.train, second.train, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(first.train.features, IMAGES[:20])
    np.testing.assert_array_equal(first.test.labels, COLUMNS["label"][20:])


def test_by_column_uses_columns_of_the_set(tmp_path, decoded):
    write_set(tmp_path / "tiny")
    dataset = data.load("tiny", data.by_column("writer"), data_dir=tmp_path)
    # Writers x and y have training examples; test examples of z are unassigned.
    assert dataset.train.sizes.tolist() == [10, 10]
    assert dataset.test.sizes.tolist() == [10, 0]


def test_sets_without_test_split_hold_out_examples(tmp_path, decoded):
    write_set(tmp_path / "tiny", splits=("train", "extra"))
    dataset = data.load("tiny", data.iid(2), data_dir=tmp_path)
    assert (dataset.train.sizes.tolist(), dataset.test.sizes.tolist()) == ([8, 8], [2, 2])


def damage(path, part):
    """Flips the first bit of a part of a file."""
    content = bytearray(path.read_bytes())
    content[content.index(part)] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda cache: damage(cache / "arrays.npz", IMAGES[:3].tobytes()),  # A bit of an image.
        lambda cache: damage(cache / "arrays.npz", b"NUMPY"),
        lambda cache: damage(cache / "arrays.npz", b"cache_key"),
        lambda cache: os.truncate(cache / "arrays.npz", 1000),
        lambda cache: (cache / "arrays.npz").unlink(),
        lambda cache: (cache / "arrays.npz").write_bytes(b""),
        lambda cache: np.savez(cache / "arrays.npz", **{"train.image": IMAGES}),
        lambda cache: np.savez(cache / "arrays.npz", cache_key="of another set"),
        lambda cache: (cache.parent / "tiny-train.array_record-00000-of-00001").write_bytes(b"new"),
        lambda cache: os.utime(cache.parent / "features.json", (0, 0)),
    ],
)
def test_damaged_or_stale_caches_are_rewritten(tmp_path, decoded, spoil):
    cache = write_set(tmp_path / "tiny") / "decoded"
    for _ in range(2):
        data.load("tiny", data.iid(3), data_dir=tmp_path)
    spoil(cache)
    for _ in range(2):
        dataset = data.load("tiny", data.iid(3), data_dir=tmp_path)
        np.testing.assert_array_equal(dataset.train.features, IMAGES[:20])
    assert decoded == ["tiny", "tiny"]


def test_read_only_sets_are_not_changed(tmp_path, decoded, user_cache):
    folders = [write_set(tmp_path / copy / "tiny") for copy in ("one", "two")]
    for folder in folders:
        folder.chmod(0o555)
        before = sorted(folder.iterdir())
        for _ in range(2):
            data.load("tiny", data.iid(3), data_dir=folder.parents[1])
        assert sorted(folder.iterdir()) == before
        folder.chmod(0o755)
    assert decoded == ["tiny", "tiny"]  # Copies have separate caches.
    assert len(list(user_cache.iterdir())) == 2


def test_failed_writes_leave_no_files(tmp_path, monkeypatch):
    def full(file, *args, **kwargs):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", full)
    with pytest.warns(UserWarning, match="full"):
        arrays = cached(tmp_path / "cache", "v", lambda: {"x": np.arange(3)})
    assert arrays["x"].tolist() == [0, 1, 2]
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_newest_version_is_used(tmp_path):
    for version in ("9.0.0", "10.0.1", "2.5.0"):
        write_set(tmp_path / "emnist" / "byclass", version)
    (tmp_path / "emnist" / "byclass" / "incomplete.10.0.2").mkdir()
    assert tfds_images.find("emnist/byclass", tmp_path).info.folder.name == "10.0.1"


def test_only_images_of_emnist_are_transposed(tmp_path, monkeypatch):
    def read_chunks(folder, split):
        for rows in (slice(0, 15), slice(15, 20)):  # Two shards.
            columns = {"image": IMAGES, **COLUMNS}
            yield [
                dict(zip(columns, example, strict=True))
                for example in zip(*(column[rows] for column in columns.values()), strict=True)
            ]

    monkeypatch.setattr(tfds_images, "read_chunks", read_chunks)
    for name, images in {"emnist": IMAGES.swapaxes(1, 2), "mnist": IMAGES}.items():
        write_set(tmp_path / name)
        train = tfds_images.find(name, tmp_path).read().train
        np.testing.assert_array_equal(train.features, images[:20])
        np.testing.assert_array_equal(train.labels, COLUMNS["label"][:20])
        np.testing.assert_array_equal(train.columns["writer"], COLUMNS["writer"][:20])


def test_error_of_missing_sets_contains_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "sets"))
    (tmp_path / "sets").mkdir()
    with pytest.raises(FileNotFoundError, match="fashion_mnist") as error:
        data.load("fashion_mnist")
    assert str(tmp_path / "sets" / "fashion_mnist") in str(error.value)
    assert "\n" not in str(error.value)
    assert list((tmp_path / "sets").iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"file_format": "tfrecord"}, FileNotFoundError, "is tfrecord.*prepare tiny"),
        ({"dtype": "uint16"}, ValueError, "uint8"),
        ({"shape": {"dimensions": ["-1", "-1", "3"]}}, ValueError, "images"),
        ({"splits": ["test"]}, ValueError, r"splits \['test'\]"),
    ],
)
def test_other_kinds_of_sets_are_rejected(tmp_path, changes, error, message):
    write_set(tmp_path / "tiny", **changes)
    with pytest.raises(error, match=message):
        data.load("tiny", data_dir=tmp_path)


def test_available_lists_sources_and_prepared_sets(tmp_path):
    write_set(tmp_path / "mnist")
    write_set(tmp_path / "zoo" / "small")
    write_set(tmp_path / "sound", dtype="int16")
    entries = {entry.name: entry for entry in data.available(tmp_path)}
    assert [name for name, entry in entries.items() if entry.prepared] == [
        "digits",
        *(name for name in data.SOURCES if name.startswith("synthetic")),
        "mnist",
        "zoo/small",
    ]
    assert "cifar100" in entries
    assert (entries["zoo/small"].shape, entries["zoo/small"].num_train) == ((3, 2, 1), 20)
    with pytest.raises(ValueError, match="nonesuch"):
        data.describe("nonesuch", tmp_path)


SHARD = "tiny-train.array_record-00000-of-00002"


def edit(file, old, new):
    def spoil(folder):
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new, 1))

    return spoil


def cut(file, size):
    return lambda folder: os.truncate(folder / file, size)


DAMAGES = {
    "no shard": (lambda folder: (folder / SHARD).unlink(), f"{SHARD}: expected 15 records, but"),
    "empty shard": (cut(SHARD, 0), f"{SHARD}: expected 15 records"),
    "cut shard": (cut(SHARD, 100_000), f"{SHARD}: expected 15 records"),
    "fewer records": (
        edit("dataset_info.json", '"15"', '"16"'),
        f"{SHARD}: .* 16 records, found 15",
    ),
    "no JSON": (edit("dataset_info.json", "{", ""), "dataset_info.json: expected JSON"),
    "cut JSON": (cut("features.json", 20), "features.json: expected JSON"),
    "not text": (
        lambda f: (f / "features.json").write_bytes(b"\xff"),
        "features.json: expected JSON",
    ),
    "no features": (lambda f: (f / "features.json").unlink(), "features.json: expected JSON"),
    "deep": (
        lambda f: (f / "features.json").write_text("[" * 10**5),
        "features.json: expected JSON",
    ),
    "a list": (
        lambda f: (f / "dataset_info.json").write_text("[]"),
        "info.json: expected a JSON obj",
    ),
    "no lengths": (edit("dataset_info.json", "shardLengths", "lengths"), "with shardLengths"),
    "words": (edit("dataset_info.json", '"15"', '"many"'), "with shardLengths"),
    "elsewhere": (edit("dataset_info.json", '"train"', '"../../x"'), "expected splits"),
    "other features": (
        edit("features.json", "featuresDict", "none"),
        "expected the features of an",
    ),
    "wide": (edit("features.json", '"3"', '"wide"'), "features.json: expected a shape"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_errors_and_lists_name_damaged_files(damage, tmp_path, capsys, monkeypatch):
    spoil, message = DAMAGES[damage]
    spoil(write_set(tmp_path / "tiny"))
    write_set(tmp_path / "zoo" / "small")
    with pytest.raises(DamagedError, match=message) as error:
        data.load("tiny", data_dir=tmp_path)
    assert "\n" not in str(error.value)
    entries = {entry.name: entry for entry in data.available(tmp_path)}
    assert entries["zoo/small"].prepared
    assert not entries["tiny"].prepared
    assert re.search(message, entries["tiny"].damage)
    monkeypatch.setenv("COLUMNS", "1000")
    assert main(["data", "list", "--data.dir", str(tmp_path)]) == 0
    listed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert listed["tiny"].startswith("damaged: ")
    assert listed["zoo/small"].startswith("20 + 20 examples")
    assert main(["data", "info", "tiny", "--data.dir", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line)


def test_control_characters_in_names_are_escaped(tmp_path, capsys):
    write_set(tmp_path / "zoo\x1b[2J" / "[red]small")
    assert main(["data", "list", "--data.dir", str(tmp_path)]) == 0
    assert "\nzoo\\x1b[2J/[red]small  20 + 20 examples" in capsys.readouterr().out
    assert main(["data", "info", "zoo\x1b[2J", "--data.dir", str(tmp_path)]) == 2
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize("key", ["pythonClassName", "python_class_name", "type"])
def test_sets_cannot_import_modules(key, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "chosen_by_a_file.py").write_text("raise SystemExit('imported')")
    folder = write_set(tmp_path / "tiny")
    own = f'"numClasses": "4"}}, "{key}": "chosen_by_a_file.Feature"'
    edit("features.json", '"numClasses": "4"}', own)(folder)
    with pytest.raises(DamagedError, match=r"features\.json"):
        data.load("tiny", data_dir=tmp_path)
    with pytest.raises(DamagedError, match="chosen_by_a_file"):
        read_ratings("tiny", tmp_path)


def test_undecodable_records_are_an_error_of_the_set(tmp_path):
    write_set(tmp_path / "tiny")
    with pytest.raises(DamagedError, match=r"tiny/1\.0\.0"):
        data.load("tiny", data_dir=tmp_path)


def test_prepare_without_tensorflow_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="tfds-prepare"):
        data.prepare("mnist", tmp_path)
    assert data.prepare("digits", tmp_path) is None


READ_MNIST = """
import sys
import numpy as np
from fedjax_fair import data
assert "tensorflow_datasets" not in sys.modules
first = data.load("mnist", data_dir=sys.argv[1])
assert "tensorflow_datasets" in sys.modules
assert "tensorflow" not in sys.modules
second = data.load("mnist", data_dir=sys.argv[1])
for a, b in zip(first.train, second.train, strict=True):
    np.testing.assert_array_equal(a, b)
assert np.bincount(first.train.labels).tolist() == [
    5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949
]
assert first.train.features.shape == (60000, 28, 28, 1)
assert first.test.features.shape == (10000, 28, 28, 1)
assert round(first.train.features.mean(), 2) == 33.32
"""


def test_mnist_is_read_without_tensorflow(tfds_folder, tmp_path):
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", READ_MNIST, str(tfds_folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_movielens_is_rejected_as_image_set(tfds_folder):
    with pytest.raises(ValueError, match="uint8"):
        data.load("movielens/100k-ratings", data_dir=tfds_folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("quantity_skew --data.skew 1e308", r"skew=1e\+308: expected"),
        ("quantity_skew --data.skew 1001", r"skew=1001\.0: expected a number >= 0 and <= 1000"),
        ("quantity_skew --data.skew inf", "skew=inf: expected a number >= 0 and <= 1000"),
        ("quantity_skew --data.skew -1e-30", "skew=-1e-30: expected"),
        ("dirichlet --data.alpha 0", r"alpha=0\.0: expected a number > 0 and <= 1e\+09"),
        ("dirichlet --data.alpha 1e-400", "alpha 1e-400: 1e-400 is beyond the range"),
        ("dirichlet --data.alpha 1e39", r"alpha=1e\+39: expected"),
        ("dirichlet --data.alpha nan", "alpha=nan: expected"),
        ("dirichlet --data.alpha inf", "alpha=inf: expected"),
        ("dirichlet --data.min-partition-size 0", "min_partition_size=0: expected an integer >= 1"),
        ("iid --data.clients 0", "clients=0: expected an integer >= 1"),
        ("iid --data.clients 1443", "1442 examples for num_clients=1443: expected at least 1443"),
        ("iid --data.clients 1000000000", "1442 examples for num_clients=1000000000"),
        (f"iid --data.clients 1{300 * '0'}", "clients=.*: expected"),
        ("iid --data.clients 1e3", "--data.clients 1e3: expected an integer"),
        ("shards --data.shards-per-client 99999", "expected at least 4999950"),
        (
            "classes_per_client --data.classes-per-client 0",
            "classes_per_client=0: expected an integer",
        ),
        ("classes_per_client --data.classes-per-client 11", "classes=11: expected at most the 10"),
        ("iid --data.validation-fraction 1", r"validation_fraction=1\.0: expected a number in \[0"),
        ("iid --data.validation-fraction nan", "validation_fraction=nan: expected"),
        ("iid --data.validation-fraction -1e-30", "validation_fraction=-1e-30: expected"),
        ("iid --data.validation-fraction 1e-30", "expected a larger fraction"),
        ("iid --data.seed -1", "seed=-1: expected an integer >= 0"),
    ],
)
def test_settings_without_meaning_end_the_command_in_one_line(options, message, capfd):
    assert main(["data", "show", "--data.partition", *options.split()]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert re.search(message, line)


def test_advice_to_install_opencv_is_not_logged(monkeypatch, caplog):
    class Examples(list):
        def __getitems__(self, places):
            logging.getLogger("absl").warning("OpenCV is not installed. We recommend it.")
            logging.getLogger("absl").warning("another message")
            return [self[place] for place in places]

    builder = SimpleNamespace(as_data_source=lambda split: Examples([{"label": 1}]))
    module = SimpleNamespace(builder_from_directory=lambda folder: builder)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
    monkeypatch.setattr(logging.getLogger("absl"), "propagate", True)
    assert list(read_chunks(Path("folder"), "train")) == [[{"label": 1}]]
    assert caplog.messages == ["another message"]
