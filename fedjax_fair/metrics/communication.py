"""Communication cost of a round."""

from __future__ import annotations

from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.roles import Variables
from fedjax_fair.utils import checks

__all__ = ["bytes_per_round"]


def bytes_per_round(variables: Variables, cohort_size: int) -> int:
    """Computes the bytes that a round of federated averaging moves in each direction.

    Use: the cost of model size and cohort size. Limitation: excludes compression, protocol
    overhead, and losses or gradients that a selector requests.

    Args:
        variables: The model, as arrays or as ``jax.ShapeDtypeStruct``.
        cohort_size: Participants per round, positive, counted with repetitions.

    Returns:
        Bytes from clients to the server, and as many back, as an exact Python integer.

    Examples:
        >>> import numpy as np
        >>> variables = Variables({"kernel": np.zeros((10, 5), np.float32)}, {})
        >>> bytes_per_round(variables, cohort_size=3)
        600
    """
    checks.positive_int("cohort_size", cohort_size)
    model = tree_bytes(variables)
    return int(cohort_size) * model
