"""Parsing of the setting ``devices`` into a mesh."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from fedjax_fair.parallel.cores import default_core_mesh
from fedjax_fair.parallel.mesh import client_mesh
from fedjax_fair.utils import checks

__all__ = ["mesh_of"]

_GROUPS = re.compile("runs=([1-9][0-9]{0,8}),clients=([1-9][0-9]{0,8})")


def mesh_of(devices: int | str, available: Sequence[Any] | None = None) -> Mesh | None:
    """Returns the mesh of devices to run on, or None for a single device.

    Args:
        devices: A number, "all", or "runs=R,clients=C" for R groups of C devices; "auto" is all
        cores of
            a CPU, and one accelerator.
        available: Devices to choose from, all of which "auto" uses; by default the local ones.

    Raises:
        ValueError: If ``devices`` has another form, or there are fewer.
    """
    if devices == "auto":
        if available is None:
            return default_core_mesh()
        devices = len(available)
    if checks.is_int(devices) and devices == 1:
        return None
    if devices == "all" or not isinstance(devices, str):
        return client_mesh(devices, available=available)
    groups = _GROUPS.fullmatch(devices)
    if groups is None:
        raise ValueError(
            f"{devices=}: expected an integer >= 1, 'auto', 'all' or 'runs=R,clients=C' with "
            "integers >= 1."
        )
    runs, clients = map(int, groups.groups())
    count = jax.device_count() if available is None else len(available)
    if runs * clients > count:
        raise ValueError(f"{devices=}: expected at most {count} devices, got {runs * clients}.")
    return client_mesh(runs * clients, runs=runs, available=available)
