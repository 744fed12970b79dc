r"""Scores of which most are 0: one flat list, processed in one pass for all clients.

Only the items that a client has scored have a gain for it, so the gradients of all clients are as
many numbers as there are scores. Where scores take few different values (ratings, memberships) they
come from products over levels: with :math:`P_{il} = \prod_{j: c_{ij} \geq s_l} (1 - x_j)`, the
probability that a random set has no item with at least the *l*-th smallest score :math:`s_l` of
client *i*,

.. math::

    \hat f_i(x) = \sum_l (s_l - s_{l-1}) (1 - P_{il}), \qquad
    \frac{\partial \hat f_i}{\partial x_j}
        = \sum_{l: s_l \leq c_{ij}} (s_l - s_{l-1}) \frac{P_{il}}{1 - x_j},

where :math:`1 - x_j` is at least 1e-30, so that the quotient is right for certain items too. Other
scores take the two prefix passes of the dense form, over groups of clients with about equally many
scores.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree
from numpy.typing import ArrayLike

from fedjax_fair import checks
from fedjax_fair.submodular.federated.problem import Bases, Gains
from fedjax_fair.submodular.federated.secure import Messages
from fedjax_fair.submodular.matroids import Matroid, Uniform
from fedjax_fair.tree import Tree

__all__ = ["SparseScores", "entries", "sparse_scores"]

# Up to so many products a client cost little beside its scores.
_MAX_LEVELS = 16
# Entries processed at a time.
_TOGETHER = 2**22


class SparseScores(Tree):
    """Positive scores of clients for items, each client's in a run.

    Runs are in the order of items where scores take few values, and otherwise from the largest
    score to the smallest.

    Attributes:
        owners: The client of each score, ``[entries]``.
        items: Its item.
        scores: The score, > 0.
        offsets: Where each client's run starts, ``[clients + 1]``.
        cells: The index of each score in the flattened table of clients and different scores, in
            ascending order; or None if there are many different scores.
        steps: The differences of successive different scores, or None.
        by_item: The indices of all entries, those of each item in a run, ``[entries]``.
        item_offsets: Where each item's run in ``by_item`` starts, ``[size + 1]``.
        alike: Groups of clients whose runs have about the same length, within a factor of two.
        widths: The largest possible length of a run in each of these groups.
        num_clients: Number of clients.
        size: Items in the ground set.
        max_raters: The largest number of clients that score one item.
    """

    owners: Int[Array, " entries"]
    items: Int[Array, " entries"]
    scores: Float[Array, " entries"]
    offsets: Int[Array, " ends"]
    cells: Int[Array, " entries"] | None
    steps: Float[Array, " levels"] | None
    by_item: Int[Array, " entries"]
    item_offsets: Int[Array, " item_ends"]
    alike: tuple[Int[Array, "_"], ...]
    widths: tuple[int, ...]
    num_clients: int
    size: int
    max_raters: int


def sparse_scores(
    clients: ArrayLike,
    items: ArrayLike,
    scores: ArrayLike | None = None,
    *,
    num_clients: int,
    size: int,
) -> SparseScores:
    """Sorts and indexes a list of scores, on the host.

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
        >>> ratings.steps.tolist(), ratings.cells.tolist()
        ([3.0, 1.0, 1.0], [2, 0, 7])
    """
    checks.positive_int("num_clients", num_clients)
    checks.positive_int("size", size)
    owners, places = np.asarray(clients), np.asarray(items)
    amounts = np.ones(owners.shape, np.float32) if scores is None else np.asarray(scores)
    if owners.ndim != 1 or not owners.shape == places.shape == amounts.shape:
        raise ValueError(
            f"clients, items, scores: expected vectors of one length, got shapes "
            f"{owners.shape}, {places.shape}, {amounts.shape}."
        )
    _within("clients", owners, num_clients)
    _within("items", places, size)
    # Lists can be long: half as many bytes, and no copy that is not needed.
    amounts = clipped("scores", amounts).astype(np.float32, copy=False)
    owners, places = owners.astype(np.int32, copy=False), places.astype(np.int32, copy=False)
    if not (positive := amounts > 0).all():
        owners, places, amounts = owners[positive], places[positive], amounts[positive]
    if not owners.size:
        raise ValueError("scores: expected at least one positive score.")
    _all_different(owners, places, size)
    different = np.unique(amounts)
    few = different.size <= _MAX_LEVELS
    order = np.lexsort((places, owners) if few else (places, -amounts, owners))
    owners, places, amounts = owners[order], places[order], amounts[order]
    del order
    cells = owners * different.size + np.searchsorted(different, amounts) if few else None
    counts = np.bincount(owners, minlength=num_clients)
    raters = np.bincount(places, minlength=size)
    widths = 2 ** np.ceil(np.log2(np.maximum(counts, 1))).astype(int)
    return SparseScores(
        owners=jnp.asarray(owners, jnp.int32),
        items=jnp.asarray(places, jnp.int32),
        scores=jnp.asarray(amounts, jnp.float32),
        offsets=jnp.asarray(np.append(0, np.cumsum(counts)), jnp.int32),
        cells=jnp.asarray(cells, jnp.int32) if few else None,
        steps=jnp.asarray(np.diff(different, prepend=0), jnp.float32) if few else None,
        by_item=jnp.asarray(np.argsort(places, kind="stable"), jnp.int32),
        item_offsets=jnp.asarray(np.append(0, np.cumsum(raters)), jnp.int32),
        alike=tuple(
            jnp.asarray(np.flatnonzero(widths == width), jnp.int32) for width in np.unique(widths)
        ),
        widths=tuple(np.unique(widths).tolist()),
        num_clients=num_clients,
        size=size,
        max_raters=int(raters.max()),
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
    pairs = owners.astype(np.int64) * size + places
    pairs.sort()
    for pair in pairs[1:][pairs[1:] == pairs[:-1]]:
        client, item = divmod(int(pair), size)
        raise ValueError(f"scores: expected one of client {client} for item {item}, got two.")


def entries(sparse: SparseScores, amounts: Float[Array, " entries"]) -> Gains:
    """Gains that are 0 wherever a client has no score."""

    def spread(mean):
        raters = jnp.diff(sparse.item_offsets)
        missing = jnp.max(jnp.abs(mean), where=raters < sparse.num_clients, initial=0)
        return jnp.maximum(jnp.max(jnp.abs(amounts - mean[sparse.items])), missing)

    def shares(weights, total):
        share = amounts / jnp.where(total > 0, total, jnp.inf)[sparse.items]
        return weights * jnp.maximum(per_client_max(sparse, share), 0)

    return Gains(
        messages=lambda weights: Messages(
            (sparse.items,), (amounts * weights[sparse.owners],), (sparse.owners,)
        ),
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
    if isinstance(matroid, Uniform):
        return _largest(sparse, amounts, matroid.rank)

    def choose(client):
        row = _row(sparse, amounts, client)
        base = matroid.max_weight_base(row)
        (items,) = jnp.nonzero(base, size=matroid.rank)
        return jnp.sum(row, where=base), items.astype(jnp.int32)

    clients = jnp.arange(sparse.num_clients, dtype=jnp.int32)
    utility, items = jax.lax.map(choose, clients, batch_size=min(256, sparse.num_clients))
    owners = jnp.repeat(clients, matroid.rank)
    return Bases(utility, lambda weights: Messages((items.ravel(),), (weights[owners],), (owners,)))


def run_of(sparse: SparseScores, client: Int[Array, ""]) -> Int[Array, " longest"]:
    """The places of the entries of one client, padded with one beyond the end of the list."""
    places = sparse.offsets[client] + jnp.arange(sparse.widths[-1], dtype=jnp.int32)
    return jnp.where(places < sparse.offsets[client + 1], places, sparse.items.shape[0])


def runs(
    sparse: SparseScores, clients: Int[Array, " some"], width: int
) -> tuple[Int[Array, "some {width}"], Bool[Array, "some {width}"]]:
    """The places of the entries of some clients, and a mask that is false for padding."""
    places = sparse.offsets[clients][:, None] + jnp.arange(width, dtype=jnp.int32)[None]
    return places, places < sparse.offsets[clients + 1][:, None]


def for_each(
    sparse: SparseScores,
    clients: Int[Array, " some"],
    width: int,
    compute: Callable[[Int[Array, " width"], Bool[Array, " width"]], PyTree],
) -> PyTree:
    """``compute(places, inside)`` of each client's run, as many at a time as memory allows."""

    def one(client):
        places, inside = runs(sparse, client[None], width)
        return compute(places[0], inside[0])

    together = max(1, _TOGETHER // width)
    if clients.shape[0] <= together:
        return jax.vmap(one)(clients)
    return jax.lax.map(one, clients, batch_size=together)


def _row(
    sparse: SparseScores, amounts: Float[Array, " entries"], client: Int[Array, ""]
) -> Float[Array, " size"]:
    places = run_of(sparse, client)
    items = sparse.items.at[places].get(mode="fill", fill_value=sparse.size)
    own = amounts.at[places].get(mode="fill", fill_value=0)
    return jnp.zeros(sparse.size).at[items].set(own, mode="drop")


def _largest(sparse: SparseScores, amounts: Float[Array, " entries"], k: int) -> Bases:
    """Each client's ``k`` largest entries, filled with its first other items if fewer are > 0."""
    groups = zip(sparse.alike, sparse.widths, strict=True)
    parts = [_largest_of(sparse, amounts, clients, width, k) for clients, width in groups]
    clients = jnp.concatenate(sparse.alike)
    items, best = (jnp.concatenate(column) for column in zip(*parts, strict=True))
    chosen = best > 0
    # Where some are missing, all positive entries are chosen, so that there are enough others among
    # the first k items.
    rows = jnp.arange(sparse.num_clients, dtype=jnp.int32)[:, None]
    first = jnp.where(chosen & (items < k), items, k)
    taken = jnp.zeros((sparse.num_clients, k), bool).at[rows, first].set(True, mode="drop")
    missing = k - jnp.sum(chosen, axis=1, dtype=jnp.int32)
    filled = ~taken & (jnp.cumsum(~taken, axis=1, dtype=jnp.int32) <= missing[:, None])
    utility = jnp.sum(jnp.where(chosen, best, 0), axis=1)

    def messages(weights):
        own = weights[clients][:, None]
        named = jnp.where(chosen, items, sparse.size)
        listed = jnp.broadcast_to(own, items.shape).ravel()
        fillers = jnp.where(filled, own, 0)
        entries = jnp.repeat(clients, items.shape[1])
        return Messages(
            (named.ravel(), jnp.arange(k, dtype=jnp.int32)), (listed, fillers), (entries, clients)
        )

    return Bases(jnp.zeros_like(utility).at[clients].set(utility), messages)


def _largest_of(
    sparse: SparseScores,
    amounts: Float[Array, " entries"],
    clients: Int[Array, " alike"],
    width: int,
    k: int,
) -> tuple[Int[Array, "alike k"], Float[Array, "alike k"]]:
    """The items and amounts of the largest entries of clients with runs of about one length."""

    def largest(places, inside):
        own = jnp.where(inside, amounts.at[places].get(mode="clip"), 0)
        best, lanes = jax.lax.top_k(own, min(k, width))
        return sparse.items.at[places[lanes]].get(mode="clip"), best

    items, best = for_each(sparse, clients, width, largest)
    padding = ((0, 0), (0, k - best.shape[1]))
    return jnp.pad(items, padding), jnp.pad(best, padding)
