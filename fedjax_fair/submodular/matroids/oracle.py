"""Matroids defined by an independence oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fedjax_fair.submodular.checked_arrays import check_result
from fedjax_fair.submodular.matroids.matroid import MAX_ITEMS, Matroid, check_rank, take_by_weight
from fedjax_fair.utils import checks

__all__ = ["Oracle"]


class Oracle(Matroid):
    """A matroid defined by a function that decides which sets are independent.

    Args:
        oracle: From a mask, ``[size]``, to a boolean, in JAX; the axioms are not checked. A
            function on the host needs ``jax.pure_callback`` with ``vmap_method="sequential"``. A
            base takes ``size`` calls. A ``jax.tree_util.Partial`` is a pytree; any other new
            function object compiles again.
        num_items: Number of items.

    Raises:
        ValueError: If the empty set is not independent, or no other set is.

    Examples:
        >>> Oracle(lambda mask: jnp.sum(mask) <= 1, num_items=3).rank
        1
    """

    oracle: Callable[[Bool[Array, " size"]], Bool[Array, ""]]
    num_items: int
    _rank: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        checks.positive_int("num_items", self.num_items, at_most=MAX_ITEMS)
        check_result("oracle", self.oracle, (), jax.ShapeDtypeStruct((self.num_items,), bool))
        self._convert(_rank=0)
        with jax.ensure_compile_time_eval():
            valid, base = _empty_set_and_base(self)
            if not bool(valid):
                raise ValueError(
                    "oracle: expected the empty set to be independent; return True for a mask of "
                    "zeros."
                )
            self._convert(_rank=check_rank(int(np.sum(base))))

    @property
    def size(self) -> int:
        return self.num_items

    def independent(self, mask: Bool[Array, " size"]) -> Bool[Array, ""]:
        return self.oracle(mask)

    def _take(self, mask: Array, item: Array) -> tuple[Array, Array]:
        grown = mask.at[item].set(True)
        allowed = self.oracle(grown)
        return jnp.where(allowed, grown, mask), allowed

    def feasible_items(self, mask: Bool[Array, " size"]) -> Bool[Array, " size"]:
        items = jnp.arange(self.size, dtype=jnp.int32)
        return ~mask & jax.vmap(lambda item: self._take(mask, item)[1])(items)

    def max_weight_base(self, weights: Float[Array, " size"]) -> Bool[Array, " size"]:
        return take_by_weight(jnp.zeros(self.size, bool), self._take, weights)


@jax.jit
def _empty_set_and_base(matroid: Oracle) -> tuple[Bool[Array, ""], Bool[Array, " size"]]:
    """Returns whether the empty set is independent, and a base."""
    valid = jnp.asarray(matroid.oracle(jnp.zeros(matroid.size, bool)))
    return valid, matroid.max_weight_base(jnp.zeros(matroid.size))
