"""Image classification sets prepared by tensorflow-datasets, read without TensorFlow."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_fair.data.conversion import DamagedError
from fedjax_fair.data.npz import cache_folder, cached
from fedjax_fair.data.sources.source import (
    DataDir,
    Examples,
    Info,
    Splits,
    resolve_data_dir,
)
from fedjax_fair.data.sources.tfds_folder import dig, find_prepared, read_chunks

__all__ = ["ImageSet", "cache_key", "find", "prepare"]

DECODING = 1  # Part of the cache key: raise it when the decoded arrays change.


class ImageSet(NamedTuple):
    """A prepared image classification set.

    Attributes:
        info: Description, with the folder of the newest version.
        name: Name in tensorflow-datasets, with its configuration.
        image: Name of the image feature.
        label: Name of the class feature.
    """

    info: Info
    name: str
    image: str
    label: str

    def read(self) -> Splits:
        """Reads all examples, decoded once and then from a cache.

        Returns:
            Images ``[examples, height, width, channels]`` and classes; columns are all features,
            of which every scalar one can name the owner of an example. Images of EMNIST, which
            tensorflow-datasets stores transposed, are upright.

        Raises:
            DamagedError: If its records cannot be read.
        """
        folder: Any = self.info.folder
        try:
            arrays = cached(cache_folder(folder), cache_key(folder), lambda: _decode(self))
        except (ImportError, MemoryError):
            raise
        except Exception as error:  # Decoders raise errors of many types.
            reason = " ".join(str(error).split()[:40])
            raise DamagedError(f"{folder}: its records cannot be read ({reason}).") from error
        train, test = (self._examples(arrays, split) for split in ("train", "test"))
        return Splits(train, test, self.info.num_classes)

    def _examples(self, arrays: dict[str, np.ndarray], split: str) -> Any:
        columns = {
            name.removeprefix(f"{split}."): array
            for name, array in arrays.items()
            if name.startswith(f"{split}.")
        }
        return Examples(columns[self.image], columns[self.label], columns) if columns else None


def find(name: str, data_dir: DataDir = None) -> ImageSet:
    """Finds the newest version of a prepared set, such as ``mnist`` or ``emnist/byclass``.

    Raises:
        FileNotFoundError: As `find_prepared`.
        ValueError: As `find_prepared`, or if it is no classification set of images of one shape.
    """
    newest, contents, features, lengths = find_prepared(name, data_dir)
    pair = dig(contents, "supervisedKeys", "tuple", "items")
    keys = [dig(item, "featureKey") for item in pair] if isinstance(pair, list) else []
    image, label = keys if len(keys) == 2 else (None, None)
    try:
        shape = tuple(int(n) for n in dig(features, image, "image", "shape", "dimensions") or ())
        num_classes = int(dig(features, label, "classLabel", "numClasses") or 0)
    except (TypeError, ValueError) as error:
        path = newest / "features.json"
        raise DamagedError(f"{path}: expected a shape and a number of classes ({error}).") from None
    is_image = (
        len(shape) == 3 and min(shape) > 0 and dig(features, image, "image", "dtype") == "uint8"
    )
    if not is_image or num_classes < 1 or not lengths.get("train"):
        raise ValueError(
            f"{name=} has {sorted(features)} in splits {sorted(lengths)}, images of shape "
            f"{shape}: expected a train split of classified uint8 images of one shape; pass "
            "arrays of other sets to data.from_arrays."
        )
    info = Info(newest, shape, num_classes, lengths["train"], lengths.get("test", 0))
    return ImageSet(info, name, str(image), str(label))


def cache_key(folder: Path) -> str:
    """Returns a string that changes when the set in a folder is prepared again."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.blake2b(repr((DECODING, stats)).encode(), digest_size=16).hexdigest()


def _decode(images: ImageSet) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    folder: Any = images.info.folder
    _, shape, _, num_train, num_test = images.info
    for split, total in {"train": num_train, "test": num_test}.items():
        if not total:
            continue
        # Filled in place: a list of all images would need their memory twice.
        pixels, start = np.empty((total, *shape), np.uint8), 0
        scalars: dict[str, list[Any]] = {}
        for chunk in read_chunks(folder, split):
            pixels[start : start + len(chunk)] = [example[images.image] for example in chunk]
            start += len(chunk)
            for name, value in chunk[0].items():
                if np.ndim(value) == 0 and not isinstance(value, dict):
                    scalars.setdefault(name, []).extend(example[name] for example in chunk)
        if images.name.split("/")[0] == "emnist":
            pixels = np.ascontiguousarray(pixels.swapaxes(1, 2))
        arrays[f"{split}.{images.image}"] = pixels
        arrays |= {f"{split}.{name}": np.asarray(values) for name, values in scalars.items()}
    return arrays


def prepare(name: str, data_dir: DataDir = None) -> Path:
    """Downloads a set, writes it as array_record files and returns their folder.

    Raises:
        ModuleNotFoundError: If TensorFlow, which preparing needs, is not installed.
        ValueError: If tensorflow-datasets has no such set.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise ModuleNotFoundError(
            f"preparing {name!r} needs TensorFlow: pip install 'fedjax-fair[tfds-prepare]'."
        )
    import tensorflow_datasets as tfds

    try:
        builder: Any = tfds.builder(name, data_dir=str(resolve_data_dir(data_dir)))
    except ValueError as error:  # Its other lines name every set of tensorflow-datasets.
        raise ValueError(f"{name=}: {str(error).splitlines()[0]}") from error
    builder.download_and_prepare(file_format="array_record")
    return Path(builder.data_path)
