"""CPU cores as devices, which share one copy of the data.

XLA spreads every operation on a CPU over its cores, which then wait for each other. The small
products of local training keep little more than one core busy. As devices, the cores make whole
runs, or train different clients and meet once per round.
"""

from __future__ import annotations

import contextlib
import os
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from fedjax_fair.numerics import target
from fedjax_fair.utils import checks

__all__ = [
    "CORES", "core_mesh", "default_core_mesh", "num_usable_cores", "pad_to_multiple",
    "replicate_on_cores",
]  # fmt: skip

CORES = "cores"
"""The mesh axis of ``core_mesh``."""

_FORCED = "xla_force_host_platform_device_count"
# By default XLA ends the process after a core has waited 40 s for another one.
_TIMEOUT_FLAG = "--xla_cpu_collective_call_terminate_timeout_seconds"
_ALIGNMENT = 64  # JAX does not copy arrays whose address is a multiple of this.


# On two cores, rounds of LeNet and MLPs are 1.6 to 2.7 times as fast (docs/scaling.md). The command
# line makes this mesh by default; Python code requests it, because JAX has to know before it
# starts.
def core_mesh(cores: int | Literal["all"] = "all") -> Mesh:
    """Returns a mesh of CPU cores, for ``fit(..., mesh=)``.

    With as many runs as cores or more, each core makes whole runs. Otherwise the cores share the
    clients of each run. Results equal the results on one device, up to rounding and the order of
    sums.

    JAX reads the number of devices when it starts: call this function before anything else uses its
    devices or arrays, or set ``JAX_NUM_CPU_DEVICES``.

    Raises:
        ValueError: If JAX has started with fewer CPU devices, or uses an accelerator.
    """
    checks.positive_int("cores", cores, words=("all",))
    wanted = num_usable_cores() if cores == "all" else cores
    _request_devices(wanted)
    available = jax.devices()
    if available[0].platform != "cpu" or jax.process_count() > 1:
        raise ValueError(
            f"{cores=}: expected a single process on a CPU; set JAX_PLATFORMS=cpu, or use "
            "client_mesh for accelerators."
        )
    if len(available) < wanted:
        raise ValueError(
            f"{cores=}: JAX has started with {len(available)} CPU devices; call core_mesh before "
            f"anything else, or set JAX_NUM_CPU_DEVICES={wanted} in the environment."
        )
    return Mesh(np.array(available[:wanted]), (CORES,))


def default_core_mesh() -> Mesh | None:
    """Returns a mesh of all cores; None on an accelerator or a single core."""
    _request_devices(num_usable_cores())
    if not target.current().is_cpu or jax.process_count() > 1 or jax.device_count() == 1:
        return None
    return core_mesh(min(num_usable_cores(), jax.device_count()))


def replicate_on_cores(tree: PyTree, mesh: Mesh) -> PyTree:
    """Returns arrays of the host, or of one device, that all cores read from the same memory."""
    sharding = NamedSharding(mesh, PartitionSpec())

    def replicate(leaf):
        values = _aligned(np.asarray(leaf))
        views = [jax.device_put(values, core) for core in mesh.devices.flat]
        return jax.make_array_from_single_device_arrays(values.shape, sharding, views)

    return jax.tree.map(replicate, tree)


def pad_to_multiple(runs: PyTree, parts: int) -> PyTree:
    """Repeats the last run until the leading axis is a multiple of ``parts``.

    Examples:
        >>> pad_to_multiple(np.array([3, 4, 5]), 2).tolist()
        [3, 4, 5, 5]
    """
    count = jax.tree.leaves(runs)[0].shape[0]
    if count % parts == 0:
        return runs
    indices = np.minimum(np.arange(count + -count % parts, dtype=np.int32), count - 1)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[indices], runs)


def _request_devices(cores: int) -> None:
    """Sets the number of CPU devices, which has no effect after JAX has started."""
    flags = os.environ.get("XLA_FLAGS", "")
    if _TIMEOUT_FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_TIMEOUT_FLAG}=1000000"
    if _FORCED not in flags and cores > 1:
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", cores)


def num_usable_cores() -> int:
    """Returns the number of cores that this process may use."""
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
