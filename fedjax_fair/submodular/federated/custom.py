"""Problems of any function of a set and a client's data."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from fedjax_fair import checks
from fedjax_fair.submodular import multilinear
from fedjax_fair.submodular.federated.assumptions import FEW, assert_submodular
from fedjax_fair.submodular.federated.problem import ClientFunction, DenseProblem, Problem

__all__ = ["Custom", "SampledProblem", "TabulatedProblem", "custom", "tabulated"]


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
    problem = Custom(jax.tree.map(_on_device, client_data), size, samples or 1, value_fn)
    assert_submodular(problem, check_sets)
    return tabulated(problem) if samples is None else problem


def _on_device(leaf: Any) -> Array:
    if isinstance(leaf, Array):
        return leaf
    with jax.ensure_compile_time_eval():  # A tracer could not be checked.
        return jnp.asarray(leaf)


class SampledProblem(DenseProblem):
    """A problem whose extension is estimated from random sets.

    Attributes:
        own_data: Arrays with a leading axis over clients.
        num_items: Items in the ground set.
        samples: Random sets of an estimate.
    """

    own_data: PyTree
    num_items: int
    samples: int

    exact = False

    @abc.abstractmethod
    def value_of(self, own: PyTree, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        """Computes the value of a set for a client with some data."""
        raise NotImplementedError

    def gains_of(self, own: PyTree, mask: Bool[Array, " size"]) -> Float[Array, " size"]:
        """Computes its gains, by default from values."""
        return multilinear.marginals(lambda other: self.value_of(own, other), mask)

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return jax.tree.leaves(self.own_data)[0].shape[0]

    @property
    def size(self) -> int:
        """Items in the ground set."""
        return self.num_items

    @property
    def function(self) -> ClientFunction:
        """The function of one client's data, with an estimated extension."""
        return ClientFunction(
            value=self.value_of,
            gains=self.gains_of,
            extension=lambda own, key, x: multilinear.sampled_mean(
                key, lambda mask: self.value_of(own, mask), x, self.samples
            ),
            gradient=lambda own, key, x: multilinear.sampled_mean(
                key, lambda mask: self.gains_of(own, mask), x, self.samples
            ),
        )

    def data(self) -> PyTree:
        """Returns the data of all clients."""
        return self.own_data


class Custom(SampledProblem):
    """A problem of any function of a set and a client's data; ``custom`` makes and checks it.

    Attributes:
        value_fn: ``value_fn(mask, own) -> scalar``. Another function is another structure, which is
            compiled anew; of a ``jax.tree_util.Partial`` only the function is.
    """

    value_fn: Callable[[Bool[Array, " size"], PyTree], Float[Array, ""]]

    name = "custom"

    def value_of(self, own: PyTree, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        """Computes the value of a set for a client with some data."""
        return jnp.asarray(self.value_fn(mask, own), jnp.float32)


_tabulated_gradient = jax.grad(multilinear.tabulated_value, 1)

_LOOKED_UP = ClientFunction(
    value=lambda values, mask: multilinear.tabulated_value(values, mask.astype(values.dtype)),
    gains=lambda values, mask: _tabulated_gradient(values, mask.astype(values.dtype)),
    extension=lambda values, key, x: multilinear.tabulated_value(values, x),
    gradient=lambda values, key, x: _tabulated_gradient(values, x),
)


class TabulatedProblem(DenseProblem):
    """A problem of few items, of which the values of all sets are known.

    Attributes:
        kind: Shown in messages.
        tables: The value of every set for every client, ``[clients, 2**size]``.
    """

    kind: str
    tables: Float[Array, "clients subsets"]

    @property
    def function(self) -> ClientFunction:
        """The function of one client's data."""
        return _LOOKED_UP

    @property
    def name(self) -> str:
        """Shown in messages."""
        return self.kind

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return self.tables.shape[-2]

    @property
    def size(self) -> int:
        """Items in the ground set."""
        return self.tables.shape[-1].bit_length() - 1

    def data(self) -> Float[Array, "clients subsets"]:
        """Returns the values of all clients."""
        return self.tables


@jax.jit
def tabulated(problem: SampledProblem) -> TabulatedProblem:
    """Evaluates a problem of few items on all sets, so that it is exact."""

    def table(own):
        return multilinear.table(lambda mask: problem.value_of(own, mask), problem.size)

    return TabulatedProblem(problem.name, jax.vmap(table)(problem.data()))
