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
from fedjax_fair.utils import checks

__all__ = ["NAMES", "Machine", "check", "devices_of", "find", "kinds", "prepare"]

NAMES = (
    "h100, a100, l4, v5e:1x1, v5e:2x4, v5p:2x2x1 and other shapes of both, h200, h200:8, or local"
)


class Machine(NamedTuple):
    """One or several accelerators of a kind. Quantities are those of one device.

    Attributes:
        memory: Bytes.
        bandwidth: Peak memory bandwidth, bytes/s.
        peak_16bit_flops: Peak FLOP/s of products of bfloat16 and float16.
        peak_flops: Peak FLOP/s of products in JAX's default precision for float32.
        peak_fp32_flops: The same in the precision of float32.
        link: Peak bandwidth to a neighbor, bytes/s.
        cache: Bytes of the last cache. Arrays of a product that fit need not be moved. Used without
            a compiler.
        platform: "gpu" or "tpu".
        shape: Devices along each axis of the topology.
        clock_hz: Clock rate; None if no compiler estimates cycles.
        module: Module of the compiler; None for lower bounds from a program for the local CPU.
        extra: The extra of this package that installs the compiler's module.

    Examples:
        >>> Machine("b200", memory=180e9, bandwidth=7.7e12, peak_16bit_flops=2.25e15,
        ...     peak_flops=1.12e15, peak_fp32_flops=75e12, link=900e9, cache=126e6).num_devices
        1
    """

    name: str
    memory: float
    bandwidth: float
    peak_16bit_flops: float
    peak_flops: float
    peak_fp32_flops: float
    link: float
    cache: float = 0.0
    platform: Platform = "gpu"
    shape: tuple[int, ...] = (1,)
    clock_hz: float | None = None
    module: str | None = None
    extra: str = ""

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return math.prod(self.shape)


# Data sheets. TPUs: cloud.google.com/tpu/docs/v5e and v5p for memory, bandwidth and FLOP/s in
# bfloat16, which float32 products use by default; six such products make one of full precision.
# Clocks and links, in one direction: jax-ml.github.io/scaling-book/tpus. GPUs, without sparsity:
# FLOP/s in BF16, in TF32, which float32 products use by default, and in FP32 for full precision;
# half of the bandwidth of NVLink or PCIe, which counts both directions.
# - nvidia.com/en-us/data-center/h200 and h100 (SXM); L2: H100 architecture white paper.
# - nvidia.com/en-us/data-center/a100 (80 GB, SXM); L2: A100 architecture white paper.
# - nvidia.com/en-us/data-center/l4; L2: Ada architecture white paper, AD104.
_MACHINES = {
    machine.name.partition(":")[0]: machine
    for machine in (
        Machine("h100", 80e9, 3.35e12, 989e12, 494e12, 67e12, 450e9, 50e6),
        Machine("a100", 80e9, 2.039e12, 312e12, 156e12, 19.5e12, 300e9, 40e6),
        Machine("l4", 24e9, 300e9, 121e12, 60e12, 30.3e12, 32e9, 48e6),
        Machine(
            "h200", 141e9, 4.8e12, 989e12, 494e12, 67e12, 450e9, 50e6,
            module="jax_cuda12_plugin", extra="cuda12",
        ),
        Machine(
            "v5e:1x1", 16e9, 819e9, 197e12, 197e12, 197e12 / 6, 45e9, platform="tpu", shape=(1, 1),
            clock_hz=1.5e9, module="libtpu", extra="plan",
        ),
        Machine(
            "v5p:1x1x1", 95e9, 2765e9, 459e12, 459e12, 459e12 / 6, 90e9, platform="tpu",
            shape=(1, 1, 1), clock_hz=1.75e9, module="libtpu", extra="plan",
        ),
    )
}  # fmt: skip
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


def check(machine: Machine) -> None:
    """Checks the rates of a machine.

    Raises:
        ValueError: If one is not positive.

    Examples:
        >>> check(find("l4")._replace(bandwidth=0))
        Traceback (most recent call last):
        ValueError: bandwidth=0: expected a number > 0.
    """
    rates = ("memory", "bandwidth", "peak_16bit_flops", "peak_flops", "peak_fp32_flops", "link")
    for name in rates:
        checks.positive(name, getattr(machine, name))
    checks.non_negative("cache", machine.cache)


def find(name: str, others: Mapping[str, Machine] | None = None) -> Machine:
    """Returns the machine of a name: a GPU, "h200:DEVICES", or a TPU with the shape of a slice.

    Args:
        name: Kind, and shape after a colon; by default one device.
        others: Further machines by kind.

    Raises:
        ValueError: If there is no such machine.

    Examples:
        >>> find("v5e:2x4").num_devices, find("h200").shape
        (8, (1,))
    """
    kind, _, shape = name.partition(":")
    sizes = shape.split("x") if shape else ["1"]
    others = others or {}
    machine = _MACHINES.get(kind) or others.get(kind)
    if machine is None or not all(re.fullmatch("[1-9][0-9]*", size) for size in sizes):
        raise ValueError(f"machine={name!r}: expected {', '.join([*others, NAMES])}.")
    sides = tuple(map(int, sizes))
    if machine.module is None and sides != (1,):
        raise ValueError(
            f"machine={name!r}: expected {kind}; rates bound plans of one device only."
        )
    has_whole_hosts = set(sides) == {1} or all(side % 2 == 0 for side in sides[:2])
    if len(sides) != len(machine.shape) or (machine.platform == "tpu" and not has_whole_hosts):
        example = _EXAMPLE_SHAPES.get(kind, "h200:8")
        raise ValueError(f"machine={name!r}: expected a shape as in {example}.")
    return machine._replace(name=name, shape=sides)


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
