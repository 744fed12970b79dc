"""The target device of tracing, and the batch sizes for it.

Choices during tracing depend on it only, so that functions can be compiled for devices that are not
available (`tracing_for`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Literal, NamedTuple

import jax

from fedjax_fair.utils import checks

__all__ = ["Platform", "Target", "current", "tracing_for"]

Platform = Literal["cpu", "gpu", "tpu"]


class Target(NamedTuple):
    """A kind of device and its batch sizes; None for no limit, unless specified otherwise.

    Attributes:
        platform: "cpu", "gpu" or "tpu".
        flat_images: Images per chunk of a pass over the examples of all clients.
        flat_vectors: Examples with one axis per chunk of such a pass.
        client_examples: Maximum number of examples of one client per chunk.
        clients_measured: Clients evaluated in parallel (vmapped); None for sequentially.
        clients_trained: Maximum number of clients trained in parallel.
        models_bytes: Maximum number of bytes of their models.
        model_bytes: Maximum number of bytes of one model; larger ones train sequentially.
        similarities: Similarities of points and items computed together if not all are stored; None
            for those of 128 points.
    """

    platform: Platform
    flat_images: int
    flat_vectors: int
    client_examples: int
    clients_measured: int | None = None
    clients_trained: int | None = None
    models_bytes: int | None = None
    model_bytes: int | None = None
    similarities: int | None = None

    @property
    def is_cpu(self) -> bool:
        """True for a CPU, or one of its cores."""
        return self.platform == "cpu"


# Chunks have enough examples for full speed, and few enough for activations to stay in the cache.
# With two cores as one device, ten LeNets or MLPs of 200,000 parameters train in parallel up to a
# quarter faster than sequentially; ResNet-18, of which one fills the cache, does not.
_CPU = Target(
    platform="cpu",
    flat_images=50,
    flat_vectors=250,
    client_examples=200,
    clients_trained=16,
    models_bytes=8 * 2**20,
)
# A core that is a separate device has a smaller cache. Only the smallest networks, whose operations
# take less time than their launch, train faster in parallel.
_CORE = _CPU._replace(client_examples=50, models_bytes=2**18)
_GPU = Target(
    platform="gpu",
    flat_images=2000,
    flat_vectors=2000,
    client_examples=512,
    clients_measured=16,
    # By the bytes that an H200 moves and the kernels that it launches, ResNet-18 (43 MiB) takes 1.4
    # times as long with four clients in parallel, because their wide convolutions are sequential
    # within each layer; networks of up to 6 MiB take half as long with the entire cohort.
    model_bytes=16 * 2**20,
    # With a pool of 1,000 among a million points, the block size of a TPU needs six kernel launches
    # of a microsecond per block, three times as long as the computation.
    similarities=2**23,
)
# LeNet and an MLP are faster in parallel, larger networks are slower: a network of 6 MiB takes
# twice the cycles with five clients in parallel, ResNet-18 six times with four. Blocks of a hundred
# thousand similarities take four times the cycles of blocks of a million; larger ones exceed the
# memory of the chip.
_TPU = _GPU._replace(platform="tpu", models_bytes=8 * 2**20, model_bytes=None, similarities=2**20)

# Part of the key of JAX's caches, so that functions are traced separately for every target.
_chosen = jax.make_user_context(None)


def current() -> Target:
    """Returns the target of the function being traced, by default the default device.

    Examples:
        >>> current().platform == jax.default_backend()
        True
    """
    return _chosen.value or _target(jax.default_backend(), jax.local_device_count())


# `lax.platform_dependent` would trace every alternative.
def tracing_for(platform: Platform, devices: int = 1) -> AbstractContextManager[None]:
    """Traces functions of this thread for a kind of device in a ``with`` block, available or not.

    A call still runs on the usual device; ``lower`` specifies the device to compile for.

    Args:
        platform: "cpu", "gpu" or "tpu".
        devices: Number of devices of this process, >= 1. On a CPU, more means one per core.

    Examples:
        >>> import jax.numpy as jnp
        >>> with tracing_for("tpu"):
        ...     traced = jax.jit(lambda x: x + 1).trace(jnp.zeros(3))
        ...     print(current().platform)
        tpu
        >>> "stablehlo.add" in traced.lower(lowering_platforms=("tpu",)).as_text()
        True
    """
    checks.one_of("platform", platform, ("cpu", "gpu", "tpu"))
    checks.positive_int("devices", devices)
    return _chosen(_target(platform, devices))


def _target(platform: str, devices: int) -> Target:
    cpu = _CPU if devices == 1 else _CORE
    return {"cpu": cpu, "tpu": _TPU}.get(platform, _GPU)
