"""Runs that train on the same federation: where data and runs lie, and what compiles for them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree, UInt32

from fedjax_fair import checks
from fedjax_fair.data.device_layout import on_device
from fedjax_fair.data.federated import (
    FederatedData,
    map_arrays,
    partition_arrays,
    validate,
    with_partition_arrays,
)
from fedjax_fair.parallel.cores import CORES, num_usable_cores, pad_to_multiple, replicate_on_cores
from fedjax_fair.parallel.mesh import num_run_groups, shard_federation, split_runs
from fedjax_fair.training.executables import compile_in

__all__ = ["RunBatch"]


class RunBatch:
    """What all methods share that train on a federation with the same seeds.

    Use it in a ``with`` statement: it holds the threads that compile.

    Args:
        given: The federation, on the host.
        seeds: The seed of each run.
        mesh: Devices that clients are assigned to, or cores, or None for one device.

    Attributes:
        given: The federation as it was given.
        seeds: The seeds, as integers.
        mesh: The devices.
        cores: How many cores are devices of their own.
        one_run_per_core: Whether each core makes runs of its own: where there is a run for each.
        groups: Groups of devices, each with runs of its own. They make equally many, the last one
            repetitions if need be.

    Raises:
        ValueError: If the federation is not valid, nothing can be tested on, or there is not one
            partition for each seed.
    """

    def __init__(
        self, given: FederatedData, seeds: Sequence[int], mesh: Mesh | None = None
    ) -> None:
        checks.seeds("seeds", seeds, different=False)
        validate(given)
        if not np.asarray(given.test.sizes).any():
            raise ValueError(
                "data.test: no client has test examples; expected some, as evaluations need them "
                "(from_arrays holds out test_fraction of each client's)."
            )
        if given.num_partitions not in (None, len(seeds)):
            raise ValueError(
                f"seeds={tuple(seeds)}: expected one for each of {given.num_partitions} partitions."
            )
        self.given, self.seeds, self.mesh = given, tuple(map(int, seeds)), mesh
        self.cores = 1 if mesh is None or mesh.axis_names != (CORES,) else mesh.size
        self.one_run_per_core = 1 < self.cores <= len(seeds)
        self.groups = num_run_groups(mesh)
        # Several processes must not change the order.
        self._threads = ThreadPoolExecutor(1 if jax.process_count() > 1 else num_usable_cores())

    def __enter__(self) -> RunBatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        # What still compiles for methods that no longer train must not run beside what comes next;
        # only an interruption does not wait for it.
        wait = kind is None or issubclass(kind, Exception | GeneratorExit)
        self._threads.shutdown(wait=wait, cancel_futures=True)

    @cached_property
    def data(self) -> FederatedData:
        """The federation on its devices."""
        data, mesh = self.given, self.mesh
        if data.num_partitions is not None:
            data = with_partition_arrays(data, pad_to_multiple(partition_arrays(data), self.groups))
        if mesh is None:
            return on_device(data)
        if self.one_run_per_core:
            return map_arrays(data, lambda data: replicate_on_cores(data, mesh))
        return shard_federation(data, mesh)

    def own(self, numbers: PyTree) -> tuple[UInt32[np.ndarray, " runs"], PyTree]:
        """The seeds, and the numbers of every run, leaves ``[runs]``, on their devices."""
        seeds, numbers = pad_to_multiple((np.asarray(self.seeds, np.uint32), numbers), self.groups)
        if self.mesh is None:
            return seeds, jax.device_put(numbers)
        if self.one_run_per_core:
            return seeds, replicate_on_cores(numbers, self.mesh)
        return seeds, split_runs(numbers, self.mesh)

    def compile(self, lowered: Any, options: dict[str, str | bool] | None = None) -> Future[Any]:
        """Starts to compile a program, unless one of the same text is compiled already."""
        return compile_in(self._threads, lowered, self.mesh, options)
