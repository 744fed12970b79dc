"""Partitions of one pool of examples by seed: clients that train, and unseen clients."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.federated import FederatedData, stack, validate
from fedjax_fair.data.partitions.partitioner import Partition, generator, split_off
from fedjax_fair.data.sensitive import SensitiveFeature
from fedjax_fair.data.transforms import choose_unseen, select_clients
from fedjax_fair.utils import checks

__all__ = ["BenchmarkData", "Pool", "partition_pool"]

TEST_FRACTION, VALIDATION_FRACTION = 0.2, 0.2
"""Fractions of each client's examples, and of the remaining ones."""
UNSEEN_FRACTION = 0.2
"""Fraction of the clients that are never trained on."""
_STREAMS = {"test": 10, "validation": 11}


class Pool(NamedTuple):
    """All examples of a data set, before they are split.

    Attributes:
        name: Name in results.
        features: ``[total, ...]``.
        labels: ``[total, ...]``.
        num_classes: Number of classes.
        split: ``split(seed) -> Partition``, with the same number of clients for every seed.
        sensitive_features: Codes ``[total, features]``, or None.
        sensitive_names: Names and values of the sensitive features, or None.
        label_skew_only: Whether clients differ in their labels only.
    """

    name: str
    features: np.ndarray
    labels: np.ndarray
    num_classes: int
    split: Callable[[int], Partition]
    sensitive_features: np.ndarray | None = None
    sensitive_names: tuple[SensitiveFeature, ...] | None = None
    label_skew_only: bool = False


class BenchmarkData(NamedTuple):
    """A federated dataset of the benchmark, with one partition per seed.

    Attributes:
        seen: The clients that may be trained on.
        unseen: The clients that are never trained on.
        unseen_ids: Their ids among all clients, ``[seeds, unseen]``.
        data_digest: SHA-256 of the examples.
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

    Clients with fewer than ``min_examples`` examples are left out. Of the others, a fifth is
    unseen, chosen at random. A fifth of each client's examples are test examples, and a fifth of
    the rest validation examples. Arrays of all seeds have equal shapes, so that they share compiled
    functions.

    Args:
        pool: The examples.
        seeds: Seeds of the partitions.
        min_examples: Minimum number of examples of a client.

    Raises:
        ValueError: If fewer than two clients remain.

    Examples:
        >>> from fedjax_fair import data
        >>> images, labels = np.zeros((500, 2)), np.arange(500) % 10
        >>> pool = Pool("zeros", images, labels, 10, lambda seed: data.iid(5).split(labels, seed))
        >>> made = partition_pool(pool, seeds=(0, 1))
        >>> made.seen.train.sizes.tolist(), made.unseen.test.sizes.tolist()
        ([[64, 64, 64, 64], [64, 64, 64, 64]], [[20], [20]])
    """
    checks.seeds("seeds", seeds)
    checks.positive_int("min_examples", min_examples)
    parts = [_partition(pool, seed, min_examples) for seed in seeds]
    seen, unseen = (stack([part[place] for part in parts]) for place in (0, 1))
    return BenchmarkData(
        seen,
        unseen,
        np.stack([ids for _, _, ids in parts]),
        _digest(pool.features, pool.labels, pool.sensitive_features),
        "",
        tuple(_partition_digest(*part[:2]) for part in parts),
    )


def _partition(
    pool: Pool, seed: int, min_examples: int
) -> tuple[FederatedData, FederatedData, Any]:
    with warnings.catch_warnings():
        # The protocol fixes the minimum size, up to which clients are filled.
        warnings.filterwarnings("ignore", message=".* to reach the minimum size of ")
        whole = pool.split(seed)
    kept = np.flatnonzero(np.asarray(whole.sizes) >= min_examples)
    if len(kept) < 2:
        raise ValueError(
            f"min_examples={min_examples}: expected at most the size of the second largest client "
            f"of {pool.name}, {np.sort(whole.sizes)[-2:].tolist()}."
        )
    unseen = choose_unseen(kept, UNSEEN_FRACTION, seed)
    rest, test = split_off(whole, TEST_FRACTION, generator(seed, _STREAMS["test"]))
    train, validation = split_off(
        rest, VALIDATION_FRACTION, generator(seed, _STREAMS["validation"])
    )
    clients = _federated(pool, {"train": train, "test": test, "validation": validation})
    parts = [select_clients(clients, ids) for ids in (np.setdiff1d(kept, unseen), unseen)]
    for part in parts:
        validate(part)
    return parts[0], parts[1], unseen


def _federated(pool: Pool, parts: dict[str, Partition]) -> FederatedData:
    """Returns the federated dataset of all clients, which may lack examples."""
    examples = {
        name: ClientExamples.of(pool.features, pool.labels, part, pool.sensitive_features)
        for name, part in parts.items()
    }
    groups: Any = parts["train"].groups
    return FederatedData(
        examples["train"], examples["test"], groups, pool.num_classes, pool.name,
        pool.label_skew_only, validation=examples["validation"],
        sensitive_names=pool.sensitive_names,
    )  # fmt: skip


def _digest(*arrays: Any) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        if array is not None:
            values = np.ascontiguousarray(array)
            values = values.astype(values.dtype.newbyteorder("<"), copy=False)
            digest.update(f"{values.dtype.str}{values.shape}".encode())
            digest.update(values.tobytes())
    return digest.hexdigest()


def _partition_digest(seen: FederatedData, unseen: FederatedData) -> str:
    parts = [
        getattr(data, name) for data in (seen, unseen) for name in ("train", "test", "validation")
    ]
    return _digest(*(array for part in parts for array in (part.order, part.sizes)))
