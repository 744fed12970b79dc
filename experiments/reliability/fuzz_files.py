"""Files that the package reads, with random damage.

A reader must raise an error with the file name, or return the values that the damaged bytes encode.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest import mock

from hypothesis import strategies as st

from experiments.reliability.readers import READERS
from experiments.reliability.values import check_named

__all__ = ["Case", "damaged", "judge"]

Files = dict[str, bytes]


class Case(NamedTuple):
    """A damaged file.

    Attributes:
        reader: Name of its reader in ``READERS``.
        damage: Changes of its bytes, in order.
    """

    reader: str
    damage: list[tuple[Any, ...]]


_PLACE = st.integers(0, 2**20)
_BYTES = st.binary(min_size=1, max_size=40)
_FOREIGN = (b"", b"null", b"[]", b"{}", b"PK\5\6" + b"\0" * 18, b"\x89HDF\r\n\x1a\n")
_OTHERS = tuple(name for name in READERS if "sweep" not in name)  # These need a run.
_WORDS = (
    *("null", "[]", "{}", "-1", "0", "1.5", "1e400", "NaN", "true", '""', '"x"', '"\\ud800"'),
    *("9" * 400, "9" * 5000, "[" * 100_000, "", ",", "{"),
)
_DAMAGE = st.one_of(
    st.tuples(st.just("flip"), _PLACE, st.integers(0, 7)),
    st.tuples(st.just("overwrite"), _PLACE, _BYTES),
    st.tuples(st.just("insert"), _PLACE, _BYTES),
    st.tuples(st.just("delete"), _PLACE, st.integers(1, 40)),
    st.tuples(st.just("repeat"), _PLACE, st.integers(1, 4000)),
    st.tuples(st.just("cut"), _PLACE),
    st.tuples(st.just("replace"), st.binary(max_size=200) | st.sampled_from(_FOREIGN)),
    st.tuples(st.just("exchange"), st.sampled_from(_OTHERS)),
)
_WORD = re.compile(rb'"[^"]*"|[-\d][\d.e+-]*|true|false|null')


def damaged(name: str) -> st.SearchStrategy[Case]:
    """Draws one to three changes of a file."""
    damage = _DAMAGE
    if READERS[name].words:
        damage |= st.tuples(st.just("word"), _PLACE, st.sampled_from(_WORDS))
    return st.builds(Case, st.just(name), st.lists(damage, min_size=1, max_size=3))


def judge(case: Case) -> bool:
    """Returns whether the file was read correctly, or False if the error names it.

    Raises:
        AssertionError: Otherwise.
    """
    reader, (files, undamaged) = READERS[case.reader], _undamaged(case.reader)
    content = files[reader.file]
    for damage in case.damage:
        content = _damage(content, *damage)
    with TemporaryDirectory() as name, _nothing_ignored(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        folder = Path(name)
        _write(folder, files | {reader.file: content})
        try:
            read = reader.read(folder)
        except (ValueError, OSError) as error:
            check_named(error, [re.escape(reader.file)])
            return False
        assert reader.right(read, content, undamaged), "something else was read"
        return True


@contextmanager
def _nothing_ignored() -> Iterator[None]:
    """Checks that no exceptions were ignored by Python, such as those of finalizers."""
    complaints: list[str] = []
    with mock.patch.object(
        sys, "unraisablehook", lambda own: complaints.append(repr(own.exc_value))
    ):
        yield
    assert not complaints, complaints


def _damage(content: bytes, how: str, *given: Any) -> bytes:
    if how == "replace":
        return given[0]
    if how == "exchange":
        files, _ = _undamaged(given[0])
        return files[READERS[given[0]].file]
    place, *more = given
    if how == "word":
        found = list(_WORD.finditer(content))
        if not found:
            return content
        start, end = found[place % len(found)].span()
        return content[:start] + more[0].encode() + content[end:]
    at = place % (len(content) + 1)
    before, after = content[:at], content[at:]
    if how == "flip":
        return before + bytes([after[0] ^ 1 << more[0]]) + after[1:] if after else content
    if how == "overwrite":
        return before + more[0] + after[len(more[0]) :]
    if how == "insert":
        return before + more[0] + after
    if how == "repeat":
        return before + after[: more[0]] + after
    return before if how == "cut" else before + after[more[0] :]


@cache
def _undamaged(name: str) -> tuple[Files, Any]:
    """The files, and the values of the reader."""
    with TemporaryDirectory() as folder:
        READERS[name].write(Path(folder))
        paths = [path for path in Path(folder).rglob("*") if path.is_file()]
        files = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
        return files, READERS[name].read(Path(folder))


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
