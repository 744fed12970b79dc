"""Modular functions: sums of weights, and the terms of SubTrunc and UnionFL."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree
from numpy.typing import ArrayLike

from fedjax_fair.submodular.checked_arrays import as_finite, as_mask, as_non_negative
from fedjax_fair.submodular.combinators import Scaled, Truncated
from fedjax_fair.submodular.set_function import ArraySetFunction
from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import Integer

__all__ = ["Modular", "truncated_modular", "union_penalty"]


class Modular(ArraySetFunction):
    """The sum of weights over the set; monotone if no weight is negative.

    Args:
        weights: Weight of each item, ``[n]``, finite.

    Examples:
        >>> function = Modular([1.0, 2.0, 4.0])
        >>> float(function.value(jnp.array([True, False, True])))
        5.0
    """

    weights: Float[Array, " n"]

    def __post_init__(self) -> None:
        self._convert(weights=as_finite("weights", self.weights, "n"))

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        return jnp.sum(self.weights, where=mask)

    def init(self) -> PyTree:
        return ()

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return self.weights

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        return memo


def truncated_modular(
    weights: ArrayLike, bound: float | Float[Array, ""], scale: float | Float[Array, ""] = 1.0
) -> Scaled:
    """Returns ``scale * min(bound, sum of weights)``: monotone submodular.

    It is SubTrunc's bonus for clients with high losses (Castillo et al. 2024, equation 12).

    Args:
        weights: Weight of each item, ``[n]``, >= 0.
        bound: Cap of the sum, >= 0.
        scale: Factor, >= 0.

    Examples:
        >>> function = truncated_modular([1.0, 2.0, 4.0], bound=5.5, scale=2.0)
        >>> float(function.value(jnp.array([False, True, True])))
        11.0
    """
    checks.non_negative("bound", bound)
    checks.non_negative("scale", scale)
    return Scaled(Truncated(Modular(as_non_negative("weights", weights, "n")), bound), scale)


def union_penalty(history: ArrayLike, mu: float | Float[Array, ""]) -> Modular:
    r"""Returns ``-mu`` for every item selected at least once in the last rounds.

    UnionFL's :math:`-\mu\,|U_t \cap S|` (Castillo et al. 2024, equation 14).

    Args:
        history: Masks of one or more rounds, ``[window, n]``, or their union, ``[n]``.
        mu: Penalty of an item, >= 0.

    Examples:
        >>> union_penalty([[True, False], [True, True]], mu=0.5).weights.tolist()
        [-0.5, -0.5]
    """
    checks.non_negative("mu", mu)
    masks = as_mask("history", history)
    if masks.ndim not in (1, 2) or 0 in masks.shape:
        raise ValueError(
            f"history: expected shape [window, n] or [n], got {masks.shape}; pass masks of earlier "
            "selections."
        )
    union = masks if masks.ndim == 1 else masks.any(axis=0)
    return Modular(-mu * union.astype(jnp.float32))
