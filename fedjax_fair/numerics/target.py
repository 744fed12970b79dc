"""The kind of device that programs are traced for, and the sizes that suit it.

Much is decided while a function is traced: in which form a layer is computed, how many clients go
side by side, how many examples at once. All of that is read here, so that a program can be traced
for another device than the one at hand, `tracing_for`, and compiled for it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Literal, NamedTuple

import jax

from fedjax_fair import checks

__all__ = ["Platform", "Target", "current", "tracing_for"]

Platform = Literal["cpu", "gpu", "tpu"]


class Target(NamedTuple):
    """A kind of device, and how much work at once suits it.

    Attributes:
        platform: "cpu", "gpu" or "tpu".
        flat_images: Images in a chunk of a pass over the examples of all clients.
        flat_vectors: The same for examples with one axis.
        client_examples: Examples of one client in a chunk, at most.
        clients_measured: Clients measured side by side, or None if they follow each other.
        clients_trained: Clients training side by side, at most; None for any number.
        models_bytes: Bytes of their models, at most; None for any number.
        model_bytes: Bytes of one of them, at most; clients with a larger one train one by one.
            None for any number.
        similarities: Between points and items that are computed together where there are too many
            to be kept; None for those of 128 points.
    """

    platform: Platform
    flat_images: int
    flat_vectors: int
    client_examples: int
    clients_measured: int | None
    clients_trained: int | None
    models_bytes: int | None
    model_bytes: int | None
    similarities: int | None

    @property
    def is_cpu(self) -> bool:
        """Whether it is a processor, or one of its cores, rather than an accelerator."""
        return self.platform == "cpu"


# Chunks have enough examples for full speed, and few enough for activations to stay in the cache,
# which convolutions fill with fewer. As for training: with two cores as one device, ten LeNets or
# MLPs of 200,000 parameters side by side are as fast as one after the other or up to a quarter
# faster; ResNet-18, of which one fills the cache, does not gain.
_CPU = Target(
    platform="cpu",
    flat_images=50,
    flat_vectors=250,
    client_examples=200,
    clients_measured=None,
    clients_trained=16,
    models_bytes=8 * 2**20,
    model_bytes=None,
    similarities=None,
)
# A core that is a device of its own has a smaller cache, and only the smallest networks gain from
# training side by side, whose operations are done sooner than started.
_CORE = _CPU._replace(client_examples=50, models_bytes=2**18)
_GPU = Target(
    platform="gpu",
    flat_images=2000,
    flat_vectors=2000,
    client_examples=512,
    clients_measured=16,
    clients_trained=None,
    models_bytes=None,
    # By the bytes that an H200 moves and the kernels that it starts, ResNet-18 (43 MiB) takes 1.4
    # times as long with four clients side by side, whose wide convolutions follow each other within
    # each layer; networks of up to 6 MiB half as long with the whole cohort.
    model_bytes=16 * 2**20,
    # With a pool of 1,000 among a million points, as many as fill a TPU make six kernels of a
    # microsecond for each block, which take three times as long as what they compute.
    similarities=2**23,
)
# LeNet and an MLP gain from going side by side, larger networks lose: by the cycles of a round, one
# of 6 MiB costs twice as much five side by side as one by one, ResNet-18 six times with four. With
# blocks of a hundred thousand similarities a choice takes four times the cycles of those of a
# million; still larger ones leave the memory of the chip.
_TPU = _GPU._replace(platform="tpu", models_bytes=8 * 2**20, model_bytes=None, similarities=2**20)

# Part of the key of JAX's caches: what was traced for one target is not taken for another.
_chosen = jax.make_user_context(None)


def current() -> Target:
    """The target of the program that is being traced: by default the default device.

    Examples:
        >>> current().platform == jax.default_backend()
        True
    """
    if _chosen.value is not None:
        return _chosen.value
    return _target(jax.default_backend(), jax.local_device_count())


def tracing_for(platform: Platform, devices: int = 1) -> AbstractContextManager[None]:
    """Traces programs for a kind of device, at hand or not, within a ``with`` block.

    Only what is decided while tracing changes. Which device a program is compiled for is up to
    ``lower``, and one that is called runs where it otherwise would, in the forms of the target.

    Args:
        platform: "cpu", "gpu" or "tpu".
        devices: Of this process. On a CPU more than one means a device for each core.

    Returns:
        A context manager, for this thread.

    Raises:
        ValueError: If ``platform`` is another word, or ``devices`` is not a positive integer.

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
    if platform == "cpu":
        return _CPU if devices == 1 else _CORE
    return _TPU if platform == "tpu" else _GPU
