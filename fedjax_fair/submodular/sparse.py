"""Similarities of which most are 0, as lists of the others."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

__all__ = [
    "SparseSimilarity",
    "as_sparse",
    "is_sparse",
    "sparse_similarity",
]


class SparseSimilarity(NamedTuple):
    """The similarities that are not 0, listed by point and once more by item.

    Attributes:
        items: The items of each point, in any order, point after point, ``[entries]``.
        values: The similarity to each of them, >= 0.
        rows: The point of each entry, ``[entries]``.
        starts: Where the list of each point starts, and the end, ``[points + 1]``.
        points: The points of each item, ascending, item after item, ``[entries]``.
        item_values: The similarity of each of them.
        item_starts: Where the list of each item starts, and the end, ``[items + 1]``.
    """

    items: Int[Array, " entries"]
    values: Float[Array, " entries"]
    rows: Int[Array, " entries"]
    starts: Int[Array, " starts"]
    points: Int[Array, " entries"]
    item_values: Float[Array, " entries"]
    item_starts: Int[Array, " item_starts"]

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of points and of items."""
        return self.starts.shape[0] - 1, self.item_starts.shape[0] - 1

    def sums(self, values: Float[Array, " entries"]) -> Float[Array, " points"]:
        """Of each point, the sum of what is given for its entries."""
        return jax.ops.segment_sum(values, self.rows, self.shape[0], indices_are_sorted=True)

    def weighted(self, weights: Float[Array, " points"]) -> SparseSimilarity:
        """The similarities times the weight of their point."""
        return self._replace(
            values=self.values * weights[self.rows],
            item_values=self.item_values * weights[self.points],
        )


def sparse_similarity(matrix: Any, name: str = "similarity") -> SparseSimilarity:
    """Lists the entries of one of SciPy's sparse matrices, ``[points, items]``.

    Lists outside of a compiled function can be given to it; functions of sparse similarities make
    them of a matrix themselves.

    Args:
        matrix: The matrix, all of whose entries are >= 0.
        name: What errors call it.

    Raises:
        ValueError: If it has no rows or columns, an entry is negative or not finite, or there are
            2**31 entries or more.

    Examples:
        >>> from scipy.sparse import csr_array
        >>> lists = sparse_similarity(csr_array([[3.0, 0.0, 1.0], [0.0, 2.0, 0.0]]))
        >>> lists.items.tolist(), lists.starts.tolist(), lists.points.tolist()
        ([0, 2, 1], [0, 2, 3], [0, 1, 0])
    """
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"{name}: expected shape [points, items], got {matrix.shape}.")
    if matrix.nnz >= 2**31:
        raise ValueError(f"{name}: expected fewer than 2**31 entries, got {matrix.nnz}.")
    if not matrix.nnz:  # Gathers need something to read.
        matrix = type(matrix.tocsr())(([0.0], ([0], [0])), shape=matrix.shape)
    by_item = matrix.tocsc(copy=True).astype(np.float32, copy=False)
    by_item.sum_duplicates()
    # Where nothing was summed rows may stay as they are given, whatever the order within.
    as_given = matrix.format == "csr" and by_item.nnz == matrix.nnz
    by_point = (matrix.astype(np.float32) if as_given else by_item).tocsr()
    good = (by_point.data >= 0) & (by_point.data < np.inf)
    if not good.all():
        place = np.argmin(good)
        row = np.searchsorted(by_point.indptr, place, side="right") - 1
        raise ValueError(
            f"{name}[{row}, {by_point.indices[place]}]={float(by_point.data[place])}: "
            "expected finite numbers >= 0."
        )
    rows: Any = np.repeat(np.arange(by_point.shape[0], dtype=np.int32), np.diff(by_point.indptr))
    lists: Any = SparseSimilarity(
        items=by_point.indices,
        values=by_point.data,
        rows=rows,
        starts=by_point.indptr,
        points=by_item.indices,
        item_values=by_item.data,
        item_starts=by_item.indptr,
    )
    return jax.tree.map(_on_device, lists)


def _on_device(values: np.ndarray) -> Array:
    places = np.issubdtype(values.dtype, np.integer)  # Of 64 bits in some of SciPy's matrices.
    return jnp.asarray(values.astype(np.int32, copy=False) if places else values)


def is_sparse(similarity: Any) -> bool:
    """Whether these are lists, or one of SciPy's sparse matrices."""
    return isinstance(similarity, SparseSimilarity) or hasattr(similarity, "tocsr")


def as_sparse(similarity: Any, name: str = "similarity") -> SparseSimilarity:
    """The lists of what ``is_sparse``."""
    if isinstance(similarity, SparseSimilarity):
        return similarity
    with jax.ensure_compile_time_eval():
        return sparse_similarity(similarity, name)
