"""Problems of custom functions of a set and a client's data."""

from __future__ import annotations

import abc
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from fedjax_fair.submodular import multilinear
from fedjax_fair.submodular.checked_arrays import check_result, is_traced
from fedjax_fair.submodular.federated.problem import ClientFunction, DenseProblem, Problem
from fedjax_fair.utils import checks

__all__ = ["MAX_ENUMERATED_ITEMS", "SampledProblem", "custom", "tabulate"]

MAX_ENUMERATED_ITEMS = 10


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
        value_fn: ``value_fn(mask, data) -> scalar`` of a set, ``[size]``, and one client's data; 0
            at the empty set.
        client_data: Arrays with a leading axis over clients.
        size: Number of items.
        samples: Random sets for estimating the multilinear extension (``multilinear.sample_size``).
            None evaluates all sets of at most 10 items.
        check_sets: Random sets on which to check the function. At most 10 items are checked on all.

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
    shapes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(client_data)}
    if len(shapes) != 1 or shapes & {(), (0,)}:
        got = sorted(np.shape(leaf) for leaf in jax.tree.leaves(client_data))
        raise ValueError(
            f"client_data: expected arrays with an axis over clients, got shapes {got}; stack the "
            "data of clients along the first axis."
        )
    with jax.ensure_compile_time_eval():  # A tracer could not be checked.
        client_data = jax.tree.map(jnp.asarray, client_data)
    first_client = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), client_data
    )
    check_result("value_fn", value_fn, (), jax.ShapeDtypeStruct((size,), bool), first_client)
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


def check_submodular(problem: DenseProblem, check_sets: int) -> None:
    """Checks that every client's function is 0 at the empty set, monotone and submodular.

    Few items are checked on all sets, more items on random sets, and traced data not at all.

    Args:
        problem: The clients' functions, whose gains are differences of values.
        check_sets: Number of random sets, in addition to the empty set.
    """
    if is_traced(problem):
        return
    size = problem.size
    # Each pair holds the item that joins each of the first sets, and the index of the larger set.
    if size <= MAX_ENUMERATED_ITEMS:
        numbers = np.arange(2**size)
        sets = (numbers[:, None] >> np.arange(size)) & 1 == 1
        pairs = [(np.full(2**size, item), numbers | 1 << item) for item in range(size)]
    else:
        # All sizes are equally likely; with a fair coin per item about half would be chosen.
        rng = np.random.default_rng(0)
        sets = rng.random((check_sets, size)) < rng.random((check_sets, 1))
        sets = np.concatenate([np.zeros((1, size), bool), sets])
        joining = rng.integers(size, size=len(sets))
        pairs = [(joining, len(sets) + np.arange(len(sets)))]
        sets = np.concatenate([sets, sets | (np.arange(size) == joining[:, None])])
    with jax.ensure_compile_time_eval():  # The problem may be made in a function being traced.
        values, gains = (np.asarray(array, float) for array in _evaluate(problem, sets))

    def require(valid, expected, joining=None, larger=None):
        """Raises an error about the first set and client, ``[sets, clients]``, if not valid."""
        if valid.all():
            return
        number, client = map(int, np.unravel_index(valid.argmin(), valid.shape))
        later = ""
        if joining is not None and larger is not None:
            later_gains = gains[larger[number], client].round(4).tolist()
            later = f", and {later_gains} after item {joining[number]} joined"
        raise ValueError(
            f"value_fn: expected {expected}, but in the set "
            f"{np.flatnonzero(sets[number]).tolist()} client {client} has the value "
            f"{values[number, client]:.4g} and gains {gains[number, client].round(4).tolist()}"
            f"{later}."
        )

    require(np.isfinite(values) & np.isfinite(gains).all(axis=2), "finite values")
    require((values == 0) | sets.any(axis=1, keepdims=True), "0 at the empty set")
    # Bounds the rounding error of a gain of 0 in each set.
    slack = 1e-5 * (np.abs(values).max(axis=1) + np.abs(gains).max(axis=(1, 2))) + 1e-30
    slack = slack[:, None, None]
    require((gains >= -slack).all(axis=2), "a monotone function")
    for joining, larger in pairs:
        count, is_joining = len(joining), np.arange(size) == joining[:, None]
        is_member = sets[:count] | is_joining | (sets[:count] & is_joining).any(1, keepdims=True)
        increases = np.where(is_member[:, None], 0, gains[larger] - gains[:count])
        diminishes = (increases <= slack[:count]).all(axis=2)
        require(diminishes, "a submodular function", joining, larger)


@jax.jit
def _evaluate(problem, sets):
    """Computes values, ``[sets, clients]``, and gains, ``[sets, clients, size]``."""

    def evaluate_one(mask):
        gains = jax.vmap(problem.function.gains, (0, None))(problem.data(), mask)
        return problem.values(mask), gains

    return jax.lax.map(evaluate_one, sets)
