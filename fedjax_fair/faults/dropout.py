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

__all__ = ["Dropout"]


class Dropout(Faults):
    """Participants drop out after they were chosen, independently in every round.

    They have received the model, and train, but nothing of it arrives.

    Args:
        probability: How likely, in ``[0, 1]``, or one number for each client, ``[clients]``.

    Raises:
        ValueError: If a probability is out of range.

    Examples:
        >>> unreliable = Dropout(0.1)
        >>> some_worse = Dropout([0.0, 0.1, 0.5])
    """

    probability: Number | Float[Array | np.ndarray, " clients"] | Sequence[float]

    def __post_init__(self):
        checks.probability("probability", self.probability, many=True)
        if not isinstance(self.probability, Tracer) and np.ndim(self.probability):
            # NumPy, because JAX would start its devices before processes have found each other.
            self._convert(probability=np.asarray(self.probability, np.float32))

    def responds(self, key, context):
        likely = jnp.asarray(self.probability, jnp.float32)
        return jax.random.uniform(key) >= (likely if likely.ndim == 0 else likely[context.client])
