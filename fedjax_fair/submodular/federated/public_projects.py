"""Combinatorial public projects: every client uses all projects of the set."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from fedjax_fair.numerics.products import product
from fedjax_fair.submodular import multilinear
from fedjax_fair.submodular.arrays import as_non_negative
from fedjax_fair.submodular.federated.facility_location import OFFERS
from fedjax_fair.submodular.federated.problem import ClientFunction, Problem, family

__all__ = ["combinatorial_public_projects"]


def _over_needs(function):
    """The sum over a client's needs of a function of each need."""

    def summed(needs, *arguments):
        own = jax.vmap(lambda offers: function(offers, *arguments))(needs)
        return product(jnp.ones(own.shape[0]), own)

    return summed


_NEEDS = ClientFunction(*map(_over_needs, OFFERS))


def combinatorial_public_projects(valuations: ArrayLike) -> Problem:
    r"""``f_i(S) = sum_a max_{j in S} v_iaj``: the best project for each of a client's needs.

    All clients share the projects; ``welfare`` of this problem assigns each to one client instead.

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
    needs = jax.vmap(jax.vmap(multilinear.ranked))(values)
    size = values.shape[2]
    return family("combinatorial_public_projects", needs, _NEEDS, size=size, exact=True)
