"""Arrays, tables and files with values that readers could take for others."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow
import pytest
import scipy.sparse

import fedjax_fair as ff
from fedjax_fair import data

TOTAL = 60
NUMBERS = np.random.default_rng(0).normal(size=(TOTAL, 3)).astype(np.float32)
CLASSES, OWNERS = np.arange(TOTAL) % 2, np.arange(TOTAL) % 3


def arrays(features=NUMBERS, labels=CLASSES, clients=OWNERS, **settings):
    return data.from_arrays(features, labels, clients=clients, **settings)


def table(**columns):
    frame = pd.DataFrame({"a": NUMBERS[:, 0], "job": ["x", "y"] * (TOTAL // 2)})
    return frame.assign(cl=["p", "q", "r"] * (TOTAL // 3), y=CLASSES).assign(**columns)


def read(frame, **settings):
    return data.from_table(frame, **{"label": "y", "client": "cl"} | settings)


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: x.astype(jnp.bfloat16),
        lambda x: x.astype(jnp.float8_e4m3fn),
        lambda x: x.astype(">f8"),
        np.asfortranarray,
        lambda x: pd.DataFrame(x).astype("Float32"),
        lambda x: pd.DataFrame(x).astype("float[pyarrow]"),
        lambda x: pd.DataFrame(x).astype(pd.SparseDtype(np.float32)),
    ],
)
def test_types_of_numbers(convert):
    whole = np.round(NUMBERS)
    np.testing.assert_array_equal(
        arrays(convert(whole)).train.features, arrays(whole).train.features
    )


@pytest.mark.parametrize("dtype", [jnp.int4, jnp.uint4, np.int8, ">i2"])
def test_types_of_integers(dtype):
    made = arrays(np.round(np.abs(NUMBERS)).astype(dtype), CLASSES.astype(dtype))
    assert (made.train.features.dtype, made.train.labels.dtype) == (np.int32, np.int32)
    assert made.num_classes == 2


SPARSE = scipy.sparse.csr_matrix(NUMBERS)
REFUSED = {
    "a sparse matrix": ({"features": SPARSE}, "features: .*csr_matrix"),
    "a sparse array": ({"features": scipy.sparse.csr_array(NUMBERS)}, "features: .*csr_array"),
    "sparse labels": ({"labels": SPARSE}, "labels: .*csr_matrix"),
    "an iterator": ({"labels": iter(CLASSES)}, "labels: .*iterator"),
    "a set": ({"clients": {0, 1}}, "clients: .*set"),
    "no examples": ({"features": NUMBERS[:0], "labels": CLASSES[:0]}, "labels: expected one"),
    "labels -1 and 1": ({"labels": 2 * CLASSES - 1}, r"labels span \[-1, 1\].*np.unique"),
    "masks as classes": ({"labels": -CLASSES}, r"labels span \[-1, 0\].*np.unique"),
    "a missing value": ({"features": pd.DataFrame(NUMBERS, dtype="Float32").mask(NUMBERS > 1)},
        "finite"),
    "nulls in names": ({"clients": ["a\0", "a", "b"] * 20}, "clients: .*null"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_array_or_class_is_named(name):
    arguments, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        arrays(**arguments)


@pytest.mark.parametrize("convert", [lambda ids: ids.astype(str), lambda ids: ids.astype("S")])
def test_owners_of_test_examples_have_the_type_of_clients(convert):
    tests = {"test_features": NUMBERS, "test_labels": CLASSES}
    for owners in ((OWNERS, convert(OWNERS)), (convert(OWNERS), OWNERS)):
        with pytest.raises(ValueError, match="test_clients of"):
            arrays(clients=owners[0], **tests, test_clients=owners[1])
    assert arrays(**tests, test_clients=OWNERS.astype(np.uint8)).test.sizes.tolist() == [20] * 3


LISTS = pd.array([[1, 2]] * TOTAL, pd.ArrowDtype(pyarrow.list_(pyarrow.int64())))
COLUMNS = {
    "a feature's name": ({"job=x": 1.0}, "job=x"),
    "an indicator's name": ({"a": [None, 1.0] * 30, "a=missing": 1.0}, "a=missing"),
    "overflow": ({"a": [1e200, -1e200] * 30}, r"'a' spans \[-1e\+200, 1e\+200\]"),
    "1 and '1'": ({"job": [1, "1"] * 30}, "same text"),
    "True and 'True'": ({"job": [True, "True"] * 30}, "same text"),
    "a null character": ({"cl": ["a\0", "a", "b"] * 20}, "null"),
    "lists of Arrow": ({"job": LISTS}, "value of list in row 0"),
    "bytes that change": ({"job": [bytearray(b"x")] * TOTAL}, "value of bytearray in row 0"),
    "an infinite class": ({"y": [1.0, np.inf] * 30}, "infinite"),
    "one class": ({"y": 1}, "one class, 1:"),
    "classes 1 and '1'": ({"y": [1, "1"] * 30}, "same text"),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_that_would_become_others_are_refused(name):
    columns, message = COLUMNS[name]
    with pytest.raises(ValueError, match=message):
        read(table(**columns))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"client": data.by_column("y")}, "client: column 'y' is the label"),
        (
            {"client": data.dirichlet(2, 0.5)._replace(column="y")},
            "client: column 'y' is the label",
        ),
        ({"client": None}, "client is a NoneType"),
        ({"test": table()["a"]}, "test of type Series"),
        ({"target": "regression", "label": "b"}, "infinite as float32"),
    ],
)
def test_arguments_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        read(table(b=1e300), **settings)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (pd.Categorical([3, 10] * 30), ("3", "10")),
        (np.array([3, 10] * 30, object), ("3", "10")),
        (pd.Categorical([10.0, 3.0] * 30), ("3", "10")),
        ([-0.0, 0.0, 1.0] * 20, ("0", "1")),
    ],
)
def test_classes_that_are_numbers_ascend(labels, names):
    assert read(table(y=labels)).class_names == names


def test_classes_of_a_test_table_may_have_another_type():
    for labels in (CLASSES.astype(str), CLASSES.astype(bool), CLASSES.astype(float)):
        made = read(table(), test=table(y=labels))
        assert made.class_names == ("0", "1")
        np.testing.assert_array_equal(made.test.labels, CLASSES)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": ["?", *map(str, NUMBERS[1:, 0])]}, "numbers in .* such as '\\?' in row"),
        ({"a": ["1 000", *map(str, range(1, TOTAL))]}, "numbers in .* such as '1 000' in row"),
        ({"y": ["n/a", *map(str, CLASSES[1:])]}, "label 'y' has numbers in 59 of 60"),
        ({"cl": ["a", "a ", "b"] * 20}, "differ only in spaces"),
        ({"y": [" yes", "yes", "no"] * 20}, "differ only in spaces"),
    ],
)
def test_texts_that_are_probably_mistakes_are_a_warning(columns, message):
    with pytest.warns(UserWarning, match=message):
        read(table(**columns), test=0.0)


@pytest.mark.parametrize("kind", [";", "|", "\t"])
def test_a_file_with_another_separator_is_named(kind, tmp_path):
    path = tmp_path / "a.csv"
    table().to_csv(path, sep=kind, index=False)
    with pytest.raises(ValueError, match=r"single column .* not '.*'; save it again"):
        read(path)


def test_the_index_in_a_file_is_a_warning(tmp_path):
    table().to_csv(path := tmp_path / "a.csv")
    with pytest.warns(UserWarning, match="exclude 'Unnamed: 0'"):
        assert "Unnamed: 0" in read(path).encoding.feature_names


@pytest.mark.parametrize("content", [b"", b"text", b"\x93NUMPY"])
def test_other_files_than_npz_are_named(content, tmp_path):
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(
        ValueError, match=r"expected an .npz file of plain arrays, got another kind"
    ):
        data.from_npz(tmp_path / "a.npz")


def fitted(model, federation):
    roles = (ff.selectors.Uniform(2), ff.solvers.SGD(0.1, 5, epochs=1), ff.aggregators.Mean())
    return ff.fit(ff.Round(model, *roles), federation, rounds=1)


def with_outputs(change):
    model = ff.models.logistic(2)

    def apply(params, state, x, **settings):
        outputs, state = model.apply(params, state, x, **settings)
        return change(outputs), state

    return ff.Model.from_functions(model.init, apply, model.features)


@pytest.mark.parametrize(
    "change",
    [
        lambda outputs: outputs[:1],
        lambda outputs: outputs.T,
        lambda outputs: outputs.sum(axis=1),
        lambda outputs: outputs[:, None],
        lambda outputs: outputs.astype(int),
        lambda outputs: (outputs, outputs),
        lambda outputs: {"logits": outputs},
        lambda outputs: None,
    ],
)
def test_outputs_are_floats_for_each_example(change):
    with pytest.raises(ValueError, match=r"expected an array of floats .* \[batch, outputs\]"):
        fitted(with_outputs(change), arrays())


def test_models_of_targets_need_targets():
    for model in (ff.models.as_regression, ff.models.as_multi_label):
        with pytest.raises(ValueError, match=r"expected targets, floats"):
            fitted(model(ff.models.logistic(2)), arrays())
    for labels in (NUMBERS, CLASSES[:, None] / 2, CLASSES[:, None] * 2.0):
        model = ff.models.as_multi_label(ff.models.logistic(labels.shape[1]))
        with pytest.raises(ValueError, match=r"expected 0 and 1 with models.as_multi_label"):
            fitted(model, arrays(labels=labels))
