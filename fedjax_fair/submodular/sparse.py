"""Sparse similarities as lists of their entries."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedjax_fair.submodular.checked_arrays import check_square, is_traced

__all__ = ["SparseSimilarity", "as_sparse", "check_symmetric", "is_sparse", "sparse_similarity"]


class SparseSimilarity(NamedTuple):
    """The nonzero similarities, by point and again by item.

    Attributes:
        items: Items of each point, in any order, one point after another, ``[entries]``.
        values: Similarity of each entry, >= 0.
        rows: Point of each entry, ``[entries]``.
        starts: Start of each point's list, and the end, ``[points + 1]``.
        points: Points of each item, ascending, one item after another, ``[entries]``.
        item_values: Similarity of each entry in this order.
        item_starts: Start of each item's list, and the end, ``[items + 1]``.
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
        """Numbers of points and of items."""
        return self.starts.shape[0] - 1, self.item_starts.shape[0] - 1

    def sums(self, values: Float[Array, " entries"]) -> Float[Array, " points"]:
        """Returns the sum of values of its entries for each point."""
        return jax.ops.segment_sum(values, self.rows, self.shape[0], indices_are_sorted=True)

    def weighted(self, weights: Float[Array, " points"]) -> SparseSimilarity:
        """Returns the similarities times the weight of their point."""
        return self._replace(
            values=self.values * weights[self.rows],
            item_values=self.item_values * weights[self.points],
        )


def sparse_similarity(matrix: Any, name: str = "similarity") -> SparseSimilarity:
    """Lists the entries of a SciPy sparse matrix, ``[points, items]``, for a compiled function.

    Args:
        matrix: The matrix, with entries >= 0.
        name: Its name in errors.

    Raises:
        ValueError: If it has no rows or columns, an entry is out of range, or there are 2**31
            entries or more.

    Examples:
        >>> from scipy.sparse import csr_array
        >>> lists = sparse_similarity(csr_array([[3.0, 0.0, 1.0], [0.0, 2.0, 0.0]]))
        >>> lists.items.tolist(), lists.starts.tolist(), lists.points.tolist()
        ([0, 2, 1], [0, 2, 3], [0, 1, 0])
    """
    if not hasattr(matrix, "tocsr"):
        got = type(matrix).__name__
        raise ValueError(f"{name}: expected a SciPy sparse matrix, such as csr_array, got {got}.")
    if not any(np.issubdtype(matrix.dtype, real) for real in (np.bool, np.integer, np.floating)):
        raise ValueError(
            f"{name}: expected real numbers, got {matrix.dtype}; convert it by astype(float)."
        )
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(
            f"{name}: expected shape [points, items], got {matrix.shape}; pass a matrix with "
            "entries."
        )
    if matrix.nnz >= 2**31:
        raise ValueError(
            f"{name}: expected fewer than 2**31 entries, got {matrix.nnz}; keep fewer neighbors."
        )
    if not matrix.nnz:  # A gather needs at least one entry.
        matrix = type(matrix.tocsr())(([0.0], ([0], [0])), shape=matrix.shape)
    with np.errstate(over="ignore"):  # Overflow gives infinity, which is rejected below.
        by_item = matrix.tocsc(copy=True).astype(np.float32, copy=False)
        by_item.sum_duplicates()
        # Without duplicates the rows need no conversion, in whatever order their entries are.
        as_given = matrix.format == "csr" and by_item.nnz == matrix.nnz
        by_point = (matrix.astype(np.float32) if as_given else by_item).tocsr()
    good = (by_point.data >= 0) & (by_point.data < np.inf)
    if not good.all():
        place = np.argmin(good)
        row = np.searchsorted(by_point.indptr, place, side="right") - 1
        raise ValueError(
            f"{name}[{row}, {by_point.indices[place]}]={float(by_point.data[place])}: expected "
            "finite numbers >= 0 in single precision; remove or clip such entries."
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
    is_index = np.issubdtype(values.dtype, np.integer)  # Of 64 bits in some matrices of SciPy.
    return jnp.asarray(values.astype(np.int32, copy=False) if is_index else values)


def is_sparse(similarity: Any) -> bool:
    """Returns whether the argument is a ``SparseSimilarity`` or a SciPy sparse matrix."""
    return isinstance(similarity, SparseSimilarity) or hasattr(similarity, "tocsr")


def as_sparse(similarity: Any) -> SparseSimilarity:
    """Returns the lists of an argument for which `is_sparse` holds."""
    if isinstance(similarity, SparseSimilarity):
        return similarity
    with jax.ensure_compile_time_eval():
        return sparse_similarity(similarity)


def check_symmetric(name: str, similarity: SparseSimilarity) -> None:
    """Checks that lists, if they are known, are of a symmetric matrix.

    Raises:
        ValueError: If it is not square, or differs from its transpose by more than rounding.
    """
    check_square(name, similarity.shape)
    if is_traced(similarity):
        return
    from scipy.sparse import csc_array

    lists = jax.tree.map(np.asarray, similarity)
    matrix = csc_array((lists.item_values, lists.points, lists.item_starts), similarity.shape)
    if abs(matrix - matrix.T).max() > 1e-5 * matrix.max():
        raise ValueError(f"{name}: expected a symmetric matrix; use matrix.maximum(matrix.T).")
