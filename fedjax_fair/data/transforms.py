"""Federated datasets made of other ones: held out, selected or joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.conversion import require
from fedjax_fair.data.federated import PARTS, FederatedData, check_alike, stack, validate
from fedjax_fair.data.partitions.partition import assign_by_owner
from fedjax_fair.data.partitions.partitioner import generator, make_partition, split_off
from fedjax_fair.utils import checks

__all__ = [
    "choose_unseen",
    "concatenate",
    "hold_out",
    "hold_out_clients",
    "select_clients",
    "with_unseen",
]

# Streams of the seed, which differ from those that split examples over clients.
_VALIDATION_STREAM, _CLIENTS_STREAM, _UNKNOWN_STREAM = 3, 12, 13


# Validation examples are held out after everything else is split, so that every partition has them
# and test examples do not change.
def hold_out(data: FederatedData, validation_fraction: float, seed: int = 0) -> FederatedData:
    """Holds out a part of every client's training examples, to choose settings by.

    Args:
        data: A federated dataset without validation examples.
        validation_fraction: Fraction of each client's training examples, rounded down, in ``(0,
            1)``; at least one is left for training.
        seed: Seed of the choice, independent of that of partitions.

    Returns:
        The federated dataset with ``validation``, which shares the arrays of examples. Results have
        ``validation_*`` in addition to ``test_*``.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = hold_out(ff.data.load("digits"), 0.1)
        >>> data.train.sizes[:3].tolist(), data.validation.sizes[:3].tolist()
        ([25, 25, 25], [2, 2, 2])
    """
    checks.unit_interval("validation_fraction", validation_fraction)
    checks.non_negative_int("seed", seed)
    if data.validation is not None:
        raise ValueError(
            "data has validation examples: expected none; hold them out once, here or by "
            "validation_fraction of data.load."
        )
    if data.num_partitions is not None:
        runs = range(data.num_partitions)
        return stack([hold_out(data.partition(run), validation_fraction, seed) for run in runs])
    sizes = np.asarray(data.train.sizes)
    if not np.floor(sizes * validation_fraction).any():
        raise ValueError(
            f"{validation_fraction=}: expected a larger fraction, so that the largest client with "
            f"{sizes.max()} training examples has a validation example."
        )
    order = np.asarray(data.train.order)[: sizes.sum()]
    partition = make_partition(order, sizes, len(data.train.labels))
    train, validation = (
        ClientExamples.of(
            data.train.features, data.train.labels, part, data.train.sensitive_features
        )
        for part in split_off(partition, validation_fraction, generator(seed, _VALIDATION_STREAM))
    )
    return data._replace(train=train, validation=validation)


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
    return np.sort(generator(seed, _CLIENTS_STREAM).choice(clients, number, replace=False))


def with_unseen(
    data: FederatedData, test_owners: np.ndarray, is_unknown: np.ndarray, seed: int
) -> FederatedData:
    """Makes unseen clients of the test examples whose owners have no training examples.

    A random half of each one's examples, rounded down, is for tests, the rest for local steps.

    Args:
        data: A federated dataset with separate test examples.
        test_owners: Owner of each test example.
        is_unknown: Test examples of unseen clients.
        seed: Seed of the choice.
    """
    if not is_unknown.any():
        return data
    rows = np.flatnonzero(is_unknown)
    owned = assign_by_owner(test_owners[rows], test_owners[rows])
    partition = make_partition(rows[owned.order], owned.sizes, len(is_unknown))
    test = data.test
    adapt, measure = (
        ClientExamples.of(test.features, test.labels, part, test.sensitive_features)
        for part in split_off(partition, 0.5, generator(seed, _UNKNOWN_STREAM))
    )
    unseen = data._replace(
        train=adapt,
        test=measure,
        groups=None,
        validation=None,
        client_names=owned.client_names,
        num_filled=0,
        bias=None,
    )
    return data._replace(unseen=unseen)


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
    bias = data.bias and data.bias.of_clients(clients)
    selected = data.map_parts(select)
    return selected._replace(groups=groups, client_names=names, num_filled=0, bias=bias)


def concatenate(datasets: Sequence[FederatedData], name: str | None = None) -> FederatedData:
    """Makes a federated dataset of the clients of several ones, in their order.

    Args:
        datasets: One or more, with one partition each, equal shapes and types of features and
            labels, the same classes and sensitive features, and no client name twice. Groups,
            validation examples and names of clients are in all or in none. Group ids are kept.
        name: Name in results; by default the names joined by ``+``.

    Raises:
        ValueError: If they do not fit together.

    Examples:
        >>> from fedjax_fair.data import from_arrays
        >>> first = from_arrays(np.eye(4), [0, 1, 0, 1], clients=["a", "a", "b", "b"], name="one")
        >>> second = from_arrays(np.ones((2, 4)), [1, 0], clients=["c", "c"], name="two")
        >>> both = concatenate([first, second])
        >>> both.name, both.client_names, both.train.sizes.tolist()
        ('one+two', ('a', 'b', 'c'), [2, 2, 2])
    """
    check_alike(
        datasets,
        ("num_classes", "sensitive_names", "encoding", "label_unit"),
        ("groups", "validation", "client_names"),
    )
    first = datasets[0]
    for number, data in enumerate(datasets):
        place = f"datasets[{number}]"
        require(
            data.num_partitions is None and data.train.devices is None,
            f"{place} has {data.num_partitions} partitions, or is on several devices; expected one "
            "partition on the host, such as data.partition(0).",
        )
        require(
            data.unseen is None,
            f"{place} has unseen clients: expected none; join those of all datasets, "
            "data.unseen, and the others, data._replace(unseen=None).",
        )
        validate(data)
        for field in ("features", "labels"):
            values, expected = getattr(data.train, field), getattr(first.train, field)
            require(
                (values.shape[1:], values.dtype) == (expected.shape[1:], expected.dtype),
                f"{place}.train.{field} {list(values.shape[1:])} of {values.dtype}: expected "
                f"{list(expected.shape[1:])} of {expected.dtype}, as in the first dataset.",
            )
    parts: dict[str, Any] = {
        part: _concatenate([getattr(data, part) for data in datasets])
        for part in PARTS
        if getattr(first, part) is not None
    }
    if "validation" in parts and all(
        data.validation is not None and data.validation.features is data.train.features
        for data in datasets
    ):
        # Copied to a device once (`map_arrays`).
        train = parts["train"]
        parts["validation"] = parts["validation"]._replace(
            features=train.features,
            labels=train.labels,
            sensitive_features=train.sensitive_features,
        )
    joined = FederatedData(
        **parts,
        groups=_join([data.groups for data in datasets]),
        num_classes=first.num_classes,
        name="+".join(data.name for data in datasets) if name is None else name,
        num_unassigned=sum(data.num_unassigned for data in datasets),
        client_names=None
        if first.client_names is None
        else tuple(name for data in datasets for name in data.client_names or ()),
        sensitive_names=first.sensitive_names,
        encoding=first.encoding,
        num_filled=sum(data.num_filled for data in datasets),
        label_unit=first.label_unit,
    )
    validate(joined)
    return joined


def _concatenate(parts: Sequence[ClientExamples]) -> ClientExamples:
    totals = np.array([len(part.labels) for part in parts])
    starts = np.cumsum(totals) - totals
    orders = [np.asarray(part.order) + start for part, start in zip(parts, starts, strict=True)]
    partition = make_partition(_join(orders), _join([part.sizes for part in parts]), totals.sum())
    features, labels, codes = (
        _join([getattr(part, name) for part in parts])
        for name in ("features", "labels", "sensitive_features")
    )
    return ClientExamples.of(features, labels, partition, codes)


def _join(arrays: Sequence[Any]) -> Any:
    return None if arrays[0] is None else np.concatenate([np.asarray(array) for array in arrays])
