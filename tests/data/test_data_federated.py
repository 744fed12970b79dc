"""Federated datasets from arrays and files, and their validation."""

import io
import resource
import zipfile

import jax
import numpy as np
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
    st.floats(0, 1, exclude_max=True),
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
        test_features=np.ones((2, 2)), test_labels=[2, 4], test_client_indices=[[1], [], [0]]
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
    ],
)
def test_shapes_and_dtypes_of_features(features, shape, dtype):
    part = example(features=features).train
    assert (part.features.shape[1:], part.features.dtype) == (shape, dtype)
    integers = (part.labels, part.order, part.offsets, part.sizes)
    assert {array.dtype for array in integers} == {np.dtype("i4")}


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint64])
def test_width_of_integer_labels_does_not_matter(dtype):
    labels = np.arange(TOTAL) % 3
    for one, other in zip(
        example(labels=labels.astype(dtype)).train, example(labels=labels).train, strict=True
    ):
        np.testing.assert_array_equal(one, other, strict=True)


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
        ("train", {"features": np.ones((7, 2))}, r"features of shape \(7, 2\).*\(5,\) labels"),
        ("train", {"features": np.full((5, 2), "x")}, "expected uint8, integers or floats"),
        ("train", {"features": np.full((5, 2), 1j)}, "expected uint8, integers or floats"),
        ("train", {"features": np.where(TRAIN.features == 0, 0, np.nan)}, "values are not finite"),
        ("train", {"features": np.full((5, 2), np.inf)}, "10 values are not finite"),
        ("train", {"labels": np.full(5, "a")}, "labels of <U1"),
        ("train", {"labels": np.full((5, 2), np.nan)}, "labels: 10 values are not finite"),
        ("train", {"labels": np.ones((4, 2))}, "expected one for each of"),
        ("train", {"labels": np.full(5, 3)}, r"labels span \[3, 3\]: expected \[0, 2\]"),
        ("test", {"labels": np.full(4, -1)}, r"test.labels span \[-1, -1\]"),
        ("train", {"order": np.arange(1, 6)}, r"order span \[1, 5\]: expected \[0, 4\]"),
        ("train", {"order": np.arange(-1, 4)}, r"order span \[-1, 3\]"),
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
        ({"labels": np.zeros(TOTAL)}, "labels of float64 .* expected the class of each example"),
        ({"labels": np.full(TOTAL, "cat")}, "labels of <U3 .* expected the class of each example"),
        (
            {"labels": 1 + np.arange(TOTAL) % 3},
            r"labels span \[1, 3\]: .* labels - 1 for 3 classes, or num_classes=4",
        ),
        ({"labels": np.zeros(TOTAL - 1, int)}, "expected"),
        (
            {"features": np.full((TOTAL, 2), "x")},
            "features of <U1: expected .* encode other types",
        ),
        ({"features": np.ones((TOTAL, 2), complex)}, "features of complex128: expected uint8"),
        ({"labels": np.arange(TOTAL) % 3 + 2**32}, "labels span .*: expected integers of 32 bits"),
        ({"features": np.full((TOTAL, 2), 2**40)}, "features span .*: expected integers of 32"),
        ({"features": np.zeros((TOTAL + 1, 2))}, r"features of shape \(13, 2\).* 12 labels"),
        ({"features": np.zeros((TOTAL - 1, 2))}, r"features of shape \(11, 2\).* 12 labels"),
        (
            {"features": np.zeros((TOTAL, 0))},
            r"features of shape \(9, 0\): expected no axis of length 0",
        ),
        (
            {"test_features": np.zeros((2, 2)), "test_labels": [0], "test_client_indices": [[0]]},
            r"test_features of shape \(2, 2\).* 1 labels",
        ),
    ],
)
def test_inconsistent_arrays_are_rejected(changes, message):
    with pytest.raises(ValueError, match=message):
        example(**changes)


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"client": None}, r"lacks \['client'\]"),
        ({"client": np.array(["a", "b"])}, "one value for each of 6 examples"),
        ({"test_client": np.array(["b", "c"])}, "1 have none"),
        ({"test_client": np.array(["b"])}, r"test_client of shape \(1,\)"),
        ({"test_labels": None}, "test_client|all three"),
        ({"features": np.array([object()] * 6)}, "plain arrays"),
        ({"client": np.array([0.5, 1, 0.5, 1, 1, 1])}, "client of float64: expected integers or"),
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


def test_damaged_files_are_rejected(tmp_path):
    path = tmp_path / "bad.npz"
    np.savez(path, **ARRAYS)
    content = path.read_bytes()
    # Without its first byte, arrays begin one byte before the file.
    damages = (content[: len(content) // 2], content.replace(b"NUMPY", b"numpy"), content[1:])
    for damaged in (b"", b"text", *damages):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"bad\.npz: expected an \.npz file"):
            data.from_npz(path)
    np.save(tmp_path / "single.npy", np.arange(3))
    with pytest.raises(ValueError, match=r"expected an \.npz file"):
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
    with pytest.raises(ValueError, match=r"test\.labels .*expected labels like train's"):
        data.validate(example(test_fraction=0.5)._replace(test=dataset.test))


def test_labels_without_class_0_need_num_classes():
    labels = 1 + np.arange(TOTAL) % 3
    assert example(labels=labels, num_classes=4).num_classes == 4
    tested = {"test_features": np.ones((1, 2)), "test_client_indices": [[0], [], []]}
    assert example(labels=labels, test_labels=[0], **tested).num_classes == 4


def header_of(shape):
    """The first bytes of an ``.npy`` file of floats of this shape."""
    file = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


@pytest.mark.parametrize("size", [10**13, 2**27])
@pytest.mark.parametrize("content", [b"", bytes(80)])
def test_an_array_smaller_than_its_header_claims_takes_no_memory(size, content, tmp_path):
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("features", "labels", "client"):
            archive.writestr(f"{name}.npy", header_of((size,)) + content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"bomb\.npz: expected an \.npz file"):
        data.from_npz(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 2**18  # KiB


def test_highly_compressed_files_are_read(tmp_path):
    arrays = {"features": np.zeros((100_000, 10)), "labels": np.zeros(100_000, int)}
    np.savez_compressed(tmp_path / "zeros.npz", **arrays, client=np.zeros(100_000, int))
    assert data.from_npz(tmp_path / "zeros.npz").num_clients == 1
