"""How much travels between the server and its clients."""

from __future__ import annotations

import jax

from fedjax_fair import checks
from fedjax_fair.base import Variables

__all__ = ["bytes_per_round"]


def bytes_per_round(variables: Variables, cohort_size: int) -> int:
    """Bytes that one round of plain federated averaging moves each way.

    Every participant of the cohort receives the global variables and returns an update of the same shape
    and dtype. Shows what model size and cohort size cost; hides what a selector measures
    besides (losses or gradients of more clients), compression, and the protocol around it.

    Args:
        variables: The model, as arrays or as ``jax.ShapeDtypeStruct`` from ``jax.eval_shape``.
        cohort_size: Clients per round; one selected twice counts twice.

    Returns:
        An exact Python integer, which no number of rounds can overflow: bytes from clients to the
        server, and as many from the server to clients.

    Raises:
        ValueError: If ``cohort_size`` is not a positive integer.

    Examples:
        >>> import jax.numpy as jnp
        >>> variables = Variables(params={"kernel": jnp.zeros((10, 5))}, state={})
        >>> bytes_per_round(variables, cohort_size=3)
        600
    """
    checks.positive_int("cohort_size", cohort_size)
    model = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(variables))
    return int(cohort_size) * model
