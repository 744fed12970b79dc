"""Coverage functions: weighted, probabilistic, saturated, and concave over sums of features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree
from numpy.typing import ArrayLike

from fedjax_fair.numerics.products import product
from fedjax_fair.submodular.checked_arrays import (
    as_mask,
    as_non_negative,
    as_probabilities,
    check_result,
)
from fedjax_fair.submodular.set_function import ArraySetFunction
from fedjax_fair.submodular.sparse import as_sparse, is_sparse
from fedjax_fair.submodular.sparse_functions import SparseSaturatedCoverage
from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import Integer, Number, setting

__all__ = [
    "Concave",
    "Coverage",
    "FeatureBased",
    "ProbabilisticCoverage",
    "SaturatedCoverage",
    "saturated_coverage",
]

Concave = Callable[[Float[Array, "..."]], Float[Array, "..."]]


def _sqrt_increase(sums: Array, amounts: Array) -> Array:
    roots = jnp.sqrt(sums) + jnp.sqrt(sums + amounts)
    return jnp.where(roots > 0, amounts / jnp.where(roots > 0, roots, 1), 0)


# ``concave(sums + amounts) - concave(sums)`` without a difference, which would be mostly rounding
# where the sums are large.
_INCREASES = {
    "sqrt": _sqrt_increase,
    "log1p": lambda sums, amounts: jnp.log1p(amounts / (1 + sums)),
}


class Coverage(ArraySetFunction):
    """The weight of all topics that an item of the set covers: monotone submodular.

    Args:
        membership: Whether each item covers each topic, ``[items, topics]``.
        weights: Weight of each topic, ``[topics]``, >= 0; by default 1.

    Examples:
        >>> function = Coverage([[1, 1, 0], [0, 1, 1]])
        >>> function.gains(function.add(function.init(), 0)).tolist()
        [0.0, 1.0]
    """

    _item_axis = -2

    membership: Bool[Array, "items topics"]
    weights: Float[Array, " topics"] | None = None

    def __post_init__(self) -> None:
        covers = as_mask("membership", self.membership)
        if covers.ndim != 2 or 0 in covers.shape:
            raise ValueError(
                f"membership: expected shape [items, topics], got {covers.shape}; pass one row per "
                "item."
            )
        weights = _weights(self.weights, covers.shape[1], "topics")
        self._convert(membership=covers, weights=weights)

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        covered = (self.membership & mask[:, None]).any(axis=0)
        return jnp.sum(self.init(), where=covered)

    # The memo is the weight of each topic, 0 if it is covered.
    def init(self) -> PyTree:
        return jnp.ones(self.membership.shape[-1]) if self.weights is None else self.weights

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return product(self.membership.astype(memo.dtype), memo)

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        return jnp.sum(memo, where=self.membership[item])

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        return jnp.where(self.membership[item], 0.0, memo)


class ProbabilisticCoverage(ArraySetFunction):
    """Expected weight of the topics that a set covers, if items cover them independently.

    ``sum_u w_u * (1 - prod_{j in S} (1 - p_ju))``: monotone submodular.

    Args:
        probabilities: That each item covers each topic, ``[items, topics]``, in [0, 1].
        weights: As for ``Coverage``.

    Examples:
        >>> function = ProbabilisticCoverage([[0.5, 0.0], [0.5, 1.0]])
        >>> function.gains(function.add(function.init(), 1)).tolist()[0]
        0.25
    """

    _item_axis = -2

    probabilities: Float[Array, "items topics"]
    weights: Float[Array, " topics"] | None = None

    def __post_init__(self) -> None:
        covers = as_probabilities("probabilities", self.probabilities, "items topics")
        weights = _weights(self.weights, covers.shape[1], "topics")
        self._convert(probabilities=covers, weights=weights)

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        missed = jnp.prod(1 - self.probabilities, axis=0, where=mask[:, None])
        return jnp.sum(self.init() * (1 - missed))

    # The memo is the weight of each topic times the probability that it is not covered.
    def init(self) -> PyTree:
        return jnp.ones(self.probabilities.shape[-1]) if self.weights is None else self.weights

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return product(self.probabilities, memo)

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        return jnp.sum(self.probabilities[item] * memo)

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        return memo * (1 - self.probabilities[item])


class SaturatedCoverage(ArraySetFunction):
    """``sum_i min(sum_{j in S} s_ij, saturation * sum_j s_ij)``: monotone submodular.

    A point's total similarity to the set is capped at a share of that to all items (Lin and Bilmes,
    ACL 2011). Greedy selects as in double precision where gains differ by more than 1e-6 of the
    value.

    Args:
        similarity: ``[points, items]``, >= 0.
        saturation: The share, >= 0.

    Examples:
        >>> function = SaturatedCoverage([[1.0, 1.0], [0.0, 2.0]], saturation=0.5)
        >>> function.gains(function.init()).tolist()
        [1.0, 2.0]
    """

    similarity: Float[Array, "points items"]
    saturation: Number = setting(checks.non_negative)

    def __post_init__(self) -> None:
        self._convert(similarity=as_non_negative("similarity", self.similarity, "points items"))

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        totals = product(self.similarity, mask.astype(self.similarity.dtype))
        return jnp.sum(jnp.minimum(totals, self.init()))

    # The memo is the remaining capacity of every point. A difference of two totals, which are much
    # larger than the gains, would have rounding errors that decide between items.
    def init(self) -> PyTree:
        return self.saturation * jnp.sum(self.similarity, axis=1)

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return jnp.sum(jnp.minimum(self.similarity, memo[:, None]), axis=0)

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        return jnp.sum(jnp.minimum(self.similarity[:, item], memo))

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        return jnp.maximum(memo - self.similarity[:, item], 0)


def saturated_coverage(
    similarity: Any, saturation: float | Float[Array, ""]
) -> SaturatedCoverage | SparseSaturatedCoverage:
    """Returns ``SaturatedCoverage`` of a dense or sparse matrix, as for ``facility_location``."""
    if is_sparse(similarity):
        return SparseSaturatedCoverage(as_sparse(similarity), saturation)
    return SaturatedCoverage(similarity, saturation)


class FeatureBased(ArraySetFunction):
    """``sum_u w_u * concave(sum_{j in S} x_ju)``: monotone submodular.

    The precision is as for ``SaturatedCoverage``.

    Args:
        features: Amount of each feature in each item, ``[items, features]``, >= 0.
        concave: ``"sqrt"``, ``"log1p"``, or a concave increasing function of an array; its value at
            0 is subtracted.
        weights: Weight of each feature, ``[features]``, >= 0; by default 1.

    Examples:
        >>> function = FeatureBased([[4.0, 0.0], [0.0, 9.0], [5.0, 0.0]])
        >>> function.gains(function.add(function.init(), 0)).tolist()[1:]
        [3.0, 1.0]
    """

    _item_axis = -2

    features: Float[Array, "items features"]
    concave: str | Concave = "sqrt"
    weights: Float[Array, " features"] | None = None

    def __post_init__(self) -> None:
        amounts = as_non_negative("features", self.features, "items features")
        if callable(self.concave):
            sums = jax.ShapeDtypeStruct(amounts.shape[1:], amounts.dtype)
            check_result("concave", self.concave, sums.shape, sums)
        else:
            checks.one_of("concave", self.concave, tuple(_INCREASES))
        weights = _weights(self.weights, amounts.shape[1], "features")
        self._convert(features=amounts, weights=weights)

    def _increase(
        self, sums: Float[Array, " features"], amounts: Float[Array, " features"]
    ) -> Float[Array, ""]:
        # Differences of single features; a difference of totals would be lost in rounding.
        if callable(self.concave):
            change = self.concave(sums + amounts) - self.concave(sums)
        else:
            change = _INCREASES[self.concave](sums, amounts)
        return jnp.sum(change if self.weights is None else change * self.weights, axis=-1)

    def value(self, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        sums = product(mask.astype(self.features.dtype), self.features)
        return self._increase(self.init(), sums)

    def init(self) -> PyTree:
        return jnp.zeros(self.features.shape[-1], self.features.dtype)

    def gains(self, memo: PyTree) -> Float[Array, " size"]:
        return jax.vmap(lambda amounts: self._increase(memo, amounts))(self.features)

    def gain(self, memo: PyTree, item: Integer) -> Float[Array, ""]:
        return self._increase(memo, self.features[item])

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        return memo + self.features[item]


def _weights(weights: ArrayLike | None, count: int, of: str) -> Float[Array, " columns"] | None:
    return None if weights is None else as_non_negative("weights", weights, of, count)
