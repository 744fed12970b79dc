r"""Scores of which most are 0: one flat list, gone through once for all clients.

Only what a client has scored can gain it anything, so the gradients of all clients are as many
numbers as there are scores. Where scores take few different values (ratings, memberships) they come
from products over levels: with :math:`P_{il} = \prod_{j: c_{ij} \geq s_l} (1 - x_j)`, the
probability that client *i* has nothing of at least the *l*-th smallest score :math:`s_l`,

.. math::

    \hat f_i(x) = \sum_l (s_l - s_{l-1}) (1 - P_{il}), \qquad
    \frac{\partial \hat f_i}{\partial x_j}
        = \sum_{l: s_l \leq c_{ij}} (s_l - s_{l-1}) \frac{P_{il}}{1 - x_j},

where for certain items the quotient is a product over the others. Any other scores take the two
prefix passes of the dense form, over all clients at once.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from fedjax_fair import checks
from fedjax_fair.submodular.federated.problem import Bases, Gains
from fedjax_fair.submodular.federated.secure import Messages
from fedjax_fair.submodular.matroids import Matroid

__all__ = ["SparseScores", "entries", "sparse_scores"]

# So many products a client are no burden beside its scores.
_MOST_LEVELS = 16
_DIGIT = 4


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SparseScores:
    """Positive scores of clients for items, each client's in a run and falling.

    Attributes:
        owners: The client of each score, ``[entries]``.
        items: Its item.
        scores: The score, > 0.
        offsets: Where each client's run starts, ``[clients + 1]``.
        levels: The place of each score among the different ones, from the smallest, or None if
            they are many.
        steps: From each of the different scores to the next smaller one, or None.
        num_clients: Number of clients.
        size: Items in the ground set.
        longest: Scores of the client that has most.
    """

    owners: Int[Array, " entries"]
    items: Int[Array, " entries"]
    scores: Float[Array, " entries"]
    offsets: Int[Array, " ends"]
    levels: Int[Array, " entries"] | None
    steps: Float[Array, " levels"] | None
    num_clients: int = dataclasses.field(metadata={"static": True})
    size: int = dataclasses.field(metadata={"static": True})
    longest: int = dataclasses.field(metadata={"static": True})


def sparse_scores(
    clients: ArrayLike,
    items: ArrayLike,
    scores: ArrayLike | None = None,
    *,
    num_clients: int,
    size: int,
) -> SparseScores:
    """Makes ready a list of scores, on the host.

    Args:
        clients: The client of each score, ``[entries]``.
        items: Its item, ``[entries]``.
        scores: The score, ``[entries]``; 1 by default, a membership. Zeros are left out, negative
            ones too, with a warning.
        num_clients: Number of clients.
        size: Items in the ground set.

    Raises:
        ValueError: If shapes differ, a number is out of range or not finite, a pair comes twice, or
            no score is positive.

    Examples:
        >>> ratings = sparse_scores([0, 0, 2], [1, 3, 3], [5, 3, 4], num_clients=3, size=4)
        >>> ratings.steps.tolist(), ratings.levels.tolist()
        ([3.0, 1.0, 1.0], [2, 0, 1])
    """
    checks.positive_int("num_clients", num_clients)
    checks.positive_int("size", size)
    owners, places = np.asarray(clients), np.asarray(items)
    amounts = np.ones(owners.shape) if scores is None else np.asarray(scores)
    if owners.ndim != 1 or not owners.shape == places.shape == amounts.shape:
        raise ValueError(
            f"clients, items, scores: expected vectors of one length, got shapes "
            f"{owners.shape}, {places.shape}, {amounts.shape}."
        )
    _within("clients", owners, num_clients)
    _within("items", places, size)
    amounts = clipped("scores", amounts)
    kept = amounts > 0
    owners, places, amounts = (column[kept] for column in (owners, places, amounts))
    if not owners.size:
        raise ValueError("scores: expected at least one positive score.")
    order = np.lexsort((places, -amounts, owners))
    owners, places, amounts = (column[order] for column in (owners, places, amounts))
    _all_different(owners, places, size)
    counts = np.bincount(owners, minlength=num_clients)
    different, levels = np.unique(amounts, return_inverse=True)
    few = different.size <= _MOST_LEVELS
    return SparseScores(
        owners=jnp.asarray(owners, jnp.int32),
        items=jnp.asarray(places, jnp.int32),
        scores=jnp.asarray(amounts, jnp.float32),
        offsets=jnp.asarray(np.append(0, np.cumsum(counts)), jnp.int32),
        levels=jnp.asarray(levels, jnp.int32) if few else None,
        steps=jnp.asarray(np.diff(different, prepend=0), jnp.float32) if few else None,
        num_clients=num_clients,
        size=size,
        longest=int(counts.max()),
    )


def clipped(name: str, scores: np.ndarray) -> np.ndarray:
    """The scores with 0 for negative ones, and a warning if there are any."""
    import warnings

    if not np.isfinite(scores).all():
        raise ValueError(
            f"{name}: expected finite numbers, got {(~np.isfinite(scores)).sum()} not."
        )
    if negative := int((scores < 0).sum()):
        message = f"{name}: {negative} of {scores.size} are negative and count as 0."
        warnings.warn(message, stacklevel=3)
    return np.maximum(scores, 0)


def _within(name: str, numbers: np.ndarray, end: int) -> None:
    if not np.issubdtype(numbers.dtype, np.integer):
        raise ValueError(f"{name}: expected integers, got {numbers.dtype}.")
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < end:
        worst = numbers.min() if numbers.min() < 0 else numbers.max()
        raise ValueError(f"{name}: expected numbers in [0, {end}), got {worst}.")


def _all_different(owners: np.ndarray, places: np.ndarray, size: int) -> None:
    pairs = np.sort(owners.astype(np.int64) * size + places)
    for pair in pairs[1:][pairs[1:] == pairs[:-1]]:
        client, item = divmod(int(pair), size)
        raise ValueError(f"scores: expected one of client {client} for item {item}, got two.")


def entries(sparse: SparseScores, amounts: Float[Array, " entries"]) -> Gains:
    """Gains that are 0 but where a client has a score."""

    def spread(mean):
        raters = jax.ops.segment_sum(jnp.ones_like(sparse.items), sparse.items, sparse.size)
        missing = jnp.max(jnp.abs(mean), where=raters < sparse.num_clients, initial=0)
        return jnp.maximum(jnp.max(jnp.abs(amounts - mean[sparse.items])), missing)

    def shares(weights, total):
        share = amounts / jnp.where(total > 0, total, jnp.inf)[sparse.items]
        return weights * jnp.maximum(per_client_max(sparse, share), 0)

    return Gains(
        messages=lambda weights: Messages((sparse.items,), (amounts * weights[sparse.owners],)),
        bases=lambda matroid: _bases(sparse, amounts, matroid),
        spread=spread,
        shares=shares,
    )


def per_client_max(
    sparse: SparseScores, amounts: Float[Array, " entries"]
) -> Float[Array, " clients"]:
    """The largest entry of each client; minus infinity for one that has none."""
    return jax.ops.segment_max(amounts, sparse.owners, sparse.num_clients, indices_are_sorted=True)


def _bases(sparse: SparseScores, amounts: Float[Array, " entries"], matroid: Matroid) -> Bases:
    if matroid.name == "uniform":
        return _largest(sparse, amounts, matroid.rank)

    def choose(client):
        row = _row(sparse, amounts, client)
        base = matroid.max_weight_base(row)
        (items,) = jnp.nonzero(base, size=matroid.rank)
        return jnp.sum(row, where=base), items.astype(jnp.int32)

    clients = jnp.arange(sparse.num_clients, dtype=jnp.int32)
    worth, items = jax.lax.map(choose, clients, batch_size=min(256, sparse.num_clients))
    return Bases(
        worth, lambda weights: Messages((items.ravel(),), (jnp.repeat(weights, matroid.rank),))
    )


def run_of(sparse: SparseScores, client: Int[Array, ""]) -> Int[Array, " longest"]:
    """Where the entries of one client are; beyond the end of the list where it has no more."""
    places = sparse.offsets[client] + jnp.arange(sparse.longest, dtype=jnp.int32)
    return jnp.where(places < sparse.offsets[client + 1], places, sparse.items.shape[0])


def _row(
    sparse: SparseScores, amounts: Float[Array, " entries"], client: Int[Array, ""]
) -> Float[Array, " size"]:
    places = run_of(sparse, client)
    items = sparse.items.at[places].get(mode="fill", fill_value=sparse.size)
    own = amounts.at[places].get(mode="fill", fill_value=0)
    return jnp.zeros(sparse.size).at[items].set(own, mode="drop")


def _largest(sparse: SparseScores, amounts: Float[Array, " entries"], k: int) -> Bases:
    """Each client's ``k`` largest entries; where fewer are positive, the first other items too."""
    chosen = _select(sparse, amounts, k)
    missing = k - _count(sparse, chosen)
    # All positive entries are in then, and there are enough other items among the first k.
    among_first = jnp.where(chosen & (sparse.items < k), sparse.items, k)
    taken = jnp.zeros((sparse.num_clients, k), bool)
    taken = taken.at[sparse.owners, among_first].set(True, mode="drop")
    filled = ~taken & (jnp.cumsum(~taken, axis=1) <= missing[:, None])
    worth = jax.ops.segment_sum(
        jnp.where(chosen, amounts, 0), sparse.owners, sparse.num_clients, indices_are_sorted=True
    )

    def messages(weights):
        listed = jnp.where(chosen, weights[sparse.owners], 0)
        fillers = jnp.where(filled, weights[:, None], 0)
        return Messages((sparse.items, jnp.arange(k, dtype=jnp.int32)), (listed, fillers))

    return Bases(worth, messages)


def _count(sparse: SparseScores, mask: Bool[Array, " entries"]) -> Int[Array, " clients"]:
    return jax.ops.segment_sum(
        mask.astype(jnp.int32), sparse.owners, sparse.num_clients, indices_are_sorted=True
    )


def _select(
    sparse: SparseScores, amounts: Float[Array, " entries"], k: int
) -> Bool[Array, " entries"]:
    """The ``k`` largest positive entries of each client, of equal ones those of the first items.

    A selection by digits, from the highest: it takes as many passes as there are digits, however
    differently long the runs are, where a sort of all entries would take twenty times as long.
    """
    # Positive floats are in the order of their bits.
    amount_key = jax.lax.bitcast_convert_type(amounts, jnp.uint32)
    item_key = (sparse.size - 1 - sparse.items).astype(jnp.uint32)
    passes = [(amount_key, 32), (item_key, (sparse.size - 1).bit_length())]
    state = (amounts > 0, jnp.zeros_like(amounts, bool), jnp.full(sparse.num_clients, k))
    for keys, bits in passes:
        shifts = jnp.arange((bits - 1) // _DIGIT * _DIGIT, -1, -_DIGIT).astype(jnp.uint32)
        state, _ = jax.lax.scan(
            lambda state, shift, keys=keys: (_by_digit(sparse, state, keys >> shift), None),
            state,
            shifts,
        )
    tied, chosen, wanted = state
    return chosen | (tied & (wanted > 0)[sparse.owners])


def _by_digit(sparse: SparseScores, state, keys):
    """Chooses entries with a digit above the deciding one; those that have it stay tied."""
    tied, chosen, wanted = state
    base = 1 << _DIGIT
    digits = (keys & (base - 1)).astype(jnp.int32)
    cells = jnp.where(tied, sparse.owners * base + digits, sparse.num_clients * base)
    counts = jnp.zeros(sparse.num_clients * base, jnp.int32).at[cells].add(1, mode="drop")
    above = jax.lax.cumsum(counts.reshape(-1, base), axis=1, reverse=True)
    deciding = jnp.sum(above >= wanted[:, None], axis=1, dtype=jnp.int32) - 1
    surely = jnp.take_along_axis(jnp.pad(above, ((0, 0), (0, 1))), (deciding + 1)[:, None], axis=1)[
        :, 0
    ]
    limit = deciding[sparse.owners]
    return tied & (digits == limit), chosen | (tied & (digits > limit)), wanted - surely
