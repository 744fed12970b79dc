"""Problems of custom functions of a set and a client's data."""

from __future__ import annotations

import abc
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from fedjax_fair import checks
from fedjax_fair.submodular import multilinear
from fedjax_fair.submodular.federated.assumptions import MAX_ENUMERATED_ITEMS, check_submodular
from fedjax_fair.submodular.federated.problem import ClientFunction, DenseProblem, Problem

__all__ = ["Custom", "SampledProblem", "TabulatedProblem", "custom", "tabulate"]


def custom(
    value_fn: Callable[[Bool[Array, " size"], PyTree], Float[Array, ""]],
    client_data: PyTree,
    size: int,
    *,
    samples: int | None = None,
    check_sets: int = 0,
) -> Problem:
    """Creates a problem from the values of a monotone submodular function.

    Args:
        value_fn: ``value_fn(mask, data) -> scalar`` of a set, ``[size]``, and one client's data;
            0 at the empty set.
        client_data: Arrays with a leading axis over clients.
        size: Number of items.
        samples: Random sets for estimating the multilinear extension (``multilinear.sample_size``).
            None evaluates all sets of at most 10 items.
        check_sets: Random sets on which to check the function. At most 10 items are checked on all
            sets.

    Raises:
        ValueError: If a check fails, or more than 10 items have no ``samples``.

    Examples:
        >>> rates = jnp.array([[1.0, 4.0, 4.0], [9.0, 0.0, 0.0]])
        >>> problem = custom(lambda mask, row: jnp.sqrt(jnp.sum(row, where=mask)), rates, size=3)
        >>> float(problem.value(jnp.array([True, False, False])))
        2.0
    """
    checks.positive_int("size", size)
    checks.non_negative_int("check_sets", check_sets)
    if samples is not None:
        checks.positive_int("samples", samples)
    elif size > MAX_ENUMERATED_ITEMS:
        raise ValueError(
            f"samples=None: {size=} is too large to evaluate all sets; give a number of samples, "
            f"or at most {MAX_ENUMERATED_ITEMS} items."
        )
    with jax.ensure_compile_time_eval():  # A tracer could not be checked.
        client_data = jax.tree.map(
            lambda leaf: leaf if isinstance(leaf, Array) else jnp.asarray(leaf), client_data
        )
    problem = Custom(client_data, size, samples or 1, value_fn)
    check_submodular(problem, check_sets)
    return tabulate(problem) if samples is None else problem


class SampledProblem(DenseProblem):
    """Problem whose extension is estimated from random sets.

    Attributes:
        stacked_data: Arrays with a leading axis over clients.
        num_items: Number of items.
        samples: Random sets per estimate.
    """

    stacked_data: PyTree
    num_items: int
    samples: int

    exact = False

    @abc.abstractmethod
    def value_of(self, data: PyTree, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        """Computes the value of a set for one client's data."""

    def gains_of(self, data: PyTree, mask: Bool[Array, " size"]) -> Float[Array, " size"]:
        """Computes the gains of all items, by default from values."""
        return multilinear.marginals(lambda other: self.value_of(data, other), mask)

    @property
    def size(self) -> int:
        return self.num_items

    @property
    def function(self) -> ClientFunction:
        return ClientFunction(
            value=self.value_of,
            gains=self.gains_of,
            extension=lambda data, key, x: multilinear.sampled_mean(
                key, lambda mask: self.value_of(data, mask), x, self.samples
            ),
            gradient=lambda data, key, x: multilinear.sampled_mean(
                key, lambda mask: self.gains_of(data, mask), x, self.samples
            ),
        )

    def data(self):
        return self.stacked_data


class Custom(SampledProblem):
    """Problem of a custom function; use ``custom``, which checks it.

    Attributes:
        value_fn: ``value_fn(mask, data) -> scalar``. Another function compiles again, but not other
            arrays of a ``jax.tree_util.Partial``.
    """

    value_fn: Callable[[Bool[Array, " size"], PyTree], Float[Array, ""]]

    name = "custom"

    def value_of(self, data, mask):
        return jnp.asarray(self.value_fn(mask, data), jnp.float32)


_tabulated_gradient = jax.grad(multilinear.tabulated_value, 1)


class TabulatedProblem(DenseProblem):
    """Problem of few items, with the values of all sets.

    Attributes:
        kind: Name in messages.
        tables: Value of every set, ``[clients, 2**size]``.
    """

    kind: str
    tables: Float[Array, "clients subsets"]

    function = ClientFunction(
        value=lambda table, mask: multilinear.tabulated_value(table, mask.astype(table.dtype)),
        gains=lambda table, mask: _tabulated_gradient(table, mask.astype(table.dtype)),
        extension=lambda table, key, x: multilinear.tabulated_value(table, x),
        gradient=lambda table, key, x: _tabulated_gradient(table, x),
    )

    @property
    def name(self) -> str:
        return self.kind

    @property
    def size(self) -> int:
        return self.tables.shape[-1].bit_length() - 1

    def data(self):
        return self.tables


@jax.jit
def tabulate(problem: SampledProblem) -> TabulatedProblem:
    """Evaluates a problem of few items on all sets, which makes it exact."""

    def table(data):
        return multilinear.table(lambda mask: problem.value_of(data, mask), problem.size)

    return TabulatedProblem(problem.name, jax.vmap(table)(problem.data()))
