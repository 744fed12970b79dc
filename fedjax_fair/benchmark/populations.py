"""Federated datasets of one pool of examples, by seed: clients that train, and unseen clients."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from fedjax_fair.benchmark.held_out import (
    HeldOut,
    MadeClients,
    Parts,
    Split,
    made_clients,
    natural_clients,
)
from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.federated import FederatedData, stack, validate
from fedjax_fair.data.partitions.partitioner import Partition
from fedjax_fair.data.sensitive import SensitiveFeature
from fedjax_fair.utils import checks

__all__ = ["BenchmarkData", "Pool", "partition_pool"]


class Pool(NamedTuple):
    """All examples of a data set, before they are split.

    Attributes:
        name: Name in results.
        features: ``[total, ...]``, or a function that returns them. Its argument are the training
            and validation examples of seen clients, on which it fits an encoding.
        labels: ``[total, ...]``.
        num_classes: Number of classes.
        clients: The clients of the data, or those that a partitioner makes.
        num_fresh: Number of the last examples, which are for tests only.
        sensitive_features: Codes ``[total, features]``, or None.
        sensitive_names: Names and values of the sensitive features, or None.
        label_skew_only: Whether clients differ in their labels only.
    """

    name: str
    features: np.ndarray | Callable[[Int[np.ndarray, " examples"]], np.ndarray]
    labels: np.ndarray
    num_classes: int
    clients: Partition | MadeClients
    num_fresh: int = 0
    sensitive_features: np.ndarray | None = None
    sensitive_names: tuple[SensitiveFeature, ...] | None = None
    label_skew_only: bool = False


class BenchmarkData(NamedTuple):
    """A federated dataset of the benchmark, with one partition per seed.

    Attributes:
        seen: The clients that may be trained on. Rows of the arrays of training and validation
            examples are zeros where the test pool and unseen clients have their examples.
        unseen: The clients that are never trained on.
        unseen_ids: Their ids, which no seen client has, ``[seeds, unseen]``.
        data_digest: SHA-256 of the examples.
        test_digest: SHA-256 of the test pool and the examples of unseen clients, for all seeds.
        partition_digests: SHA-256 of the partition of each seed.
    """

    seen: FederatedData
    unseen: FederatedData
    unseen_ids: Int[np.ndarray, "seeds unseen"]
    data_digest: str
    test_digest: str
    partition_digests: tuple[str, ...]

    def of_runs(self, places: Sequence[int]) -> BenchmarkData:
        """Returns the partitions of some runs, in arrays of equal shapes.

        Examples:
            >>> from fedjax_fair.benchmark.federations import FEDERATIONS
            >>> made = FEDERATIONS["digits"].load(None, seeds=(0, 1, 100))
            >>> made.of_runs([0, 1]).unseen_ids.shape, made.of_runs([2]).seen.num_partitions
            ((2, 5), 1)
        """
        return self._replace(
            seen=self.seen.partitions(places),
            unseen=self.unseen.partitions(places),
            unseen_ids=self.unseen_ids[list(places)],
            partition_digests=tuple(self.partition_digests[place] for place in places),
        )


def partition_pool(pool: Pool, seeds: Sequence[int], min_examples: int = 50) -> BenchmarkData:
    """Splits a pool over clients, once per seed.

    The test pool and the examples of unseen clients are the same for all seeds, and no seed trains
    on them (`held_out`). Arrays of all seeds have equal shapes, so that they share compiled
    functions.

    Args:
        pool: The examples.
        seeds: Seeds of the partitions.
        min_examples: Minimum number of examples of a client of the data. Others are left out.

    Raises:
        ValueError: If fewer than two clients remain, or those of a partitioner do not fit the
            examples.

    Examples:
        >>> from fedjax_fair import data
        >>> labels = np.arange(500) % 10
        >>> pool = Pool("zeros", np.zeros((500, 2)), labels, 10, data.iid(5).split(labels, 0))
        >>> made = partition_pool(pool, seeds=(0, 1))
        >>> made.seen.train.sizes.tolist(), made.unseen.test.sizes.tolist()
        ([[64, 64, 64, 64], [64, 64, 64, 64]], [[20], [20]])
    """
    checks.seeds("seeds", seeds)
    checks.positive_int("min_examples", min_examples)
    held = _hold_out(pool, min_examples)
    features = pool.features(held.seen) if callable(pool.features) else pool.features
    pool = pool._replace(features=features)
    splits = [held.split(seed) for seed in seeds]
    seen, unseen = (
        stack([_federated(pool, of_training, parts) for parts in of_seeds])
        for of_training, of_seeds in zip(
            (_without_others(pool, held.seen), pool),
            zip(*(split[:2] for split in splits), strict=True),
            strict=True,
        )
    )
    arrays = [
        array for array in (features, pool.labels, pool.sensitive_features) if array is not None
    ]
    examples = np.concatenate([held.test, held.unseen])
    return BenchmarkData(
        seen,
        unseen,
        np.stack([split.unseen_ids for split in splits]),
        _digest(*arrays),
        _digest(held.test, held.unseen, *(array[examples] for array in arrays)),
        tuple(map(_partition_digest, splits)),
    )


def _hold_out(pool: Pool, min_examples: int) -> HeldOut:
    total, clients = len(pool.labels), pool.clients
    checks.non_negative_int("num_fresh", pool.num_fresh, at_most=total - 1)
    if isinstance(clients, Partition):
        return natural_clients(pool.name, clients, pool.num_fresh, min_examples)
    if clients.strata.shape != (total,):
        raise ValueError(
            f"strata of {pool.name} of shape {clients.strata.shape}: expected one for each of "
            f"{total} examples."
        )
    return made_clients(pool.name, clients, pool.num_fresh)


def _without_others(pool: Pool, rows: Int[np.ndarray, " examples"]) -> Pool:
    """Returns the pool with zeros in all rows but some, so that roles cannot read test examples."""
    kept: dict[str, Any] = {}
    for name in ("features", "labels", "sensitive_features"):
        if (array := getattr(pool, name)) is not None:
            kept[name] = np.zeros_like(array)
            kept[name][rows] = array[rows]
    return pool._replace(**kept)


def _federated(pool: Pool, of_training: Pool, parts: Parts) -> FederatedData:
    """Returns a federated dataset whose test examples alone are of the whole pool."""
    train, validation, test = (
        ClientExamples.of(own.features, own.labels, part, own.sensitive_features)
        for own, part in zip((of_training, of_training, pool), parts, strict=True)
    )
    groups: Any = parts.train.groups
    federated = FederatedData(
        train, test, groups, pool.num_classes, pool.name, pool.label_skew_only,
        validation=validation, sensitive_names=pool.sensitive_names,
    )  # fmt: skip
    validate(federated)
    return federated


def _digest(*arrays: Any) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        values = np.ascontiguousarray(array)
        values = values.astype(values.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{values.dtype.str}{values.shape}".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()


def _partition_digest(split: Split) -> str:
    return _digest(
        *(array for parts in split[:2] for part in parts for array in (part.order, part.sizes))
    )
