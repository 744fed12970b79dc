"""What the estimators have in common: how data comes in, and how rows are picked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from fedjax_fair import checks
from fedjax_fair.submodular.base import Maximized, SetFunction
from fedjax_fair.submodular.estimators.progress import Reported, progress_bar
from fedjax_fair.submodular.greedy import greedy

__all__ = ["Picker", "Problem"]


class Problem(NamedTuple):
    """What to maximize: ``make(*arrays, *static)``, a function of so many items."""

    size: int
    make: Callable[..., SetFunction]
    arrays: tuple[Any, ...]
    static: tuple[Any, ...] = ()


class Picker(TransformerMixin, BaseEstimator):
    """Picks ``k`` rows by greedy; what they are worth is said by ``_problem``.

    Where sparse similarities stay sparse, ``_takes_lists`` is true.
    """

    k: int
    verbose: bool
    ranking_: NDArray[np.int32]
    gains_: NDArray[np.floating[Any]]
    n_items_: int
    _takes_lists = False

    def _problem(self, values: Any) -> Problem:
        raise NotImplementedError

    def fit(self, X: Any, y: object = None) -> Picker:
        """Picks the rows.

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
        return self._pick(self._problem(self._validated(X)))

    def transform(self, X: Any) -> Any:
        """The rows picked, in order, of a matrix that has a row for each item.

        Raises:
            ValueError: If it has another number of rows.
            sklearn.exceptions.NotFittedError: If nothing has been picked.
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

    def _pick(self, problem: Problem) -> Picker:
        checks.positive_int("k", self.k, at_most=problem.size)
        if not isinstance(self.verbose, (bool, np.bool_)):
            raise ValueError(f"verbose={self.verbose!r}: expected True or False.")
        shown = progress_bar(self.k) if self.verbose else contextlib.nullcontext()
        with shown:
            chosen = _picked(
                problem.make, problem.arrays, problem.static, self.k, bool(self.verbose)
            )
            jax.block_until_ready(chosen)
        self.n_items_ = problem.size
        self.ranking_, self.gains_ = np.asarray(chosen.items), np.asarray(chosen.gains)
        return self


@partial(jax.jit, static_argnames=("make", "static", "k", "verbose"))
def _picked(make: Callable, arrays: tuple, static: tuple, k: int, verbose: bool) -> Maximized:
    function = make(*arrays, *static)
    return greedy(Reported(function) if verbose else function, k)
