"""The versions of JAX with which the tests passed."""

from __future__ import annotations

from functools import cache

import jax

from fedjax_fair.utils.warning import warn

__all__ = ["check_jax"]

OLDEST, FIRST_UNTESTED = (0, 8, 1), (0, 13)


@cache
def check_jax(version: tuple[int, ...] = jax.__version_info__) -> None:
    """Warns once of a JAX that is newer than those tested.

    Raises:
        ImportError: If it is too old.
    """
    oldest, untested = (".".join(map(str, each)) for each in (OLDEST, FIRST_UNTESTED))
    found, fix = ".".join(map(str, version)), f"pip install 'jax>={oldest},<{untested}'"
    if version < OLDEST:
        raise ImportError(f"JAX {found}: expected {oldest} or newer; {fix}.")
    if version >= FIRST_UNTESTED:
        warn(f"JAX {found} is newer than the tested versions; if something fails, {fix}.")
