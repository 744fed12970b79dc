r"""Rounding of a fractional point of a matroid polytope to a set.

Swap rounding and randomized pipage select every item with its probability, and for a submodular
function :math:`E[f(S)] \geq \hat f(x)`. A point that is short of a base is filled up, so that no
item becomes less likely.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, Key
from numpy.typing import ArrayLike

from fedjax_fair.submodular.checked_arrays import as_non_negative, as_partial, check_key, is_traced
from fedjax_fair.submodular.decomposition import TOLERANCE, Decomposition, decompose, padded
from fedjax_fair.submodular.matroids import Matroid, heaviest_base
from fedjax_fair.utils import checks

__all__ = ["Decomposition", "decompose", "deterministic_pipage", "greedy", "pipage", "swap"]


def swap(
    key: Key[Array, ""], matroid: Matroid, x: ArrayLike | Decomposition
) -> Bool[Array, " size"]:
    """Returns a random base that contains every item with its probability: swap rounding.

    Bases are merged two at a time: an item of one is exchanged for an item of the other, with a
    probability in proportion to the weight of the other.

    Args:
        key: Random key.
        matroid: Any matroid.
        x: A point in its polytope, ``[size]``, or its `decompose`, which can be reused and traced.

    Raises:
        ValueError: If the point is outside of the polytope.

    References:
        Chekuri, Vondrak, Zenklusen, *Dependent Randomized Rounding via Exchange Properties of
        Combinatorial Structures*, FOCS 2010

    Examples:
        >>> from fedjax_fair.submodular import matroids
        >>> chosen = swap(jax.random.key(0), matroids.Uniform(2, 4), [0.5, 0.5, 1.0, 0.0])
        >>> sum(chosen.tolist()), chosen.tolist()[2:]
        (2, [True, False])
    """
    check_key(key)
    bases, weights = x if isinstance(x, Decomposition) else decompose(matroid, x)
    count = np.int32(bases.shape[0])
    if not is_traced((bases, weights)):
        bases, weights = padded(np.asarray(bases)), padded(np.asarray(weights))
    return _swap(key, matroid, bases, weights, count)


@jax.jit
def _swap(key, matroid, bases, weights, count) -> Bool[Array, " size"]:
    """Merges the first ``count`` bases."""

    def exchange(share, merging):
        """Exchanges an item of ``base`` and one of ``other``, so that they differ in fewer."""
        key, base, other = merging
        key, key_coin = jax.random.split(key)
        item = jnp.argmax(base & ~other)
        partner = jnp.argmax(matroid.exchangeable(base, other, item))
        stays = jax.random.uniform(key_coin) < share
        new_base = base.at[item].set(stays).at[partner].set(~stays)
        new_other = other.at[item].set(stays).at[partner].set(~stays)
        return key, jnp.where(stays, base, new_base), jnp.where(stays, new_other, other)

    def merge(i, carry):
        merged, total, key = carry
        base, weight = bases[i], weights[i]
        key, key_merge = jax.random.split(key)
        step = partial(exchange, total / (total + weight))
        _, merged, _ = jax.lax.while_loop(
            lambda merging: (merging[1] != merging[2]).any(), step, (key_merge, merged, base)
        )
        return merged, total + weight, key

    return jax.lax.fori_loop(1, count, merge, (bases[0], weights[0], key))[0]


def pipage(key: Key[Array, ""], matroid: Matroid, x: ArrayLike) -> Bool[Array, " size"]:
    """Returns a random base that contains every item with its probability: randomized pipage.

    Probability moves between two fractional items of a block until one of them is 0 or 1.

    Args:
        key: Random key.
        matroid: Uniform or a partition.
        x: A point in its polytope, ``[size]``; may be traced.

    Raises:
        ValueError: If the matroid has no blocks, or the point is outside of the polytope.

    References:
        Calinescu, Chekuri, Pal, Vondrak, *Maximizing a Monotone Submodular Function Subject to a
        Matroid Constraint*, SIAM Journal on Computing, 2011

    Examples:
        >>> from fedjax_fair.submodular import matroids
        >>> chosen = pipage(jax.random.key(0), matroids.Uniform(2, 4), [0.5, 0.5, 1.0, 0.0])
        >>> sum(chosen.tolist()), chosen.tolist()[2:]
        (2, [True, False])
    """
    check_key(key)
    return _pipage(matroid, _as_block_point(matroid, x), Partial(_up_at_random, key))


def _up_at_random(key, step, x, up, down):
    # The shorter shift is the more likely one, so that the expectation does not change.
    raise_by, lower_by = _shifts(x, up, down)
    chance = lower_by / jnp.maximum(raise_by + lower_by, TOLERANCE**2)
    return jax.random.uniform(jax.random.fold_in(key, step)) < chance


def deterministic_pipage(
    matroid: Matroid,
    x: ArrayLike,
    extension: Callable[[Float[Array, " size"]], Float[Array, ""]],
) -> Bool[Array, " size"]:
    """Returns a base of at least the value of the point: pipage, always in the better direction.

    If the point is short of a base, this holds for a monotone function.

    Args:
        matroid: As for `pipage`.
        x: As for `pipage`.
        extension: Exact multilinear extension, evaluated twice for each item. A
            ``jax.tree_util.Partial`` does not compile again.

    Examples:
        >>> from fedjax_fair.submodular import matroids
        >>> offers = jnp.array([3.0, 1.0, 2.0])
        >>> deterministic_pipage(matroids.Uniform(1, 3), [0.3, 0.3, 0.4], lambda x: offers @ x)
        Array([ True, False, False], dtype=bool)
    """
    point = _as_block_point(matroid, x)
    return _pipage(matroid, point, Partial(_up_if_better, as_partial(extension)))


def _up_if_better(extension, step, x, up, down):
    raise_by, lower_by = _shifts(x, up, down)
    return extension(_moved(x, up, down, raise_by)) >= extension(_moved(x, up, down, -lower_by))


def greedy(matroid: Matroid, x: ArrayLike) -> Bool[Array, " size"]:
    """Returns the base of the largest coordinates; usually good, without a guarantee.

    Examples:
        >>> from fedjax_fair.submodular import matroids
        >>> greedy(matroids.Uniform(1, 3), [0.3, 0.3, 0.4]).tolist()
        [False, False, True]
    """
    return heaviest_base(matroid, _as_point(matroid, x))


@jax.jit
def _pipage(matroid, point, goes_up) -> Bool[Array, " size"]:
    """Visits the items block by block; at most one visited item is fractional at a time."""
    blocks = jnp.asarray(matroid.item_blocks, jnp.int32)
    point = _filled(blocks, _missing(matroid, point), point)
    items = jnp.argsort(blocks, stable=True).astype(jnp.int32)

    def fractional(value):
        return (value > 0) & (value < 1)

    def step(carry, number):
        x, open_item = carry
        item = items[number]
        pair = (blocks[item] == blocks[open_item]) & (item != open_item)
        pair = pair & fractional(x[item]) & fractional(x[open_item])
        raise_by, lower_by = _shifts(x, item, open_item)
        up = goes_up(number, x, item, open_item)
        moved = _moved(x, item, open_item, jnp.where(up, raise_by, -lower_by))
        # Rounding errors must not leave an item nearly 0 or 1, which would stay fractional.
        x = jnp.where(pair, _settled(_settled(moved, item), open_item), x)
        stays = (blocks[item] == blocks[open_item]) & fractional(x[open_item])
        return (x, jnp.where(stays, open_item, item)), None

    (x, _), _ = jax.lax.scan(step, (point, items[0]), jnp.arange(matroid.size, dtype=jnp.int32))
    return matroid.max_weight_base(x)


@jax.jit
def _missing(matroid: Matroid, x: Float[Array, " size"]) -> Float[Array, " blocks"]:
    """Returns the capacity of each block minus the sum of the point."""
    blocks = jnp.asarray(matroid.item_blocks, jnp.int32)
    # All bases have the same number of items in a block.
    base = matroid.max_weight_base(x).astype(x.dtype)
    taken, total = (jax.ops.segment_sum(y, blocks, matroid.num_blocks) for y in (base, x))
    return taken - total


def _filled(blocks, short, x):
    """Returns the point with every block filled up to its capacity, largest items first."""

    def fill(carry, item):
        x, short = carry
        missing = jnp.maximum(short[blocks[item]], 0)
        full = missing >= 1 - x[item]
        raised = jnp.where(full, 1.0, x[item] + missing)
        short = short.at[blocks[item]].add(x[item] - raised)
        return (x.at[item].set(raised), short), None

    largest_first = jnp.argsort(-x, stable=True).astype(jnp.int32)
    return jax.lax.scan(fill, (x, short), largest_first)[0][0]


def _shifts(x, up, down):
    """Returns by how much ``up`` can be raised against ``down``, and by how much lowered."""
    return jnp.minimum(1 - x[up], x[down]), jnp.minimum(x[up], 1 - x[down])


def _moved(x, up, down, shift):
    return x.at[up].add(shift).at[down].add(-shift)


def _settled(x, item):
    nearest = jnp.round(x[item])
    return x.at[item].set(jnp.where(jnp.abs(x[item] - nearest) < 1e-6, nearest, x[item]))


def _as_block_point(matroid: Matroid, x: ArrayLike) -> Float[Array, " size"]:
    """Returns a point, checked to be in the polytope of a matroid with blocks."""
    point = _as_point(matroid, x)
    if matroid.item_blocks is None:
        raise ValueError(
            f"matroid: expected Uniform or Partition, got {type(matroid).__name__}; use "
            "rounding.swap for another matroid."
        )
    if not is_traced((point, matroid)):
        with jax.ensure_compile_time_eval():
            short = np.asarray(_missing(matroid, point))
        if short.min() < -100 * TOLERANCE:
            raise ValueError(
                f"x: expected a point of the polytope of a {type(matroid).__name__} matroid, but "
                f"block {short.argmin()} sums to {-short.min():.2g} more than its capacity; scale "
                "x down."
            )
    return point


def _as_point(matroid: Matroid, x: ArrayLike) -> Float[Array, " size"]:
    checks.instance("matroid", matroid, Matroid, "matroids.Uniform(k, num_items)")
    point = as_non_negative("x", x, "size")
    if point.shape != (matroid.size,):
        raise ValueError(
            f"x: expected shape ({matroid.size},), got {point.shape}; pass one number per item."
        )
    if isinstance(point, Tracer):
        return jnp.minimum(point, 1.0)
    with jax.ensure_compile_time_eval():
        if not (largest := float(jnp.max(point))) <= 1 + TOLERANCE:
            raise ValueError(f"x: expected numbers in [0, 1], got {largest}; clip rounding errors.")
        return jnp.minimum(point, 1.0)
