"""Clients whose results do not arrive."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from fedjax_fair.roles import Faults, Number, setting
from fedjax_fair.utils import checks

__all__ = ["Dropout"]


class Dropout(Faults):
    """Results of random participants do not arrive, independently in every round.

    Args:
        probability: Probability in ``[0, 1]``, or one for each client, ``[clients]``.

    Raises:
        ValueError: If a probability is out of range, or (before training, or when a round is
            traced) there is not one for each client.

    Examples:
        >>> unreliable = Dropout(0.1)
        >>> some_worse = Dropout([0.0, 0.1, 0.5])
    """

    probability: Number | Float[Array | np.ndarray, " clients"] | Sequence[float] = setting(
        checks.probability, many=True
    )

    def __post_init__(self):
        if not isinstance(self.probability, Tracer) and np.ndim(self.probability):
            # A JAX array would initialize devices before processes are connected.
            self._convert(probability=np.asarray(self.probability, np.float32))

    def check(self, num_clients):
        if (shape := np.shape(self.probability)) not in ((), (num_clients,)):
            raise ValueError(
                f"probability of shape {list(shape)}: expected a scalar or [{num_clients}], the "
                "number of clients; pass one probability, or one per client."
            )

    def responds(self, key, context):
        self.check(context.num_clients)
        probability = jnp.asarray(self.probability, jnp.float32)
        if probability.ndim:
            probability = probability[context.client]
        return jax.random.uniform(key) >= probability
