"""Tables of Hugging Face's datasets and of flwr-datasets: stand-ins, and the libraries."""

import re
from types import SimpleNamespace

import jax
import numpy as np
import pandas as pd
import pytest

from fedjax_fair import aggregators, data, models, selectors, solvers
from fedjax_fair.data.tables.array_columns import stack_arrays
from fedjax_fair.data.tables.hugging_face import as_pandas, join_partitions
from fedjax_fair.rounds.round import Round
from fedjax_fair.training import fit

QUIET = pytest.mark.filterwarnings(  # Of the libraries, which leave files open.
    "ignore::FutureWarning",
    "ignore::DeprecationWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
TOTAL = 60
RNG = np.random.default_rng(0)
CLASSES = ["neutral", "bad", "good"]
COLUMNS = {
    "age": RNG.integers(18, 90, TOTAL).tolist(),
    "job": RNG.choice(["cook", "clerk"], TOTAL).tolist(),
    "sex": RNG.choice(["F", "M"], TOTAL).tolist(),
    "town": RNG.choice(["north", "south", "west"], TOTAL).tolist(),
    "label": RNG.integers(0, 3, TOTAL).tolist(),
}
TABLE = pd.DataFrame(COLUMNS)
PIXELS = RNG.integers(0, 256, (TOTAL, 4, 5), dtype=np.uint8)


class ClassLabel(SimpleNamespace):
    """The feature of this name."""


class Image:
    """The feature of this name, and an image of it."""

    mode = "L"

    def __init__(self, pixels=None):
        self.pixels = pixels

    def __array__(self, dtype=None, copy=None):
        if self.pixels is None:
            raise OSError("cannot\nidentify image")
        return self.pixels


class StandIn:
    """The part of a data set's interface that is used."""

    def __init__(self, frame, features):
        self.frame, self.features = frame, features

    column_names = property(lambda self: list(self.features))

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, name):
        return self.frame[name].tolist()

    def with_format(self, kind):
        assert kind is None
        return self

    def remove_columns(self, names):
        features = {name: kind for name, kind in self.features.items() if name not in names}
        return StandIn(self.frame.drop(columns=names), features)

    def to_pandas(self):
        return self.frame.copy()


def stand_in(table=TABLE, **features):
    known = {"label": ClassLabel(names=CLASSES)} | features
    return StandIn(table, {name: known.get(name, object()) for name in table})


class Partitions:
    """A partitioner of flwr-datasets with a data set."""

    def __init__(self, dataset, owners, natural=None, empty=False):
        self.dataset, self.owners = dataset, np.asarray(owners)
        self.num_partitions = 0 if empty else int(self.owners.max()) + 1
        self.partition_id_to_natural_id = natural or {}

    def load_partition(self, partition_id):
        chosen = self.dataset.frame[self.owners == partition_id]
        return StandIn(chosen.reset_index(drop=True), self.dataset.features)


class Federated:
    """A ``FederatedDataset``, whose splits may be partitioned."""

    def __init__(self, **partitioners):
        self.partitioners = partitioners

    def load_partition(self, partition_id, split):
        return self.partitioners[split].load_partition(partition_id)


OWNERS = np.arange(TOTAL) % 11
SETTINGS = {"label": "label", "client": "town", "sensitive_features": ["sex"]}


def assert_rows_are_of_clients(people, features, owners):
    """All examples train; a client's are in any order."""
    part = people.train
    for client in range(people.num_clients):
        chosen = part.order[part.offsets[client] :][: part.sizes[client]]
        rows = np.flatnonzero(owners == client)
        found = [
            sorted(zip(each.tolist(), labels.tolist(), strict=True))
            for each, labels in (
                (np.asarray(part.features)[chosen], np.asarray(part.labels)[chosen]),
                (features[rows], TABLE.label.to_numpy()[rows]),
            )
        ]
        assert found[0] == found[1]


def assert_equal_datasets(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_a_dataset_equals_its_table_and_keeps_class_numbers():
    people = data.from_table(stand_in(), **SETTINGS)
    names = TABLE.assign(label=pd.Categorical.from_codes(TABLE.label, CLASSES, ordered=True))
    assert_equal_datasets(people, data.from_table(names, **SETTINGS))
    assert people.encoding.classes == tuple(CLASSES)
    counts = people.train.class_counts(3).sum(axis=0) + people.test.class_counts(3).sum(axis=0)
    assert counts.tolist() == np.bincount(COLUMNS["label"]).tolist()


def test_a_class_label_is_a_category_when_it_is_a_feature():
    people = data.from_table(stand_in(), label="job", client="town")
    assert {"label=bad", "label=good", "label=neutral"} <= set(people.encoding.feature_names)
    by_class = data.from_table(stand_in(), label="job", client="label")
    assert by_class.client_names == ("bad", "good", "neutral")


def test_images_are_features_of_their_rows():
    frame = TABLE.assign(image=[Image(pixels) for pixels in PIXELS])
    dataset = stand_in(frame, image=Image())
    people = data.from_table(dataset, features="image", validation_fraction=0.2, **SETTINGS)
    np.testing.assert_array_equal(people.encoding.encode(frame), PIXELS[..., None])
    assert people.class_names == tuple(map(str, CLASSES))
    assert people.train.features.dtype == np.uint8
    assert people.train.features.shape[1:] == (4, 5, 1)
    rows = {pixels.tobytes(): row for row, pixels in enumerate(PIXELS)}
    seen = []
    for part in filter(None, (people.train, people.test, people.validation)):
        found = np.array([rows[pixels.tobytes()] for pixels in np.asarray(part.features)])
        np.testing.assert_array_equal(TABLE.label[found], part.labels)
        sexes = np.array(people.sensitive_names[0].values)[part.sensitive_features[:, 0]]
        np.testing.assert_array_equal(TABLE.sex[found], sexes)
        owners = np.repeat(people.client_names, part.sizes)
        np.testing.assert_array_equal(TABLE.town[found[part.order]], owners)
        seen += found[part.order].tolist()
    assert sorted(seen) == list(range(TOTAL))
    separate = data.from_table(dataset, features="image", test=dataset, **SETTINGS)
    np.testing.assert_array_equal(separate.test.features[..., 0], PIXELS)


def test_lists_of_numbers_are_features():
    nested = [np.array([np.arange(3.0) + row, np.ones(3)], object) for row in range(TOTAL)]
    expected = np.array([value.tolist() for value in nested], float)
    np.testing.assert_array_equal(stack_arrays(pd.Series(nested)), expected)
    people = data.from_table(
        TABLE.assign(embedding=list(expected[:, 0])), features="embedding", **SETTINGS, test=0.0
    )
    assert people.train.features.dtype == np.float32
    assert people.train.features.shape == (TOTAL, 3)


def test_partitions_are_clients():
    source = Federated(train=Partitions(stand_in(), OWNERS))
    people = data.from_table(source, label="label", client="partition", test=0.0)
    assert people.client_names == tuple(f"{number:02}" for number in range(11))
    assert people.train.sizes.tolist() == np.bincount(OWNERS).tolist()
    assert_rows_are_of_clients(people, people.encoding.encode(TABLE), OWNERS)
    assert not any("partition" in name for name in people.encoding.feature_names)
    by_town = data.from_table(source, label="label", client="town", test=0.0)
    assert not any("partition" in name for name in by_town.encoding.feature_names)
    alone = data.from_table(
        source.partitioners["train"], label="label", client="partition", test=0.0
    )
    assert_equal_datasets(alone, people)


def test_partitions_have_their_natural_ids_as_names():
    natural = dict(enumerate(["west", "south", "north"]))
    owners = TABLE.town.map({name: number for number, name in natural.items()})
    source = Partitions(stand_in(), owners, natural)
    people = data.from_table(source, label="label", client="partition", exclude=["town"])
    expected = data.from_table(stand_in(), label="label", client="town")
    assert people.client_names == ("north", "south", "west")
    np.testing.assert_array_equal(people.train.sizes, expected.train.sizes)


def test_test_rows_of_partitions():
    tests = stand_in(TABLE[:30])
    owners = np.arange(30) % 11
    train_part = Partitions(stand_in(), OWNERS)
    both = Federated(train=train_part, test=Partitions(tests, owners))
    people = data.from_table(both, label="label", client="partition", test=both)
    assert people.test.sizes.tolist() == np.bincount(owners).tolist()
    part = people.test
    for client in range(11):
        chosen = part.order[part.offsets[client] :][: part.sizes[client]]
        np.testing.assert_array_equal(part.labels[chosen], TABLE.label[:30][owners == client])
    # Rows without partitions are divided by the labels of clients.
    divided = data.from_table(
        Federated(train=train_part), label="label", client="partition", test=tests
    )
    assert int(divided.test.sizes.sum()) <= 30
    assert divided.client_names == people.client_names


WRONG = {
    "several splits": (
        {"train": stand_in()},
        {},
        "table of type dict: expected a table of pandas, Polars or Arrow, a datasets.Dataset, or "
        "the path of a file. One of its datasets is table['train'].",
    ),
    "missing class": (
        stand_in(TABLE.assign(label=TABLE.label.where(TABLE.index != 4, -1))),
        {},
        "label 'label': 1 values are missing, first in row 4",
    ),
    "no partition": (stand_in(), {"client": "partition"}, "client: no column 'partition'"),
    "column": (
        Partitions(stand_in(TABLE.rename(columns={"job": "partition"})), OWNERS),
        {},
        "table: Partitions has a column 'partition'",
    ),
    "none": (Partitions(stand_in(), OWNERS, empty=True), {}, "Partitions has no partitions"),
    "broken": (
        Partitions(None, OWNERS),
        {},
        "table: Partitions cannot load its partitions ('NoneType' object has no attribute",
    ),
    "no split": (
        Federated(a=Partitions(stand_in(), OWNERS), b=Partitions(stand_in(), OWNERS)),
        {},
        "partitioners of the splits ['a', 'b']: expected one of 'train'",
    ),
    "no test split": (
        Federated(train=Partitions(stand_in(), OWNERS)),
        {"test": Federated(train=Partitions(stand_in(), OWNERS))},
        "partitioners of the splits ['train']: expected one of 'test'",
    ),
    "no features": (TABLE, {"features": "image"}, "features: no column 'image'"),
    "no arrays": (
        TABLE,
        {"features": "job"},
        "features: column 'job' has a value of str in row 0; expected arrays",
    ),
    "numbers": (TABLE, {"features": "age"}, "features: column 'age' has a value of int in row 0"),
    "missing arrays": (
        TABLE.assign(pixels=[[1.0]] * 7 + [None] * 53),
        {"features": "pixels"},
        "column 'pixels' has a value of NoneType in row 7",
    ),
    "lengths": (
        TABLE.assign(pixels=[[1.0]] * 59 + [[1.0, 2.0]]),
        {"features": "pixels"},
        "has arrays of shape (1,) and (2,), the latter first in row 59",
    ),
    "ragged": (
        TABLE.assign(pixels=[[[1.0], [1.0, 2.0]]] * 60),
        {"features": "pixels"},
        "column 'pixels' has a value of list in row 0",
    ),
    "label as features": (TABLE, {"features": "label"}, "features: column 'label' is the label"),
    "two columns": (TABLE, {"features": ["age", "job"]}, "expected names of columns in a list"),
    "encoded too": (
        TABLE.assign(pixels=[[1.0]] * 60),
        {"features": "pixels", "exclude": ["job"]},
        "features='pixels' is the only feature: expected no columns in categorical and exclude",
    ),
    "images": (
        stand_in(TABLE.assign(image=[Image()] * TOTAL), image=Image()),
        {"features": "image"},
        "column 'image': cannot read its images (cannot identify image)",
    ),
}


@pytest.mark.parametrize(("table", "changes", "message"), WRONG.values(), ids=WRONG)
def test_mistakes_are_explained(table, changes, message, as_users_call):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        data.from_table(table, **SETTINGS | changes)
    assert "\n" not in str(caught.value)


@pytest.fixture
def library(tmp_path, monkeypatch):
    for name, value in {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path),
        "HF_DATASETS_CACHE": str(tmp_path / "cache"),
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
    }.items():
        monkeypatch.setenv(name, value)
    return pytest.importorskip("datasets", reason="datasets is not installed")


def real(library):
    kinds = {"label": library.ClassLabel(names=CLASSES), "age": library.Value("int64")}
    texts = {name: library.Value("string") for name in ("job", "sex", "town")}
    order = {name: (kinds | texts)[name] for name in COLUMNS}
    return library.Dataset.from_dict(COLUMNS, features=library.Features(order))


@pytest.mark.foreign
@QUIET
def test_datasets_of_the_installed_library(library):
    expected = data.from_table(stand_in(), **SETTINGS)
    dataset = real(library)
    for same in (dataset, dataset.with_format("numpy"), dataset.select_columns([*COLUMNS])):
        assert_equal_datasets(data.from_table(same, **SETTINGS), expected)
    # Selected and shuffled rows are indices of the table in memory.
    rows = np.random.default_rng(1).permutation(TOTAL)[:40]
    chosen = data.from_table(dataset.select(rows), **SETTINGS)
    table = TABLE.iloc[rows].reset_index(drop=True)
    assert_equal_datasets(chosen, data.from_table(stand_in(table), **SETTINGS))
    both = dataset.train_test_split(0.25, seed=1)
    people = data.from_table(both["train"], test=both["test"], **SETTINGS)
    assert (people.train.sizes.sum(), people.test.sizes.sum()) == (45, 15)
    with pytest.raises(ValueError, match="DatasetDict"):
        data.from_table(both, **SETTINGS)
    with pytest.raises(ValueError, match="IterableDataset"):
        data.from_table(dataset.to_iterable_dataset(), **SETTINGS)
    method = Round(
        models.logistic(3), selectors.Full(), solvers.SGD(0.1, 10, epochs=1), aggregators.Mean()
    )
    assert "demographic_parity_difference" not in fit(method, people, rounds=1).dataset


@pytest.mark.foreign
@QUIET
def test_images_and_arrays_of_the_installed_library(library):
    _, owners = np.unique(TABLE.town, return_inverse=True)
    kinds = real(library).features
    for name, kind, values, expected in (
        ("vector", library.List(library.Value("int32")), PIXELS[:, 0], PIXELS[:, 0]),
        ("plane", library.Array2D((4, 5), "float32"), PIXELS / np.float32(255), None),
        ("image", library.Image(), PIXELS, PIXELS[..., None]),
    ):
        dataset = library.Dataset.from_dict(
            {name: list(values)} | COLUMNS, features=library.Features({name: kind} | {**kinds})
        )
        people = data.from_table(dataset, features=name, **SETTINGS, test=0.0)
        assert_rows_are_of_clients(people, values if expected is None else expected, owners)
        assert (people.train.features.dtype == np.uint8) == (name == "image")


@pytest.mark.foreign
@QUIET
def test_objects_of_the_installed_flwr_datasets(library, tmp_path):
    flwr = pytest.importorskip("flwr_datasets", reason="flwr-datasets is not installed")
    partitioners = pytest.importorskip("flwr_datasets.partitioner", reason="not installed")
    TABLE.to_csv(tmp_path / "train.csv", index=False)
    TABLE[:30].to_csv(tmp_path / "test.csv", index=False)
    files = {split: str(tmp_path / f"{split}.csv") for split in ("train", "test")}

    def federated(**partitioners):
        return flwr.FederatedDataset(
            dataset="csv", data_files=files, partitioners=partitioners, seed=3
        )

    source = federated(train=12)
    people = data.from_table(source, label="label", client="partition", sensitive_features=["sex"])
    assert people.num_clients == 12
    for number, name in enumerate(people.client_names):
        assert number == int(name)
        part = source.load_partition(number).to_pandas()
        sizes = [int(each.sizes[number]) for each in (people.train, people.test)]
        assert sum(sizes) == len(part) == 5
        of_client = people.train.order[people.train.offsets[number] :][: sizes[0]]
        kept = people.train.features[of_client]
        encoded = people.encoding.encode(part).tolist()
        assert all(row.tolist() in encoded for row in kept)
    central = data.from_table(
        source, label="label", client="partition", test=source.load_split("test")
    )
    assert central.train.sizes.tolist() == [5] * 12
    both = federated(train=12, test=12)
    tested = data.from_table(both, label="label", client="partition", test=both)
    assert sorted(tested.test.sizes.tolist()) == [2] * 6 + [3] * 6
    natural = federated(train=partitioners.NaturalIdPartitioner(partition_by="town"))
    people = data.from_table(natural, label="label", client="partition", exclude=["town"])
    assert people.client_names == ("north", "south", "west")
    partitioner = partitioners.DirichletPartitioner(4, partition_by="label", alpha=5.0)
    partitioner.dataset = real(library)
    people = data.from_table(partitioner, label="label", client="partition", test=0.0)
    assert people.train.sizes.sum() == TOTAL


def test_columns_of_partitions_are_those_of_the_data_set():
    frame = join_partitions("table", Partitions(stand_in(), OWNERS))
    assert frame.columns.tolist() == [*COLUMNS, "partition"]
    assert as_pandas(stand_in()).columns.tolist() == [*COLUMNS]
    frame = TABLE.copy()
    frame.insert(1, "image", [Image(pixels) for pixels in PIXELS])
    dataset = stand_in(frame, image=Image())
    assert as_pandas(dataset).columns.tolist() == dataset.column_names
