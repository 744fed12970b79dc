"""Properties of trees of arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

__all__ = ["all_finite", "tree_bytes"]


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether no element of a tree of arrays is NaN or infinite.

    Examples:
        >>> bool(all_finite({"a": jnp.ones(2), "b": jnp.array(jnp.inf)}))
        False
    """
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def tree_bytes(tree: PyTree) -> int:
    """Number of bytes of a tree of arrays, or of their shapes.

    Examples:
        >>> tree_bytes({"a": jnp.ones(2), "b": jax.ShapeDtypeStruct((3,), jnp.bfloat16)})
        14
    """
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
