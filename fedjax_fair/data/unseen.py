"""Clients that are held out of training, on which trained models are evaluated."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Int

from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.federated import FederatedData, stack
from fedjax_fair.data.partitioner import generator
from fedjax_fair.utils import checks

__all__ = ["choose_unseen", "hold_out_clients", "select_clients"]

_STREAM = 12
"""Stream of the seed, which differs from those that split examples."""


def hold_out_clients(
    data: FederatedData, fraction: float, seed: int = 0
) -> tuple[FederatedData, FederatedData]:
    """Holds out clients, which appear only at test time.

    Training uses the first part, and `fedjax_fair.analysis.evaluate_unseen` evaluates the models on
    the second one.

    Args:
        data: A federated dataset. With partitions from ``data.stack`` the same clients are held out
            of all.
        fraction: Fraction of the clients, in ``(0, 1)``; rounded to one client or more.
        seed: Seed of the choice, independent of that of partitions.

    Returns:
        The clients that may train, and the unseen clients, both in the order of ``data``. Names,
        groups and sensitive features are kept, and without names each part is numbered from 0.
        Group ids are renumbered from 0 where the largest is not below the number of clients. The
        parts share the arrays of examples; those of the other part count as unassigned.

    Raises:
        ValueError: If ``fraction`` is out of range, no client is left to train, or no client of a
            part has test examples.

    Examples:
        >>> import fedjax_fair as ff
        >>> seen, unseen = hold_out_clients(ff.data.load("digits"), fraction=0.2)
        >>> seen.num_clients, unseen.num_clients
        (40, 10)
    """
    checks.unit_interval("fraction", fraction)
    if not fraction:
        raise ValueError(f"{fraction=}: expected a number in (0, 1).")
    checks.instance("data", data, FederatedData, "data.load('digits')")
    unseen = choose_unseen(np.arange(data.num_clients), fraction, seed)
    if len(unseen) == data.num_clients:
        raise ValueError(
            f"{fraction=} holds out all of {data.num_clients} clients: expected a smaller "
            "fraction, so that one or more train."
        )
    seen = np.setdiff1d(np.arange(data.num_clients), unseen)
    for name, clients in (("training", seen), ("unseen", unseen)):
        if not np.asarray(data.test.sizes)[..., clients].any():
            raise ValueError(
                f"{fraction=}, {seed=}: none of {len(clients)} {name} clients has test examples; "
                "expected another fraction or seed."
            )
    return select_clients(data, seen), select_clients(data, unseen)


def choose_unseen(
    clients: Int[np.ndarray, " clients"], fraction: float, seed: int
) -> Int[np.ndarray, " unseen"]:
    """Returns a random fraction of some clients, one or more, in ascending order."""
    number = max(1, round(fraction * len(clients)))
    return np.sort(generator(seed, _STREAM).choice(clients, number, replace=False))


def select_clients(data: FederatedData, clients: Int[np.ndarray, " selected"]) -> FederatedData:
    """Returns the federated dataset of some clients, in their order.

    Examples:
        >>> from fedjax_fair.data import load
        >>> data = load("digits")
        >>> one = select_clients(data, np.array([7]))
        >>> one.train.sizes.tolist() == data.train.sizes[7:8].tolist()
        True
    """
    if data.num_partitions is not None:
        runs = range(data.num_partitions)
        return stack([select_clients(data.partition(run), clients) for run in runs])

    def select(part: ClientExamples) -> ClientExamples:
        sizes, starts = np.asarray(part.sizes)[clients], np.asarray(part.offsets)[clients]
        offsets = np.cumsum(sizes) - sizes
        places = np.arange(np.sum(sizes)) + np.repeat(starts - offsets, sizes)
        arrays: Any = (np.asarray(part.order)[places], offsets.astype(np.int32), sizes)
        order, offsets, sizes = arrays
        return part._replace(order=order, offsets=offsets, sizes=sizes)

    groups: Any = None if data.groups is None else np.asarray(data.groups)[clients]
    if groups is not None and groups.max() >= len(clients):
        groups = np.unique(groups, return_inverse=True)[1].astype(groups.dtype)
    names = data.client_names
    names = None if names is None else tuple(names[client] for client in clients)
    return data.map_parts(select)._replace(groups=groups, client_names=names)
