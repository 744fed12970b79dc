"""Properties of trees of arrays."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from fedjax_fair.utils.tree import Number

__all__ = ["all_finite", "keep_finite", "scale_tree", "tree_bytes"]


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Returns whether no element of a tree of arrays is NaN or infinite.

    Examples:
        >>> bool(all_finite({"a": jnp.ones(2), "b": jnp.array(jnp.inf)}))
        False
    """
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def keep_finite(new: PyTree, old: PyTree, update: PyTree = ()) -> PyTree:
    """Returns a new state, or the old one if the new one or the update is not finite.

    A round does not apply an update that is not finite, but a state would stay so forever.
    """
    return jax.tree.map(partial(jnp.where, all_finite((new, update))), new, old)


def scale_tree(tree: PyTree, factor: Number) -> PyTree:
    """Multiplies a tree of arrays by a scalar, and keeps the types of the arrays.

    Examples:
        >>> scale_tree({"a": jnp.ones(2, jnp.bfloat16)}, jnp.float32(0.5))
        {'a': Array([0.5, 0.5], dtype=bfloat16)}
    """
    return jax.tree.map(lambda leaf: jnp.asarray(factor, leaf.dtype) * leaf, tree)


def tree_bytes(tree: PyTree) -> int:
    """Returns the number of bytes of a tree of arrays, or of their shapes.

    Examples:
        >>> tree_bytes({"a": jnp.ones(2), "b": jax.ShapeDtypeStruct((3,), jnp.bfloat16)})
        14
    """
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
