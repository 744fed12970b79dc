"""Base class of the estimators: input validation, selection and progress bar."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from fedjax_fair.submodular.checked_arrays import is_traced
from fedjax_fair.submodular.greedy import greedy
from fedjax_fair.submodular.set_function import SetFunction, WrappedSetFunction
from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import Integer


class BaseSubsetSelector(TransformerMixin, BaseEstimator):
    """Selects ``k`` rows greedily.

    A subclass is a dataclass of its parameters, and defines ``_function``.

    Attributes:
        ranking_: Indices of the selected rows, ``[k]``, best first.
        gains_: Marginal gain of each.
        n_items_: Number of items.
    """

    k: int
    verbose: bool
    ranking_: NDArray[np.int32]
    gains_: NDArray[np.floating[Any]]
    n_items_: int
    _keeps_sparse = False  # Whether sparse similarities stay sparse.

    def _function(self, values: Any) -> SetFunction:
        """Returns the function to maximize."""
        raise NotImplementedError

    def fit(self, X: Any, y: object = None) -> BaseSubsetSelector:
        """Selects the rows.

        Args:
            X: One row for each item, ``[items, features]``, dense or a SciPy sparse matrix. With
                ``metric="precomputed"`` similarities, ``[points, items]``; sparse ones stay sparse,
                except for ``LogDet``.
            y: Ignored.

        Returns:
            The estimator.

        Raises:
            ValueError: If a parameter or ``X`` is invalid, or there are fewer than ``k`` items.
        """
        return self._select(self._function(self._validated(X)))

    # The selected rows, as in apricot.
    def transform(self, X: Any) -> Any:
        """Returns the selected rows, best first, of a matrix with one row for each item.

        Raises:
            ValueError: If it has another number of rows.
            sklearn.exceptions.NotFittedError: If ``fit`` has not been called.
        """
        check_is_fitted(self)
        rows = X.tocsr() if sparse.issparse(X) else np.asarray(X)
        if rows.shape[:1] != (self.n_items_,):
            raise ValueError(
                f"X: expected {self.n_items_} rows, got shape {rows.shape}; pass the rows that fit "
                "had."
            )
        return rows[self.ranking_]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _validated(self, X: Any) -> Any:
        if is_traced(X):
            raise ValueError(
                "X is traced: expected values that are known before compilation; call fit outside "
                "of jit."
            )
        if np.ma.is_masked(X):
            raise ValueError("X: expected no masked elements; fill or remove them.")
        # Single precision suffices for a matrix of all similarities, and is half as large.
        precomputed = getattr(self, "metric", None) == "precomputed"
        dtype = np.float32 if precomputed else np.float64
        with np.errstate(over="ignore"):  # Infinity is rejected.
            values: Any = validate_data(self, X, accept_sparse="csr", dtype=dtype)
        makes_dense = sparse.issparse(values) and not (precomputed and self._keeps_sparse)
        return values.toarray() if makes_dense else values

    def _select(self, function: SetFunction) -> BaseSubsetSelector:
        checks.positive_int("k", self.k, at_most=function.size)
        if not isinstance(self.verbose, (bool, np.bool_)):
            raise ValueError(f"verbose={self.verbose!r}: expected True or False.")
        with _progress_bar(self.k) if self.verbose else contextlib.nullcontext():
            result = greedy(_Reported(function) if self.verbose else function, self.k)
            jax.block_until_ready(result)
        self.n_items_ = function.size
        self.ranking_, self.gains_ = np.asarray(result.items), np.asarray(result.gains)
        return self


# Compiled functions outlive a bar, so they report to the last one here.
_bars: list[Any] = []


@contextlib.contextmanager
def _progress_bar(total: int) -> Iterator[None]:
    """Shows on standard error how many of ``total`` items ``_Reported`` functions have added."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = (MofNCompleteColumn(), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        _bars.append((bar, bar.add_task("", total=total)))
        try:
            yield
            jax.effects_barrier()  # Reports may be late.
            bar.update(_bars[-1][1], completed=total)  # The last item is not added to a memo.
        finally:
            _bars.pop()


class _Reported(WrappedSetFunction):
    """The same function, which reports every item that is added."""

    def add(self, memo: PyTree, item: Integer) -> PyTree:
        jax.debug.callback(_advance, item)  # The argument delays the report until it is selected.
        return self.function.add(memo, item)


def _advance(item: Any) -> None:
    if _bars:
        bar, task = _bars[-1]
        bar.advance(task)
