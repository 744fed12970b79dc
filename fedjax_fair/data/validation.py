"""Validation examples: what settings are chosen by, so that test examples only measure."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedjax_fair import checks
from fedjax_fair.data.federated import ClientExamples, FederatedData, stack
from fedjax_fair.data.partitioner import Partition, generator, hold_out_of_each, make_partition

__all__ = ["hold_out"]


def hold_out(data: FederatedData, validation_fraction: float, seed: int = 0) -> FederatedData:
    """Keeps part of every client's training examples for choices.

    What is chosen by test examples, a step size or the round to stop at, flatters itself on them.

    Args:
        data: A federation, made in any way, without validation examples.
        validation_fraction: Part of each client's training examples, rounded down, in ``(0, 1)``; at least
            one is kept for training.
        seed: Seed of the choice, drawn apart from that of partitions.

    Returns:
        The federation with fewer training examples and with ``validation``; the arrays of examples
        are shared. Results get ``validation_*`` beside what test examples say.

    Raises:
        ValueError: If the part is out of range, so small that no client gives an example, or
            the federation has validation examples.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = hold_out(ff.data.load("digits"), 0.1)
        >>> data.train.sizes[:3].tolist(), data.validation.sizes[:3].tolist()
        ([25, 25, 25], [2, 2, 2])
    """
    checks.unit_interval("validation_fraction", validation_fraction)
    checks.non_negative_int("seed", seed)
    if data.validation is not None:
        raise ValueError("data: expected a federation without validation examples.")
    if data.num_partitions is not None:
        runs = range(data.num_partitions)
        return stack([hold_out(data.partition(run), validation_fraction, seed) for run in runs])
    sizes = np.asarray(data.train.sizes)
    if not np.floor(sizes * validation_fraction).any():
        raise ValueError(
            f"validation_fraction={validation_fraction!r}: expected a larger part, as no client has enough training "
            f"examples for one of them (the largest has {sizes.max()})."
        )
    order = np.asarray(data.train.order)[: sizes.sum()]
    partition = make_partition(order, sizes, len(data.train.labels))
    train, held = hold_out_of_each(partition, validation_fraction, generator(seed, 3))
    return data._replace(train=_of(data.train, train), validation=_of(data.train, held))


def _of(examples: ClientExamples, partition: Partition) -> ClientExamples:
    offsets = (np.cumsum(partition.sizes) - partition.sizes).astype(np.int32)
    arrays: Any = {"order": partition.order, "offsets": offsets, "sizes": partition.sizes}
    return examples._replace(**arrays)
