"""Image classification sets that tensorflow-datasets has prepared, read without TensorFlow.

Only ``prepare`` downloads, and it alone writes data sets; ``read`` keeps a cache of decoded arrays.
Everything else looks at the files: which versions are there and what they hold.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_fair.data.cache import cache_folder, cached
from fedjax_fair.data.tfds_folder import DamagedError, find_prepared, resolve_data_dir

__all__ = [
    "ImageSet",
    "cache_key",
    "find",
    "prepare",
    "read",
]

DECODING = 1  # Part of the cache key: raise it when what is decoded changes.
CHUNK = 4096  # Images held as separate arrays while a split is decoded.


class ImageSet(NamedTuple):
    """A prepared image classification set.

    Attributes:
        name: Name in tensorflow-datasets, with its configuration.
        folder: Folder of the newest version there.
        image: Name of the image feature.
        label: Name of the class feature.
        shape: Height, width and channels of an image.
        num_classes: Number of classes.
        splits: Number of examples of ``train`` and, where there is one, ``test``.
    """

    name: str
    folder: Path
    image: str
    label: str
    shape: tuple[int, ...]
    num_classes: int
    splits: dict[str, int]


def find(name: str, data_dir: str | os.PathLike[str] | None = None) -> ImageSet:
    """Finds a prepared set.

    Args:
        name: Name in tensorflow-datasets, such as ``mnist`` or ``emnist/byclass``.
        data_dir: Folder of prepared sets; by default the environment variable
            ``TFDS_DATA_DIR``, or else ``~/tensorflow_datasets``.

    Returns:
        Its newest version.

    Raises:
        FileNotFoundError: If it is not prepared there as array_record; the message names the
            command that does it.
        DamagedError: If it is there and damaged.
        ValueError: If it is no image classification set with images of one shape.
    """
    newest, info, features, lengths = find_prepared(name, data_dir)
    pair = _dig(info, "supervisedKeys", "tuple", "items")
    keys = [_dig(item, "featureKey") for item in pair] if isinstance(pair, list) else []
    image, label = keys if len(keys) == 2 else (None, None)
    try:
        shape = tuple(int(n) for n in _dig(features, image, "image", "shape", "dimensions") or ())
        num_classes = int(_dig(features, label, "classLabel", "numClasses") or 0)
    except (TypeError, ValueError) as error:
        path = newest / "features.json"
        raise DamagedError(f"{path}: expected a shape and a number of classes ({error}).") from None
    dtype = _dig(features, image, "image", "dtype")
    splits = {split: lengths[split] for split in ("train", "test") if split in lengths}
    if (
        len(shape) != 3
        or min(shape) < 1
        or dtype != "uint8"
        or num_classes < 1
        or "train" not in splits
    ):
        raise ValueError(
            f"{name=} holds {sorted(features)} in splits {sorted(lengths)}, images of shape "
            f"{shape}: expected a train split of classified uint8 images of one shape."
        )
    return ImageSet(name, newest, str(image), str(label), shape, num_classes, splits)


def _dig(tree: Any, *path: Any) -> Any:
    for key in path:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def read(images: ImageSet) -> dict[str, dict[str, np.ndarray]]:
    """Reads all examples, decoded once and then from the cache beside the data set.

    Args:
        images: What ``find`` returned.

    Returns:
        The columns of each split: images ``[examples, height, width, channels]``, classes and
        whatever else is one value an example, ``[examples]``. Images of EMNIST, which
        tensorflow-datasets stores with rows and columns exchanged, are upright.

    Raises:
        DamagedError: If its records can not be read.
    """
    arrays = cached(cache_folder(images.folder), cache_key(images.folder), lambda: _decoded(images))
    columns: dict[str, dict[str, np.ndarray]] = {split: {} for split in images.splits}
    for name, array in arrays.items():
        split, column = name.split(".", 1)
        columns[split][column] = array
    return columns


def cache_key(folder: Path) -> str:
    """A word that changes when the set in a folder is prepared anew."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    seen = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.blake2b(repr((DECODING, seen)).encode(), digest_size=16).hexdigest()


def _decoded(images: ImageSet) -> dict[str, np.ndarray]:
    try:
        return _decode(images)
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # Whatever decoders raise.
        reason = " ".join(str(error).split()[:40])
        raise DamagedError(f"{images.folder}: its records can not be read ({reason}).") from error


def _decode(images: ImageSet) -> dict[str, np.ndarray]:
    import tensorflow_datasets as tfds

    builder: Any = tfds.builder_from_directory(str(images.folder))
    scalars = [key for key, feature in builder.info.features.items() if feature.shape == ()]
    arrays = {}
    for split, total in images.splits.items():
        pixels = np.empty((total, *images.shape), np.uint8)
        values: dict[str, list[Any]] = {key: [] for key in scalars}
        source = builder.as_data_source(split)
        for start in range(0, total, CHUNK):
            rows = source.__getitems__(list(range(start, min(start + CHUNK, total))))
            pixels[start : start + len(rows)] = [row[images.image] for row in rows]
            for key in scalars:
                values[key] += [row[key] for row in rows]
        arrays[f"{split}.{images.image}"] = _upright(images.name, pixels)
        arrays |= {f"{split}.{key}": np.asarray(values[key]) for key in scalars}
    return arrays


def _upright(name: str, pixels: np.ndarray) -> np.ndarray:
    if name.split("/")[0] == "emnist":
        return np.ascontiguousarray(pixels.swapaxes(1, 2))
    return pixels


def prepare(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Downloads a set and writes it as array_record files.

    Args:
        name: Name in tensorflow-datasets.
        data_dir: Folder of prepared sets; by default the environment variable
            ``TFDS_DATA_DIR``, or else ``~/tensorflow_datasets``.

    Returns:
        The folder written.

    Raises:
        ModuleNotFoundError: If TensorFlow, which preparing needs, is not installed.
        ValueError: If tensorflow-datasets knows no such set.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise ModuleNotFoundError(
            f"preparing {name!r} needs TensorFlow: pip install 'fedjax-fair[tfds-prepare]'."
        )
    import tensorflow_datasets as tfds

    try:
        builder: Any = tfds.builder(name, data_dir=str(resolve_data_dir(data_dir)))
    except ValueError as error:  # It goes on to list every set there is.
        raise ValueError(f"{name=}: {str(error).splitlines()[0]}") from error
    builder.download_and_prepare(file_format="array_record")
    return Path(builder.data_path)
