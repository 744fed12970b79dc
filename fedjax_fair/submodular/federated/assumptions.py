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

    Few items are checked on all sets, more items on random sets. Traced data is not checked.

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
        # All sizes are equally likely; a fair coin per item would give sets of about half the items.
        rng = np.random.default_rng(0)
        sets = rng.random((check_sets, size)) < rng.random((check_sets, 1))
        sets = np.concatenate([np.zeros((1, size), bool), sets])
        joining = rng.integers(size, size=len(sets))
        pairs = [(joining, len(sets) + np.arange(len(sets)))]
        sets = np.concatenate([sets, sets | (np.arange(size) == joining[:, None])])
    with jax.ensure_compile_time_eval():  # The problem may be made in a function being traced.
        values, gains = map(np.asarray, _evaluate(problem, sets))

    def at(invalid):
        """Returns the indices of the first invalid element, and the items of its set."""
        index = tuple(int(k) for k in np.unravel_index(invalid.argmax(), invalid.shape))
        return index, np.flatnonzero(sets[index[0]]).tolist()

    if (invalid := ~np.isfinite(values) | ~np.isfinite(gains).all(axis=2)).any():
        (number, client), items = at(invalid)
        raise ValueError(
            f"value_fn: client {client} has {values[number, client]} at the set {items}, or a "
            "non-finite value at a set that differs in one item; expected finite values."
        )
    if (invalid := (values != 0) & ~sets.any(axis=1, keepdims=True)).any():
        (number, client), _ = at(invalid)
        raise ValueError(
            f"value_fn: client {client} has {values[number, client]} at the empty set, expected 0."
        )
    # Bounds the rounding error of a gain of 0 in each set.
    slack = 1e-5 * (np.abs(values).max(axis=1) + np.abs(gains).max(axis=(1, 2))) + 1e-30
    if (invalid := gains < -slack[:, None, None]).any():
        (number, client, item), items = at(invalid)
        raise ValueError(
            f"value_fn: item {item} changes the value of client {client} by "
            f"{gains[number, client, item]:.4g} in the set {items}; expected a monotone function."
        )
    for joining, larger in pairs:
        count, is_joining = len(joining), np.arange(size) == joining[:, None]
        is_member = sets[:count] | is_joining | (sets[:count] & is_joining).any(1, keepdims=True)
        increases = np.where(is_member[:, None], 0, gains[larger] - gains[:count])
        if (invalid := increases > slack[:count, None, None]).any():
            (number, client, item), items = at(invalid)
            raise ValueError(
                f"value_fn: for client {client} item {item} gains "
                f"{gains[number, client, item]:.4g} in the set {items}, and "
                f"{gains[larger[number], client, item]:.4g} after item {joining[number]} joined "
                "it; expected a submodular function."
            )


@jax.jit
def _evaluate(problem, sets):
    """Computes values, ``[sets, clients]``, and gains, ``[sets, clients, size]``."""

    def evaluate_one(mask):
        gains = jax.vmap(problem.function.gains, (0, None))(problem.data(), mask)
        return problem.values(mask), gains

    return jax.lax.map(evaluate_one, sets)
