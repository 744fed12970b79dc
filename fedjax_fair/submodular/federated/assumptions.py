"""What the algorithms assume of a function that is known only by its values, checked on sets."""

from __future__ import annotations

from functools import cache

import jax
import numpy as np

from fedjax_fair.submodular.arrays import is_traced
from fedjax_fair.submodular.federated.problem import DenseProblem

__all__ = ["FEW", "assert_submodular"]

# Up to so many items all subsets are checked, or tabulated.
FEW = 10


def assert_submodular(problem: DenseProblem, check_sets: int) -> None:
    """Raises unless every client's function is 0 at the empty set, monotone and submodular.

    Of few items on all sets, of more on random ones; silent on traced data.

    Args:
        problem: The clients' functions, whose gains are differences of values.
        check_sets: Random sets, besides the empty one.
    """
    if is_traced(problem):
        return
    size = problem.size
    if size <= FEW:
        sets = (np.arange(2**size)[:, None] >> np.arange(size)) & 1 == 1
        joining = [range(size)] * len(sets)
    else:
        # Of all sizes equally often; a fair coin for each item would try middle-sized sets only.
        rng = np.random.default_rng(0)
        sets = rng.random((check_sets, size)) < rng.random((check_sets, 1))
        sets = np.concatenate([np.zeros((1, size), bool), sets])
        joining = rng.integers(size, size=(len(sets), 1))

    @cache  # Of few items every set is met several times.
    def at(packed: bytes) -> tuple[np.ndarray, np.ndarray]:
        values, gains = map(np.asarray, _evaluated(problem, np.frombuffer(packed, bool)))
        return values, gains

    with jax.ensure_compile_time_eval():  # The problem may be made in a function being traced.
        for mask, items in zip(sets, joining, strict=True):
            values, gains = at(mask.tobytes())
            _assert_set(mask, values, gains)
            for item in items:
                larger = mask | (np.arange(size) == item)
                _assert_diminishing(mask, int(item), values, gains, at(larger.tobytes())[1])


@jax.jit
def _evaluated(problem, mask):
    """Values, ``[clients]``, and gains, ``[clients, size]``, of a set."""
    gains = jax.vmap(problem.function.gains, (0, None))(problem.data(), mask)
    return problem.values(mask), gains


def _assert_set(mask: np.ndarray, values: np.ndarray, gains: np.ndarray) -> None:
    """Of the values of all clients, ``[clients]``, and their gains, ``[clients, size]``."""
    chosen = np.flatnonzero(mask).tolist()
    if not np.isfinite(values).all() or not np.isfinite(gains).all():
        client = int(np.argmin(np.isfinite(values) & np.isfinite(gains).all(axis=1)))
        raise ValueError(
            f"value_fn: expected finite values, but client {client} has {values[client]} at the "
            f"set {chosen}, or another one at a set that differs in an item."
        )
    if not chosen and (values != 0).any():
        client = int(np.argmax(values != 0))
        raise ValueError(
            f"value_fn: expected 0 at the empty set, but client {client} has {values[client]}."
        )
    if gains.min() < -_slack(values, gains):
        client, item = (int(k) for k in np.unravel_index(gains.argmin(), gains.shape))
        raise ValueError(
            f"value_fn: expected a monotone function, but item {item} in the set {chosen} changes "
            f"the value of client {client} by {gains.min():.4g}."
        )


def _assert_diminishing(
    mask: np.ndarray, joined: int, values: np.ndarray, gains: np.ndarray, later: np.ndarray
) -> None:
    """Compares gains with those in the set with one more item."""
    more = np.where(mask | (np.arange(mask.size) == joined) | mask[joined], 0, later - gains)
    if more.max() > _slack(values, gains):
        client, item = (int(k) for k in np.unravel_index(more.argmax(), more.shape))
        raise ValueError(
            f"value_fn: expected a submodular function, but for client {client} item {item} gains "
            f"{gains[client, item]:.4g} in the set {np.flatnonzero(mask).tolist()}, and "
            f"{later[client, item]:.4g} after item {joined} joined it."
        )


def _slack(values: np.ndarray, gains: np.ndarray) -> float:
    """The rounding error of a gain of 0."""
    return 1e-5 * float(np.abs(values).max(initial=0) + np.abs(gains).max(initial=0)) + 1e-30
