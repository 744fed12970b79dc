"""Clients whose results do not arrive."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedjax_fair import checks
from fedjax_fair.base import Faults, Number

__all__ = ["dropout"]


def dropout(
    probability: Number | Float[Array | np.ndarray, " clients"] | Sequence[float],
) -> Faults:
    """Members drop out after they were chosen, independently in every round.

    They have received the model, and train, but nothing of it arrives.

    Args:
        probability: How likely, in ``[0, 1]``, or one number for each client, ``[clients]``; may be
            traced.

    Returns:
        ``Faults``.

    Raises:
        ValueError: If a probability is out of range.

    Examples:
        >>> unreliable = dropout(0.1)
        >>> some_worse = dropout([0.0, 0.1, 0.5])
    """
    checks.probability("probability", probability, many=True)
    each = jnp.asarray(probability, jnp.float32)

    def answers(key, member):
        return jax.random.uniform(key) >= (each if each.ndim == 0 else each[member.client])

    return Faults(answers=answers)
