"""Matrix products in full precision on every device.

Unless a precision is set, a TPU rounds float32 to bfloat16 before it multiplies matrices, and a
recent GPU to TF32. Networks use this default. For computations on clients it is too inaccurate:
weights would not sum to one, and distances between near neighbors would be noise.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Shaped

__all__ = ["product", "weighted_total"]

_FULL = jax.lax.Precision.HIGHEST


def product(a: ArrayLike, b: ArrayLike) -> Shaped[Array, "..."]:
    """Returns ``jnp.matmul(a, b)`` in full precision.

    Examples:
        >>> product(jnp.array([0.1, 0.9]), jnp.array([1.0, 1.0])).item()
        1.0
    """
    return jnp.matmul(a, b, precision=_FULL)


def weighted_total(
    weights: Shaped[Array, " *ids"], values: Shaped[Array, "*ids ..."]
) -> Shaped[Array, "..."]:
    """Returns the weighted sum of values, in the type of the values.

    Args:
        weights: One per value; a scalar multiplies a single value.
        values: Values, with the axes of ``weights`` first.

    Examples:
        >>> weighted_total(jnp.array([0.5, 2.0]), jnp.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
        [6.5, 9.0]
    """
    return jnp.tensordot(weights.astype(values.dtype), values, weights.ndim, precision=_FULL)
