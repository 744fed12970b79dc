"""What the estimators have in common: how data comes in, and how rows are selected."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from fedjax_fair import checks
from fedjax_fair.submodular.base import SetFunction
from fedjax_fair.submodular.estimators.progress import Reported, progress_bar
from fedjax_fair.submodular.greedy import greedy

__all__ = ["BaseSubsetSelector"]


class BaseSubsetSelector(TransformerMixin, BaseEstimator):
    """Selects ``k`` rows by greedy; ``_function`` gives what to maximize.

    Where sparse similarities stay sparse, ``_takes_lists`` is true.
    """

    k: int
    verbose: bool
    ranking_: NDArray[np.int32]
    gains_: NDArray[np.floating[Any]]
    n_items_: int
    _takes_lists = False

    def _function(self, values: Any) -> SetFunction:
        raise NotImplementedError

    def fit(self, X: Any, y: object = None) -> BaseSubsetSelector:
        """Selects the rows.

        Args:
            X: One item a row, ``[items, features]``, dense or one of SciPy's sparse matrices, which
                is made dense. With ``metric="precomputed"`` similarities, ``[points, items]``, of
                which sparse ones stay sparse, except for ``LogDet``.
            y: Ignored.

        Returns:
            Itself.

        Raises:
            ValueError: If a setting is out of range, ``k`` exceeds the items, or ``X`` does not
                suit the function.
        """
        return self._select(self._function(self._validated(X)))

    def transform(self, X: Any) -> Any:
        """The rows selected, in order, of a matrix that has a row for each item.

        Raises:
            ValueError: If it has another number of rows.
            sklearn.exceptions.NotFittedError: If nothing has been selected.
        """
        check_is_fitted(self)
        rows = X.tocsr() if sparse.issparse(X) else np.asarray(X)
        if rows.shape[:1] != (self.n_items_,):
            raise ValueError(f"X: expected {self.n_items_} rows, got shape {rows.shape}.")
        return rows[self.ranking_]

    def _validated(self, X: Any) -> Any:
        # Single precision will do for a matrix of all similarities, and is half as large.
        given = getattr(self, "metric", None) == "precomputed"
        dtype = np.float32 if given else np.float64
        values: Any = validate_data(self, X, accept_sparse="csr", dtype=dtype)
        thin = sparse.issparse(values) and not (given and self._takes_lists)
        return values.toarray() if thin else values

    def _select(self, function: SetFunction) -> BaseSubsetSelector:
        checks.positive_int("k", self.k, at_most=function.size)
        if not isinstance(self.verbose, (bool, np.bool_)):
            raise ValueError(f"verbose={self.verbose!r}: expected True or False.")
        shown = progress_bar(self.k) if self.verbose else contextlib.nullcontext()
        with shown:
            chosen = greedy(Reported(function) if self.verbose else function, self.k)
            jax.block_until_ready(chosen)
        self.n_items_ = function.size
        self.ranking_, self.gains_ = np.asarray(chosen.items), np.asarray(chosen.gains)
        return self
