"""Random values of settings, in and out of range, and checks of error messages."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from hypothesis import strategies as st

__all__ = ["check_named", "values"]

_HUGE = 10**400
"""An integer beyond the range of floats."""

_ODD: dict[Any, tuple[Any, ...]] = {
    int: (0, -1, 10**6, 2**31 - 1, 2**31, 2**63, -(2**70), _HUGE),
    float: (-0.5, -1e-300, 1e-300, 1e30, 1e300, math.nan, math.inf, -math.inf, _HUGE, -_HUGE),
    str: ("", "no such thing", "\n"),
    bool: (),
}
_USUAL: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(1, 12),
    float: st.sampled_from((0.0, 0.1, 0.25, 0.4, 0.5, 0.9, 1.0, 2.0, 10, 1e-6)) | st.floats(0, 4),
    str: st.just("digits"),
    bool: st.booleans(),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Draws values of a setting, mostly valid ones.

    Args:
        kind: Type of the setting, as `fedjax_fair.app.settings.constructors` reads it.
    """
    if get_origin(kind) in (Union, UnionType):
        members = [member for member in get_args(kind) if member is not type(None)]
        return st.one_of([values(member) for member in members])
    if get_origin(kind) is tuple:
        return st.lists(values(get_args(kind)[0]), max_size=3).map(tuple)
    if get_origin(kind) is Literal:
        usual, odd = st.sampled_from(get_args(kind)), _ODD[str]
    else:
        usual, odd = _USUAL[kind], _ODD[kind]
    if not odd:
        return usual
    # Three of four are valid, so that often a single setting is invalid.
    return st.integers(0, 3).flatmap(lambda place: usual if place else st.sampled_from(odd))


def check_named(error: Exception, words: Iterable[str]) -> None:
    """Checks that an error has one line with one of ``words`` (regular expressions).

    Raises:
        AssertionError: Otherwise.
    """
    if "\n" in str(error) or not re.search(rf"(?<!\w)({'|'.join(words)})(?!\w)", str(error)):
        raise AssertionError(f"{type(error).__name__}: {error}")
