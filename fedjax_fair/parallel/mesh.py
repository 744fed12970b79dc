"""Assigns clients to devices, or shares them among cores, and runs a program on all of them.

A mesh of two axes, ``runs`` and ``clients``, splits the runs of a batch over groups of devices
first; clients are then assigned to the devices of a group, in each group alike. Where a group is a
single device, it computes what it would without a mesh.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int, PyTree

from fedjax_fair import checks
from fedjax_fair.data.device_layout import flatten_images, on_device, to_device_layout
from fedjax_fair.data.federated import ClientExamples, FederatedData, Replicated, map_arrays
from fedjax_fair.parallel.collectives import AXIS
from fedjax_fair.parallel.cores import CORES, replicate_on_cores

__all__ = [
    "RUNS",
    "assign_clients",
    "client_mesh",
    "is_run_on_one_device",
    "num_run_groups",
    "over_mesh",
    "replicate",
    "shard_federation",
    "split_runs",
]

RUNS = "runs"
"""The mesh axis along which runs are split over groups of devices."""

_SHARDED, _REPLICATED = PartitionSpec(AXIS), PartitionSpec()


def client_mesh(
    devices: int | Literal["all"] = "all",
    *,
    runs: int | None = None,
    available: Sequence[Any] | None = None,
) -> Mesh:
    """A mesh of devices to which clients are assigned.

    Args:
        devices: How many, or all of all processes.
        runs: Into how many groups of equal size they are divided, each of which makes its share
            of the runs (seeds, or points of a sweep), with clients assigned to its devices; None
            if all devices share each run.
        available: Devices to take the first of; by default those at hand.

    Returns:
        A mesh for ``fit(..., mesh=)``: with the one axis ``clients`` or, if there are groups, the
        axes ``runs`` and ``clients``.

    Raises:
        ValueError: If there are fewer devices, or (with several processes) more; if they cannot be
            divided into such groups, or several processes would be.

    Examples:
        >>> client_mesh(1).axis_names
        ('clients',)
        >>> client_mesh(1, runs=2)
        Traceback (most recent call last):
        ValueError: devices=1: expected a multiple of runs=2.
    """
    available = jax.devices() if available is None else available
    checks.positive_int("devices", devices, at_most=len(available), words=("all",))
    if runs is not None:
        checks.positive_int("runs", runs)
    if devices == "all":
        devices = len(available)
    if jax.process_count() > 1 and devices < len(available):
        raise ValueError(
            f"{devices=}: expected all {len(available)} of {jax.process_count()} processes."
        )
    if runs is None:
        return Mesh(np.array(available[:devices]), (AXIS,))
    if jax.process_count() > 1:
        raise ValueError(f"{runs=}: expected None with {jax.process_count()} processes.")
    if devices % runs:
        raise ValueError(f"{devices=}: expected a multiple of {runs=}.")
    return Mesh(np.array(available[:devices]).reshape(runs, -1), (RUNS, AXIS))


def num_run_groups(mesh: Mesh | None) -> int:
    """How many groups of devices make runs of their own; on cores and without a mesh 1.

    Examples:
        >>> num_run_groups(client_mesh(1, runs=1)), num_run_groups(None)
        (1, 1)
    """
    return 1 if mesh is None else mesh.shape.get(RUNS, 1)


def is_run_on_one_device(mesh: Mesh | None) -> bool:
    """Whether a run has all clients on one device: without a mesh, or in groups of one.

    Examples:
        >>> is_run_on_one_device(client_mesh(1, runs=1)), is_run_on_one_device(client_mesh(1))
        (True, False)
    """
    return mesh is None or (RUNS in mesh.axis_names and mesh.shape[AXIS] == 1)


def assign_clients(sizes: Int[np.ndarray, " clients"], devices: int) -> Int[np.ndarray, " clients"]:
    """Assigns clients, largest first, each to the device with the fewest examples so far.

    The fullest device holds at most a third more than in the best of all ways (Graham, *Bounds on
    Multiprocessing Timing Anomalies*, 1969).

    Args:
        sizes: Examples of each client.
        devices: Number of devices.

    Returns:
        The device of each client, int32; the lowest of those that are equally full.

    Examples:
        >>> assign_clients(np.array([5, 9, 4, 1]), 2).tolist()
        [1, 0, 1, 0]
    """
    loads = [(0, device) for device in range(devices)]
    assigned = np.zeros(len(sizes), np.int32)
    for client in np.argsort(-sizes, kind="stable"):
        load, device = loads[0]
        assigned[client] = device
        heapq.heapreplace(loads, (load + int(sizes[client]), device))
    return assigned


def shard_federation(data: FederatedData, mesh: Mesh) -> FederatedData:
    """Copies the examples of each client to its device, in every group; cores share them all.

    Groups of one device each get the federation as a single device does.

    Training examples are balanced; the others follow their clients. Every process passes the
    same federation and keeps the shards of its own devices. Ids of clients stay what they are.

    Args:
        data: A federation on the host; with one partition, unless the mesh is of cores or has
            groups of one device.
        mesh: From ``client_mesh`` or ``core_mesh``. With devices that can only be compiled for,
            shapes take the place of arrays.

    Returns:
        The federation, for programs that ``over_mesh`` runs. Features, labels and ``order`` have a
        shard for each device, padded to the longest; ``offsets`` count from the start of a shard.

    Raises:
        ValueError: If the mesh has other axes, or every run has a partition of its own where
            devices share the clients of a run.

    Examples:
        >>> import fedjax_fair as ff
        >>> sharded = shard_federation(ff.data.load("digits"), client_mesh(1))
        >>> sharded.train.devices.shape
        (50,)
    """
    if mesh.axis_names == (CORES,):
        data = map_arrays(data, lambda data: replicate_on_cores(data, mesh))
        return _of_each(data, lambda examples: examples._replace(devices=Replicated()))
    if mesh.axis_names not in ((AXIS,), (RUNS, AXIS)):
        raise ValueError(
            f"mesh with axes {mesh.axis_names}: expected ({AXIS!r},) or ({RUNS!r}, {AXIS!r})."
        )
    if is_run_on_one_device(mesh):
        whole = NamedSharding(mesh, _REPLICATED)
        if _is_at_hand(mesh):
            return on_device(data, whole)
        return map_arrays(data, lambda data: _shapes(to_device_layout(data), whole))
    if data.num_partitions is not None:
        raise ValueError(
            f"data with {data.num_partitions} partitions: expected a single one beside a mesh."
        )
    devices = assign_clients(np.asarray(data.train.sizes), mesh.shape[AXIS])
    data = _of_each(data, lambda examples: _shard(examples, devices, mesh))
    return data._replace(groups=replicate(data.groups, mesh))


def _of_each(
    data: FederatedData, function: Callable[[ClientExamples], ClientExamples]
) -> FederatedData:
    """Applies a function to the examples of training, test and, if there are any, validation."""
    return data._replace(
        train=function(data.train),
        test=function(data.test),
        validation=None if data.validation is None else function(data.validation),
    )


def replicate(tree: PyTree, mesh: Mesh) -> PyTree:
    """Copies arrays, which are equal in all processes, to every device."""
    return jax.tree.map(lambda leaf: _array(np.asarray(leaf), mesh), tree)


def split_runs(tree: PyTree, mesh: Mesh) -> PyTree:
    """Copies arrays ``[runs, ...]`` to devices: to each its group's share of the runs.

    Args:
        tree: Arrays that are equal in all processes; groups divide the number of runs.
        mesh: From ``client_mesh`` or ``core_mesh``; without groups all devices get all runs.
    """
    sharding = NamedSharding(mesh, _spec_of_runs(mesh))
    if not _is_at_hand(mesh):
        return _shapes(tree, sharding)
    return jax.device_put(tree, sharding) if RUNS in mesh.axis_names else replicate(tree, mesh)


def over_mesh(function: Callable[[PyTree, FederatedData], PyTree], mesh: Mesh) -> Callable:
    """Runs a program on every device, with its own examples.

    Args:
        function: ``function(values, data)``, in which only `fedjax_fair.parallel.collectives`
            crosses devices; its results must be the same on all of a group. With several
            groups, leaves of values and results are ``[runs, ...]``, those of the group's runs.
        mesh: From ``client_mesh`` or ``core_mesh``.

    Returns:
        The function, for values of all runs, which are the same in every process, and a
        federation from ``shard_federation``.
    """
    if mesh.axis_names == (CORES,):
        mesh = Mesh(mesh.devices, (AXIS,))  # Cores too compute along the axis of clients here.
    of_runs = _spec_of_runs(mesh)

    def mapped(values, data):
        # JAX would otherwise put a collective into each gradient by replicated parameters, which
        # devices would not reach equally often.
        return jax.shard_map(
            function,
            mesh=mesh,
            in_specs=(of_runs, _specs(data)),
            out_specs=of_runs,
            check_vma=False,
        )(values, data)

    return mapped


def _spec_of_runs(mesh: Mesh) -> PartitionSpec:
    return PartitionSpec(RUNS) if RUNS in mesh.axis_names else _REPLICATED


def _specs(data: FederatedData) -> Any:
    if data.train.has_all_clients:
        return _REPLICATED
    specs: list[Any] = [_SHARDED] * 3 + [_REPLICATED] * 3
    return _of_each(data, lambda _: ClientExamples(*specs))._replace(groups=_REPLICATED)


def _shard(
    examples: ClientExamples, devices: Int[np.ndarray, " clients"], mesh: Mesh
) -> ClientExamples:
    sizes, order = np.asarray(examples.sizes), np.asarray(examples.order)
    shards = mesh.shape[AXIS]
    counts = np.bincount(devices, weights=sizes, minlength=shards).astype(np.int64)
    starts = np.cumsum(counts) - counts
    capacity = max(1, int(counts.max()))
    rows = order[np.argsort(np.repeat(devices, sizes), kind="stable")]

    def split(values):
        def of_device(index):
            device = (index[0].start or 0) // capacity
            own = values[rows[starts[device] : starts[device] + counts[device]]]
            return np.pad(own, [(0, capacity - len(own))] + [(0, 0)] * (own.ndim - 1))

        shape = (shards * capacity, *values.shape[1:])
        return _placed(shape, values.dtype, mesh, _SHARDED, of_device)

    by_device = np.argsort(devices, kind="stable")
    offsets = np.zeros_like(sizes)
    offsets[by_device] = np.cumsum(sizes[by_device]) - sizes[by_device]
    offsets -= starts.astype(sizes.dtype)[devices]
    local = np.arange(capacity, dtype=np.int32)
    return ClientExamples(
        features=jax.tree.map(split, flatten_images(np.asarray(examples.features))),
        labels=split(np.asarray(examples.labels)),
        order=_placed((shards * capacity,), np.int32, mesh, _SHARDED, lambda index: local),
        offsets=_array(offsets, mesh),
        sizes=_array(sizes, mesh),
        devices=_array(devices, mesh),
    )


def _placed(
    shape: tuple[int, ...],
    dtype: Any,
    mesh: Mesh,
    spec: PartitionSpec,
    local: Callable[[Any], np.ndarray],
) -> Any:
    """An array on the devices of a mesh, or its shape if they are only to be compiled for."""
    sharding = NamedSharding(mesh, spec)
    if not _is_at_hand(mesh):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
    return jax.make_array_from_callback(shape, sharding, local)


def _is_at_hand(mesh: Mesh) -> bool:
    """Whether there are such devices, rather than descriptions for a compiler."""
    return mesh.devices.flat[0] in jax.devices()


def _shapes(tree: PyTree, sharding: NamedSharding) -> PyTree:
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree
    )


def _array(values: np.ndarray, mesh: Mesh) -> Any:
    local = values.__getitem__
    return _placed(values.shape, values.dtype, mesh, _REPLICATED, local)
