"""Shakespeare's plays, whose clients are the roles."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedjax_fair.data.conversion import DamagedError, require
from fedjax_fair.data.sources.source import DataDir, Examples, Splits, resolve_data_dir
from fedjax_fair.data.text.leaf_users import get_entry, parse_json
from fedjax_fair.data.text.windows import characters, make_windows
from fedjax_fair.utils import checks

__all__ = ["find_shakespeare", "read_roles", "read_shakespeare"]

_FILE = "shakespeare.jsonl.gz"
_TEST_FRACTION = 0.2
_FIELDS = ("play", "role", "text")


def find_shakespeare(data_dir: DataDir) -> Path:
    """Finds ``shakespeare.jsonl.gz`` in a folder, or in its subfolder ``text``.

    Raises:
        FileNotFoundError: If it is not there.
    """
    folder = resolve_data_dir(data_dir)
    for path in (folder / _FILE, folder / "text" / _FILE):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"shakespeare: no {_FILE} in {folder} or {folder / 'text'}; expected a gzip file of "
        "lines of JSON with play, role and text, the speeches in the order of the plays; put it "
        "there, or set data.dir to its folder."
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
        for part in windows.split(_TEST_FRACTION)
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
        content = parse_json(f"{file}, line {number}", line)
        fields = [get_entry(content, key) for key in _FIELDS]
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
