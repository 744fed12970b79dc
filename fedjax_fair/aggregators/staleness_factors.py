"""Factors by which asynchronous methods reduce the weights of results from older models."""

from __future__ import annotations

from abc import abstractmethod

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_fair.roles import Cohort, Number, setting
from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import Tree

__all__ = ["Constant", "Hinge", "Polynomial", "StalenessFactor", "staleness_of"]


class StalenessFactor(Tree):
    """Base class of functions of the staleness of results.

    Staleness is the number of updates of the global model since the version that a client was sent.
    """

    @abstractmethod
    def __call__(self, staleness: Int[Array, "..."]) -> Float[Array, "..."]:
        """Returns factors in ``[0, 1]``; 1 for a staleness of 0."""


class Constant(StalenessFactor):
    """The factor 1.

    Examples:
        >>> Constant()(jnp.array([0, 3])).tolist()
        [1.0, 1.0]
    """

    def __call__(self, staleness):
        return jnp.ones(staleness.shape)


class Polynomial(StalenessFactor):
    r"""The factor :math:`(1 + \tau)^{-a}`.

    Args:
        exponent: :math:`a` >= 0 of the factor of staleness; 0 is `Constant`.

    Raises:
        ValueError: If ``exponent`` is negative.

    Examples:
        >>> Polynomial(0.5)(jnp.array([0, 3])).tolist()
        [1.0, 0.5]
    """

    exponent: Number = setting(checks.non_negative, default=0.5)

    def __call__(self, staleness):
        return (1 + staleness.astype(jnp.float32)) ** -self.exponent


class Hinge(StalenessFactor):
    r"""The factor 1 up to a staleness of :math:`b`, and :math:`1 / (1 + a (\tau - b))` above it.

    Args:
        slope: :math:`a` >= 0.
        delay: :math:`b` >= 0.

    Raises:
        ValueError: If an argument is negative.

    Examples:
        >>> Hinge(slope=0.5, delay=6.0)(jnp.array([6, 8])).tolist()
        [1.0, 0.5]
    """

    slope: Number = setting(checks.non_negative, default=10.0)
    delay: Number = setting(checks.non_negative, default=6.0)

    def __call__(self, staleness):
        excess = jnp.maximum(staleness.astype(jnp.float32) - self.delay, 0)
        return 1 / (1 + self.slope * excess)


def staleness_of(cohort: Cohort) -> Int[Array, " cohort"]:
    """Returns the staleness of each result of a cohort, which a schedule defines."""
    assert cohort.timing is not None  # A round without schedule refuses the aggregator.
    return cohort.timing.staleness
