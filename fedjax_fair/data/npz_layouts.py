"""Federated datasets from ``.npz`` files, with the names of arrays that several tools use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_fair.data.arrays import UnknownClients, from_arrays
from fedjax_fair.data.conversion import require
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.data.npz import read_npz
from fedjax_fair.data.partitions.flwr import FlwrPartitioner
from fedjax_fair.data.partitions.partitioner import Partitioner
from fedjax_fair.utils.terminal import error_prefix

__all__ = ["from_npz", "read_test_examples"]

_NAMES = {
    **{"x": "features", "y": "labels"},
    **{"x_train": "features", "y_train": "labels"},
    **{"x_test": "test_features", "y_test": "test_labels"},
    **{"x_val": "validation_features", "y_val": "validation_labels"},
    **{"train_images": "features", "train_labels": "labels"},
    **{"test_images": "test_features", "test_labels": "test_labels"},
    **{"val_images": "validation_features", "val_labels": "validation_labels"},
}
"""Names of the arrays of PFLlib, Keras and MedMNIST."""


def from_npz(
    path: str | os.PathLike[str],
    *,
    partition: Partitioner | FlwrPartitioner | None = None,
    test_fraction: float = 0.2,
    validation_fraction: float = 0.0,
    seed: int = 0,
    unknown_clients: UnknownClients = "error",
) -> FederatedData:
    """Reads a federated dataset from an ``.npz`` file, without pickles.

    Args:
        path: A file with ``features``, ``labels`` and ``client [total]``, the owner of each
            example, as ``clients`` of `from_arrays`. Optional are ``test_features``,
            ``test_labels`` and ``test_client`` (together), ``groups [clients]``,
            ``num_classes``, and sensitive features: an array ``sensitive_sex``, and
            ``test_sensitive_sex``, is the feature ``sex``. Or the arrays have the names of Keras
            (``x_train``, ``y_train``, ``x_test``, ``y_test``) or MedMNIST (``train_images``,
            ``train_labels``, ``val_images``, ...). Or a folder as PFLlib writes it, with a file of
            ``x`` and ``y`` for each client in ``train`` and in ``test``; clients are the names of
            the files.
        partition: Partitioner of a file without ``client``, whose test and validation examples are
            then divided by the classes of each client.
        test_fraction: As in `from_arrays`.
        validation_fraction: As in `from_arrays`; a file with validation examples keeps them.
        seed: As in `from_arrays`.
        unknown_clients: As in `from_arrays`.

    Returns:
        A federated dataset named after the file.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is damaged, contains pickles or lacks an array, or as `from_arrays`.

    Examples:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "wards.npz")
        >>> np.savez(path, features=np.eye(4), labels=[0, 1, 0, 1], client=["a", "b", "a", "b"])
        >>> from_npz(path).client_names
        ('a', 'b')
    """
    is_folder = Path(path).is_dir()
    arrays = _read_folder(Path(path)) if is_folder else _renamed(path, read_npz(path))
    if missing := {"features", "labels"} - set(arrays):
        raise ValueError(
            f"{path} lacks {sorted(missing)}: expected features, labels and client, or arrays "
            f"named as {', '.join(_NAMES)}; it has {', '.join(arrays) or 'none'}; save them with "
            "np.savez."
        )
    has_clients = "client" in arrays
    require(
        has_clients or partition is not None,
        f"{path} lacks ['client']: expected the owner of each example, or a partition (partition=, "
        "--data.partition), such as dirichlet.",
    )
    require(
        not has_clients or partition is None,
        f"{path} has the array client: expected no partition with it; leave one of them out.",
    )
    validation = [arrays.pop(f"validation_{name}", None) for name in ("features", "labels")]
    options: dict[str, Any] = {
        "name": Path(path).absolute().stem,
        "test_fraction": test_fraction,
        "seed": seed,
        "unknown_clients": unknown_clients,
    }
    with error_prefix(f"{path}: "):
        arguments = _arguments(arrays, partition) | options
        if validation[0] is None:
            return from_arrays(**arguments, validation_fraction=validation_fraction)
        # Validation examples are divided as test examples are, for the same partition.
        parts: dict[str, Any] = dict(zip(("test_features", "test_labels"), validation, strict=True))
        divided = from_arrays(**arguments | parts)
        return from_arrays(**arguments)._replace(validation=divided.test)


def read_test_examples(path: str | os.PathLike[str]) -> tuple[np.ndarray, np.ndarray]:
    """Reads test features and labels of an ``.npz`` file, or all if it has no parts."""
    arrays = _renamed(path, read_npz(path))
    for prefix in ("test_", ""):
        if names := {f"{prefix}features", f"{prefix}labels"} & arrays.keys():
            require(len(names) == 2, f"{path} has {', '.join(names)}: expected both parts.")
            return arrays[f"{prefix}features"], arrays[f"{prefix}labels"]
    raise ValueError(
        f"{path} has {_shapes(arrays)}: expected features and labels, or test_features and "
        "test_labels."
    )


def _read_folder(folder: Path) -> dict[str, np.ndarray]:
    """Joins the files of the clients in ``train`` and ``test``."""
    require(
        any(folder.glob("train/*.npz")),
        f"{folder} is a folder without train/*.npz: expected a file of each client there, as "
        "PFLlib writes them, or the path of an .npz file.",
    )
    joined: dict[str, np.ndarray] = {}
    for part, prefix in (("train", ""), ("test", "test_")):
        files = sorted((folder / part).glob("*.npz"))
        read = [(file, _renamed(file, read_npz(file))) for file in files]
        for file, arrays in read:
            require(
                arrays.keys() == {"features", "labels"}
                and len(arrays["features"]) == len(arrays["labels"]),
                f"{file} has {_shapes(arrays)}: expected x and y of equal lengths.",
            )
            first = read[0][1]["features"]
            require(
                arrays["features"].shape[1:] == first.shape[1:],
                f"{file} has features of shape {arrays['features'].shape[1:]}: expected "
                f"{first.shape[1:]}, as in {files[0].name}.",
            )
        if read:
            for name in ("features", "labels"):
                joined[f"{prefix}{name}"] = np.concatenate([arrays[name] for _, arrays in read])
            sizes = [len(arrays["labels"]) for _, arrays in read]
            joined[f"{prefix}client"] = np.repeat([file.stem for file in files], sizes)
    return joined


def _renamed(path: str | os.PathLike[str], arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Replaces the names of other tools; labels ``[total, 1]`` become ``[total]``."""
    renamed: dict[str, np.ndarray] = {}
    is_of_others = "labels" not in arrays
    for written, values in arrays.items():
        name = _NAMES.get(written.lower(), written)
        require(
            name not in renamed,
            f"{path} has {', '.join(arrays)}: expected each part once; remove one of the arrays "
            f"for {name}.",
        )
        if is_of_others and name.endswith("labels"):
            values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
            require(
                values.ndim == 1 or values.dtype.kind == "f",
                f"{path} has {written} of {values.dtype} and shape {values.shape}: expected a "
                "class for each example; from_arrays takes several labels as floats "
                "(models.as_multi_label).",
            )
        renamed[name] = values
    return renamed


def _shapes(arrays: dict[str, np.ndarray]) -> str:
    return ", ".join(f"{name} {array.shape}" for name, array in arrays.items()) or "no arrays"


def _arguments(arrays: dict[str, np.ndarray], partition: Any) -> dict[str, Any]:
    """Makes arguments of ``from_arrays`` of the arrays of a file."""
    names = ("features", "labels", "test_features", "test_labels", "groups")
    arguments: dict[str, Any] = {name: arrays.get(name) for name in names}
    arguments |= {
        "clients": arrays.get("client", partition),
        "test_clients": arrays.get("test_client"),
    }
    for prefix in ("", "test_"):
        start = f"{prefix}sensitive_"
        columns = {key.removeprefix(start): arrays[key] for key in arrays if key.startswith(start)}
        arguments[f"{prefix}sensitive_features"] = columns or None
    if "num_classes" in arrays:
        arguments["num_classes"] = arrays["num_classes"].tolist()
    return arguments
