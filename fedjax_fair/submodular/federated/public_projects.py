"""Combinatorial public projects: every client uses all projects of the set."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from fedjax_fair.numerics.products import product
from fedjax_fair.submodular import multilinear
from fedjax_fair.submodular.checked_arrays import as_non_negative
from fedjax_fair.submodular.federated.facility_location_of_clients import FACILITY_LOCATION
from fedjax_fair.submodular.federated.problem import ClientFunction, DenseProblem, Problem

__all__ = ["CombinatorialPublicProjects", "combinatorial_public_projects"]


def _sum_over_needs(function):
    """Returns the sum over a client's needs of a function of one need."""

    def summed(needs, *arguments):
        amounts = jax.vmap(lambda need: function(need, *arguments))(needs)
        return product(jnp.ones(amounts.shape[0]), amounts)

    return summed


def combinatorial_public_projects(valuations: ArrayLike) -> Problem:
    """Creates the problem of ``f_i(S) = sum_a max_{j in S} v_iaj``, with needs *a*.

    Args:
        valuations: Value of each project for each need of each client, ``[clients, needs,
            projects]``, >= 0.

    References:
        Papadimitriou, Schapira, Singer, *On the Hardness of Being Truthful*, FOCS 2008

    Examples:
        >>> problem = combinatorial_public_projects([[[3.0, 0.0], [0.0, 1.0]], [[0.0, 4.0]] * 2])
        >>> float(problem.value(jnp.array([False, True])))  # (1 + 8) / 2
        4.5
    """
    values = as_non_negative("valuations", valuations, "clients needs projects")
    return CombinatorialPublicProjects(_rank(values))


_rank = jax.jit(jax.vmap(jax.vmap(multilinear.ranked)))


class CombinatorialPublicProjects(DenseProblem):
    """Sums of facility locations, one per need; use ``combinatorial_public_projects``.

    Attributes:
        needs: Values of projects, best first, ``[clients, needs, projects]``.
    """

    needs: multilinear.Ranked

    name = "combinatorial_public_projects"
    function = ClientFunction(*map(_sum_over_needs, FACILITY_LOCATION))

    def data(self):
        return self.needs
