"""Problems of any function of a set and a client's data."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, PyTree

from fedjax_fair import checks
from fedjax_fair.submodular import multilinear
from fedjax_fair.submodular.federated.problem import ClientFunction, Problem, family

__all__ = ["custom", "estimated", "tabulated"]

# Up to so many items all subsets are checked, or tabulated.
_FEW = 10


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
        check_sets: Random sets on which to check that the function is monotone. For at most 10
            items all sets are checked.

    Raises:
        ValueError: If the function is not 0 at the empty set, or an item lowers it; or if there are
            more than 10 items and no ``samples``.

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
    if samples is None and size > _FEW:
        raise ValueError(f"samples=None: expected a number for more than {_FEW} items, {size=}.")

    def value(own, mask):
        return jnp.asarray(value_fn(mask, own), jnp.float32)

    _check(value, client_data, size, check_sets)
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


def _check(value: Callable, data: PyTree, size: int, check_sets: int) -> None:
    """Raises if the function is not 0 at the empty set or not monotone; silent on traced data."""
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(data)):
        return
    if size <= _FEW:
        sets = (np.arange(2**size)[:, None] >> np.arange(size)) & 1 == 1
    else:
        # Of all sizes equally often; a fair coin for each item would try middle-sized sets only.
        rng = np.random.default_rng(0)
        sets = rng.random((check_sets, size)) < rng.random((check_sets, 1))
        sets = np.concatenate([np.zeros((1, size), bool), sets])

    @jax.jit
    @jax.vmap
    def evaluate(mask):
        values = jax.vmap(lambda own: value(own, mask))(data)
        return values, jax.vmap(
            lambda own: multilinear.marginals(lambda other: value(own, other), mask)
        )(data)

    with jax.ensure_compile_time_eval():  # The problem may be made in a function being traced.
        for mask in sets:
            values, gains = (np.asarray(a)[0] for a in evaluate(mask[None]))
            _check_set(mask, values, gains)


def _check_set(mask: np.ndarray, values: np.ndarray, gains: np.ndarray) -> None:
    items = np.flatnonzero(mask).tolist()
    if not items and (values != 0).any():
        client = int(np.argmax(values != 0))
        raise ValueError(
            f"value_fn: expected 0 at the empty set, but client {client} has {values[client]}."
        )
    # The rounding error of a gain of 0.
    slack = 1e-5 * np.abs(values).max(initial=1e-30)
    if gains.min() < -slack:
        client, item = (int(k) for k in np.unravel_index(gains.argmin(), gains.shape))
        raise ValueError(
            f"value_fn: expected a monotone function, but item {item} in the set {items} changes "
            f"the value of client {client} by {gains.min():.4g}."
        )
