"""MNIST, Fashion-MNIST and CIFAR in the files that their authors distribute, read with NumPy."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_fair.data.conversion import DamagedError
from fedjax_fair.data.sources.source import (
    DataDir,
    Examples,
    Info,
    Splits,
    resolve_data_dir,
)

__all__ = ["RawFiles", "expected_files", "find"]


class _Format(NamedTuple):
    """File format of a data set.

    Attributes:
        folders: Folders that other libraries unpack the files to.
        files: File names by split; images and labels for IDX.
        num_classes: Number of classes.
        label_bytes: Label bytes before every image, the last of which is the class; 0 for IDX.
    """

    folders: tuple[str, ...]
    files: dict[str, tuple[str, ...]]
    num_classes: int
    label_bytes: int = 0


_IDX = {
    split: (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte")
    for split, prefix in {"train": "train", "test": "t10k"}.items()
}
_CIFAR10 = {
    "train": tuple(f"data_batch_{batch}.bin" for batch in range(1, 6)),
    "test": ("test_batch.bin",),
}
_CIFAR100 = {"train": ("train.bin",), "test": ("test.bin",)}
_FORMATS = {
    "mnist": _Format(("mnist", "MNIST/raw"), _IDX, 10),
    "fashion_mnist": _Format(("fashion_mnist", "FashionMNIST/raw"), _IDX, 10),
    "cifar10": _Format(("cifar10", "cifar-10-batches-bin"), _CIFAR10, 10, label_bytes=1),
    "cifar100": _Format(("cifar100", "cifar-100-binary"), _CIFAR100, 100, label_bytes=2),
}
_CIFAR_SHAPE = (32, 32, 3)
_IDX_UINT8 = 8  # Type code of unsigned bytes.
_MAX_DEFLATE_RATIO = 1032  # Of zlib.


class RawFiles(NamedTuple):
    """The files of a data set.

    Attributes:
        info: Description.
        files: Paths by split.
        label_bytes: As in the format.
    """

    info: Info
    files: dict[str, list[Path]]
    label_bytes: int

    def read(self) -> Splits:
        """Reads all examples in the order of the files, with ``coarse_label`` of CIFAR-100.

        Raises:
            DamagedError: If a file has changed since ``find``, or contains an invalid class.
        """
        train, test = (self._read_split(paths) for paths in self.files.values())
        return Splits(train, test, self.info.num_classes)

    def _read_split(self, paths: list[Path]) -> Examples:
        if self.label_bytes:
            images, labels = _read_cifar(paths, self.label_bytes, self.info.num_classes)
        else:
            images, labels = _read_idx(paths[0], 3)[..., None], _read_idx(paths[1], 1)[:, None]
            _check_classes(paths[1], labels, self.info.num_classes)
        labels = labels.astype(np.int32)
        columns = {"coarse_label": labels[:, 0]} if self.label_bytes == 2 else {}
        return Examples(images, labels[:, -1], columns)


def expected_files(name: str) -> str:
    """Lists the file names of a data set; an empty string if it has no such files.

    Examples:
        >>> expected_files("cifar100")
        'train.bin, test.bin'
    """
    return ", ".join(sum(_FORMATS[name].files.values(), ())) if name in _FORMATS else ""


def find(name: str, data_dir: DataDir = None) -> RawFiles | None:
    """Finds the files of a data set, or None, without reading its examples.

    Args:
        name: Name of the data set.
        data_dir: The folder with the files, compressed by gzip or not, or the folder above
            ``MNIST/raw``, ``cifar-10-batches-bin`` and so on, or above one of the set's name.

    Raises:
        DamagedError: If a file is missing, truncated or of another format.
    """
    if name not in _FORMATS:
        return None
    folders, names, num_classes, label_bytes = _FORMATS[name]
    root = resolve_data_dir(data_dir)
    for folder in (root, *(root / subfolder for subfolder in folders)):
        paths: dict[str, Any] = {
            file: _existing(folder, file) for files in names.values() for file in files
        }
        if any(paths.values()):
            break
    else:
        return None
    for file, path in paths.items():
        if path is None:
            raise DamagedError(f"{folder / file}: expected it beside the other files of {name}.")
    files = {split: [paths[file] for file in names[split]] for split in names}
    if label_bytes:
        train, test = (
            (sum(_num_cifar_rows(path, label_bytes) for path in paths), *_CIFAR_SHAPE)
            for paths in files.values()
        )
    else:
        train, test = ((*_idx_images_shape(*paths), 1) for paths in files.values())
    if train[1:] != test[1:]:
        train_file, test_file = files["train"][0], files["test"][0]
        raise DamagedError(f"{test_file}: expected images as large as in {train_file}.")
    return RawFiles(Info(folder, train[1:], num_classes, train[0], test[0]), files, label_bytes)


def _existing(folder: Path, name: str) -> Path | None:
    """Returns a file of a folder, compressed or not; some copies have a dot before ``idx``."""
    names = (name, name.replace("-idx", ".idx"))
    paths = (folder / f"{each}{suffix}" for each in names for suffix in ("", ".gz"))
    return next((path for path in paths if path.is_file()), None)


def _idx_images_shape(images: Path, labels: Path) -> tuple[int, ...]:
    """Number, height and width of images that have as many labels."""
    shape, (num_labels,) = _idx_shape(images, 3), _idx_shape(labels, 1)
    if shape[0] != num_labels:
        raise DamagedError(
            f"{labels}: {num_labels:,} labels: expected one for each of {shape[0]:,} images in "
            f"{images}."
        )
    return shape


def _idx_shape(path: Path, ndim: int) -> tuple[int, ...]:
    """Reads the header of an IDX file of bytes and checks it against the size of the file."""
    head = _read_bytes(path, 4 + 4 * ndim)
    if head[:4] != bytes([0, 0, _IDX_UINT8, ndim]) or len(head) < 4 + 4 * ndim:
        raise DamagedError(f"{path}: expected an IDX file of bytes in {ndim} dimensions.")
    shape = tuple(np.frombuffer(head, ">u4", offset=4).tolist())
    if 0 in shape:
        raise DamagedError(f"{path}: shape {shape}: expected at least one example.")
    expected, actual = len(head) + math.prod(shape), path.stat().st_size
    fits = expected <= _MAX_DEFLATE_RATIO * actual if path.suffix == ".gz" else expected == actual
    if not fits:
        raise DamagedError(f"{path}: {actual:,} bytes: expected {expected:,} for {shape}.")
    return shape


def _read_idx(path: Path, ndim: int) -> np.ndarray:
    shape, start = _idx_shape(path, ndim), 4 + 4 * ndim
    size = start + math.prod(shape)
    content = _read_bytes(path, size + 1)
    if len(content) != size:
        actual = "more" if len(content) > size else f"{len(content):,}"
        raise DamagedError(f"{path}: {actual} bytes: expected {size:,} for {shape}.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _num_cifar_rows(path: Path, label_bytes: int) -> int:
    row, size = label_bytes + math.prod(_CIFAR_SHAPE), path.stat().st_size
    if size % row or not size or path.suffix == ".gz":
        raise DamagedError(f"{path}: {size:,} bytes: expected rows of {row:,}, uncompressed.")
    return size // row


def _read_cifar(
    paths: list[Path], label_bytes: int, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    row = label_bytes + math.prod(_CIFAR_SHAPE)
    tables = [np.fromfile(path, np.uint8).reshape(-1, row) for path in paths]
    for path, table in zip(paths, tables, strict=True):
        _check_classes(path, table[:, :label_bytes], num_classes)
    labels, pixels = np.split(np.concatenate(tables), [label_bytes], axis=1)
    height, width, channels = _CIFAR_SHAPE
    pixels = pixels.reshape(-1, channels, height, width).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(pixels), labels


def _check_classes(path: Path, labels: np.ndarray, num_classes: int) -> None:
    largest = labels[:, -1].max()
    if largest >= num_classes:
        raise DamagedError(f"{path}: class {largest}: expected one in [0, {num_classes - 1}].")


def _read_bytes(path: Path, size: int) -> bytes:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedError(f"{path}: expected data compressed by gzip ({error}).") from None
