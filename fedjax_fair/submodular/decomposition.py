"""Decomposition of a point of a matroid polytope into bases."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from fedjax_fair.submodular.checked_arrays import as_host
from fedjax_fair.submodular.matroids import Matroid, heaviest_base
from fedjax_fair.utils import checks

# Differences of sums in single precision up to this are rounding errors.
TOLERANCE = 1e-5


class Decomposition(NamedTuple):
    """A point as a convex combination of bases.

    Attributes:
        bases: Masks of bases, ``[bases, size]``.
        weights: Their weights, ``[bases]``, > 0, summing to 1.
    """

    bases: Bool[Array, "bases size"]
    weights: Float[Array, " bases"]


def decompose(matroid: Matroid, x: ArrayLike) -> Decomposition:
    """Writes a point of the matroid polytope as a convex combination of bases, on the host.

    If constraints are on consecutive items of an order, items are intervals on a line, each as long
    as its probability; the items that a comb with teeth at distance 1 touches are a set, and
    sliding the comb gives all sets. For other matroids independent sets are added until the point
    is in their convex hull (fully corrective Frank-Wolfe).

    Args:
        matroid: The matroid.
        x: A point in its polytope, ``[size]``.

    Returns:
        The bases. Their mean is ``x`` up to about 1e-5, and at least that if ``x`` sums to less
        than the rank.

    Raises:
        ValueError: If the point is outside of the polytope.

    Examples:
        >>> from fedjax_fair.submodular import matroids
        >>> decompose(matroids.Uniform(1, 3), [0.5, 0.25, 0.25]).weights.tolist()
        [0.5, 0.25, 0.25]
    """
    checks.instance("matroid", matroid, Matroid, "matroids.Uniform(k, num_items)")
    point = as_host("x", x).astype(np.float64)
    if point.shape != (matroid.size,):
        raise ValueError(
            f"x: expected shape ({matroid.size},), got {point.shape}; pass one number per item."
        )
    if not (point.min() >= -TOLERANCE and point.max() <= 1 + TOLERANCE):
        raise ValueError(
            f"x: expected numbers in [0, 1], got {point.min()} to {point.max()}; clip rounding "
            "errors."
        )
    point = np.clip(point, 0, 1)
    order = matroid.order
    sets, weights = _by_adding(matroid, point) if order is None else _by_sliding(order, point)
    bases = _completed(matroid, sets, point)
    # A point that is short of a base has a mean above it, but never below it.
    distance = (point - weights @ bases).max()
    if distance > 100 * TOLERANCE:
        raise ValueError(
            f"x: expected a point of the polytope of a {type(matroid).__name__} matroid, but it is "
            f"{distance:.2g} away from any mean of bases; use a mean of bases, such as the point "
            "of continuous_greedy."
        )
    # Unlike `jnp.asarray` this compiles nothing for another number of bases.
    return Decomposition(*jax.device_put((bases, weights.astype(np.float32))))


# Both return independent sets, ``[sets, size]``, and their weights, ``[sets]``.
def _by_sliding(order: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    present = order[x[order] > 0]
    ends = np.cumsum(x[present])
    starts = np.append(0, ends)[:-1]
    cuts = np.unique(np.append(ends % 1, [0.0, 1.0]))
    # Cuts closer than this are equal up to rounding.
    lengths = np.diff(cuts)
    cuts, lengths = cuts[:-1][lengths > TOLERANCE / 10], lengths[lengths > TOLERANCE / 10]
    teeth = (cuts + lengths / 2)[:, None]
    sets = np.zeros((cuts.size, x.size), bool)
    sets[:, present] = np.floor(ends - teeth) > np.floor(starts - teeth)
    return sets, lengths / lengths.sum()


def _by_adding(matroid: Matroid, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    from scipy.optimize import nnls

    def heaviest(weights):  # Of all independent sets, not only bases.
        return np.asarray(heaviest_base(matroid, weights.astype(np.float32))) & (weights > 0)

    sets, weights = heaviest(x)[None], np.ones(1)
    for _ in range(4 * matroid.size):
        residual = x - weights @ sets
        added = heaviest(residual)
        if np.abs(residual).max() < TOLERANCE or (added == sets).all(axis=1).any():
            break
        sets = np.concatenate([sets[weights > 0], added[None]])
        # The last equation, with more weight than any item, makes the weights sum to 1.
        rows = np.concatenate([sets.T, np.full((1, len(sets)), matroid.size)])
        weights, _ = nnls(rows.astype(np.float64), np.append(x, matroid.size))
    positive = weights > 0
    return sets[positive], weights[positive] / weights[positive].sum()


def _completed(matroid: Matroid, sets: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Returns bases that contain the sets, or most of a set that rounding made too large."""
    allowed = np.asarray(_independent(matroid, padded(sets)))[: len(sets)]
    bases = sets.copy()
    for i in np.flatnonzero(~allowed | (sets.sum(axis=1) != matroid.rank)):
        # Items of the set have weights above 1, all others at most 1.
        bases[i] = heaviest_base(matroid, (2 * sets[i] + x).astype(np.float32))
    return bases


def padded(array: np.ndarray) -> np.ndarray:
    """Adds rows of zeros up to a power of two, which limits the shapes to compile for."""
    missing = (1 << (len(array) - 1).bit_length()) - len(array)
    return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])


@jax.jit
def _independent(matroid: Matroid, masks: Bool[Array, "sets size"]) -> Bool[Array, " sets"]:
    return jax.lax.map(matroid.independent, masks)
