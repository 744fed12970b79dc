"""Folders in which tensorflow-datasets has prepared a set, judged before anything of it is used.

They are other people's files. A list of features may name classes whose modules would be imported,
so only those of tensorflow-datasets itself are let through.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["DamagedError", "Prepared", "find_prepared", "names_prepared", "resolve_data_dir"]

_FEATURES = "tensorflow_datasets.core.features."
_CLASSES = {
    _FEATURES + name
    for name in (
        "audio_feature.Audio",
        "bounding_boxes.BBoxFeature",
        "class_label_feature.ClassLabel",
        "dataset_feature.Dataset",
        "feature.Tensor",
        "features_dict.FeaturesDict",
        "image_feature.Image",
        "labeled_image.LabeledImage",
        "scalar.Scalar",
        "sequence_feature.Sequence",
        "tensor_feature.Tensor",
        "text_feature.Text",
        "translation_feature.Translation",
        "translation_feature.TranslationVariableLanguages",
        "video_feature.Video",
    )
}
_CLASS_KEYS = ("pythonClassName", "python_class_name", "type")  # The last in older versions.
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


class DamagedError(ValueError):
    """A prepared set is not as tensorflow-datasets leaves one; the message names the file."""


class Prepared(NamedTuple):
    """A prepared set.

    Attributes:
        folder: Folder of its newest version.
        info: What ``dataset_info.json`` says.
        features: The features of an example, by name, as ``features.json`` says.
        lengths: Number of examples of each split.
    """

    folder: Path
    info: dict[str, Any]
    features: dict[str, Any]
    lengths: dict[str, int]


def resolve_data_dir(data_dir: str | os.PathLike[str] | None) -> Path:
    """The folder of all prepared sets: the argument, ``TFDS_DATA_DIR`` or the usual place."""
    return Path(data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()


def names_prepared(data_dir: str | os.PathLike[str] | None = None) -> list[str]:
    """Names of all sets that are prepared in a folder, of any kind and in any state."""
    root = resolve_data_dir(data_dir)
    infos = [*root.glob("*/*/dataset_info.json"), *root.glob("*/*/*/dataset_info.json")]
    return sorted({path.parent.parent.relative_to(root).as_posix() for path in infos})


def find_prepared(name: str, data_dir: str | os.PathLike[str] | None = None) -> Prepared:
    """Finds a prepared set of any kind.

    Args:
        name: Name in tensorflow-datasets.
        data_dir: Folder of prepared sets; by default the environment variable
            ``TFDS_DATA_DIR``, or else ``~/tensorflow_datasets``.

    Returns:
        The newest version of the set.

    Raises:
        FileNotFoundError: If it is not prepared there as array_record; the message names the
            command that does it.
        DamagedError: If a file is missing, cut off or not what it should be, or a feature is of a
            class that tensorflow-datasets does not have.
    """
    folder = resolve_data_dir(data_dir) / name
    versions = [path.parent for path in folder.glob("*/dataset_info.json") if _version(path.parent)]
    if not versions:
        raise FileNotFoundError(_not_prepared(name, f"not found in {folder}", data_dir))
    newest = max(versions, key=_version)
    info = _read_object(newest / "dataset_info.json")
    if info.get("fileFormat") != "array_record":
        reason = f"{newest} is {info.get('fileFormat')}"
        raise FileNotFoundError(_not_prepared(name, reason, data_dir))
    features = _read_features(newest / "features.json")
    shards = list(_shards(newest, name, info))
    for path, _, length in shards:
        _check_records(path, length)
    lengths = {split: 0 for _, split, _ in shards}
    for _, split, length in shards:
        lengths[split] += length
    return Prepared(newest, info, features, lengths)


def _not_prepared(name: str, reason: str, data_dir: str | os.PathLike[str] | None) -> str:
    there = "" if data_dir is None else f" --data.dir {os.fspath(data_dir)}"
    return (
        f"data set {name!r} is not prepared as array_record ({reason}): run `fedjax-fair data "
        f"prepare {name}{there}`, which needs the extra fedjax-fair[tfds-prepare]."
    )


def _version(folder: Path) -> tuple[int, ...]:
    return (
        tuple(map(int, folder.name.split("."))) if re.fullmatch(r"\d+(\.\d+)*", folder.name) else ()
    )


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
        if name not in _CLASSES:
            raise DamagedError(
                f"{path}: class {name!r}: expected a feature of tensorflow_datasets.core.features."
            )
    features: Any = tree
    for key in ("featuresDict", "features"):
        features = features.get(key) if isinstance(features, dict) else None
    if not isinstance(features, dict):
        raise DamagedError(f"{path}: expected the features of an example by name.")
    return features


def _class_names(tree: Any) -> Iterator[str]:
    """Everything that tensorflow-datasets would take for the name of a class."""
    if isinstance(tree, dict):
        yield from (tree[key] for key in _CLASS_KEYS if isinstance(tree.get(key), str))
    for part in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _class_names(part)


def _shards(folder: Path, name: str, info: dict[str, Any]) -> Iterator[tuple[Path, str, int]]:
    """Path, split and number of examples of every file of records."""
    try:
        for split in info["splits"]:
            lengths = [int(length) for length in split["shardLengths"]]
            words = {
                "DATASET": str(info.get("name", name.partition("/")[0])),
                "SPLIT": str(split["name"]),
                "FILEFORMAT": "array_record",
                "NUM_SHARDS": f"{len(lengths):05d}",
            }
            for number, length in enumerate(lengths):
                words["SHARD_INDEX"] = f"{number:05d}"
                words["SHARD_X_OF_Y"] = f"{number:05d}-of-{len(lengths):05d}"
                file = str(split.get("filepathTemplate", _TEMPLATE))
                for word, text in words.items():
                    file = file.replace(f"{{{word}}}", text)
                if length < 0 or Path(file).name != file:
                    raise ValueError(f"shard {file!r} of {length} examples")
                yield folder / file, words["SPLIT"], length
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        path = folder / "dataset_info.json"
        raise DamagedError(f"{path}: expected splits with shardLengths ({error!r}).") from None


def _check_records(path: Path, length: int) -> None:
    """Requires a file of so many records; only its end is read."""
    if not path.is_file():
        raise DamagedError(f"{path}: expected {length:,} records, but there is no such file.")
    try:
        from array_record.python.array_record_module import ArrayRecordReader
    except ImportError:  # Not to be had for Windows.
        return
    try:
        found = ArrayRecordReader(os.fspath(path)).num_records()
    except RuntimeError as error:
        raise DamagedError(f"{path}: expected {length:,} records ({error}).") from None
    if found != length:
        raise DamagedError(f"{path}: expected {length:,} records, found {found:,}.")
