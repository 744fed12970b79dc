"""What is written for ``devices``, as a mesh."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from fedjax_fair import checks
from fedjax_fair.parallel.cores import default_core_mesh
from fedjax_fair.parallel.mesh import client_mesh

__all__ = ["mesh_of"]

_GROUPS = re.compile("runs=([1-9][0-9]{0,8}),clients=([1-9][0-9]{0,8})")


def mesh_of(devices: int | str, available: Sequence[Any] | None = None) -> Mesh | None:
    """The devices to run on, or None for a single one.

    Args:
        devices: How many, "all", or "runs=R,clients=C" for R groups of C devices; "auto" is all
            cores of a processor, and otherwise one.
        available: Devices to take them from, if not those at hand; "auto" is all of those.

    Raises:
        ValueError: If it is written otherwise, or there are fewer.

    Examples:
        >>> mesh_of("runs=1,clients=1").axis_names
        ('runs', 'clients')
    """
    if devices == "auto":
        if available is None:
            return default_core_mesh()
        devices = len(available)
    if checks.is_int(devices) and devices == 1:
        return None
    if devices == "all" or not isinstance(devices, str):
        return client_mesh(devices, available=available)
    written = _GROUPS.fullmatch(devices)
    if written is None:
        raise ValueError(
            f"{devices=}: expected an integer >= 1, 'auto', 'all' or 'runs=R,clients=C' with "
            "integers >= 1."
        )
    runs, clients = map(int, written.groups())
    count = jax.device_count() if available is None else len(available)
    if runs * clients > count:
        raise ValueError(f"{devices=}: expected at most {count} devices, not {runs * clients}.")
    return client_mesh(runs * clients, runs=runs, available=available)
