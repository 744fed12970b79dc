"""Runs on the same federated dataset: placement of data and runs on devices, and compilation."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree, UInt32

from fedjax_fair.data.device_layout import on_device
from fedjax_fair.data.federated import (
    FederatedData,
    partition_arrays,
    validate,
    with_partition_arrays,
)
from fedjax_fair.parallel.cores import CORES, num_usable_cores, pad_to_multiple, replicate_on_cores
from fedjax_fair.parallel.mesh import (
    groups_of_cores,
    num_run_groups,
    replicate,
    shard_data,
    split_runs,
)
from fedjax_fair.training.executable_cache import compile_in, trimmed
from fedjax_fair.training.stacked import Stacked
from fedjax_fair.utils import checks

__all__ = ["RunBatch", "check_debugging"]


class RunBatch:
    """Runs on one federated dataset with the same seeds, for one or several methods.

    It is a context manager, because it holds the threads that compile.

    Attributes:
        host_data: The dataset on the host.
        cores: Cores that share one copy of the data; 1 without a mesh of cores.
        mesh: The mesh. Of cores, if there are no fewer runs, each is a group.
        groups: Groups of devices, each with an equal share of the (padded) runs.

    Raises:
        ValueError: If the dataset is invalid or has no test examples, or the numbers of partitions
            and seeds differ.
    """

    def __init__(self, data: FederatedData, seeds: Sequence[int], mesh: Mesh | None = None) -> None:
        checks.seeds("seeds", seeds, different=False)
        check_debugging()
        validate(data)
        if not np.asarray(data.test.sizes).any():
            raise ValueError(
                "data.test: no client has test examples, which evaluations need; set test_fraction "
                "of from_arrays to hold some out."
            )
        if data.num_partitions not in (None, len(seeds)):
            raise ValueError(
                f"seeds={tuple(seeds)}: expected one for each of {data.num_partitions} partitions; "
                "pass that many seeds, or one partition for all seeds."
            )
        self.host_data, self.seeds = data, tuple(map(int, seeds))
        self.cores = 1 if mesh is None or mesh.axis_names != (CORES,) else mesh.size
        if mesh is not None and 1 < self.cores <= len(seeds):
            mesh = groups_of_cores(mesh)
        self.mesh, self.groups = mesh, num_run_groups(mesh)
        self._placed: dict[int, tuple[Any, jax.Array]] = {}
        self._trimmed = ExitStack()
        # All processes must compile in the same order.
        self._threads = ThreadPoolExecutor(1 if jax.process_count() > 1 else num_usable_cores())

    def __enter__(self) -> RunBatch:
        self._trimmed.enter_context(trimmed())
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        # Functions of methods that will not train may still compile. That would slow down what
        # follows, so all exits but interruptions wait for it.
        wait = kind is None or issubclass(kind, Exception | GeneratorExit)
        self._threads.shutdown(wait=wait, cancel_futures=True)
        self._trimmed.close()

    @cached_property
    def data(self) -> FederatedData:
        """The dataset on its devices."""
        # Static fields are hashed at every call of a compiled function.
        data, mesh = self.host_data.without_names(), self.mesh
        if data.num_partitions is not None:
            data = with_partition_arrays(data, pad_to_multiple(partition_arrays(data), self.groups))
        return on_device(data) if mesh is None else shard_data(data, mesh)

    def place(self, hyperparams: PyTree) -> tuple[UInt32[np.ndarray, " runs"], PyTree]:
        """Returns the seeds, and leaves ``[runs, ...]`` of hyperparameters on their devices."""
        # Seeds stay on the host, because other processes could not use a key of one device.
        seeds, hyperparams = pad_to_multiple(
            (np.asarray(self.seeds, np.uint32), hyperparams), self.groups
        )
        if self.mesh is None:
            return seeds, jax.device_put(hyperparams)
        return seeds, split_runs(hyperparams, self.mesh)

    def place_shared(self, method: Stacked) -> Stacked:
        """Returns a method whose arrays without an axis of runs are on all devices, each once.

        Methods with the same network share its arrays. Scalars stay on the host.
        """

        def place(leaf):
            if self.mesh is None:
                return jax.device_put(leaf)
            if self.cores > 1:
                return replicate_on_cores(leaf, self.mesh)
            return replicate(leaf, self.mesh)

        for leaf in method.shared:
            if np.ndim(leaf) and id(leaf) not in self._placed:
                # With the array of the host, so that no other one gets the same id.
                self._placed[id(leaf)] = leaf, place(leaf)
        shared = (self._placed.get(id(leaf), (None, leaf))[1] for leaf in method.shared)
        return method._replace(shared=tuple(shared))

    def compile(
        self, lowered: Any, group: Hashable, options: dict[str, Any] | None = None
    ) -> Future[Any]:
        """Compiles a lowered function in the background, or reuses one with the same text.

        Of a ``group`` of functions that differ in shapes, the latest are kept.
        """
        return compile_in(self._threads, lowered, self.mesh, options, group)


def check_debugging() -> None:
    """Checks the settings of JAX for debugging that training does not support."""
    reasons = {
        "disable_jit": "training needs compiled functions",
        "debug_nans": "metrics that are undefined are NaN; on_nonfinite='raise' reports updates",
        "debug_infs": "losses may be infinite; on_nonfinite='raise' reports updates",
    }
    for name, reason in reasons.items():
        if getattr(jax.config, f"jax_{name}", False):
            raise ValueError(
                f"JAX_{name.upper()}=True: expected False, because {reason}; unset it."
            )
    for direction in ("", "_host_to_device", "_device_to_device", "_device_to_host"):
        name = f"jax_transfer_guard{direction}"
        if str(value := getattr(jax.config, name, None)).startswith("disallow"):
            raise ValueError(
                f"{name.upper()}={value!r}: expected 'allow' or 'log', because the host passes "
                "NumPy arrays to compiled functions and records their results; unset it."
            )
