"""Machines to compile for without having one."""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

from fedjax_fair.numerics.target import Platform

__all__ = ["NAMES", "Machine", "devices_of", "find", "kinds", "prepare"]

NAMES = (
    "h100, a100, l4, v5e:1x1, v5e:2x4, v5p:2x2x1 and other shapes of both, h200, h200:8, or local"
)


class Machine(NamedTuple):
    """One or several accelerators of a kind.

    Attributes:
        memory: Bytes of one device.
        platform: "gpu" or "tpu".
        shape: Devices along each axis of the topology.
        module: Module of the compiler; None to compile for the CPU of this machine instead.
        extra: The extra of this package that installs the compiler's module.

    Examples:
        >>> Machine("b200", memory=180e9).num_devices
        1
    """

    name: str
    memory: float
    platform: Platform = "gpu"
    shape: tuple[int, ...] = (1,)
    module: str | None = None
    extra: str = ""

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return math.prod(self.shape)


# Memory by data sheets: nvidia.com/en-us/data-center/h200, h100 (SXM), a100 (80 GB, SXM) and l4;
# cloud.google.com/tpu/docs/v5e and v5p.
_MACHINES = {
    machine.name.partition(":")[0]: machine
    for machine in (
        Machine("h100", 80e9),
        Machine("a100", 80e9),
        Machine("l4", 24e9),
        Machine("h200", 141e9, module="jax_cuda12_plugin", extra="cuda12"),
        Machine("v5e:1x1", 16e9, "tpu", (1, 1), module="libtpu", extra="plan"),
        Machine("v5p:1x1x1", 95e9, "tpu", (1, 1, 1), module="libtpu", extra="plan"),
    )
}
_EXAMPLE_SHAPES = {"v5e": "v5e:1x1, v5e:2x2 or v5e:4x4", "v5p": "v5p:1x1x1 or v5p:2x2x1"}

# The description of a missing device for the compiler, with figures of the SXM form.
_CUDA = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 141000000000 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
device_description_str: "NVIDIA H200"
"""

# The TPU compiler must not search for a machine, and several processes may use it at once. The CUDA
# compiler would autotune on the device, and some products fail in the form that it tunes.
_ENVIRONMENT = {
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",  # Prevents a warning.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_XLA_FLAGS = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"


def kinds() -> list[str]:
    """Returns the kinds of machines of this package, and "local"."""
    return [*_MACHINES, "local"]


def find(name: str, others: Mapping[str, Machine] | None = None) -> Machine:
    """Returns the machine of a name: a GPU, "h200:DEVICES", or a TPU with the shape of a slice.

    Capitals do not matter.

    Args:
        name: Kind, and shape after a colon; by default one device.
        others: Further machines by kind.

    Raises:
        ValueError: If there is no such machine.

    Examples:
        >>> find("v5e:2x4").num_devices, find("H200").shape
        (8, (1,))
    """
    kind, _, shape = name.partition(":")
    sizes = shape.casefold().split("x") if shape else ["1"]
    others = others or {}
    known = {**others, **_MACHINES}
    same = (each for each in (kind, *known) if each.casefold() == kind.casefold())
    kind = next((each for each in same if each in known), kind)
    machine = known.get(kind)
    if machine is None or not all(re.fullmatch("[1-9][0-9]*", size) for size in sizes):
        raise ValueError(f"machine={name!r}: expected {', '.join([*others, NAMES])}.")
    sides = tuple(map(int, sizes))
    if machine.module is None and sides != (1,):
        raise ValueError(
            f"machine={name!r}: expected {kind}; without its compiler plans are for one device; "
            "omit the shape."
        )
    has_whole_hosts = set(sides) == {1} or all(side % 2 == 0 for side in sides[:2])
    if len(sides) != len(machine.shape) or (machine.platform == "tpu" and not has_whole_hosts):
        example = _EXAMPLE_SHAPES.get(kind, "h200:8")
        raise ValueError(
            f"machine={name!r}: expected a shape as in {example}; give the number of chips per "
            "side."
        )
    return machine._replace(name=f"{kind}:{shape.casefold()}" if shape else kind, shape=sides)


def prepare(machine: Machine) -> None:
    """Configures the compiler; call it before JAX creates its first array.

    Raises:
        ValueError: If the compiler is not installed.
    """
    jax.config.update("jax_platforms", "cpu")
    if machine.module is None:
        return
    if importlib.util.find_spec(machine.module) is None:
        raise ValueError(
            f"machine={machine.name!r}: its compiler is not installed; "
            f"pip install 'fedjax-fair[{machine.extra}]' installs it."
        )
    # Executables for a missing device cannot be read from the cache.
    jax.config.update("jax_enable_compilation_cache", False)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_XLA_FLAGS}".strip()


@cache  # All arguments of a function must have the same device objects.
def devices_of(machine: Machine) -> list[Any]:
    """Returns descriptions of the devices, or local ones instead, for compilation only."""
    if machine.module is None:
        return jax.devices("cpu")[:1]
    if machine.platform == "gpu":
        topology: dict[str, Any] = {
            "topology_name": "cuda",
            "platform": "cuda",
            "topology": f"1x1x{machine.num_devices}",
            "target_config": _CUDA,
        }
    else:
        topology = {"topology_name": machine.name, "platform": "tpu"}
        if machine.num_devices == 1:  # A chip without the others of its host.
            topology["chips_per_host_bounds"] = (1, 1, 1)
    return list(topologies.get_topology_desc(**topology).devices)
