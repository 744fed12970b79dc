"""Files of text by author: LEAF's JSON, and Shakespeare's plays by role."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_fair.data.arrays import federate
from fedjax_fair.data.conversion import require
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.data.source import (
    DamagedError,
    DataDir,
    Examples,
    Splits,
    resolve_data_dir,
)
from fedjax_fair.data.text import (
    Windows,
    characters,
    check_vocabulary,
    encode_text,
    make_windows,
    with_names,
)
from fedjax_fair.numerics.labels import MASKED_LABEL
from fedjax_fair.utils import checks

__all__ = ["find_shakespeare", "from_leaf", "read_roles", "read_shakespeare"]

SHAKESPEARE = "shakespeare.jsonl.gz"
TEST_FRACTION = 0.2
_FIELDS = ("play", "role", "text")


def from_leaf(
    train: str | os.PathLike[str],
    test: str | os.PathLike[str] | None = None,
    vocabulary: str | None = None,
    *,
    name: str = "leaf",
    test_fraction: float = 0.2,
    validation_fraction: float = 0.0,
    seed: int = 0,
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
    require(
        test_users.keys() <= users.keys(),
        f"{test}: user {next(iter(test_users.keys() - users.keys()), '')!r} has no training "
        "samples; expected users of the training files.",
    )
    both = [*users.values(), *test_users.values()]
    if vocabulary is None:
        vocabulary = characters([text for xs, ys in both for text in (*xs, *ys)])
    lengths = {len(x) for xs, _ in both for x in xs}
    require(len(lengths) == 1, f"{train}: x of lengths {sorted(lengths)}; expected one length.")
    length = lengths.pop()
    windows = _last_labels(users.values(), length, check_vocabulary(vocabulary))
    if test is None:
        train_part, test_part = windows.split(test_fraction)
    else:
        of_test = [test_users.get(user, ([], [])) for user in users]
        train_part, test_part = windows, _last_labels(of_test, length, vocabulary)
    return federate(
        with_names(train_part, tuple(users)),
        with_names(test_part, None),
        num_classes=len(vocabulary),
        name=name,
        validation_fraction=validation_fraction,
        seed=seed,
    )


def _last_labels(users: Any, length: int, vocabulary: str) -> Windows:
    """Makes windows of samples, of whose labels only the last, the next character, counts."""
    users = list(users)
    features = encode_text("".join(x for xs, _ in users for x in xs), vocabulary)
    following = encode_text("".join(y for _, ys in users for y in ys), vocabulary)
    require(
        not (features == len(vocabulary)).any() and not (following == len(vocabulary)).any(),
        f"{vocabulary=} lacks characters of the samples; expected all of them.",
    )
    labels = np.full((len(following), length), MASKED_LABEL, np.int32)
    labels[:, -1] = following
    sizes = np.array([len(ys) for _, ys in users], np.int64)
    return Windows(features.reshape(-1, length), labels, sizes)


def _read_leaf(path: Path) -> dict[str, tuple[list[str], list[str]]]:
    """Reads samples and next characters of each user, in the order of the files."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files or not path.exists():
        raise FileNotFoundError(f"{path}: expected a file of LEAF, or a folder with *.json.")
    users: dict[str, tuple[list[str], list[str]]] = {}
    for file in files:
        content = _parse(file, file.read_bytes())
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
    names, counts, samples = (_get(content, key) for key in keys)
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


def find_shakespeare(data_dir: DataDir) -> Path:
    """Finds ``shakespeare.jsonl.gz`` in a folder, or in its subfolder ``text``.

    Raises:
        FileNotFoundError: If it is not there.
    """
    folder = resolve_data_dir(data_dir)
    for path in (folder / SHAKESPEARE, folder / "text" / SHAKESPEARE):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"shakespeare: no {SHAKESPEARE} in {folder} or {folder / 'text'}; expected a gzip file of "
        "lines of JSON with play, role and text, the speeches in the order of the plays."
    )


def read_shakespeare(file: Path, length: int = 80, min_characters: int = 1000) -> Splits:
    """Reads windows of speeches, whose clients are roles; the last fifth of each is for testing.

    Roles of plays are different clients, named such as ``hamlet: Ophelia`` in the column
    ``client``. The vocabulary is that of all roles.

    Args:
        file: A file from `find_shakespeare`.
        length: Characters of a window, as in `from_text`.
        min_characters: Minimum number of characters of a role.

    Raises:
        DamagedError: If the file is damaged.
        ValueError: If no role has as many characters, or the windows are longer than every speech.
    """
    checks.positive_int("length", length)
    checks.positive_int("min_characters", min_characters)
    roles = read_roles(file)
    vocabulary = characters(speech for speeches in roles.values() for speech in speeches)
    sizes = {role: sum(map(len, speeches)) for role, speeches in roles.items()}
    # A role of single characters has nothing to predict.
    chosen = {
        role: speeches
        for role, speeches in roles.items()
        if sizes[role] >= min_characters and max(map(len, speeches)) > 1
    }
    require(
        chosen,
        f"{min_characters=}: expected at most {max(sizes.values())}, the characters of the longest "
        "role.",
    )
    windows = make_windows(chosen, length, vocabulary)
    names = np.array(list(chosen))
    train, test = (
        Examples(part.features, part.labels, {"client": np.repeat(names, part.sizes)})
        for part in windows.split(TEST_FRACTION)
    )
    return Splits(train, test, len(vocabulary))


def read_roles(file: str | os.PathLike[str]) -> dict[str, list[str]]:
    """Reads the speeches of each role, ``play: role``, from lines of JSON, gzipped or not.

    The result is an argument of `from_text`. Empty speeches are left out.

    Raises:
        DamagedError: If the file is truncated, or a line lacks play, role or text.
    """
    roles: dict[str, list[str]] = {}
    for number, line in enumerate(_lines(Path(file)), start=1):
        content = _parse(f"{file}, line {number}", line)
        fields = [_get(content, key) for key in _FIELDS]
        if not all(isinstance(field, str) for field in fields) or not all(fields[:2]):
            raise DamagedError(f"{file}, line {number}: expected strings play, role and text.")
        play, role, text = fields
        if text:
            roles.setdefault(f"{play}: {role}", []).append(text)
    if not roles:
        raise DamagedError(f"{file}: no speeches; expected one or more.")
    return roles


def _lines(file: Path) -> Iterator[bytes]:
    opener = gzip.open if file.suffix == ".gz" else open
    try:
        with opener(file, "rb") as stream:
            yield from stream
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DamagedError(f"{file}: damaged or truncated ({error}).") from None


def _get(content: Any, key: str) -> Any:
    """Returns an entry of parsed JSON, None if there is no such entry."""
    return content.get(key) if isinstance(content, dict) else None


def _parse(place: Any, content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:  # Also of other encodings than UTF-8.
        raise DamagedError(f"{place}: expected JSON ({' '.join(str(error).split())}).") from None
