"""Several processes, on one host or many, that run the same program together."""

from __future__ import annotations

import os
from collections.abc import Callable

import jax
import numpy as np

__all__ = ["first_says", "is_first", "join", "leave"]

_PATIENCE = 30  # Seconds without a sign of life after which a process counts as dead.
_LONGEST = 4096  # Bytes of a message.


def join() -> None:
    """Joins the other processes; before anything else asks JAX for devices.

    On Slurm, Kubernetes, Open MPI and TPU pods, JAX finds the others. Elsewhere the environment
    says who they are: ``JAX_COORDINATOR_ADDRESS`` (host and port of the first),
    ``JAX_NUM_PROCESSES`` and ``JAX_PROCESS_ID``. If one dies, the others end within a minute.

    Raises:
        ValueError: If there is no telling who the others are.
    """
    # Otherwise JAX would take note of a SIGTERM and go on.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            num_processes=_told("JAX_NUM_PROCESSES"),
            process_id=_told("JAX_PROCESS_ID"),
            heartbeat_timeout_seconds=_PATIENCE,
        )
    except ValueError as error:
        raise ValueError(
            "distributed=True: expected Slurm, Kubernetes, Open MPI, a TPU pod, or "
            f"JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID ({error})"
        ) from None


def _told(name: str) -> int | None:
    return int(os.environ[name]) if name in os.environ else None


def leave(status: int) -> None:
    """After an error, ends this process at once if there are others, who would wait for it.

    Their next exchange with it fails, or they miss its signs of life.
    """
    if jax.distributed.is_initialized():
        os._exit(status)


def is_first() -> bool:
    """Whether this is the process that writes files and prints.

    Examples:
        >>> is_first()  # There are no others.
        True
    """
    return jax.process_index() == 0


def first_says(make: Callable[[], str]) -> str:
    """Lets the first process make something, and tells all what came of it.

    Examples:
        >>> first_says(lambda: "runs/today")
        'runs/today'
    """
    if jax.process_count() == 1:
        return make()
    from jax.experimental import multihost_utils

    text = make() if is_first() else ""
    message = np.frombuffer(text.encode().ljust(_LONGEST, b"\0"), np.uint8)
    return bytes(multihost_utils.broadcast_one_to_all(message)).rstrip(b"\0").decode()
