"""Validation examples, by which settings are chosen without test examples."""

from __future__ import annotations

import numpy as np

from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.federated import FederatedData, stack
from fedjax_fair.data.partitioner import generator, make_partition, split_off
from fedjax_fair.utils import checks

__all__ = ["hold_out"]


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
        raise ValueError("data has validation examples: expected none.")
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
        for part in split_off(partition, validation_fraction, generator(seed, 3))
    )
    return data._replace(train=train, validation=validation)
