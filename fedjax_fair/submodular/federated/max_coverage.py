"""Maximum coverage: groups are chosen to include as many clients as possible."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from fedjax_fair.submodular import multilinear
from fedjax_fair.submodular.checked_arrays import as_mask
from fedjax_fair.submodular.coverage import Coverage
from fedjax_fair.submodular.federated.facility_location_of_clients import SparseFacilityLocation
from fedjax_fair.submodular.federated.problem import ClientFunction, DenseProblem, Problem
from fedjax_fair.submodular.federated.sparse_scores import SparseScores
from fedjax_fair.submodular.set_function import SetFunction

__all__ = ["MaxCoverage", "SparseMaxCoverage", "max_coverage"]


def max_coverage(membership: ArrayLike | SparseScores) -> Problem:
    """Creates the problem of ``f_i(S) = 1`` if client *i* is in a group of the set, else 0.

    Args:
        membership: Whether each client is in each group, ``[clients, groups]``, or
            ``sparse_scores`` without scores.

    Examples:
        >>> problem = max_coverage(jnp.array([[True, False], [True, True], [False, False]]))
        >>> f"{problem.value(jnp.array([False, True])):.3f}"
        '0.333'
    """
    if isinstance(membership, SparseScores):
        if membership.steps is None or membership.steps.shape != (1,):
            raise ValueError(
                "membership: got different scores, expected sparse_scores of all 1; omit scores "
                "there."
            )
        return SparseMaxCoverage(membership)
    covers = as_mask("membership", membership)
    if covers.ndim != 2 or 0 in covers.shape:
        raise ValueError(
            f"membership: got shape {covers.shape}, expected [clients, groups]; pass one row per "
            "client."
        )
    return MaxCoverage(covers)


class MaxCoverage(DenseProblem):
    """Maximum coverage with a matrix of memberships, ``[clients, groups]``."""

    covers: Bool[Array, "clients groups"]

    name = "max_coverage"
    function = ClientFunction(
        value=lambda covers, mask: (covers & mask).any().astype(jnp.float32),
        gains=lambda covers, mask: multilinear.coverage_gradient(covers, mask.astype(jnp.float32)),
        extension=lambda covers, key, x: multilinear.coverage_value(covers, x),
        gradient=lambda covers, key, x: multilinear.coverage_gradient(covers, x),
    )

    def data(self):
        return self.covers

    def total(self, weights: Float[Array, " clients"]) -> SetFunction:
        return Coverage(self.covers.T, weights)


class SparseMaxCoverage(SparseFacilityLocation):
    """Maximum coverage with a list of memberships: facility location with scores of 1."""

    name = "max_coverage"
