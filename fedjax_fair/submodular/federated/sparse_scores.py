r"""Sparse scores: one flat list of the scores of all clients.

Gradients of all clients have as many elements as there are scores. If scores take few values,
gradients are products over levels. With :math:`P_{il} = \prod_{j: c_{ij} \geq s_l} (1 - x_j)`, the
probability that a random set has no item with at least the *l*-th smallest score :math:`s_l` of
client *i*,

.. math::

    \hat f_i(x) = \sum_l (s_l - s_{l-1}) (1 - P_{il}), \qquad
    \frac{\partial \hat f_i}{\partial x_j}
        = \sum_{l: s_l \leq c_{ij}} (s_l - s_{l-1}) \frac{P_{il}}{1 - x_j}.

Other scores use the prefix passes of the dense form, over groups of clients of similar size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree
from numpy.typing import ArrayLike

from fedjax_fair.submodular.checked_arrays import as_host
from fedjax_fair.submodular.federated.problem import Bases, Gains
from fedjax_fair.submodular.federated.secure import Messages
from fedjax_fair.submodular.matroids import Matroid, Uniform
from fedjax_fair.submodular.matroids.matroid import MAX_ITEMS
from fedjax_fair.submodular.sparse import SparseSimilarity
from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import Tree
from fedjax_fair.utils.warning import warn

__all__ = ["SparseScores", "sparse_scores"]

# This many products per client cost little compared with its scores.
_MAX_LEVELS = 16
# Entries per vmap batch.
_BATCH_ENTRIES = 2**22


class SparseScores(Tree):
    """Positive scores of clients for items; the entries of a client are contiguous.

    They are ordered by item if scores take few values, otherwise by decreasing score.

    Attributes:
        owners: Client of each score, ``[entries]``.
        items: Item of each score.
        scores: The scores, > 0.
        offsets: Start of each client's entries, ``[clients + 1]``.
        cells: Index of each score in the table of clients and levels; None for many levels.
        steps: Differences of successive levels, or None.
        by_item: Indices of all entries, grouped by item.
        item_offsets: Start of each item's group, ``[size + 1]``.
        groups: Clients whose numbers of entries differ by less than a factor of two.
        widths: Largest number of entries of a client in each group.
        num_clients: Number of clients.
        size: Number of items.
    """

    owners: Int[Array, " entries"]
    items: Int[Array, " entries"]
    scores: Float[Array, " entries"]
    offsets: Int[Array, " ends"]
    cells: Int[Array, " entries"] | None
    steps: Float[Array, " levels"] | None
    by_item: Int[Array, " entries"]
    item_offsets: Int[Array, " item_ends"]
    groups: tuple[Int[Array, "_"], ...]
    widths: tuple[int, ...]
    num_clients: int
    size: int

    def max_per_client(self, amounts: Float[Array, " entries"]) -> Float[Array, " clients"]:
        """Returns the largest entry of each client; minus infinity without entries."""
        return jax.ops.segment_max(amounts, self.owners, self.num_clients, indices_are_sorted=True)

    def weighted(self, weights: Float[Array, " clients"]) -> SparseSimilarity:
        """Returns the scores times the weight of their client, as similarities of set functions."""
        values = self.scores * weights[self.owners]
        return SparseSimilarity(
            items=self.items,
            values=values,
            rows=self.owners,
            starts=self.offsets,
            points=self.owners[self.by_item],
            item_values=values[self.by_item],
            item_starts=self.item_offsets,
        )

    def entries_of(self, client: Int[Array, ""]) -> Int[Array, " longest"]:
        """Returns the indices of a client's entries, padded with an index after the last entry."""
        entries = self.offsets[client] + jnp.arange(self.widths[-1], dtype=jnp.int32)
        return jnp.where(entries < self.offsets[client + 1], entries, self.items.shape[0])

    def blocks_of(self, clients: Int[Array, " group"], width: int) -> tuple[Array, Array]:
        """Returns indices of the entries of clients, ``[group, width]``, and a mask of them."""
        entries = self.offsets[clients][:, None] + jnp.arange(width, dtype=jnp.int32)[None]
        return entries, entries < self.offsets[clients + 1][:, None]

    def map_groups(self, compute: Callable[[Array, Array], PyTree]) -> Iterator[tuple]:
        """Yields clients, width and ``compute(entries, is_entry)`` of each client, by group."""

        def compute_one(client, width):
            entries, is_entry = self.blocks_of(client[None], width)
            return compute(entries[0], is_entry[0])

        for clients, width in zip(self.groups, self.widths, strict=True):
            one, batch_size = partial(compute_one, width=width), max(1, _BATCH_ENTRIES // width)
            if clients.shape[0] <= batch_size:
                yield clients, width, jax.vmap(one)(clients)
            else:
                yield clients, width, jax.lax.map(one, clients, batch_size=batch_size)


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
        clients: Client of each score, ``[entries]``.
        items: Item of each score, ``[entries]``.
        scores: The scores, ``[entries]``; 1 by default, a membership. Zeros are dropped, and
            negative scores with a warning.
        num_clients: Number of clients.
        size: Number of items.

    Raises:
        ValueError: If shapes or elements are invalid, or a pair occurs twice.

    Examples:
        >>> ratings = sparse_scores([0, 0, 2], [1, 3, 3], [5, 3, 4], num_clients=3, size=4)
        >>> ratings.steps.tolist(), ratings.cells.tolist()
        ([3.0, 1.0, 1.0], [2, 0, 7])
    """
    checks.positive_int("num_clients", num_clients, at_most=MAX_ITEMS)
    checks.positive_int("size", size, at_most=MAX_ITEMS)
    owners, places = as_host("clients", clients), as_host("items", items)
    amounts = np.ones(owners.shape, np.float32) if scores is None else as_host("scores", scores)
    if owners.ndim != 1 or not owners.shape == places.shape == amounts.shape:
        raise ValueError(
            f"clients, items, scores: got shapes {owners.shape}, {places.shape}, {amounts.shape}, "
            "expected vectors of equal length; pass one entry per score."
        )
    check_integers("clients", owners, num_clients)
    check_integers("items", places, size)
    # Lists can be long, so copies are avoided and elements have 4 bytes.
    with np.errstate(over="ignore"):  # Overflow gives infinity, which is rejected.
        amounts = clip_negative("scores", amounts.astype(np.float32, copy=False))
    owners, places = owners.astype(np.int32, copy=False), places.astype(np.int32, copy=False)
    if not (positive := amounts > 0).all():
        owners, places, amounts = owners[positive], places[positive], amounts[positive]
    if not owners.size:
        raise ValueError("scores: got no positive score, expected at least one; pass some.")
    pairs = np.sort(owners.astype(np.int64) * size + places)
    if (repeated := pairs[1:][pairs[1:] == pairs[:-1]]).size:
        client, item = divmod(int(repeated[0]), size)
        raise ValueError(
            f"scores: got two of client {client} for item {item}, expected one; add their scores, "
            "or remove one."
        )
    levels = np.unique(amounts)
    few = levels.size <= _MAX_LEVELS
    order = np.lexsort((places, owners) if few else (places, -amounts, owners))
    owners, places, amounts = owners[order], places[order], amounts[order]
    del pairs, order
    cells = owners * levels.size + np.searchsorted(levels, amounts) if few else None
    counts = np.bincount(owners, minlength=num_clients)
    raters = np.bincount(places, minlength=size)
    widths = 2 ** np.ceil(np.log2(np.maximum(counts, 1))).astype(int)
    different_widths = np.unique(widths).tolist()
    return SparseScores(
        owners=jnp.asarray(owners, jnp.int32),
        items=jnp.asarray(places, jnp.int32),
        scores=jnp.asarray(amounts, jnp.float32),
        offsets=jnp.asarray(np.append(0, np.cumsum(counts)), jnp.int32),
        cells=jnp.asarray(cells, jnp.int32) if few else None,
        steps=jnp.asarray(np.diff(levels, prepend=0), jnp.float32) if few else None,
        by_item=jnp.asarray(np.argsort(places, kind="stable"), jnp.int32),
        item_offsets=jnp.asarray(np.append(0, np.cumsum(raters)), jnp.int32),
        groups=tuple(jnp.asarray(np.flatnonzero(widths == w), jnp.int32) for w in different_widths),
        widths=tuple(different_widths),
        num_clients=num_clients,
        size=size,
    )


def clip_negative(name: str, scores: np.ndarray) -> np.ndarray:
    """Replaces negative scores by 0, with a warning; all must be finite."""
    if num_nonfinite := int((~np.isfinite(scores)).sum()):
        raise ValueError(f"{name}: {num_nonfinite} elements are not finite; remove them.")
    if num_negative := int((scores < 0).sum()):
        message = f"{name}: {num_negative} of {scores.size} are negative and count as 0."
        warn(message)
    return np.maximum(scores, 0)


def check_integers(name: str, values: np.ndarray, end: float = np.inf) -> None:
    """Checks that values are integers in ``[0, end)``."""
    if values.dtype.kind not in "iuf":
        raise ValueError(
            f"{name}: got {values.dtype}, expected integers; convert names to indices."
        )
    if values.dtype.kind == "f" and (fractions := values[values != np.rint(values)]).size:
        raise ValueError(f"{name}: got {fractions[0]}, expected integers; round them.")
    if values.size and not 0 <= values.min() <= values.max() < end:
        worst = values.min() if values.min() < 0 else values.max()
        raise ValueError(
            f"{name}: got {worst}, expected integers in [0, {end}); use indices from 0."
        )


def sparse_gains(sparse: SparseScores, amounts: Float[Array, " entries"]) -> Gains:
    """Wraps gains that are 0 where a client has no score."""

    def spread(mean):
        raters = jnp.diff(sparse.item_offsets)
        # A client without a score for an item differs from the mean by all of it.
        missing = jnp.max(jnp.abs(mean), where=raters < sparse.num_clients, initial=0)
        return jnp.maximum(jnp.max(jnp.abs(amounts - mean[sparse.items])), missing)

    def shares(weights, total):
        share = amounts / jnp.where(total > 0, total, jnp.inf)[sparse.items]
        return weights * jnp.maximum(sparse.max_per_client(share), 0)

    def messages(weights):
        return Messages((sparse.items,), (amounts * weights[sparse.owners],), (sparse.owners,))

    def bases(matroid):
        if isinstance(matroid, Uniform):
            return _largest_entries(sparse, amounts, matroid.rank)
        return _bases(sparse, amounts, matroid)

    return Gains(messages, bases, spread, shares)


def _bases(sparse: SparseScores, amounts: Float[Array, " entries"], matroid: Matroid) -> Bases:
    def base_of(client):
        entries = sparse.entries_of(client)
        items = sparse.items.at[entries].get(mode="fill", fill_value=sparse.size)
        gains = amounts.at[entries].get(mode="fill", fill_value=0)
        row = jnp.zeros(sparse.size).at[items].set(gains, mode="drop")
        base = matroid.max_weight_base(row)
        (base_items,) = jnp.nonzero(base, size=matroid.rank)
        return jnp.sum(row, where=base), base_items.astype(jnp.int32)

    clients = jnp.arange(sparse.num_clients, dtype=jnp.int32)
    utility, items = jax.lax.map(base_of, clients, batch_size=min(256, sparse.num_clients))
    owners = jnp.repeat(clients, matroid.rank)
    return Bases(utility, lambda weights: Messages((items.ravel(),), (weights[owners],), (owners,)))


def _largest_entries(sparse: SparseScores, amounts: Float[Array, " entries"], k: int) -> Bases:
    """Returns each client's ``k`` largest entries, and its first other items if fewer are > 0."""

    def largest(entries, is_entry):
        gains = jnp.where(is_entry, amounts.at[entries].get(mode="clip"), 0)
        best, lanes = jax.lax.top_k(gains, min(k, entries.shape[0]))
        padding = (0, k - best.shape[0])
        items = sparse.items.at[entries[lanes]].get(mode="clip")
        return jnp.pad(items, padding), jnp.pad(best, padding)

    parts = [part for _, _, part in sparse.map_groups(largest)]
    items, best = (jnp.concatenate(column) for column in zip(*parts, strict=True))
    clients, chosen = jnp.concatenate(sparse.groups), best > 0
    # If entries are missing, all positive ones are chosen, so the first k items contain enough
    # others.
    rows = jnp.arange(sparse.num_clients, dtype=jnp.int32)[:, None]
    first = jnp.where(chosen & (items < k), items, k)
    taken = jnp.zeros((sparse.num_clients, k), bool).at[rows, first].set(True, mode="drop")
    missing = k - jnp.sum(chosen, axis=1, dtype=jnp.int32)
    is_filler = ~taken & (jnp.cumsum(~taken, axis=1, dtype=jnp.int32) <= missing[:, None])
    utility = jnp.sum(jnp.where(chosen, best, 0), axis=1)

    def messages(weights):
        weights = weights[clients][:, None]
        chosen_items = jnp.where(chosen, items, sparse.size).ravel()
        chosen_amounts = jnp.broadcast_to(weights, items.shape).ravel()
        return Messages(
            (chosen_items, jnp.arange(k, dtype=jnp.int32)),
            (chosen_amounts, jnp.where(is_filler, weights, 0)),
            (jnp.repeat(clients, k), clients),
        )

    return Bases(jnp.zeros_like(utility).at[clients].set(utility), messages)
