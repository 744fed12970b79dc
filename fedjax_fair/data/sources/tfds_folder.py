"""Data sets prepared by tensorflow-datasets, checked before any of their files is used.

The files may come from elsewhere, and their list of features names Python classes, whose modules
tensorflow-datasets imports. Only feature classes of tensorflow-datasets itself are accepted.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_fair.data.conversion import DamagedError
from fedjax_fair.data.sources.source import DataDir, resolve_data_dir

__all__ = ["Prepared", "find_prepared", "names_prepared", "read_chunks"]

CHUNK = 4096  # Examples held as separate objects while a split is decoded.
_CLASS = re.compile(r"tensorflow_datasets\.core\.features\.[a-z_]+\.[A-Z][A-Za-z]*")
_CLASS_KEYS = ("pythonClassName", "python_class_name", "type")  # The last in older versions.
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


class Prepared(NamedTuple):
    """A prepared data set.

    Attributes:
        folder: Folder of its newest version.
        info: Contents of ``dataset_info.json``.
        features: The features of an example by name, from ``features.json``.
        lengths: Number of examples of each split.
    """

    folder: Path
    info: dict[str, Any]
    features: dict[str, Any]
    lengths: dict[str, int]


def names_prepared(data_dir: DataDir = None) -> list[str]:
    """Names of all prepared sets in a folder, of any kind and in any state."""
    root = resolve_data_dir(data_dir)
    infos = [*root.glob("*/*/dataset_info.json"), *root.glob("*/*/*/dataset_info.json")]
    return sorted({path.parent.parent.relative_to(root).as_posix() for path in infos})


def find_prepared(name: str, data_dir: DataDir = None) -> Prepared:
    """Finds the newest version of a prepared set of any kind.

    Raises:
        FileNotFoundError: If it is not prepared there as array_record.
        DamagedError: If a file is missing, truncated or invalid, or a feature is of a class that
            tensorflow-datasets does not have.
    """
    root = resolve_data_dir(data_dir)
    folder = root / name
    versions = [path.parent for path in folder.glob("*/dataset_info.json") if _version(path.parent)]
    if not versions:
        reason = f"not found in {folder}" if root.is_dir() else f"no such folder: {root}"
        raise FileNotFoundError(_not_prepared(name, reason, data_dir))
    newest = max(versions, key=_version)
    info = _read_object(newest / "dataset_info.json")
    if info.get("fileFormat") != "array_record":
        reason = f"{newest} is {info.get('fileFormat')}"
        raise FileNotFoundError(_not_prepared(name, reason, data_dir))
    features = _read_features(newest / "features.json")
    shards = list(_shards(newest, name, info))
    lengths = {split: 0 for _, split, _ in shards}
    for path, split, length in shards:
        _check_records(path, length)
        lengths[split] += length
    return Prepared(newest, info, features, lengths)


def read_chunks(folder: Path, split: str) -> Iterator[list[dict[str, Any]]]:
    """Decodes the examples of a split in order, 4,096 at a time."""
    import tensorflow_datasets as tfds

    logging.getLogger("absl").addFilter(_is_not_about_opencv)
    builder: Any = tfds.builder_from_directory(str(folder))
    examples = builder.as_data_source(split)
    for start in range(0, len(examples), CHUNK):
        yield examples.__getitems__(list(range(start, min(start + CHUNK, len(examples)))))


def _is_not_about_opencv(record: logging.LogRecord) -> bool:
    """Returns whether a message is no advice to install OpenCV: images are decoded only once."""
    return not record.getMessage().startswith("OpenCV is not installed")


def _not_prepared(name: str, reason: str, data_dir: DataDir) -> str:
    option = "" if data_dir is None else f" --data.dir {os.fspath(data_dir)}"
    return (
        f"data set {name!r} is not prepared as array_record ({reason}): run `fedjax-fair data "
        f"prepare {name}{option}`, which needs the extra fedjax-fair[tfds-prepare]."
    )


def _version(folder: Path) -> tuple[int, ...]:
    is_version = re.fullmatch(r"\d+(\.\d+)*", folder.name)
    return tuple(map(int, folder.name.split("."))) if is_version else ()


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedError(f"{path}: expected JSON ({error}).") from None
    if not isinstance(value, dict):
        raise DamagedError(f"{path}: expected a JSON object.")
    return value


def _read_features(path: Path) -> dict[str, Any]:
    tree = _read_object(path)
    for name in _class_names(tree):
        if not _CLASS.fullmatch(name):
            raise DamagedError(
                f"{path}: class {name!r}: expected a feature of tensorflow_datasets.core.features."
            )
    features = dig(tree, "featuresDict", "features")
    if not isinstance(features, dict):
        raise DamagedError(f"{path}: expected the features of an example by name.")
    return features


def dig(tree: Any, *path: Any) -> Any:
    """Returns the value under a path of nested dicts, or None."""
    for key in path:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def _class_names(tree: Any) -> Iterator[str]:
    """Yields all strings that tensorflow-datasets would treat as the name of a class."""
    if isinstance(tree, dict):
        yield from (tree[key] for key in _CLASS_KEYS if isinstance(tree.get(key), str))
        tree = list(tree.values())
    for part in tree if isinstance(tree, list) else ():
        yield from _class_names(part)


def _shards(folder: Path, name: str, info: dict[str, Any]) -> Iterator[tuple[Path, str, int]]:
    """Path, split and number of examples of every file of records."""
    dataset = info.get("name", name.partition("/")[0])
    try:
        for split in info["splits"]:
            lengths = [int(length) for length in split["shardLengths"]]
            for index, length in enumerate(lengths):
                shard = f"{index:05d}-of-{len(lengths):05d}"
                file = f"{dataset}-{split['name']}.array_record-{shard}"
                has_name = split.get("filepathTemplate", _TEMPLATE) == _TEMPLATE
                # A name must not lead out of the folder.
                if length < 0 or Path(file).name != file or not has_name:
                    raise ValueError(f"shard {file!r} of {length} examples")
                yield folder / file, str(split["name"]), length
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        path = folder / "dataset_info.json"
        raise DamagedError(f"{path}: expected splits with shardLengths ({error!r}).") from None


def _check_records(path: Path, length: int) -> None:
    """Checks the number of records of a file, which is at its end."""
    if not path.is_file():
        raise DamagedError(f"{path}: expected {length:,} records, but the file is missing.")
    from array_record.python.array_record_module import ArrayRecordReader

    try:
        num_records = ArrayRecordReader(os.fspath(path)).num_records()
    except RuntimeError as error:
        raise DamagedError(f"{path}: expected {length:,} records ({error}).") from None
    if num_records != length:
        raise DamagedError(f"{path}: expected {length:,} records, found {num_records:,}.")
