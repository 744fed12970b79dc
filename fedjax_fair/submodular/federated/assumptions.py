"""Checks of the assumptions about functions that are given by their values."""

from __future__ import annotations

import jax
import numpy as np

from fedjax_fair.submodular.arrays import is_traced
from fedjax_fair.submodular.federated.problem import DenseProblem

__all__ = ["MAX_ENUMERATED_ITEMS", "check_submodular"]

MAX_ENUMERATED_ITEMS = 10


def check_submodular(problem: DenseProblem, check_sets: int) -> None:
    """Checks that every client's function is 0 at the empty set, monotone and submodular.

    Few items are checked on all sets, more items on random sets, and traced data not at all.

    Args:
        problem: The clients' functions, whose gains are differences of values.
        check_sets: Random sets in addition to the empty one.
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
