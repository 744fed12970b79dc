"""Clients whose results do not arrive."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
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
    # Not as an array of JAX, which would start its devices before processes have found each other.
    each = probability if isinstance(probability, Tracer) else np.asarray(probability, np.float32)

    def answers(key, member):
        likely = jnp.asarray(each)
        return jax.random.uniform(key) >= (likely if likely.ndim == 0 else likely[member.client])

    return Faults(answers=answers)
