"""The original files of MNIST and CIFAR, written here byte by byte."""

import gzip
import os
import struct

import numpy as np
import pytest

from fedjax_fair import data
from fedjax_fair.app.cli import main
from fedjax_fair.data.conversion import DamagedError
from fedjax_fair.data.sources import raw_files

RNG = np.random.default_rng(0)
IMAGES = {"train": RNG.integers(0, 256, (30, 4, 3)), "t10k": RNG.integers(0, 256, (10, 4, 3))}
LABELS = {split: np.arange(len(images)) % 10 for split, images in IMAGES.items()}


def write_mnist(folder, suffix="", dot="-", images=IMAGES, labels=LABELS):
    """Writes four IDX files: a magic number, big-endian sizes, bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in images:
        for kind, values in (("images", images[split]), ("labels", labels[split])):
            head = struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
            content = head + bytes(values.ravel().tolist())
            path = folder / f"{split}-{kind}{dot}idx{values.ndim}-ubyte{suffix}"
            path.write_bytes(gzip.compress(content) if suffix else content)
    return folder


def write_cifar(folder, files, label_bytes, classes):
    """Writes rows of labels and of red, green and blue planes."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for file in files:
        pixels = RNG.integers(0, 256, (20, 32, 32, 3))
        labels = np.stack([np.arange(20) % 5, np.arange(20) % classes][-label_bytes:], axis=1)
        rows = (
            bytes(label.tolist())
            + b"".join(bytes(image[..., c].ravel().tolist()) for c in range(3))
            for label, image in zip(labels, pixels, strict=True)
        )
        (folder / file).write_bytes(b"".join(rows))
        written[file] = pixels, labels
    return written


@pytest.mark.parametrize(
    ("below", "suffix", "dot"),
    [("", "", "-"), ("", ".gz", "-"), ("mnist", "", "."), ("MNIST/raw", ".gz", "-")],
)
def test_mnist_is_found_and_read(below, suffix, dot, tmp_path):
    folder = write_mnist(tmp_path / below, suffix, dot)
    before = sorted(folder.iterdir())
    dataset = data.load("mnist", data.iid(3), data_dir=tmp_path)
    np.testing.assert_array_equal(dataset.train.features, IMAGES["train"][..., None])
    np.testing.assert_array_equal(dataset.test.labels, LABELS["t10k"])
    assert (dataset.num_classes, dataset.name) == (10, "mnist")
    described = data.describe("mnist", tmp_path)
    assert described[1:7] == (True, folder, (4, 3, 1), 10, 30, 10)
    assert sorted(folder.iterdir()) == before


def test_cifar_is_found_and_read(tmp_path):
    batches = [f"data_batch_{number}.bin" for number in range(1, 6)]
    ten = write_cifar(tmp_path / "cifar-10-batches-bin", [*batches, "test_batch.bin"], 1, 10)
    dataset = data.load("cifar10", data.iid(2), data_dir=tmp_path)
    pixels, labels = (np.concatenate([ten[name][i] for name in batches]) for i in (0, 1))
    np.testing.assert_array_equal(dataset.train.features, pixels)
    np.testing.assert_array_equal(dataset.train.labels, labels[:, 0])
    np.testing.assert_array_equal(dataset.test.features, ten["test_batch.bin"][0])
    hundred = write_cifar(tmp_path / "cifar100", ["train.bin", "test.bin"], 2, 100)
    dataset = data.load("cifar100", data.by_column("coarse_label"), data_dir=tmp_path)
    np.testing.assert_array_equal(dataset.train.labels, hundred["train.bin"][1][:, 1])
    assert dataset.train.sizes.tolist() == [4] * 5
    assert dataset.num_classes == 100


def test_lists_and_errors_contain_the_files(tmp_path, capsys):
    write_mnist(tmp_path / "MNIST" / "raw")
    assert main(["data", "list", "--data.dir", str(tmp_path)]) == 0
    listed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert listed["mnist"].startswith("30 + 10 examples")
    assert listed["fashion_mnist"].startswith("not available ")
    with pytest.raises(FileNotFoundError, match=r"data_batch_1\.bin"):
        data.load("cifar10", data_dir=tmp_path)
    with pytest.raises(FileNotFoundError, match="emnist/byclass") as error:
        data.load("emnist/byclass", data_dir=tmp_path)
    assert "original" not in str(error.value)
    assert raw_files.find("digits") is None


def cut(file, size):
    return lambda folder: os.truncate(folder / file, size)


def append(file):
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes() + b"x")


def header(file, content):
    def spoil(folder):
        original = (folder / file).read_bytes()
        (folder / file).write_bytes(content + original[len(content) :])

    return spoil


TRAIN, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / TRAIN_LABELS).unlink(), f"{TRAIN_LABELS}: expected it beside"),
        (cut(TRAIN, 200), f"{TRAIN}: 200 bytes: expected 376"),
        (cut(TRAIN, 9), f"{TRAIN}: expected an IDX file of bytes in 3 dimensions"),
        (append(TRAIN), f"{TRAIN}: 377 bytes: expected 376"),
        (header(TRAIN, b"\0\0\x0d\x03"), f"{TRAIN}: expected an IDX file of bytes"),
        (header(TRAIN, b"\0\0\x08\x03" + b"\xff" * 12), "376 bytes: expected 79,228"),
        (
            header(TRAIN, b"\0\0\x08\x03" + b"\0" * 12),
            rf"{TRAIN}: shape \(0, 0, 0\): expected at least one example",
        ),
        (header(TRAIN_LABELS, b"\0\0\x08\x01" + b"\xff" * 4), f"{TRAIN_LABELS}: 38 bytes"),
        (header(TRAIN_LABELS, b"\0\0\x08\x01\0\0\0\x1e\x0b"), f"{TRAIN_LABELS}: class 11"),
    ],
)
def test_errors_name_damaged_files(spoil, message, tmp_path):
    spoil(write_mnist(tmp_path))
    with pytest.raises(DamagedError, match=message) as error:
        data.load("mnist", data_dir=tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (cut(f"{TRAIN}.gz", 200), "expected data compressed by gzip"),
        (header(f"{TRAIN}.gz", b"PK"), "expected data compressed by gzip"),
        (
            lambda f: (f / f"{TRAIN}.gz").write_bytes(
                gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12)
            ),
            "bytes:",
        ),
        (
            lambda folder: (folder / f"{TRAIN}.gz").write_bytes(
                gzip.compress(gzip.decompress((folder / f"{TRAIN}.gz").read_bytes()) + b"x")
            ),
            "more bytes: expected 376",
        ),
    ],
)
def test_errors_name_damaged_compressed_files(spoil, message, tmp_path):
    spoil(write_mnist(tmp_path, ".gz"))
    with pytest.raises(DamagedError, match=message):
        data.load("mnist", data_dir=tmp_path)


def test_inconsistent_files_are_rejected(tmp_path):
    fewer = LABELS | {"t10k": LABELS["t10k"][:9]}
    write_mnist(tmp_path / "fewer", labels=fewer)
    with pytest.raises(DamagedError, match="t10k-labels"):
        data.load("mnist", data_dir=tmp_path / "fewer")
    wider = IMAGES | {"t10k": np.zeros((10, 4, 5), int)}
    write_mnist(tmp_path / "wider", images=wider)
    message = "t10k-images-idx3-ubyte: expected images as large as in .*/train-images-idx3-ubyte"
    with pytest.raises(DamagedError, match=message):
        data.load("mnist", data_dir=tmp_path / "wider")
    write_cifar(tmp_path, ["train.bin", "test.bin"], 2, 100)
    cut("train.bin", 3074 * 7 + 1)(tmp_path)
    with pytest.raises(DamagedError, match=r"train\.bin:"):
        data.describe("cifar100", tmp_path)


def test_errors_name_files_with_invalid_classes(tmp_path):
    files = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    write_cifar(tmp_path, files, 1, 10)
    header(files[1], b"\x0b")(tmp_path)
    with pytest.raises(DamagedError, match=r"data_batch_2\.bin:"):
        data.load("cifar10", data_dir=tmp_path)
