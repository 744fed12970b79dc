r"""From a fractional point of a matroid polytope to a set.

Swap rounding and randomized pipage select every item with its probability, and for a submodular
function :math:`E[f(S)] \geq \hat f(x)`. Neither evaluates the function, so the server needs no
messages. Swap rounding starts from a point written as a mean of bases, which ``decompose`` finds
from the point alone, without the bases of the clients. A point that is short of a base is filled
up: no item becomes less likely, so that for a monotone function nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, Key
from numpy.typing import ArrayLike

from fedjax_fair.submodular.arrays import as_non_negative
from fedjax_fair.submodular.decomposition import TOLERANCE, Decomposition, decompose
from fedjax_fair.submodular.matroids import Matroid

__all__ = ["Decomposition", "decompose", "deterministic_pipage", "greedy", "pipage", "swap"]


def swap(
    key: Key[Array, ""], matroid: Matroid, x: ArrayLike | Decomposition
) -> Bool[Array, " size"]:
    """A random base that contains every item with its probability: swap rounding.

    Of a point short of a base, with at least its probability (``decompose``). Bases are merged two
    at a time, item by item: in one of the two an item is exchanged for an item of the other, with a
    probability in proportion to the weight of the other.

    Args:
        key: Random key.
        matroid: Any matroid.
        x: A point in its polytope, ``[size]``, or its decomposition, which can be reused for other
            keys, and traced.

    Raises:
        ValueError: If the point is outside of the polytope.

    References:
        Chekuri, Vondrak, Zenklusen, *Dependent Randomized Rounding via Exchange Properties of
        Combinatorial Structures*, FOCS 2010

    Examples:
        >>> from fedjax_fair.submodular import matroids
        >>> chosen = swap(jax.random.key(0), matroids.uniform(2, 4), [0.5, 0.5, 1.0, 0.0])
        >>> int(chosen.sum()), bool(chosen[2]), bool(chosen[3])
        (2, True, False)
    """
    bases, weights = x if isinstance(x, Decomposition) else decompose(matroid, x)

    def exchange(share, merging):
        """One item of ``base`` against one of ``other``, after which they differ in fewer."""
        key, base, other = merging
        key, key_coin = jax.random.split(key)
        item = jnp.argmax(base & ~other)
        partner = jnp.argmax(matroid.exchangeable(base, other, item))
        stays = jax.random.uniform(key_coin) < share
        new_base = base.at[item].set(stays).at[partner].set(~stays)
        new_other = other.at[item].set(stays).at[partner].set(~stays)
        return key, jnp.where(stays, base, new_base), jnp.where(stays, new_other, other)

    def merge(carry, other):
        merged, weight, key = carry
        base, own = other
        key, key_merge = jax.random.split(key)
        step = partial(exchange, weight / (weight + own))
        _, merged, _ = jax.lax.while_loop(
            lambda merging: (merging[1] != merging[2]).any(), step, (key_merge, merged, base)
        )
        return (merged, weight + own, key), None

    (chosen, _, _), _ = jax.lax.scan(merge, (bases[0], weights[0], key), (bases[1:], weights[1:]))
    return chosen


def pipage(key: Key[Array, ""], matroid: Matroid, x: ArrayLike) -> Bool[Array, " size"]:
    """A random base that contains every item with its probability: randomized pipage.

    Probability moves between two fractional items of a block until one of them is 0 or 1. A block
    that sums to less than its capacity is filled up before, largest items first, each to at most 1.

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
        >>> chosen = pipage(jax.random.key(0), matroids.uniform(2, 4), [0.5, 0.5, 1.0, 0.0])
        >>> int(chosen.sum()), bool(chosen[2]), bool(chosen[3])
        (2, True, False)
    """

    def at_random(step, x, up, down):
        # The shorter shift is the more likely one, so that the expectation does not change.
        chance = _shift_down(x, up, down) / jnp.maximum(
            _shift_up(x, up, down) + _shift_down(x, up, down), TOLERANCE**2
        )
        return jax.random.uniform(jax.random.fold_in(key, step)) < chance

    return _pipage(matroid, x, at_random)


def deterministic_pipage(
    matroid: Matroid,
    x: ArrayLike,
    extension: Callable[[Float[Array, " size"]], Float[Array, ""]],
) -> Bool[Array, " size"]:
    """A base of at least the value of the point: pipage, always to the better end.

    Where the point is short of a base, this is so for a monotone function.

    Args:
        matroid: Uniform or a partition.
        x: A point in its polytope, ``[size]``; may be traced.
        extension: Exact multilinear extension of the function maximized, which the server has to
            know; evaluated twice an item.

    Raises:
        ValueError: If the matroid has no blocks, or the point is outside of the polytope.

    Examples:
        >>> from fedjax_fair.submodular import matroids
        >>> offers = jnp.array([3.0, 1.0, 2.0])
        >>> deterministic_pipage(matroids.uniform(1, 3), [0.3, 0.3, 0.4], lambda x: offers @ x)
        Array([ True, False, False], dtype=bool)
    """

    def better(step, x, up, down):
        raised = _moved(x, up, down, _shift_up(x, up, down))
        lowered = _moved(x, up, down, -_shift_down(x, up, down))
        return extension(raised) >= extension(lowered)

    return _pipage(matroid, x, better)


def greedy(matroid: Matroid, x: ArrayLike) -> Bool[Array, " size"]:
    """The base of the largest coordinates; usually good, without a guarantee.

    Examples:
        >>> from fedjax_fair.submodular import matroids
        >>> greedy(matroids.uniform(1, 3), [0.3, 0.3, 0.4]).tolist()
        [False, False, True]
    """
    return matroid.max_weight_base(_as_point(matroid, x))


def _pipage(matroid: Matroid, x: ArrayLike, goes_up: Callable) -> Bool[Array, " size"]:
    """Goes through the blocks, with at most one fractional item left behind at a time."""
    if matroid.blocks is None:
        raise ValueError(f"matroid: expected uniform or partition, got {matroid.name}.")
    blocks = jnp.asarray(matroid.blocks, jnp.int32)
    point = _as_point(matroid, x)
    if not isinstance(point, Tracer):
        with jax.ensure_compile_time_eval():
            short = np.asarray(_missing(matroid, point))
        if short.min() < -100 * TOLERANCE:
            raise ValueError(
                f"x: expected a point of the {matroid.name} polytope, but block {short.argmin()} "
                f"sums to {-short.min():.2g} more than its capacity."
            )
    point = _filled(blocks, _missing(matroid, point), point)
    items = jnp.asarray(np.argsort(matroid.blocks, kind="stable"), jnp.int32)

    def fractional(value):
        return (value > 0) & (value < 1)

    def step(carry, number):
        x, open_item = carry
        item = items[number]
        pair = (blocks[item] == blocks[open_item]) & (item != open_item)
        pair = pair & fractional(x[item]) & fractional(x[open_item])
        up = goes_up(number, x, item, open_item)
        shift = jnp.where(up, _shift_up(x, item, open_item), -_shift_down(x, item, open_item))
        # Rounding errors must not leave an item nearly 0 or 1, which would stay fractional.
        moved = _settled(_moved(x, item, open_item, shift), item, open_item)
        x = jnp.where(pair, moved, x)
        stays = (blocks[item] == blocks[open_item]) & fractional(x[open_item])
        return (x, jnp.where(stays, open_item, item)), None

    (x, _), _ = jax.lax.scan(step, (point, items[0]), jnp.arange(matroid.size, dtype=jnp.int32))
    return matroid.max_weight_base(x)


def _missing(matroid: Matroid, x: Float[Array, " size"]) -> Float[Array, " blocks"]:
    """What each block of the point is short of its capacity."""
    assert matroid.blocks is not None
    num_blocks = int(matroid.blocks.max()) + 1

    def per_block(numbers):
        return jax.ops.segment_sum(numbers, jnp.asarray(matroid.blocks, jnp.int32), num_blocks)

    # All bases have as many items of a block.
    return per_block(matroid.max_weight_base(x).astype(x.dtype)) - per_block(x)


def _filled(
    blocks: Int[Array, " size"], short: Float[Array, " blocks"], x: Float[Array, " size"]
) -> Float[Array, " size"]:
    """The point with every block filled up to its capacity, largest items first."""

    def fill(carry, item):
        x, short = carry
        missing = jnp.maximum(short[blocks[item]], 0)
        full = missing >= 1 - x[item]
        raised = jnp.where(full, 1.0, x[item] + missing)
        short = short.at[blocks[item]].add(x[item] - raised)
        return (x.at[item].set(raised), short), None

    largest_first = jnp.argsort(-x, stable=True).astype(jnp.int32)
    return jax.lax.scan(fill, (x, short), largest_first)[0][0]


def _shift_up(x: Float[Array, " size"], up: Int[Array, ""], down: Int[Array, ""]):
    return jnp.minimum(1 - x[up], x[down])


def _shift_down(x: Float[Array, " size"], up: Int[Array, ""], down: Int[Array, ""]):
    return jnp.minimum(x[up], 1 - x[down])


def _moved(x, up, down, shift):
    return x.at[up].add(shift).at[down].add(-shift)


def _settled(x, *items):
    for item in items:
        x = x.at[item].set(jnp.where(jnp.abs(x[item] - jnp.round(x[item])) < 1e-6,
                                     jnp.round(x[item]), x[item]))  # fmt: skip
    return x


def _as_point(matroid: Matroid, x: ArrayLike) -> Float[Array, " size"]:
    point = as_non_negative("x", x, "size")
    if point.shape != (matroid.size,):
        raise ValueError(f"x: expected shape ({matroid.size},), got {point.shape}.")
    if isinstance(point, Tracer):
        return jnp.minimum(point, 1.0)
    with jax.ensure_compile_time_eval():
        if not (largest := float(jnp.max(point))) <= 1 + TOLERANCE:
            raise ValueError(f"x: expected numbers in [0, 1], got {largest}.")
        return jnp.minimum(point, 1.0)
