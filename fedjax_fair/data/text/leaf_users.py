"""Samples of users in LEAF's JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_fair.data.conversion import DamagedError, one_line, require
from fedjax_fair.utils.warning import warn

__all__ = [
    "EMPTY",
    "TEXTS",
    "TWEETS",
    "Samples",
    "get_entry",
    "is_leaf",
    "parse_json",
    "read_users",
]

TEXTS, TWEETS, NUMBERS = "strings", "lists of strings", "lists of numbers"


class Samples(NamedTuple):
    """Samples of one user.

    Attributes:
        kind: Type of ``x`` in the file.
        samples: Texts, of tweets the last string; or numbers ``[samples, ...]``.
        labels: Characters, or classes.
    """

    kind: str
    samples: Any
    labels: list[Any]


EMPTY = Samples("", [], [])


def is_leaf(path: str | os.PathLike[str]) -> bool:
    """Returns whether a file is JSON by its name, or a folder has JSON in it or in ``train``.

    Folders of a file for each client also have JSON.
    """
    path = Path(path).expanduser()
    if not path.is_dir():
        return path.suffix.lower() == ".json"
    has_json = any(path.glob("*.json")) or any(path.glob("train/*.json"))
    return has_json and not any(path.glob("train/*.npz"))


def read_users(path: Path, *, is_train: bool = True) -> dict[str, Samples]:
    """Reads the samples of each user, in the order of the files.

    Users without training samples are left out, with a warning.

    Raises:
        FileNotFoundError: If there is no such file.
        DamagedError: If a file is damaged, or its lists contradict each other.
    """
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files or not path.exists():
        raise FileNotFoundError(
            f"{path}: expected a file of LEAF, or a folder with *.json; correct the path."
        )
    users: dict[str, Samples] = {}
    for file in files:
        names, counts, samples = _lists_of_leaf(file, parse_json(file, file.read_bytes()))
        for name, count in zip(names, counts, strict=True):
            x, y = (samples[name].get(key) for key in ("x", "y"))
            if not isinstance(x, list) or not isinstance(y, list):
                raise DamagedError(f"{file}: user {name!r} has no lists x and y.")
            if not len(x) == len(y) == count:
                raise DamagedError(
                    f"{file}: user {name!r} has {len(x)} x, {len(y)} y and num_samples {count}; "
                    "expected equal numbers."
                )
            if name in users:
                raise DamagedError(f"{file}: user {name!r} occurs twice; expected once.")
            users[name] = _samples_of(f"{file}: user {name!r}", x, y) if x else EMPTY
    if not users:
        raise DamagedError(f"{path}: no users; expected one or more.")
    empty = [name for name, each in users.items() if not each.labels]
    described = f"{len(empty):,} of {len(users):,} users have no samples, first {empty[:5]}"
    require(len(empty) < len(users), f"{path}: {described}; expected some; sample more.")
    if empty and is_train:
        warn(f"{path}: {described}; they are left out.")
    return {name: each for name, each in users.items() if each.labels or not is_train}


def _samples_of(place: str, x: list[Any], y: list[Any]) -> Samples:
    """Converts the samples of a user."""
    if _are_texts(x):
        if not _are_texts(y) or not all(len(each) == 1 for each in y) or not all(x):
            raise ValueError(
                f"{place} has strings x, but y that are no characters, or an empty x; expected "
                "texts as in LEAF's Shakespeare, or lists of numbers."
            )
        return Samples(TEXTS, x, y)
    # FedProx writes classes as floats.
    classes = [int(one) if isinstance(one, float) and one.is_integer() else one for one in y]
    if not all(type(one) is int for one in classes):
        raise ValueError(
            f"{place} has y such as {y[0]!r}; expected integers, the classes; number them."
        )
    if all(isinstance(one, list) and one and _are_texts(one) for one in x):
        return Samples(TWEETS, [one[-1] for one in x], classes)
    try:
        numbers = np.array(x)
    except ValueError:  # Of different lengths.
        numbers = np.array(None)
    if numbers.ndim < 2 or numbers.dtype.kind not in "iuf" or not numbers.size:
        raise ValueError(
            f"{place} has x of other types, or of different lengths; expected lists of numbers of "
            "one length, lists of strings that end with a tweet, or strings."
        )
    return Samples(
        NUMBERS, numbers.astype(np.float32) if numbers.dtype.kind == "f" else numbers, classes
    )


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
