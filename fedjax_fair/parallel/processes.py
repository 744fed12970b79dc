"""Several processes, on one or more hosts, that make the same runs together."""

from __future__ import annotations

import os
from collections.abc import Callable

import jax
import numpy as np

__all__ = ["abort", "broadcast_from_main", "initialize", "is_main_process"]

_HEARTBEAT_TIMEOUT_S = 30  # A process that is silent for longer counts as dead.
_MAX_MESSAGE_BYTES = 4096


def initialize() -> None:
    """Connects to the other processes; call it before anything else uses a device of JAX.

    JAX finds them on Slurm, Kubernetes, Open MPI and TPU pods. Elsewhere set
    ``JAX_COORDINATOR_ADDRESS`` (host and port of the first one), ``JAX_NUM_PROCESSES`` and
    ``JAX_PROCESS_ID``. If one dies, the others end within a minute.

    Raises:
        ValueError: If neither the platform nor the environment names the other processes.
    """
    # Otherwise JAX would handle SIGTERM, and the process would continue.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            num_processes=_from_environment("JAX_NUM_PROCESSES"),
            process_id=_from_environment("JAX_PROCESS_ID"),
            heartbeat_timeout_seconds=_HEARTBEAT_TIMEOUT_S,
        )
    except ValueError as error:
        raise ValueError(
            "distributed=True: expected Slurm, Kubernetes, Open MPI, a TPU pod, or "
            f"JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID ({error})"
        ) from None


def _from_environment(name: str) -> int | None:
    return int(os.environ[name]) if name in os.environ else None


def abort(status: int) -> None:
    """Ends this process after an error if there are others, which would wait for it."""
    if jax.distributed.is_initialized():
        os._exit(status)


def is_main_process() -> bool:
    """Returns whether this process writes files and prints."""
    return jax.process_index() == 0


def to_host(array: jax.Array) -> np.ndarray:
    """Returns the values of an array of which each process may have a part, in all processes."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def broadcast_from_main(make: Callable[[], str]) -> str:
    """Calls a function in the main process and returns its string in all processes."""
    if jax.process_count() == 1:
        return make()
    from jax.experimental import multihost_utils

    text = make() if is_main_process() else ""
    message = np.frombuffer(text.encode().ljust(_MAX_MESSAGE_BYTES, b"\0"), np.uint8)
    return bytes(multihost_utils.broadcast_one_to_all(message)).rstrip(b"\0").decode()
