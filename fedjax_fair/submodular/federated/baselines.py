"""Baselines: a random base, and the base of the items with the largest single values."""

from __future__ import annotations

import jax
from jaxtyping import Array, Bool, Key
from numpy.typing import ArrayLike

from fedjax_fair.submodular.federated.importance_factors import factors_of
from fedjax_fair.submodular.federated.problem import Problem, as_client_weights
from fedjax_fair.submodular.federated.trajectory import check_sizes
from fedjax_fair.submodular.matroids import Matroid

__all__ = ["random_base", "top_singletons"]


def random_base(key: Key[Array, ""], matroid: Matroid) -> Bool[Array, " size"]:
    """A base of random weights; for a uniform or partition matroid all bases are equally likely.

    Examples:
        >>> from fedjax_fair.submodular import matroids
        >>> int(random_base(jax.random.key(0), matroids.Uniform(2, 5)).sum())
        2
    """
    return _random_base(key, matroid)


@jax.jit
def _random_base(key, matroid):
    return matroid.max_weight_base(jax.random.uniform(key, (matroid.size,)))


def top_singletons(
    problem: Problem, matroid: Matroid, *, client_weights: ArrayLike | None = None
) -> Bool[Array, " size"]:
    """The base of the items with the largest single values.

    Examples:
        >>> from fedjax_fair.submodular import federated, matroids
        >>> problem = federated.facility_location([[3.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
        >>> top_singletons(problem, matroids.Uniform(2, 3)).tolist()
        [True, True, False]
    """
    check_sizes(problem, matroid)
    return _popular_base(problem, matroid, as_client_weights(problem, client_weights))


@jax.jit
def _popular_base(problem, matroid, weights):
    return matroid.max_weight_base(factors_of(problem, weights).singles)
