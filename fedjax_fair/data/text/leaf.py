"""Federated datasets of text in LEAF's JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_fair.data.arrays import UnknownClients, federate
from fedjax_fair.data.conversion import DamagedError, one_line, require
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.data.partitions.partition import find_unknown
from fedjax_fair.data.text.windows import (
    Windows,
    characters,
    check_vocabulary,
    encode_text,
    with_names,
)
from fedjax_fair.data.transforms import with_unseen
from fedjax_fair.numerics.labels import MASKED_LABEL
from fedjax_fair.utils import checks

__all__ = ["from_leaf", "get_entry", "parse_json"]


def from_leaf(
    train: str | os.PathLike[str],
    test: str | os.PathLike[str] | None = None,
    vocabulary: str | None = None,
    *,
    name: str = "leaf",
    test_fraction: float = 0.2,
    validation_fraction: float = 0.0,
    seed: int = 0,
    unknown_clients: UnknownClients = "error",
) -> FederatedData:
    """Reads text in LEAF's JSON: samples of some characters and the one character that follows.

    Only the last label of a sample counts, as in LEAF.

    Args:
        train: A file, or a folder of files ``*.json``, with ``users``, ``num_samples`` and
            ``user_data``, whose ``x`` are strings of one length and whose ``y`` are characters.
        test: A file or folder with test samples of these users; by default the last samples of each
            user are held out.
        vocabulary: As in `from_text`.
        name: Name in results.
        test_fraction: Fraction of each user's samples to hold out without ``test``.
        validation_fraction: As in `from_text`.
        seed: As in `from_text`.
        unknown_clients: As in `from_arrays`, of users that only ``test`` has.

    Returns:
        A federated dataset with features and labels ``[samples, length]``, int32.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a file is damaged, its lists contradict each other, or its samples are not
            text.
    """
    checks.unit_interval("test_fraction", test_fraction)
    users = _read_leaf(Path(train))
    test_users = {} if test is None else _read_leaf(Path(test))
    checks.one_of("unknown_clients", unknown_clients, ("error", "unseen"))
    # Users without training samples are last, and in no part.
    of_test = {user: test_users.get(user, ([], [])) for user in users} | test_users
    owners = np.repeat([*of_test], [len(ys) for _, ys in of_test.values()])
    is_unknown = find_unknown(str(test), np.array([*users]), owners, unknown_clients)
    both = [*users.values(), *test_users.values()]
    if vocabulary is None:
        vocabulary = characters([text for xs, ys in both for text in (*xs, *ys)])
    lengths = {len(x) for xs, _ in both for x in xs}
    require(
        len(lengths) == 1,
        f"{train}: x of lengths {sorted(lengths)}; expected one length; "
        "cut the samples to one length.",
    )
    length = lengths.pop()
    windows = _last_labels(users.values(), length, check_vocabulary(vocabulary))
    if test is None:
        train_part, test_part = windows.split(test_fraction)
    else:
        train_part, test_part = windows, _last_labels(of_test.values(), length, vocabulary)
        test_part = test_part._replace(sizes=test_part.sizes[: len(users)])
    made = federate(
        with_names(train_part, tuple(users)),
        with_names(test_part, None),
        num_classes=len(vocabulary),
        name=name,
        validation_fraction=validation_fraction,
        seed=seed,
    )
    return with_unseen(made, owners, is_unknown, seed)


def _last_labels(users: Any, length: int, vocabulary: str) -> Windows:
    """Makes windows of samples, of whose labels only the last, the next character, counts."""
    users = list(users)
    features = encode_text("".join(x for xs, _ in users for x in xs), vocabulary)
    following = encode_text("".join(y for _, ys in users for y in ys), vocabulary)
    require(
        not (features == len(vocabulary)).any() and not (following == len(vocabulary)).any(),
        f"{vocabulary=} lacks characters of the samples; expected all of them; "
        "without vocabulary=, it is that of the samples.",
    )
    labels = np.full((len(following), length), MASKED_LABEL, np.int32)
    labels[:, -1] = following
    sizes = np.array([len(ys) for _, ys in users], np.int64)
    return Windows(features.reshape(-1, length), labels, sizes)


def _read_leaf(path: Path) -> dict[str, tuple[list[str], list[str]]]:
    """Reads samples and next characters of each user, in the order of the files."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files or not path.exists():
        raise FileNotFoundError(
            f"{path}: expected a file of LEAF, or a folder with *.json; correct the path."
        )
    users: dict[str, tuple[list[str], list[str]]] = {}
    for file in files:
        content = parse_json(file, file.read_bytes())
        names, counts, samples = _lists_of_leaf(file, content)
        for name, count in zip(names, counts, strict=True):
            x, y = (samples[name].get(key) for key in ("x", "y"))
            if not (_are_texts(x) and _are_texts(y) and all(len(each) == 1 for each in y)):
                raise DamagedError(
                    f"{file}: user {name!r} has no lists of strings x and of characters y; "
                    "expected LEAF's Shakespeare."
                )
            if not len(x) == len(y) == count:
                raise DamagedError(
                    f"{file}: user {name!r} has {len(x)} x, {len(y)} y and num_samples {count}; "
                    "expected equal numbers."
                )
            if not x or not all(x) or name in users:
                raise DamagedError(
                    f"{file}: user {name!r} occurs twice, has no samples, or has an empty one."
                )
            users[name] = x, y
    if not users:
        raise DamagedError(f"{path}: no users; expected one or more.")
    return users


def _lists_of_leaf(file: Path, content: Any) -> tuple[list[str], list[Any], dict[str, Any]]:
    keys = ("users", "num_samples", "user_data")
    names, counts, samples = (get_entry(content, key) for key in keys)
    if not (_are_texts(names) and isinstance(counts, list) and isinstance(samples, dict)):
        raise DamagedError(f"{file}: expected LEAF's users, num_samples and user_data.")
    if len(names) != len(counts):
        raise DamagedError(
            f"{file}: {len(names)} users and {len(counts)} num_samples; expected equal numbers."
        )
    if set(names) != set(samples) or not all(isinstance(each, dict) for each in samples.values()):
        raise DamagedError(f"{file}: expected user_data of exactly the users.")
    return names, counts, samples


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def get_entry(content: Any, key: str) -> Any:
    """Returns an entry of parsed JSON, None if there is no such entry."""
    return content.get(key) if isinstance(content, dict) else None


def parse_json(place: Any, content: bytes) -> Any:
    """Parses JSON of a place in a file, which the error names."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:  # Also of other encodings than UTF-8.
        raise DamagedError(f"{place}: expected JSON ({one_line(error)}).") from None
