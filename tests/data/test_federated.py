"""Federated datasets from arrays and files, and their validation."""

import io
import resource
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_fair import data

TOTAL = 12


def example(**changes):
    arguments = {
        "features": np.arange(TOTAL * 2.0).reshape(TOTAL, 2),
        "labels": np.arange(TOTAL) % 3,
        "client_indices": [[0, 4, 8, 1], [2, 3], [11, 10, 9]],
    }
    return data.from_arrays(**(arguments | changes))


def test_examples_keep_their_client_and_label():
    dataset = example(test_fraction=0.5, groups=[0, 1, 1], name="mine")
    assert (dataset.name, dataset.num_classes, dataset.num_clients) == ("mine", 3, 3)
    assert dataset.groups.tolist() == [0, 1, 1]
    assert dataset.test.sizes.tolist() == [2, 1, 1]
    for client, indices in enumerate([[0, 4, 8, 1], [2, 3], [11, 10, 9]]):
        features = []
        for part in (dataset.train, dataset.test):
            own = part.order[part.offsets[client] :][: part.sizes[client]]
            original = part.features[own, 0].astype(int) // 2
            assert part.labels[own].tolist() == (original % 3).tolist()
            features += original.tolist()
        assert sorted(features) == sorted(indices)


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.floats(0, 1, exclude_max=True, width=32, allow_subnormal=False),
    st.integers(0, 99),
)
@settings(max_examples=50, deadline=None)
def test_test_fraction_leaves_every_client_training_examples(sizes, fraction, seed):
    total = sum(sizes)
    indices = np.split(np.random.default_rng(seed).permutation(total), np.cumsum(sizes)[:-1])
    dataset = data.from_arrays(
        np.arange(total)[:, None], np.zeros(total, int), indices, test_fraction=fraction, seed=seed
    )
    assert dataset.test.sizes.tolist() == [int(size * fraction) for size in sizes]
    assert dataset.train.sizes.min() >= 1
    both = np.concatenate([dataset.train.features[:, 0], dataset.test.features[:, 0]])
    np.testing.assert_array_equal(np.sort(both), np.arange(total))


def test_seed_determines_held_out_examples():
    drawn = {tuple(example(test_fraction=0.5, seed=s).test.features[:, 0]) for s in range(20)}
    assert len(drawn) > 10


def test_given_test_examples_are_used():
    dataset = example(
        test_features=np.ones((2, 2)),
        test_labels=[2, 4],
        test_client_indices=[[1], [], [0]],
        num_classes=5,
    )
    assert dataset.test.sizes.tolist() == [1, 0, 1]
    assert dataset.test.order.tolist() == [1, 0]
    assert dataset.num_classes == 5
    assert dataset.train.features.shape == (TOTAL, 2)


@pytest.mark.parametrize(
    ("features", "shape", "dtype"),
    [
        (np.zeros((TOTAL, 5, 5), np.uint8), (5, 5, 1), np.uint8),
        (np.zeros((TOTAL, 5, 5, 3), np.uint8), (5, 5, 3), np.uint8),
        (np.zeros((TOTAL, 5, 5)), (5, 5), np.float32),
        (np.zeros((TOTAL, 7), np.int64), (7,), np.int32),
        (np.ones((TOTAL, 7), bool), (7,), np.float32),
    ],
)
def test_shapes_and_dtypes_of_features(features, shape, dtype):
    part = example(features=features).train
    assert (part.features.shape[1:], part.features.dtype) == (shape, dtype)
    integers = (part.labels, part.order, part.offsets, part.sizes)
    assert {array.dtype for array in integers} == {np.dtype("i4")}


@pytest.mark.parametrize("dtype", [np.uint8, "f2", "f4", "f8", "i8", jnp.bfloat16, bool])
@pytest.mark.parametrize(
    ("shape", "is_first"),
    [
        ((3, 32, 32), True),
        ((1, 28, 28), True),
        ((4, 8, 8), True),
        ((3, 8, 2), True),
        ((3, 4, 4), True),
        ((1, 3, 3), True),
        ((3, 8, 3), False),  # Images of three rows.
        ((1, 8, 4), False),
        ((3, 3, 3), False),
        ((8, 8, 3), False),
        ((3, 3, 512), False),  # Feature maps.
        ((1, 1, 512), False),
        ((3, 8), False),
    ],
)
def test_images_with_channels_first_are_rejected(shape, is_first, dtype):
    features = np.zeros((TOTAL, *shape), dtype)
    if not is_first:
        if dtype != "i8" or shape[-1] > 4:
            assert example(features=features).train.features.shape[1:3] == shape[:2]
        return
    message = rf"features of {features.dtype} and shape \(12, .*moveaxis\(features, 1, -1\)"
    with pytest.raises(ValueError, match=message):
        example(features=features)
    with pytest.raises(ValueError, match="test_features"):
        example(**TESTED | {"test_features": features[:2]})
    moved = np.moveaxis(features, 1, -1)
    if dtype != "i8":
        assert example(features=moved).train.features.shape[3] == shape[0]


PIXELS = np.linspace(0, 255, TOTAL * 8 * 8).reshape(TOTAL, 8, 8)


@pytest.mark.parametrize(
    ("features", "advice"),
    [
        (PIXELS, "astype(np.uint8)"),
        (PIXELS[..., None].astype("f4"), "astype(np.uint8)"),
        (np.stack([PIXELS] * 3, -1).astype("f2"), "astype(np.uint8)"),
        (PIXELS[..., None].astype("i8"), "astype(np.uint8)"),
        (PIXELS[..., None].astype("u2"), "astype(np.uint8)"),
        (PIXELS.astype("i4"), "astype(np.uint8)"),
        (PIXELS[:, :5, :4, None].astype("i8") * 0 + 9, "astype(np.uint8)"),  # A dark image.
        ((PIXELS * 257).astype("u2"), "/ np.float32(65535)"),
        (PIXELS[..., None] * 257, "/ np.float32(65535)"),
    ],
)
def test_pixels_of_other_types_than_bytes_are_rejected(features, advice):
    with pytest.raises(ValueError, match="expected images as uint8") as caught:
        example(features=features)
    assert advice in str(caught.value)
    with pytest.raises(ValueError, match=r"test_features of .* span"):
        example(test_features=features[-2:], test_labels=[0, 1], test_client_indices=[[0], [1], []])


@pytest.mark.parametrize(
    "features",
    [
        PIXELS[..., None] / 255,
        PIXELS[..., None] - 120,  # Centered as for the networks of Caffe.
        PIXELS[..., None] / 255 > 0.5,
        PIXELS[:, :, :5] * 3,  # A time series.
        PIXELS.reshape(TOTAL, 64) + 0.5,
        PIXELS.reshape(TOTAL, 64) * 9 // 1,
    ],
)
def test_other_numbers_are_no_pixels(features):
    expected = features.astype("f4")
    part = example(features=features, client_indices=[range(TOTAL)], test_fraction=0.0).train
    assert sorted(row.tobytes() for row in part.features) == sorted(
        row.tobytes() for row in expected
    )


@pytest.mark.parametrize("dtype", ["f4", "i8", "u2"])
def test_rows_that_look_like_pixels_are_warned_of(dtype):
    with pytest.warns(UserWarning, match=r"as pixels do; if they are, pass features\.astype"):
        assert example(features=PIXELS.reshape(TOTAL, 64).astype("i4").astype(dtype))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint64])
def test_width_of_integer_labels_does_not_matter(dtype):
    labels = np.arange(TOTAL) % 3
    for one, other in zip(
        example(labels=labels.astype(dtype)).train, example(labels=labels).train, strict=True
    ):
        np.testing.assert_array_equal(one, other, strict=True)


def test_boolean_labels_are_classes_0_and_1():
    labels = np.arange(TOTAL) % 3 > 0
    for one, other in zip(
        example(labels=labels).train, example(labels=labels.astype(int)).train, strict=True
    ):
        np.testing.assert_array_equal(one, other, strict=True)
    assert example(labels=np.zeros(TOTAL, bool)).num_classes == 2
    assert example(labels=np.ones(TOTAL, bool)).num_classes == 2


@pytest.mark.parametrize("other", [np.arange(TOTAL), np.linspace(0, 1, TOTAL)])
def test_boolean_columns_of_a_table_are_0_and_1(other):
    table = pd.DataFrame({"is_even": np.arange(TOTAL) % 2 == 0, "other": other})
    part = example(features=table, client_indices=[range(TOTAL)], test_fraction=0.0).train
    assert part.features.dtype == np.float32
    in_order = part.features[np.argsort(part.features[:, 1])]
    np.testing.assert_array_equal(in_order, table.astype("float32"))
    for value in ("2", None):  # Text and missing values are not converted.
        with pytest.raises(ValueError, match="features"):
            example(features=table.astype(object).assign(other=value))


def test_federated_data_is_an_argument_of_a_jitted_function():
    dataset = example(groups=[0, 1, 1])
    doubled = jax.jit(lambda f: f.train.features.sum() + f.num_classes)(dataset)
    assert doubled == dataset.train.features.sum() + 3


def broken(part, **changes):
    """Returns the example with some arrays of one part replaced."""
    dataset = example(test_fraction=0.5)
    fields = jax.tree.map(np.array, getattr(dataset, part))
    other = fields._replace(**changes)
    parts = {"train": dataset.train, "test": dataset.test} | {part: other}
    return data.FederatedData(**parts, groups=None, num_classes=3, name="broken")


TRAIN = broken("train").train


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("train", {"features": np.ones((7, 2))}, "features"),
        ("train", {"features": np.full((5, 2), "x")}, "expected uint8, integers or floats"),
        ("train", {"features": np.full((5, 2), 1j)}, "expected uint8, integers or floats"),
        ("train", {"features": np.where(TRAIN.features == 0, 0, np.nan)}, "values are not finite"),
        ("train", {"features": np.full((5, 2), np.inf)}, "10 values are not finite"),
        ("train", {"labels": np.full(5, "a")}, "labels"),
        ("train", {"labels": np.full((5, 2), np.nan)}, "labels:"),
        ("train", {"labels": np.ones((4, 2))}, "expected one for each of"),
        ("train", {"labels": np.full(5, 3)}, "labels"),
        ("test", {"labels": np.full(4, -1)}, "test.labels"),
        ("train", {"order": np.arange(1, 6)}, "order"),
        ("train", {"order": np.arange(-1, 4)}, "order"),
        ("train", {"order": np.arange(4)}, "5, for the 4 entries of order"),
        ("train", {"offsets": np.array([0, 2, 4])}, "exclusive cumulative sum"),
        ("train", {"sizes": np.array([3, -1, 3])}, "no size negative"),
        ("train", {"sizes": np.array([3, 0, 2]), "offsets": np.array([0, 3, 3])}, r"first \[1\]"),
        ("test", {"sizes": np.array([4]), "offsets": np.array([0])}, "expected train's"),
        ("test", {"features": np.ones((4, 3), np.float32)}, "features like train's"),
        ("test", {"features": np.ones((4, 2), np.uint8)}, "features like train's"),
    ],
)
def test_validate_reports_invalid_arrays(part, changes, message):
    with pytest.raises(ValueError, match=message):
        data.validate(broken(part, **changes))


def test_validate_accepts_clients_without_test_examples_and_jax_arrays():
    sizes, empty = np.zeros(3, int), np.zeros(0, int)
    dataset = broken("test", order=empty, sizes=sizes, offsets=sizes)
    data.validate(dataset)
    data.validate(jax.tree.map(jax.numpy.asarray, dataset))


@pytest.mark.parametrize("groups", [[0, 1], [0, -1, 1], [0, 3, 1], [0.0, 1.0, 1.0]])
def test_invalid_groups_are_rejected(groups):
    with pytest.raises(ValueError, match="groups"):
        example(groups=groups)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_labels": [0]}, "all three or none"),
        ({"test_fraction": 1.0}, "test_fraction=1.0"),
        ({"num_classes": 2}, r"expected \[0, 1\] \(num_classes=2\)"),
        ({"num_classes": 0}, "num_classes=0"),
        ({"labels": np.zeros(TOTAL)}, "labels"),
        ({"labels": np.full(TOTAL, "cat")}, "labels"),
        (
            {"labels": 1 + np.arange(TOTAL) % 3},
            "labels",
        ),
        ({"labels": np.zeros(TOTAL - 1, int)}, "expected"),
        ({"features": None}, "features"),
        ({"features": (x for x in "ab")}, "features"),
        ({"features": [[1, 2], [3]] * 6}, "features:"),
        ({"features": (lambda a: a.append(a) or a)([])}, "features:"),
        (
            {"features": np.full((TOTAL, 2), "x")},
            "features",
        ),
        ({"features": np.ones((TOTAL, 2), complex)}, "features"),
        ({"labels": np.arange(TOTAL) % 3 + 2**32}, "labels"),
        ({"features": np.full((TOTAL, 2), 2**40)}, "features"),
        ({"features": np.zeros((TOTAL + 1, 2))}, "features"),
        ({"features": np.zeros((TOTAL - 1, 2))}, "features"),
        (
            {"features": np.zeros((TOTAL, 0))},
            "features",
        ),
        (
            {"test_features": np.zeros((2, 2)), "test_labels": [0], "test_client_indices": [[0]]},
            "test_features",
        ),
    ],
)
def test_inconsistent_arrays_are_rejected(changes, message):
    with pytest.raises(ValueError, match=message):
        example(**changes)


TEST_EXAMPLES = {"test_features": np.ones((2, 2)), "test_labels": np.array([2, 1])}
TESTED = TEST_EXAMPLES | {"test_client_indices": [[1], [], [0]]}
ARRAYS = {
    "features": np.arange(6.0)[:, None],
    "labels": np.array([0, 1, 0, 1, 2, 2]),
    "client": np.array(["b", "a", "b", "a", "b", "a"]),
    "test_features": np.ones((2, 1)),
    "test_labels": np.array([1, 0]),
    "test_client": np.array(["b", "b"]),
    "groups": np.array([1, 0]),
    "num_classes": np.array(4),
}


def test_from_npz_equals_from_arrays(tmp_path):
    np.savez(tmp_path / "clinics.npz", **ARRAYS)
    dataset = data.from_npz(tmp_path / "clinics.npz")
    assert (dataset.name, dataset.num_classes) == ("clinics", 4)
    assert dataset.groups.tolist() == [1, 0]
    assert dataset.train.order.tolist() == [1, 3, 5, 0, 2, 4]
    assert dataset.test.sizes.tolist() == [0, 2]


OWNERS = {
    "strings": list("bababa"),
    "bytes": np.array(list("bababa"), "S"),
    "a column": pd.Series(list("bababa")),
    "objects": np.array(list("bababa"), object),
    "categories": pd.Series(list("bababa"), dtype="category"),
    "integers": [7, -3, 7, -3, 7, -3],
    "large integers": np.array([2**64 - 1, 1] * 3, np.uint64),
}


@pytest.mark.parametrize("kind", OWNERS)
def test_clients_are_the_owners_of_examples(kind):
    owners = OWNERS[kind]
    arguments = {"features": ARRAYS["features"], "labels": ARRAYS["labels"]}
    tested = {"test_features": np.ones((2, 1)), "test_labels": [1, 0]}
    by_indices = data.from_arrays(
        **arguments, client_indices=[[1, 3, 5], [0, 2, 4]], **tested,
        test_client_indices=[[1], [0]],
    )  # fmt: skip
    by_owner = data.from_arrays(**arguments, clients=owners, **tested, test_clients=owners[:2])
    names = None if "integers" in kind else ("a", "b")
    assert by_owner.client_names == names
    unnamed = by_owner._replace(client_names=None)
    jax.tree.map(np.testing.assert_array_equal, unnamed, by_indices)
    held_out = data.from_arrays(**arguments, clients=owners, test_fraction=0.4)
    assert held_out.test.sizes.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "expected one of the two, .* got none"),
        ({"clients": range(TOTAL), "client_indices": [[0]]}, "expected one of the two, .* got bo"),
        (
            {"clients": range(TOTAL - 1)},
            "clients",
        ),
        ({"clients": np.zeros((TOTAL, 1), int)}, "clients"),
        ({"clients": np.arange(TOTAL) / 2}, "clients"),
        ({"clients": np.arange(TOTAL) > 3}, "clients"),
        ({"clients": pd.Series(["a", None] * 6)}, "clients"),
        ({"clients": {"a": [0]}}, "clients"),
        ({"clients": range(TOTAL)} | TESTED, "or test_clients with clients"),
        ({"client_indices": [[0]], "test_clients": [0]}, "or test_clients with clients"),
        ({"clients": range(TOTAL), "test_clients": [0]}, "expected all three or none"),
        (
            {"clients": range(TOTAL), **TEST_EXAMPLES, "test_clients": [0, 12]},
            "test_clients: 1 test examples are of 1 clients .* first .12.; .*unknown_clients=",
        ),
        (
            {"clients": range(TOTAL), **TEST_EXAMPLES, "test_clients": [0]},
            "test_clients",
        ),
    ],
)
def test_invalid_owners_are_rejected(changes, message):
    with pytest.raises(ValueError, match=message):
        example(**{"client_indices": None} | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"client": None}, r"lacks \['client'\]"),
        ({"client": np.array(["a", "b"])}, r"clients of shape \(2,\): .* each example, \(6,\)"),
        (
            {"test_client": np.array(["b", "c"])},
            "test_clients: 1 test examples are of 1 clients that lack .* first .'c'.;",
        ),
        ({"test_client": np.array(["b"])}, r"test_clients of shape \(1,\): expected the owner"),
        ({"test_client": np.array([["b"], ["b"]])}, r"test_clients of shape \(2, 1\)"),
        ({"test_labels": None}, "expected all three or none"),
        ({"labels": np.ones((6, 2)), "num_classes": None}, r"test\.labels .*like train's"),
        ({"groups": np.array([2**40, 0])}, "groups"),
        ({"features": np.full((6, 1), 1e39)}, "6 values are not finite as float32"),
        ({"features": np.array([object()] * 6)}, "plain arrays"),
        ({"client": np.array([0.5, 1, 0.5, 1, 1, 1])}, "clients of float64: expected integers or"),
        ({"labels": np.ones(6)}, r"bad\.npz: labels of float64"),
        ({"num_classes": np.array(2.7)}, r"num_classes=2.7: expected an integer >= 1"),
        ({"num_classes": np.array([4])}, r"num_classes=\[4\]: expected an integer >= 1"),
    ],
)
def test_invalid_arrays_of_a_file_are_rejected(tmp_path, changes, message):
    arrays = {name: array for name, array in (ARRAYS | changes).items() if array is not None}
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        data.from_npz(tmp_path / "bad.npz")


def header_of(shape):
    """The first bytes of an ``.npy`` file of floats, with any text as its shape."""
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\0" + len(text).to_bytes(2, "little") + text


def archive_of(content):
    """An ``.npz`` file with the same bytes as each of its arrays."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("features", "labels", "client"):
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def test_damaged_files_are_rejected(tmp_path):
    path = tmp_path / "bad.npz"
    np.savez(path, **ARRAYS)
    content = path.read_bytes()
    # Without its first byte, arrays begin one byte before the file.
    damages = [content[: len(content) // 2], content.replace(b"NUMPY", b"numpy"), content[1:]]
    for shape in (f"(1{30 * '0'},)", "(-6, 1)", "('a',)", "(6, 1)" + 20_000 * " "):
        damages.append(archive_of(header_of(shape) + bytes(48)))
    for damaged in (b"", b"text", *damages):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"bad\.npz:") as error:
            data.from_npz(path)
        assert "\n" not in str(error.value)
    np.save(tmp_path / "single.npy", np.arange(3))
    with pytest.raises(ValueError, match=r"\.npz"):
        data.from_npz(tmp_path / "single.npy")
    with pytest.raises(FileNotFoundError):
        data.from_npz(tmp_path / "absent.npz")


def test_targets_are_floats_with_an_axis_of_outputs():
    targets = np.arange(2.0 * TOTAL).reshape(TOTAL, 2)
    dataset = example(labels=targets, test_fraction=0.5)
    assert dataset.num_classes == 2
    for part in (dataset.train, dataset.test):
        assert part.labels.dtype == np.float32
        np.testing.assert_array_equal(part.labels, part.features)
    with pytest.raises(ValueError, match=r"test\.labels"):
        data.validate(example(test_fraction=0.5)._replace(test=dataset.test))


def test_labels_without_class_0_need_num_classes():
    labels = 1 + np.arange(TOTAL) % 3
    assert example(labels=labels, num_classes=4).num_classes == 4
    tested = {"test_features": np.ones((1, 2)), "test_client_indices": [[0], [], []]}
    with pytest.raises(ValueError, match=r"test_labels: 1 test labels are of 1 classes .* \[0\]"):
        example(labels=labels, test_labels=[0], **tested)


@pytest.mark.parametrize("size", [10**13, 2**27])
@pytest.mark.parametrize("content", [b"", bytes(80)])
def test_an_array_smaller_than_its_header_claims_takes_no_memory(size, content, tmp_path):
    path = tmp_path / "bomb.npz"
    path.write_bytes(archive_of(header_of((size,)) + content))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"bomb\.npz:"):
        data.from_npz(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 2**18  # KiB


def test_highly_compressed_files_are_read(tmp_path):
    arrays = {"features": np.zeros((100_000, 10)), "labels": np.zeros(100_000, int)}
    np.savez_compressed(tmp_path / "zeros.npz", **arrays, client=np.zeros(100_000, int))
    assert data.from_npz(tmp_path / "zeros.npz").num_clients == 1


def masked(values):
    return np.ma.masked_array(values, mask=np.zeros(np.shape(values), bool))


MASKED = {
    "features": masked(np.ones((TOTAL, 2))),
    "labels": masked(np.arange(TOTAL) % 3),
    "targets": {"labels": masked(np.ones((TOTAL, 2)))},
    "groups": masked([0, 1, 1]),
    "test features": TESTED | {"test_features": masked(np.ones((2, 2)))},
    "test labels": TESTED | {"test_labels": masked([2, 1])},
    "test indices": TESTED | {"test_client_indices": [[1], [], masked([0])]},
    "a list of arrays": {"features": [masked([1.0, 2.0])] + [np.ones(2)] * (TOTAL - 1)},
    "a nested tuple": {"features": [(1.0, np.ma.masked)] * TOTAL},
    "a masked label": {"labels": [0] * (TOTAL - 1) + [np.ma.masked]},
    "owners": {"client_indices": None, "clients": masked(np.arange(TOTAL))},
    "indices": {"client_indices": [masked([0, 4]), [2, 3]]},
    "indices by name": {"client_indices": {"a": [0, 4], "b": masked([2, 3])}},
    "a padded matrix": {"client_indices": masked([[0, 1, 2], [3, 4, 0]])},
}


@pytest.mark.parametrize("case", MASKED)
def test_masked_arrays_are_rejected(case):
    arguments = MASKED[case] if isinstance(MASKED[case], dict) else {case: MASKED[case]}
    with pytest.raises(ValueError, match="masked"):
        example(**arguments)


def test_masked_arrays_of_partitions_and_datasets_are_rejected():
    labels = np.arange(TOTAL) % 3
    dataset = example()
    for attempt in (
        lambda: data.from_indices([masked([0, 1])]),
        lambda: data.by_column("writer").split(labels, 0, writer=masked(labels)),
        lambda: data.classes_per_client(2).split(masked(labels), 0),
        lambda: data.dirichlet(2, masked([0.5, 0.5])),
        lambda: data.validate(broken("train", labels=masked(TRAIN.labels))),
        lambda: data.flip_labels(dataset, masked([0])),
    ):
        with pytest.raises(ValueError, match="masked"):
            attempt()


@pytest.mark.parametrize("label", [10**6, 2**31 - 2, 2**31 - 1])
def test_labels_that_are_no_classes_are_rejected(label):
    labels = np.arange(TOTAL) % 3
    labels[5] = label
    message = rf"labels span \[0, {label}\]: expected classes below 1000000, which np\.unique"
    with pytest.raises(ValueError, match=message):
        example(labels=labels)
    with pytest.raises(ValueError, match="num_classes="):
        example(labels=labels, num_classes=label + 1)


@pytest.mark.parametrize("num_classes", [10**9, 2**70, 0, -1, 2.0, True, "3"])
def test_numbers_of_classes_are_limited(num_classes):
    with pytest.raises(ValueError, match="num_classes="):
        example(num_classes=num_classes)


def test_a_million_classes_are_summarized():
    assert "1,000,000; " in str(example(num_classes=10**6))


def test_types_of_indices_may_differ():
    types = (np.uint64, np.int8, np.int64)
    indices = [[0, 4, 8, 1], [2, 3], [11, 10, 9]]
    mixed = [np.array(array, dtype) for array, dtype in zip(indices, types, strict=True)]
    for one, other in zip(example(client_indices=mixed).train, example().train, strict=True):
        np.testing.assert_array_equal(one, other)
    test = TESTED | {"test_client_indices": [np.array([1], np.uint64), [], np.array([0], np.int8)]}
    assert example(**test).test.order.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        (5, "client indices are 5: expected the indices of each client's examples, such as"),
        (np.array(5), r"client indices are array\(5\): expected"),
        ("abc", "expected a 1-D array of integers for each client"),
        ([0, 1, 2], "expected a 1-D array of integers for each client"),
        ([{0, 1}, {2}], "client indices: expected an array .* of type set"),
        ([[True, False]], "expected a 1-D array of integers for each client"),
        ([["0"]], "expected a 1-D array of integers for each client"),
        ([[10**30]], "expected a 1-D array of integers for each client"),
        ([[0, None]], "expected a 1-D array of integers for each client"),
        ([[[0, 1], [2]]], "client indices: expected an array"),
        ([[0], np.array([2**64 - 1], np.uint64)], "indices"),
        ([[0], [-1]], "indices"),
    ],
)
def test_invalid_indices_are_rejected(indices, message):
    with pytest.raises(ValueError, match=message):
        example(client_indices=indices)
    with pytest.raises(ValueError, match=message):
        example(**TESTED | {"test_client_indices": indices})
