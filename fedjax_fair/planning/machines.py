"""Machines that programs can be compiled for without having one."""

from __future__ import annotations

import importlib.util
import os
import re
from functools import cache
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

from fedjax_fair.numerics.target import Platform

__all__ = ["NAMES", "Machine", "devices_of", "find", "prepare"]

NAMES = "v5e:1x1, v5e:2x4, v5p:2x2x1 and other shapes of both, h200, h200:8, or local"


class Machine(NamedTuple):
    """An accelerator, or several of a kind.

    Attributes:
        name: As it was given.
        platform: "gpu" or "tpu".
        shape: Devices along each axis of the topology.
        memory: Bytes of one device.
        bandwidth: Bytes that a device moves from and to its memory in a second, at most.
        peak_flops: Floating-point operations in products of a device in a second, at most, in the
            precision that JAX takes for float32 by default.
        peak_fp32_flops: The same for products that keep the precision of float32.
        link: Bytes that a device sends to a neighbor in a second, at most.
        clock_hz: Cycles in a second; None where the compiler estimates none.
        extra: What the package is to be installed with.
        module: What the compiler comes in.
    """

    name: str
    platform: Platform
    shape: tuple[int, ...]
    memory: float
    bandwidth: float
    peak_flops: float
    peak_fp32_flops: float
    link: float
    clock_hz: float | None
    extra: str
    module: str

    @property
    def num_devices(self) -> int:
        """How many there are in all."""
        count = 1
        for size in self.shape:
            count *= size
        return count


class _Kind(NamedTuple):
    """What one device of a kind has; see ``Machine``."""

    memory: float
    bandwidth: float
    peak_flops: float
    peak_fp32_flops: float
    link: float
    clock_hz: float | None
    axes: int


# Data sheets: cloud.google.com/tpu/docs/v5e and v5p for memory, bandwidth and operations in
# bfloat16, which float32 products are computed in; six of these make one of full precision. Clocks
# and links, in one direction: jax-ml.github.io/scaling-book/tpus. nvidia.com/en-us/data-center/h200
# (SXM), operations in TF32 without sparsity, and in FP32 for full precision; half of NVLink's
# bandwidth, which counts both directions.
_TPUS = {
    "v5e": _Kind(16e9, 819e9, 197e12, 197e12 / 6, 45e9, 1.5e9, 2),
    "v5p": _Kind(95e9, 2765e9, 459e12, 459e12 / 6, 90e9, 1.75e9, 3),
}
_H200 = _Kind(141e9, 4.8e12, 494e12, 67e12, 450e9, None, 1)

# How a device that is not there is described to the compiler: figures of the SXM form.
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

# A TPU's compiler must not look for a machine, and several processes may use it at once. For CUDA
# products would be tried out on the device, and some fail in the form that such trials choose from.
_SETTINGS = {
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",  # Otherwise it warns that it cannot find one out.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_FLAGS = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"


def find(name: str) -> Machine:
    """The machine of this name.

    Args:
        name: A kind of TPU and the shape of its slice, or "h200" with a number of devices.

    Raises:
        ValueError: If there is none of this name or shape.

    Examples:
        >>> find("v5e:2x4").num_devices, find("h200").shape
        (8, (1,))
    """
    kind, _, shape = name.partition(":")
    sizes = shape.split("x") if shape else ["1"]
    known = _TPUS.get(kind, _H200 if kind == "h200" else None)
    if known is None or not all(re.fullmatch("[1-9][0-9]*", size) for size in sizes):
        raise ValueError(f"machine={name!r}: expected {NAMES}.")
    sides = tuple(map(int, sizes))
    if kind == "h200":
        platform, extra, module = "gpu", "cuda12", "jax_cuda12_plugin"
    else:
        platform, extra, module = "tpu", "plan", "libtpu"
    whole_hosts = set(sides) == {1} or all(side % 2 == 0 for side in sides[:2])
    if len(sides) != known.axes or (platform == "tpu" and not whole_hosts):
        example = {"v5e": "v5e:1x1, v5e:2x2 or v5e:4x4", "v5p": "v5p:1x1x1 or v5p:2x2x1"}
        raise ValueError(f"machine={name!r}: expected a shape as in {example.get(kind, 'h200:8')}.")
    return Machine(name, platform, sides, *known[:-1], extra=extra, module=module)


def prepare(machine: Machine) -> None:
    """Sets what the compilers read when they start; call it before JAX makes its first array.

    Raises:
        ValueError: If the compiler is not installed.
    """
    if importlib.util.find_spec(machine.module) is None:
        raise ValueError(
            f"machine={machine.name!r}: its compiler is not installed; "
            f"pip install 'fedjax-fair[{machine.extra}]' brings it."
        )
    jax.config.update("jax_platforms", "cpu")
    # What was compiled for a device that is not there cannot be read back.
    jax.config.update("jax_enable_compilation_cache", False)
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAGS}".strip()


@cache  # Programs need the same objects for all of their arguments.
def devices_of(machine: Machine) -> list[Any]:
    """The devices of a machine, which programs can be compiled for and nothing else."""
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
