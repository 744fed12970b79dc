"""Federated datasets in LEAF's JSON."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_fair.data.arrays import UnknownClients, federate, from_arrays, with_central_test
from fedjax_fair.data.conversion import require
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.data.partitions.partition import find_unknown
from fedjax_fair.data.text.leaf_users import EMPTY, TEXTS, TWEETS, Samples, read_users
from fedjax_fair.data.text.windows import (
    Windows,
    characters,
    check_vocabulary,
    encode_text,
    with_names,
)
from fedjax_fair.data.text.words import count_words, frequent_words
from fedjax_fair.data.transforms import with_unseen
from fedjax_fair.numerics.labels import MASKED_LABEL
from fedjax_fair.utils import checks
from fedjax_fair.utils.terminal import error_prefix

__all__ = ["from_leaf"]


def from_leaf(
    train: str | os.PathLike[str],
    test: str | os.PathLike[str] | None = None,
    vocabulary: str | Sequence[str] | None = None,
    *,
    num_classes: int | None = None,
    name: str = "leaf",
    test_fraction: float = 0.2,
    validation_fraction: float = 0.0,
    seed: int = 0,
    unknown_clients: UnknownClients = "error",
    shape: Sequence[int] | None = None,
    central_test: str | os.PathLike[str] | None = None,
) -> FederatedData:
    """Reads LEAF's JSON of FEMNIST, the synthetic data set, Sent140 or Shakespeare.

    ====================  =======================================================================
    ``x`` of a user       features and labels
    ====================  =======================================================================
    lists of numbers      floats or integers ``[samples, ...]``; classes
    lists of strings      occurrences of each word in the last string, the tweet,
                          ``[samples, words]`` (`count_words`); classes
    strings               tokens ``[samples, length]``, int32; ``y`` is the next character, and
                          only the last label of a sample counts, as in LEAF
    ====================  =======================================================================

    Users without training samples are left out, with a warning.

    Args:
        train: A file, or a folder of files ``*.json``, with ``users``, ``num_samples`` and
            ``user_data``, or a folder with the folders ``train`` and ``test`` of them.
        test: A file or folder with test samples of these users; by default samples of each user are
            held out, of Shakespeare the last ones.
        vocabulary: Of Shakespeare as in `from_text`. Of Sent140 the words that are counted, by
            default the 1,000 most frequent ones of the training samples.
        num_classes: As in `from_arrays`; of Shakespeare the vocabulary determines it.
        name: Name in results.
        test_fraction: Fraction of each user's samples to hold out without ``test``.
        validation_fraction: As in `from_arrays`.
        seed: As in `from_arrays`.
        unknown_clients: As in `from_arrays`, of users that only ``test`` has.
        shape: Shape of a sample of numbers, such as ``(28, 28, 1)`` of FEMNIST, whose 784 pixels
            are a list in its files; by default that of the lists.
        central_test: File or folder of samples of no client (`with_central_test`), whose users do
            not matter.

    Returns:
        A federated dataset, whose clients are the users.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a file is damaged, its lists contradict each other, or samples have another
            type.
    """
    checks.unit_interval("test_fraction", test_fraction)
    checks.one_of("unknown_clients", unknown_clients, ("error", "unseen"))
    if test is None and Path(train, "train").is_dir():
        train, test = Path(train, "train"), Path(train, "test")
    users = read_users(Path(train))
    test_users = {} if test is None else read_users(Path(test), is_train=False)
    central = {} if central_test is None else read_users(Path(central_test), is_train=False)
    both = [*users.values(), *test_users.values(), *central.values()]
    kinds = sorted({each.kind for each in both if each.labels})
    require(
        len(kinds) == 1,
        f"{train}: x of users are {' and '.join(kinds)}; expected one of them; pass one data set.",
    )
    options: dict[str, Any] = {
        "name": name,
        "validation_fraction": validation_fraction,
        "seed": seed,
    }
    if kinds != [TEXTS]:
        tests = None if test is None else test_users
        options |= {"test_fraction": test_fraction, "unknown_clients": unknown_clients}
        options["num_classes"] = num_classes
        parts = [users, tests, central or None]
        return _from_features(str(train), parts, kinds[0], vocabulary, shape, options)
    for argument, value in {"num_classes": num_classes, "shape": shape}.items():
        require(
            value is None,
            f"{argument}={value!r}: expected None with texts, whose classes are the characters.",
        )
    # Users without training samples are last, and in no part.
    of_test = {user: test_users.get(user, EMPTY) for user in users} | test_users
    owners = np.repeat([*of_test], [len(each.labels) for each in of_test.values()])
    is_unknown = find_unknown(str(test), np.array([*users]), owners, unknown_clients)
    if vocabulary is None:
        vocabulary = characters([text for each in both for text in (*each.samples, *each.labels)])
    lengths = {len(x) for each in both for x in each.samples}
    require(
        len(lengths) == 1,
        f"{train}: x of lengths {sorted(lengths)}; expected one length; "
        "cut the samples to one length.",
    )
    length = lengths.pop()
    vocabulary = check_vocabulary(vocabulary)
    windows = _last_labels(users.values(), length, vocabulary)
    if test is None:
        train_part, test_part = windows.split(test_fraction)
    else:
        train_part, test_part = windows, _last_labels(of_test.values(), length, vocabulary)
        test_part = test_part._replace(sizes=test_part.sizes[: len(users)])
    made = federate(
        with_names(train_part, tuple(users)),
        with_names(test_part, None),
        num_classes=len(vocabulary),
        **options,
    )
    made = with_unseen(made, owners, is_unknown, seed)
    if central:
        windows = _last_labels(central.values(), length, vocabulary)
        made = with_central_test(made, windows.features, windows.labels)
    return made


def _from_features(
    place: str,
    of_parts: list[dict[str, Samples] | None],
    kind: str,
    vocabulary: Any,
    shape: Sequence[int] | None,
    options: dict[str, Any],
) -> FederatedData:
    """Makes a federated dataset of samples that are numbers or tweets.

    The parts are training, test and central test samples; the latter two may be None.
    """
    parts = [part for part in of_parts if part is not None]
    if kind == TWEETS:
        tweets = [[text for each in part.values() for text in each.samples] for part in parts]
        require(shape is None, f"{shape=}: expected None, because {place} has texts, not numbers.")
        words = frequent_words(tweets[0]) if vocabulary is None else vocabulary
        features = [count_words(texts, words) for texts in tweets]
    else:
        require(
            vocabulary is None,
            f"vocabulary={vocabulary!r}: expected None, because {place} has numbers, not texts.",
        )
        shapes = {np.shape(x)[1:]: name for part in parts for name, (_, x, y) in part.items() if y}
        require(
            len(shapes) == 1,
            f"{place}: x have the shapes {', '.join(f'{k} ({v!r})' for k, v in shapes.items())}; "
            "expected one shape; crop or pad the samples.",
        )
        features = [np.concatenate([x for _, x, y in part.values() if y]) for part in parts]
        if shape is not None:
            features = [_shaped(place, values, shape) for values in features]
    labels = [np.array([y for each in part.values() for y in each.labels], int) for part in parts]
    owners = [np.repeat([*part], [len(each.labels) for each in part.values()]) for part in parts]
    if of_parts[1] is not None:
        options |= {"test_features": features[1], "test_labels": labels[1]}
        options["test_clients"] = owners[1]
    with error_prefix(f"{place}: "):
        made = from_arrays(features[0], labels[0], clients=owners[0], **options)
        is_central = of_parts[2] is not None
        return with_central_test(made, features[-1], labels[-1]) if is_central else made


def _shaped(place: str, features: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    size = math.prod(features.shape[1:])
    require(
        all(checks.is_int(length) and length > 0 for length in shape) and math.prod(shape) == size,
        f"shape={tuple(shape)}: expected positive integers with the product {size:,}, the numbers "
        f"of a sample in {place}.",
    )
    return features.reshape(-1, *shape)


def _last_labels(users: Any, length: int, vocabulary: str) -> Windows:
    """Makes windows of samples, of whose labels only the last, the next character, counts."""
    users = list(users)
    features = encode_text("".join(x for each in users for x in each.samples), vocabulary)
    following = encode_text("".join(y for each in users for y in each.labels), vocabulary)
    require(
        not (features == len(vocabulary)).any() and not (following == len(vocabulary)).any(),
        f"{vocabulary=} lacks characters of the samples; expected all of them; "
        "without vocabulary=, it is that of the samples.",
    )
    labels = np.full((len(following), length), MASKED_LABEL, np.int32)
    labels[:, -1] = following
    sizes = np.array([len(each.labels) for each in users], np.int64)
    return Windows(features.reshape(-1, length), labels, sizes)
