"""Problems of any function of a set and a client's data."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from fedjax_fair import checks
from fedjax_fair.submodular import multilinear
from fedjax_fair.submodular.federated.assumptions import FEW, assert_submodular
from fedjax_fair.submodular.federated.problem import ClientFunction, Problem, family

__all__ = ["custom", "estimated", "tabulated"]


def custom(
    value_fn: Callable[[Bool[Array, " size"], PyTree], Float[Array, ""]],
    client_data: PyTree,
    size: int,
    *,
    samples: int | None = None,
    check_sets: int = 0,
) -> Problem:
    """A problem of any monotone submodular function, given by its values.

    Args:
        value_fn: ``value_fn(mask, own) -> scalar`` of a set, ``[size]``, and one client's data;
            monotone, and 0 at the empty set.
        client_data: Arrays with a leading axis over clients.
        size: Items in the ground set.
        samples: Random sets by which the multilinear extension and its gradient are estimated (see
            ``multilinear.sample_size``). None evaluates all ``2**size`` sets once and is exact, for
            at most 10 items.
        check_sets: Random sets on which to check that the function is monotone and submodular. For
            at most 10 items all sets are checked.

    Raises:
        ValueError: If the function is not 0 at the empty set, or not finite, an item lowers it, or
            gains more in a larger set; or if there are more than 10 items and no ``samples``.

    Examples:
        >>> rates = jnp.array([[1.0, 4.0, 4.0], [9.0, 0.0, 0.0]])
        >>> problem = custom(lambda mask, own: jnp.sqrt(jnp.sum(own, where=mask)), rates, size=3)
        >>> float(problem.value(jnp.array([True, False, False])))
        2.0
    """
    checks.positive_int("size", size)
    checks.non_negative_int("check_sets", check_sets)
    if samples is not None:
        checks.positive_int("samples", samples)
    if samples is None and size > FEW:
        raise ValueError(f"samples=None: expected a number for more than {FEW} items, {size=}.")

    def value(own, mask):
        return jnp.asarray(value_fn(mask, own), jnp.float32)

    assert_submodular(value, client_data, size, check_sets)
    if samples is None:
        return tabulated("custom", client_data, value, size)
    return estimated("custom", client_data, value, size, samples)


def tabulated(name: str, data: PyTree, value: Callable, size: int) -> Problem:
    """A problem of few items, from the values of all sets."""
    tables = jax.vmap(lambda own: multilinear.table(lambda mask: value(own, mask), size))(data)
    gradient = jax.grad(multilinear.tabulated_value, 1)
    function = ClientFunction(
        value=lambda values, mask: multilinear.tabulated_value(values, mask.astype(values.dtype)),
        gains=lambda values, mask: gradient(values, mask.astype(values.dtype)),
        extension=lambda values, key, x: multilinear.tabulated_value(values, x),
        gradient=lambda values, key, x: gradient(values, x),
    )
    return family(name, tables, function, size=size, exact=True)


def estimated(
    name: str,
    data: PyTree,
    value: Callable,
    size: int,
    samples: int,
    gains: Callable | None = None,
) -> Problem:
    """A problem whose extension is estimated from random sets."""

    def by_value(own, mask):
        return multilinear.marginals(lambda other: value(own, other), mask)

    gains = gains or by_value
    function = ClientFunction(
        value=value,
        gains=gains,
        extension=lambda own, key, x: multilinear.sampled_value(
            key, lambda mask: value(own, mask), x, samples
        ),
        gradient=lambda own, key, x: multilinear.sampled_gradient(
            key, lambda mask: gains(own, mask), x, samples
        ),
    )
    return family(name, data, function, size=size, exact=False)
