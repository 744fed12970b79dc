"""MNIST, Fashion-MNIST and CIFAR in the files in which their authors distribute them.

They are bytes behind a short header, or none, and read with NumPy alone. Where they differ from
what they should be, the error names the file.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_fair.data.bundled import Examples, Splits
from fedjax_fair.data.tfds_folder import DamagedError, resolve_data_dir

__all__ = ["RawFiles", "expected_files", "find", "read"]


class _Format(NamedTuple):
    """How a data set is distributed.

    Attributes:
        folders: Where the files are below the folder of all data, as others unpack them.
        files: Names of those of each split; of IDX images and labels.
        num_classes: Number of classes.
        label_bytes: Labels before every image, the last of which is the class; 0 for IDX.
    """

    folders: tuple[str, ...]
    files: dict[str, tuple[str, ...]]
    num_classes: int
    label_bytes: int = 0


_IDX = {
    split: (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte")
    for split, prefix in {"train": "train", "test": "t10k"}.items()
}
_BATCHES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_FORMATS = {
    "mnist": _Format(("mnist", "MNIST/raw"), _IDX, 10),
    "fashion_mnist": _Format(("fashion_mnist", "FashionMNIST/raw"), _IDX, 10),
    "cifar10": _Format(
        ("cifar10", "cifar-10-batches-bin"),
        {"train": _BATCHES, "test": ("test_batch.bin",)},
        10,
        label_bytes=1,
    ),
    "cifar100": _Format(
        ("cifar100", "cifar-100-binary"),
        {"train": ("train.bin",), "test": ("test.bin",)},
        100,
        label_bytes=2,
    ),
}
_CIFAR_SHAPE = (32, 32, 3)
_IDX_BYTES = 8  # The code of unsigned bytes.
_MAX_DEFLATE_RATIO = 1032  # Of zlib.


class RawFiles(NamedTuple):
    """The files of a data set.

    Attributes:
        name: What ``load`` calls it.
        folder: Where they are.
        files: Those of each split.
        shape: Height, width and channels of an image.
        num_classes: Number of classes.
        lengths: Number of examples of each split.
    """

    name: str
    folder: Path
    files: dict[str, tuple[Path, ...]]
    shape: tuple[int, ...]
    num_classes: int
    lengths: dict[str, int]


def expected_files(name: str) -> str:
    """What would be read of a data set, for people; nothing of one that has no such files.

    Examples:
        >>> expected_files("cifar100")
        'train.bin, test.bin'
    """
    if name not in _FORMATS:
        return ""
    return ", ".join(file for files in _FORMATS[name].files.values() for file in files)


def find(name: str, data_dir: str | os.PathLike[str] | None = None) -> RawFiles | None:
    """Finds the files of a data set, without reading its examples.

    Args:
        name: ``mnist``, ``fashion_mnist``, ``cifar10`` or ``cifar100``; of others there are none.
        data_dir: The folder with the files, compressed by gzip or not, or one above: below it they
            are looked for in ``MNIST/raw``, ``cifar-10-batches-bin`` and so on, as others unpack
            them, and in a folder of the set's name. By default as in ``load``.

    Returns:
        The files, or None where there are none.

    Raises:
        DamagedError: If one is missing, cut off or of another kind.
    """
    if name not in _FORMATS:
        return None
    own, root = _FORMATS[name], resolve_data_dir(data_dir)
    for folder in (root, *(root / each for each in own.folders)):
        files = {
            split: [_variant(folder, file) for file in own.files[split]] for split in own.files
        }
        present = {split: tuple(filter(None, paths)) for split, paths in files.items()}
        if not any(present.values()):
            continue
        for split, paths in files.items():
            if None in paths:
                missing = folder / own.files[split][paths.index(None)]
                raise DamagedError(f"{missing}: expected it beside the others of {name}.")
        if own.label_bytes:
            shape = _CIFAR_SHAPE
            sizes = {split: sum(map(_cifar_rows(own), present[split])) for split in present}
        else:
            heads = {split: _idx_pair(*present[split]) for split in present}
            if len({head[1:] for head in heads.values()}) > 1:
                train, test = (present[split][0] for split in ("train", "test"))
                raise DamagedError(f"{test}: expected images as large as in {train}.")
            shape = (*heads["train"][1:], 1)
            sizes = {split: head[0] for split, head in heads.items()}
        return RawFiles(name, folder, present, shape, own.num_classes, sizes)
    return None


def read(found: RawFiles) -> Splits:
    """Reads all examples, in the order of the files.

    Args:
        found: What ``find`` returned.

    Returns:
        Images ``uint8`` ``[examples, height, width, channels]`` and classes; of CIFAR-100 also the
        column ``coarse_label``.

    Raises:
        DamagedError: If a file is not as ``find`` saw it, or holds a class that there is not.
    """
    label_bytes = _FORMATS[found.name].label_bytes
    splits = {}
    for split, paths in found.files.items():
        if label_bytes:
            images, labels = _read_cifar(paths, label_bytes, found.num_classes)
        else:
            images, labels = (_read_idx(path) for path in paths)
            images, labels = images[..., None], labels[:, None]
            _check_classes(paths[1], labels, found.num_classes)
        own = labels[:, -1].astype(np.int32)
        columns = {"coarse_label": labels[:, 0].astype(np.int32)} if label_bytes == 2 else {}
        splits[split] = Examples(images, own, columns)
    return Splits(splits["train"], splits["test"], found.num_classes)


def _variant(folder: Path, file: str) -> Path | None:
    """The file under its name, the one with a dot that some give it, or compressed."""
    names = (file, file.replace("-idx", ".idx"))
    candidates = [folder / f"{name}{suffix}" for name in names for suffix in ("", ".gz")]
    return next((path for path in candidates if path.is_file()), None)


def _idx_pair(images: Path, labels: Path) -> tuple[int, ...]:
    """Number, height and width of images that have as many labels."""
    shape, (count,) = _idx_shape(images, 3), _idx_shape(labels, 1)
    if shape[0] != count:
        raise DamagedError(
            f"{labels}: {count:,} labels: expected one for each of {shape[0]:,} images in {images}."
        )
    return shape


def _idx_shape(path: Path, dims: int) -> tuple[int, ...]:
    """The header of an IDX file of bytes, whose length has to fit."""
    head = _content(path, 4 + 4 * dims)
    if head[:4] != bytes([0, 0, _IDX_BYTES, dims]) or len(head) < 4 + 4 * dims:
        raise DamagedError(f"{path}: expected an IDX file of bytes in {dims} dimensions.")
    shape = tuple(int.from_bytes(head[4 * i : 4 * i + 4], "big") for i in range(1, dims + 1))
    if 0 in shape:
        raise DamagedError(f"{path}: nothing in {shape}: expected examples.")
    expected, held = len(head) + int(np.prod(shape, dtype=object)), path.stat().st_size
    fits = expected <= _MAX_DEFLATE_RATIO * held if path.suffix == ".gz" else expected == held
    if not fits:
        raise DamagedError(f"{path}: {held:,} bytes: expected {expected:,} for {shape}.")
    return shape


def _read_idx(path: Path) -> np.ndarray:
    dims = 3 if "images" in path.name else 1
    shape, start = _idx_shape(path, dims), 4 + 4 * dims
    size = start + int(np.prod(shape))
    content = _content(path, size + 1)
    if len(content) != size:
        word = "more" if len(content) > size else f"{len(content):,}"
        raise DamagedError(f"{path}: {word} bytes: expected {size:,} for {shape}.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _cifar_rows(own: _Format) -> Callable[[Path], int]:
    row = own.label_bytes + int(np.prod(_CIFAR_SHAPE))

    def count(path: Path) -> int:
        """Rows of a file, which it has to hold whole."""
        size = path.stat().st_size
        if size % row or not size or path.suffix == ".gz":
            raise DamagedError(f"{path}: {size:,} bytes: expected rows of {row:,}, uncompressed.")
        return size // row

    return count


def _read_cifar(
    paths: tuple[Path, ...], label_bytes: int, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    height, width, channels = _CIFAR_SHAPE
    row = label_bytes + height * width * channels
    tables = [np.fromfile(path, np.uint8).reshape(-1, row) for path in paths]
    for path, own in zip(paths, tables, strict=True):
        _check_classes(path, own[:, :label_bytes], num_classes)
    table = np.concatenate(tables)
    pixels = table[:, label_bytes:].reshape(-1, channels, height, width)
    return np.ascontiguousarray(pixels.transpose(0, 2, 3, 1)), table[:, :label_bytes]


def _check_classes(path: Path, labels: np.ndarray, num_classes: int) -> None:
    """Requires that the last labels of examples, ``[examples, labels]``, are classes."""
    largest = labels[:, -1].max()
    if largest >= num_classes:
        raise DamagedError(f"{path}: class {largest}: expected one in [0, {num_classes - 1}].")


def _content(path: Path, most: int) -> bytes:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(most)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedError(f"{path}: expected what gzip has compressed ({error}).") from None
