"""Tables of Hugging Face's datasets and of flwr-datasets, which are not imported here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_fair.data.conversion import one_line, require

__all__ = [
    "PARTITION",
    "as_pandas",
    "as_pixels",
    "class_names",
    "is_dataset",
    "is_federated",
    "join_partitions",
    "name_classes",
]

PARTITION = "partition"
"""Column with the name of the partition, which `join_partitions` adds."""


def is_dataset(table: Any) -> bool:
    """Returns whether an object is a ``datasets.Dataset``, which is in memory or mapped to it.

    Examples:
        >>> is_dataset({"age": [20, 40]})
        False
    """
    parts = ("to_pandas", "features", "column_names", "with_format", "__len__")
    return all(hasattr(table, part) for part in parts)


def is_federated(table: Any) -> bool:
    """Returns whether an object of flwr-datasets loads partitions.

    It is a ``FederatedDataset``, or a partitioner with a data set.

    Examples:
        >>> is_federated({"age": [20, 40]})
        False
    """
    return hasattr(table, "load_partition")


def as_pandas(dataset: Any) -> Any:
    """Converts a ``datasets.Dataset`` to a table of pandas.

    Values of a column of ``Image`` become arrays. Values of a ``ClassLabel`` become its names, in
    a categorical column whose codes are the class numbers; class -1 becomes a missing value.

    Raises:
        ValueError: If an image cannot be read.
    """
    import pandas as pd

    kinds = {name: type(feature).__name__ for name, feature in dataset.features.items()}
    images = [name for name, kind in kinds.items() if kind == "Image"]
    plain = dataset.with_format(None)
    frame = plain.remove_columns(images).to_pandas() if images else plain.to_pandas()
    for name in images:
        try:
            frame[name] = pd.Series([as_pixels(image) for image in plain[name]], dtype=object)
        except Exception as error:  # Readers of images raise errors of many types.
            raise ValueError(
                f"column {name!r}: cannot read its images ({one_line(error)}); "
                "remove these rows or the column."
            ) from error
    labels = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    return name_classes(frame, {name: dataset.features[name].names for name in labels})[[*kinds]]


def class_names(metadata: Mapping[bytes, bytes] | None) -> dict[str, list[str]]:
    """Returns the names of classes by column, which files of Hugging Face have as metadata.

    Examples:
        >>> features = b'{"info": {"features": {"y": {"names": ["no"], "_type": "ClassLabel"}}}}'
        >>> class_names({b"huggingface": features})
        {'y': ['no']}
    """
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return {
            name: [*map(str, feature["names"])]
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except (AttributeError, KeyError, TypeError, ValueError):  # Metadata of other programs.
        return {}


def name_classes(frame: Any, names: Mapping[str, list[str]]) -> Any:
    """Replaces numbers of classes by their names in some columns of a table of pandas."""
    import pandas as pd

    for column in names.keys() & {*frame.columns}:
        codes = frame[column].fillna(-1).astype(np.int64)
        # Ordered, so that labels keep the numbers of their classes.
        frame[column] = pd.Categorical.from_codes(codes, names[column], ordered=True)
    return frame


def as_pixels(image: Any) -> Any:
    """Returns the array of an image; a palette becomes colors."""
    if image is None:
        return None
    return np.asarray(image.convert("RGB") if image.mode == "P" else image)


def join_partitions(argument: str, source: Any) -> Any:
    """Joins the partitions of an object of flwr-datasets to a table of pandas.

    The column ``"partition"`` has the name of each row's partition: its natural id, or its number
    with leading zeros, so that clients are in the order of numbers.

    Args:
        argument: ``"test"`` reads the split ``"test"`` of a ``FederatedDataset``; other arguments
            read ``"train"``, or the only split that has a partitioner.
        source: A ``FederatedDataset``, or a partitioner with a data set.

    Raises:
        ValueError: If it has no partitions of this split, or a column named ``"partition"``.
    """
    import pandas as pd

    kind = type(source).__name__
    partitioner, options = source, {}
    try:
        if isinstance(partitioners := getattr(source, "partitioners", None), Mapping):
            split = _split(argument, list(partitioners))
            partitioner, options = partitioners[split], {"split": split}
        count = int(partitioner.num_partitions)
        frames = [as_pandas(source.load_partition(number, **options)) for number in range(count)]
        # Known only when partitions are loaded.
        natural = getattr(partitioner, "partition_id_to_natural_id", None) or {}
    except Exception as error:  # Checks of flwr-datasets raise errors of many types.
        raise ValueError(
            f"{argument}: {kind} cannot load its partitions ({one_line(error)}); "
            "load one by load_partition(0) to see the cause."
        ) from error
    require(
        count,
        f"{argument}: {kind} has no partitions; expected one or more; set its num_partitions.",
    )
    require(
        PARTITION not in frames[0].columns,
        f"{argument}: {kind} has a column {PARTITION!r}, the name of the column of partitions; "
        "rename it.",
    )
    width = len(str(count - 1))
    for number, frame in enumerate(frames):
        frame[PARTITION] = str(natural[number]) if number in natural else f"{number:0{width}}"
    return pd.concat(frames, ignore_index=True)


def _split(argument: str, splits: list[str]) -> str:
    wanted = "test" if argument == "test" else "train"
    if wanted in splits:
        return wanted
    require(
        len(splits) == 1 and argument != "test",
        f"partitioners of the splits {splits}: expected one of {wanted!r}; add it to the "
        "FederatedDataset, or pass its rows as a table.",
    )
    return splits[0]
