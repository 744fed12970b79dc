"""Combinatorial public projects: every client uses all projects of the set."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from fedjax_fair.numerics.products import product
from fedjax_fair.submodular import multilinear
from fedjax_fair.submodular.arrays import as_non_negative
from fedjax_fair.submodular.federated.facility_location import OFFERS
from fedjax_fair.submodular.federated.problem import ClientFunction, DenseProblem, Problem

__all__ = ["CombinatorialPublicProjects", "combinatorial_public_projects"]


def _over_needs(function):
    """The sum over a client's needs of a function of each need."""

    def summed(needs, *arguments):
        own = jax.vmap(lambda offers: function(offers, *arguments))(needs)
        return product(jnp.ones(own.shape[0]), own)

    return summed


_NEEDS = ClientFunction(*map(_over_needs, OFFERS))


def combinatorial_public_projects(valuations: ArrayLike) -> Problem:
    r"""``f_i(S) = sum_a max_{j in S} v_iaj``: the best project for each of a client's needs.

    All clients share the projects; ``Welfare`` of this problem assigns each to one client instead.

    Args:
        valuations: The value of each project for each need of each client, ``[clients, needs,
            projects]``, >= 0. A single need makes it a facility location; one need a project, with
            a diagonal matrix, a sum of values.

    Raises:
        ValueError: If a valuation is negative or not finite, or the shape does not fit.

    References:
        Papadimitriou, Schapira, Singer, *On the Hardness of Being Truthful*, FOCS 2008

    Examples:
        >>> problem = combinatorial_public_projects([[[3.0, 0.0], [0.0, 1.0]], [[0.0, 4.0]] * 2])
        >>> float(problem.value(jnp.array([False, True])))  # (1 + 8) / 2
        4.5
    """
    values = as_non_negative("valuations", valuations, "clients needs projects")
    return CombinatorialPublicProjects(_ranked(values))


_ranked = jax.jit(jax.vmap(jax.vmap(multilinear.ranked)))


class CombinatorialPublicProjects(DenseProblem):
    """Sums of facility locations, one a need; ``combinatorial_public_projects`` makes it.

    Attributes:
        needs: The values of projects for each need of each client, best project first.
    """

    needs: multilinear.Ranked

    name = "combinatorial_public_projects"

    @property
    def function(self) -> ClientFunction:
        """The function of one client's data."""
        return _NEEDS

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return self.needs.scores.shape[-3]

    @property
    def size(self) -> int:
        """Number of projects."""
        return self.needs.scores.shape[-1]

    def data(self) -> multilinear.Ranked:
        """Returns the needs of all clients."""
        return self.needs
