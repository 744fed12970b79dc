"""Whether numbers are finite."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

__all__ = ["all_finite"]


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether no number of a tree of arrays is NaN or infinite.

    Examples:
        >>> bool(all_finite({"a": jnp.ones(2), "b": jnp.array(jnp.inf)}))
        False
    """
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))
