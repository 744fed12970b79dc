"""The cores of a processor as devices of their own, which share one copy of the data.

JAX sees a processor as one device and spreads every operation over its cores, which then wait for
each other after each of them: the small products of local training keep little more than one core
busy. With a device for each core they work on runs of their own, or train clients of their own and
meet once a round.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from fedjax_fair import checks
from fedjax_fair.numerics import target

__all__ = [
    "CORES",
    "core_mesh",
    "default_core_mesh",
    "num_usable_cores",
    "over_runs",
    "pad_to_multiple",
    "replicate_on_cores",
]

CORES = "cores"
"""The mesh axis of ``core_mesh``."""

_FORCED = "xla_force_host_platform_device_count"
# By default XLA ends the process once a core has waited 40 s for another.
_TIMEOUT_FLAG = "--xla_cpu_collective_call_terminate_timeout_seconds"
_ALIGNMENT = 64  # Bytes at whose multiples JAX takes over an array of the host as it lies.


def core_mesh(cores: int | Literal["all"] = "all") -> Mesh:
    """A mesh of the processor's cores, for ``fit(..., mesh=)``.

    If ``fit`` has as many runs as there are cores or more, cores make whole runs. If it has fewer,
    cores share the work of each: its cohort, its evaluations and measurements of clients. Either
    way the results are those of a single device, up to rounding and the order of sums.

    JAX has to know the number before it starts: call this before anything else that uses its
    devices or arrays, or set ``JAX_NUM_CPU_DEVICES`` in the environment.

    Args:
        cores: How many, or all that this process may use.

    Returns:
        A mesh with the one axis ``cores``.

    Raises:
        ValueError: If JAX has started with fewer CPU devices, or runs on an accelerator.

    Examples:
        >>> core_mesh(1).axis_names
        ('cores',)
    """
    checks.positive_int("cores", cores, words=("all",))
    wanted = num_usable_cores() if cores == "all" else cores
    _request_devices(wanted)
    available = jax.devices()
    if available[0].platform != "cpu" or jax.process_count() > 1:
        raise ValueError(f"{cores=}: expected a single process on a CPU.")
    if len(available) < wanted:
        raise ValueError(
            f"{cores=}: JAX has started with {len(available)} CPU devices; expected core_mesh "
            f"before anything else, or JAX_NUM_CPU_DEVICES={wanted} in the environment."
        )
    return Mesh(np.array(available[:wanted]), (CORES,))


def default_core_mesh() -> Mesh | None:
    """All cores as devices, or None on an accelerator or where there is a single one.

    If JAX has not started yet, it will with a device for each core.
    """
    _request_devices(num_usable_cores())
    if not target.current().is_cpu or jax.process_count() > 1 or jax.device_count() == 1:
        return None
    return core_mesh(min(num_usable_cores(), jax.device_count()))


def replicate_on_cores(tree: PyTree, mesh: Mesh) -> PyTree:
    """Arrays that all cores read from the same memory.

    Args:
        tree: Arrays on the host or one device.
        mesh: From ``core_mesh``.

    Returns:
        The arrays, replicated as far as JAX can see.
    """
    sharding = NamedSharding(mesh, PartitionSpec())

    def share(leaf):
        values = _aligned(np.asarray(leaf))
        seen = [jax.device_put(values, core) for core in mesh.devices.flat]
        return jax.make_array_from_single_device_arrays(values.shape, sharding, seen)

    return jax.tree.map(share, tree)


def over_runs(function: Callable[[PyTree, PyTree], PyTree], mesh: Mesh) -> Callable:
    """Assigns runs to cores.

    Args:
        function: ``function(batch, data)``, which maps over the leading axis of ``batch``.
        mesh: From ``core_mesh``.

    Returns:
        The function, for batches of any length. Cores without a run repeat the last one.
    """
    of_runs, of_all = PartitionSpec(CORES), PartitionSpec()
    assigned = jax.shard_map(
        function, mesh=mesh, in_specs=(of_runs, of_all), out_specs=of_runs, check_vma=False
    )

    def mapped(batch, data):
        runs = jax.tree.leaves(batch)[0].shape[0]
        results = assigned(pad_to_multiple(batch, mesh.size), data)
        return results if runs % mesh.size == 0 else jax.tree.map(lambda leaf: leaf[:runs], results)

    return mapped


def pad_to_multiple(batch: PyTree, parts: int) -> PyTree:
    """Repeats the last run until there are equally many for each of some parts.

    Args:
        batch: Leaves ``[runs, ...]``, at least one.
        parts: Number of parts.

    Examples:
        >>> pad_to_multiple(np.array([3, 4, 5]), 2).tolist(), pad_to_multiple(np.array([3, 4]), 2).tolist()
        ([3, 4, 5, 5], [3, 4])
    """
    runs = jax.tree.leaves(batch)[0].shape[0]
    if runs % parts == 0:
        return batch
    places = np.minimum(np.arange(runs + -runs % parts, dtype=np.int32), runs - 1)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[places], batch)


def _request_devices(cores: int) -> None:
    """Sets how many CPU devices JAX starts with; without effect once it has started."""
    flags = os.environ.get("XLA_FLAGS", "")
    if _TIMEOUT_FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_TIMEOUT_FLAG}=1000000"
    if _FORCED not in flags and cores > 1:
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", cores)


def num_usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _aligned(values: np.ndarray) -> np.ndarray:
    if values.flags.c_contiguous and values.ctypes.data % _ALIGNMENT == 0:
        return values
    room = np.empty(values.nbytes + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    copy = room[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy
