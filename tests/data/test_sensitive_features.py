"""Sensitive features of examples: encoding, alignment with the examples, checks and summary."""

import re

import jax
import numpy as np
import pandas as pd
import pytest
from conftest import linear_model

from fedjax_fair import aggregators, data, selectors, solvers
from fedjax_fair.data import SensitiveFeature
from fedjax_fair.data.federated import map_arrays
from fedjax_fair.data.sensitive import MAX_SENSITIVE_VALUES, encode_sensitive
from fedjax_fair.data.sensitive_counts import empty_client_cells, group_counts
from fedjax_fair.parallel.mesh import client_mesh, shard_data
from fedjax_fair.rounds.round import Round

RNG = np.random.default_rng(0)
TOTAL = 60
RACE = RNG.integers(0, 3, TOTAL)
SEX = RNG.integers(0, 2, TOTAL)
COLUMNS = {"sex": np.array(["F", "M"])[SEX], "race": RACE * 10}
# The first two features repeat the codes, so that alignment can be verified after every step.
FEATURES = np.column_stack([SEX, RACE, RNG.normal(size=TOTAL)]).astype(np.float32)
LABELS = RNG.integers(0, 2, TOTAL)
CLIENTS = np.arange(TOTAL) % 4


def make_people(sensitive_features=COLUMNS, **settings):
    return data.from_arrays(
        FEATURES, LABELS, clients=CLIENTS, sensitive_features=sensitive_features, **settings
    )


def assert_aligned(part):
    codes = np.asarray(part.sensitive_features)
    assert codes.dtype == np.int32
    np.testing.assert_array_equal(codes, np.asarray(part.features)[:, :2])


def test_names_and_codes_follow_the_ascending_values():
    people = make_people()
    assert people.sensitive_names == (("sex", ("F", "M")), ("race", ("0", "10", "20")))
    assert_aligned(people.train)
    assert_aligned(people.test)


@pytest.mark.parametrize(
    ("column", "values", "codes"),
    [
        (["b", "a", "b"], ("a", "b"), [1, 0, 1]),
        (np.array(["b", "a", "b"], object), ("a", "b"), [1, 0, 1]),
        (np.array([b"b", b"a", b"b"]), ("a", "b"), [1, 0, 1]),
        (pd.Series(["b", "a", "b"], dtype="category"), ("a", "b"), [1, 0, 1]),
        (pd.Series(["b", "a", "b"], dtype="string"), ("a", "b"), [1, 0, 1]),
        ([10, 9, 10], ("9", "10"), [1, 0, 1]),
        (pd.Series([10, 9, 10], dtype="Int64"), ("9", "10"), [1, 0, 1]),
        ([True, False, True], ("False", "True"), [1, 0, 1]),
        (np.array([True, False, True], object), ("False", "True"), [1, 0, 1]),
    ],
)
def test_types_of_columns(column, values, codes):
    names, encoded, test = encode_sensitive({"x": column}, np.array([0, 0, 0]))
    assert (names, encoded[:, 0].tolist(), test) == ((("x", values),), codes, None)


def test_test_columns_share_codes_with_training_columns():
    people = data.from_arrays(
        np.eye(3),
        [0, 1, 1],
        [range(3)],
        sensitive_features={"sex": ["F", "F", "X"]},
        test_features=np.eye(3),
        test_labels=[1, 0, 1],
        test_client_indices=[range(3)],
        test_sensitive_features={"sex": ["X", "D", "F"]},
    )
    assert people.sensitive_names == (SensitiveFeature("sex", ("D", "F", "X")),)
    assert people.train.sensitive_features.tolist() == [[1], [1], [2]]
    assert people.test.sensitive_features.tolist() == [[2], [0], [1]]


def test_alignment_survives_all_transformations(tmp_path):
    people = make_people(validation_fraction=0.3)
    flipped = data.flip_labels(people, [1])
    both = data.stack([people, people])
    placed = data.on_device(people)
    mapped = map_arrays(people, lambda one: jax.tree.map(np.array, one))
    for result in (people, flipped, both, both.partition(1), placed, mapped):
        assert result.sensitive_names == people.sensitive_names
        for name in ("train", "test", "validation"):
            assert_aligned(getattr(result, name))
    assert mapped.validation.sensitive_features is mapped.train.sensitive_features
    sharded = shard_data(people, client_mesh(1))
    owned = sharded.train.features.shape[0]
    assert owned == people.train.sizes.sum()
    assert_aligned(sharded.train)
    np.savez(
        tmp_path / "people.npz",
        features=FEATURES,
        labels=LABELS,
        client=CLIENTS,
        sensitive_sex=COLUMNS["sex"],
        sensitive_race=COLUMNS["race"],
    )
    read = data.from_npz(tmp_path / "people.npz", validation_fraction=0.3)
    assert read.sensitive_names == people.sensitive_names
    for leaf, expected in zip(jax.tree.leaves(read), jax.tree.leaves(people), strict=True):
        np.testing.assert_array_equal(leaf, expected)


def test_stacked_partitions_need_equal_codes():
    people = make_people()
    other = people._replace(
        train=people.train._replace(sensitive_features=1 - people.train.sensitive_features)
    )
    with pytest.raises(ValueError, match=r"datasets\[1\].train"):
        data.stack([people, other])
    with pytest.raises(ValueError, match=r"datasets\[1\].sensitive_names"):
        data.stack([people, people._replace(sensitive_names=None)])


def test_compiled_functions_and_leaves_are_unchanged_without_sensitive_features():
    def compiled(people):
        method = Round(
            linear_model(2), selectors.Uniform(2), solvers.SGD(0.1, 2, steps=2), aggregators.Mean()
        )

        # A named function, so that both have the same text.
        def first_round(people):
            state = method.init(jax.random.key(0), people)
            return method.step(state, people)[0].variables

        return jax.jit(first_round).lower(people).as_text()

    people, plain = make_people(), make_people(None)
    assert len(jax.tree.leaves(plain)) == 10
    assert len(jax.tree.leaves(people)) == 12
    assert compiled(people) == compiled(plain)


def test_counts_equal_pandas_and_empty_cells_are_named():
    people = make_people()
    for column, (name, values) in enumerate(people.sensitive_names):
        for part in (people.train, people.test):
            owners = np.repeat(np.arange(4), part.sizes)
            frame = pd.DataFrame(
                {"code": part.sensitive_features[:, column], "label": part.labels, "client": owners}
            )
            table = pd.crosstab(frame.code, frame.label).reindex(range(len(values)), fill_value=0)
            counts = group_counts(part, column, len(values), 2)
            np.testing.assert_array_equal(counts, table)
            per_client = pd.crosstab(frame.client, frame.code).reindex(
                columns=range(len(values)), fill_value=0
            )
            cells = empty_client_cells(part, column, len(values))
            empty = np.argwhere(per_client.to_numpy() == 0)
            assert cells.num_empty == len(empty)
            assert cells.num_cells == 4 * len(values)
            assert [list(cell) for cell in cells.first] == empty[:3].tolist()
        assert f"\n{name:<17}  {values[0]} " in str(people)
    lonely = data.from_arrays(
        np.eye(8),
        [0, 1, 0, 1, 0, 1, 0, 0],
        clients=["a"] * 4 + ["b"] * 4,
        sensitive_features={"sex": list("FFMMMMMX")},
        test_fraction=0.0,
    )
    line = next(line for line in str(lonely).splitlines() if line.startswith("empty cells"))
    assert "no training examples with sex X of class 1" in line
    assert "2 of 6 pairs of client and sex have no training examples: a x X, b x F;" in line


def test_counts_have_the_names_of_classes_of_a_table():
    table = pd.DataFrame(
        {"x": np.arange(6.0), "y": ["<=50K", ">50K", "n-a"] * 2, "c": list("aabbab")}
    )
    table["sex"] = list("FFMMMM")
    people = data.from_table(table, label="y", client="c", sensitive_features=["sex"], test=0.0)
    assert people.class_names == people.encoding.classes
    named = " + ".join(people.class_names)
    assert f"training examples of class {named}\n" in str(people)
    assert "with sex F of class n-a" in str(people)
    assert people._replace(encoding=None).class_names is None
    assert people._replace(num_classes=4).class_names is None  # Of another data set.


BAD = {
    "missing None": ({"sex": [None, "F", "M"]}, "1 values are missing, first at 0"),
    "missing NaN": ({"sex": ["F", float("nan"), "M"]}, "1 values are missing, first at 1"),
    "missing float": ({"sex": np.array([0, np.nan, 1])}, "1 values are missing, first at 1"),
    "pandas.NA": ({"sex": pd.Series(["F", pd.NA, "M"])}, "1 values are missing, first at 1"),
    "empty text": ({"sex": ["F", " ", "M"]}, "missing, empty or not text"),
    "floats": ({"age": [0.5, 1.5, 1.0]}, "float64: expected strings, integers or booleans"),
    "mixed": ({"sex": np.array(["F", 1, "M"], object)}, "object: expected strings"),
    "length": ({"sex": ["F", "M"]}, "one value for each of 3 examples"),
    "matrix": ({"sex": np.zeros((3, 2), int)}, "one value for each of 3 examples"),
    "no mapping": (["F", "M", "F"], "expected a mapping"),
    "no features": ({}, "expected a mapping"),
    "the label": ({"sex": ["no", "yes", "yes"]}, "sensitive_features['sex'] equals the labels"),
    "name": ({"": ["F", "M", "F"]}, "missing, empty or not text"),
    "null": ({"sex": ["F\0x", "M", "F"]}, "expected non-empty text"),
}


@pytest.mark.parametrize(("columns", "message"), BAD.values(), ids=BAD)
def test_bad_columns_are_errors(columns, message, as_users_call):
    with pytest.raises(ValueError, match=re.escape(message)):
        data.from_arrays(np.eye(3), [0, 1, 1], [range(3)], sensitive_features=columns)


def test_too_many_values_are_an_error():
    total = MAX_SENSITIVE_VALUES + 1
    with pytest.raises(ValueError, match="1,001"):
        encode_sensitive({"id": np.arange(total)}, np.zeros(total, int))
    encode_sensitive({"id": np.arange(total) // 2}, np.zeros(total, int))


@pytest.mark.parametrize(
    ("test_columns", "message"),
    [
        (None, "test_sensitive_features of type NoneType: expected a mapping"),
        ({"race": ["a", "b"]}, "expected the features of sensitive_features, ['sex']"),
        ({"sex": [0, 1]}, "of int64: expected the type of the training examples"),
    ],
)
def test_test_columns_must_fit_the_training_columns(test_columns, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        encode_sensitive({"sex": ["F", "M"]}, np.zeros(2, int), test_columns, np.zeros(2, int))


def test_test_columns_without_test_examples_are_an_error():
    with pytest.raises(ValueError, match="test_features"):
        make_people(test_sensitive_features=COLUMNS)


def replaced(people, part, codes):
    return people._replace(**{part: getattr(people, part)._replace(sensitive_features=codes)})


INVALID = {
    "no codes": (lambda p: replaced(p, "test", None), "test.sensitive_features=None: expected"),
    "no names": (lambda p: p._replace(sensitive_names=None), "sensitive_names is None"),
    "range": (
        lambda p: replaced(p, "train", p.train.sensitive_features + 1),
        "train.sensitive_features of 'sex' span [1, 2]: expected [0, 1] (2 values)",
    ),
    "negative": (
        lambda p: replaced(p, "train", p.train.sensitive_features - 1),
        "train.sensitive_features of 'sex' span [-1, 0]",
    ),
    "shape": (
        lambda p: replaced(p, "train", p.train.sensitive_features[:, :1]),
        "expected integers of shape (48, 2)",
    ),
    "type": (
        lambda p: replaced(p, "train", p.train.sensitive_features.astype(float)),
        "float64 and shape (48, 2): expected integers",
    ),
    "repeated feature": (
        lambda p: p._replace(sensitive_names=(p.sensitive_names[0],) * 2),
        "expected unique names",
    ),
    "repeated value": (
        lambda p: p._replace(sensitive_names=(("sex", ("F", "F")), p.sensitive_names[1])),
        "sensitive_names['sex']=('F', 'F'): expected unique names",
    ),
    "no values": (
        lambda p: p._replace(sensitive_names=(("sex", ()), p.sensitive_names[1])),
        "expected one or more values",
    ),
    "not a tuple": (lambda p: p._replace(sensitive_names="sex"), "sensitive_names='sex'"),
}


@pytest.mark.parametrize(("change", "message"), INVALID.values(), ids=INVALID)
def test_invalid_federated_datasets_are_errors(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        data.validate(change(make_people()))
