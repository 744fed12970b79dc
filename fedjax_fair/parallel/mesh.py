"""Assignment of clients and runs to devices, and functions that run on all of them.

A mesh with the axes ``runs`` and ``clients`` divides the runs of a batch over groups of devices,
and assigns clients to the devices of each group.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
from jaxtyping import Int, PyTree

from fedjax_fair.data.client_examples import ClientExamples, Replicated
from fedjax_fair.data.device_layout import flatten_images, on_device, to_device_layout
from fedjax_fair.data.federated import FederatedData, map_arrays
from fedjax_fair.parallel.collectives import AXIS
from fedjax_fair.parallel.cores import CORES, replicate_on_cores
from fedjax_fair.utils import checks

__all__ = [
    "RUNS", "assign_clients", "client_mesh", "groups_of_cores", "is_run_on_one_device",
    "num_run_groups", "over_mesh", "replicate", "shapes_of_runs", "shapes_on", "shard_data",
    "split_runs",
]  # fmt: skip

RUNS = "runs"
"""The mesh axis along which runs are split over groups of devices."""

_SHARDED, _REPLICATED = PartitionSpec(AXIS), PartitionSpec()


def client_mesh(
    devices: int | Literal["all"] = "all",
    *,
    runs: int | None = None,
    available: Sequence[Any] | None = None,
) -> Mesh:
    """Returns a mesh of devices to which clients are assigned, for ``fit(..., mesh=)``.

    Args:
        devices: How many, or all devices of all processes.
        runs: The number of groups, each of which makes its share of the runs (seeds, or
            configurations of a sweep); None if all devices share each run.
        available: The devices to choose from; by default ``jax.devices()``.

    Raises:
        ValueError: If there are fewer devices, or groups or several processes do not divide them.

    Examples:
        >>> client_mesh(1).axis_names
        ('clients',)
        >>> client_mesh(1, runs=2)
        Traceback (most recent call last):
        ValueError: devices=1: expected a multiple of runs=2; choose runs that divide devices.
    """
    available = jax.devices() if available is None else available
    checks.positive_int("devices", devices, at_most=len(available), words=("all",))
    if runs is not None:
        checks.positive_int("runs", runs)
    if devices == "all":
        devices = len(available)
    if jax.process_count() > 1 and devices < len(available):
        raise ValueError(
            f"{devices=}: expected all {len(available)} of {jax.process_count()} processes; pass "
            "devices='all'."
        )
    if runs is None:
        return Mesh(np.array(available[:devices]), (AXIS,))
    if jax.process_count() > 1:
        raise ValueError(f"{runs=}: expected None with {jax.process_count()} processes; omit runs.")
    if devices % runs:
        raise ValueError(
            f"{devices=}: expected a multiple of {runs=}; choose runs that divide devices."
        )
    return Mesh(np.array(available[:devices]).reshape(runs, -1), (RUNS, AXIS))


def groups_of_cores(mesh: Mesh) -> Mesh:
    """Returns the mesh whose groups are the devices of another one, each of which makes runs."""
    return Mesh(mesh.devices.reshape(-1, 1), (RUNS, AXIS))


def num_run_groups(mesh: Mesh | None) -> int:
    """Returns the number of groups of devices; 1 for cores and without a mesh."""
    return 1 if mesh is None else mesh.shape.get(RUNS, 1)


def is_run_on_one_device(mesh: Mesh | None) -> bool:
    """Returns whether one device has all clients of a run."""
    return mesh is None or (RUNS in mesh.axis_names and mesh.shape[AXIS] == 1)


# Clients are assigned once, balanced by examples. Assigning each cohort again would balance better,
# but would move examples in every round.
def assign_clients(sizes: Int[np.ndarray, " clients"], devices: int) -> Int[np.ndarray, " clients"]:
    """Assigns clients by decreasing size, each to the device with the fewest examples so far.

    The largest load is at most a third above the optimum (Graham, *Bounds on Multiprocessing Timing
    Anomalies*, 1969).

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


def shard_data(data: FederatedData, mesh: Mesh) -> FederatedData:
    """Copies the examples of each client to its device, in every group; cores share all examples.

    Training examples are balanced; test and validation examples follow their clients. Every
    process passes the same dataset and keeps the shards of its devices. For devices to compile for,
    the result has shapes instead of arrays.

    Returns:
        The dataset, for functions of ``over_mesh``. Features, labels and ``order`` have a shard for
        each device, padded to the longest; ``offsets`` count from the start of a shard.

    Raises:
        ValueError: If the mesh has other axes, or devices share runs with different partitions.
    """
    if mesh.axis_names == (CORES,):
        data = map_arrays(data, lambda data: replicate_on_cores(data, mesh))
        return data.map_parts(lambda examples: examples._replace(devices=Replicated()))
    if mesh.axis_names not in ((AXIS,), (RUNS, AXIS)):
        raise ValueError(
            f"mesh with axes {mesh.axis_names}: expected ({AXIS!r},) or ({RUNS!r}, {AXIS!r}); use "
            "parallel.client_mesh to make it."
        )
    if is_run_on_one_device(mesh):
        replicated = NamedSharding(mesh, _REPLICATED)
        if _exists(mesh):
            if mesh.devices.flat[0].platform == "cpu":
                data = map_arrays(data, lambda data: replicate_on_cores(data, mesh))
            return on_device(data, replicated)
        return map_arrays(data, lambda data: shapes_on(replicated, to_device_layout(data)))
    if data.num_partitions is not None:
        raise ValueError(
            f"data with {data.num_partitions} partitions: expected a single one, because the "
            "devices of this mesh share each run; use groups of one device or cores."
        )
    devices = assign_clients(np.asarray(data.train.sizes), mesh.shape[AXIS])
    sharded = data.map_parts(lambda examples: _shard(examples, devices, mesh))
    return sharded._replace(groups=replicate(data.groups, mesh))


def replicate(tree: PyTree, mesh: Mesh) -> PyTree:
    """Copies arrays, which all processes have, to every device."""

    def copy(leaf):
        values = np.asarray(leaf)
        return _placed(values.shape, values.dtype, mesh, _REPLICATED, values.__getitem__)

    return jax.tree.map(copy, tree)


# Runs are padded to a multiple of the groups before compilation, and padding is removed on the
# host, so that checkpoints do not depend on meshes.
def split_runs(tree: PyTree, mesh: Mesh) -> PyTree:
    """Copies arrays ``[runs, ...]``, which all processes have, to devices.

    Each group gets its share of the runs; without groups, all devices get all runs.
    """
    sharding = NamedSharding(mesh, _runs_spec(mesh))
    if not _exists(mesh):
        return shapes_on(sharding, tree)
    return jax.device_put(tree, sharding) if RUNS in mesh.axis_names else replicate(tree, mesh)


def shapes_of_runs(
    state: PyTree, store: PyTree, data: FederatedData, mesh: Mesh
) -> tuple[PyTree, PyTree]:
    """Returns shapes of states of runs and of their clients, with the devices that they are on."""
    specs = _runs_spec(mesh), _store_spec(mesh, data)
    state_devices, store_devices = (NamedSharding(mesh, spec) for spec in specs)
    return shapes_on(state_devices, state), shapes_on(store_devices, store)


def over_mesh(function: Callable[..., PyTree], mesh: Mesh) -> Callable:
    """Returns a function that runs ``function(runs, data)`` on every device.

    ``function`` may cross devices with `fedjax_fair.parallel.collectives` only, and must return the
    same on all devices of a group. With groups, its leaves ``[runs, ...]`` belong to one group.
    The returned function takes all runs, and data from ``shard_data``, or a pair of data and of
    arrays that every device has. A third argument is the
    state of the clients, ``[runs, clients, ...]``, which ``function`` returns after its result;
    each device has the rows of its clients.
    """
    if mesh.axis_names == (CORES,):
        mesh = Mesh(mesh.devices, (AXIS,))  # Collectives use the axis of clients.
    runs_spec = _runs_spec(mesh)

    def mapped(values, data, *stores):
        # With check_vma, JAX would add a collective to each gradient by replicated parameters, and
        # devices would reach them unequally often.
        is_pair = type(data) is tuple
        store_spec = _store_spec(mesh, data[0] if is_pair else data)
        data_spec = (_specs(data[0]), _REPLICATED) if is_pair else _specs(data)
        return jax.shard_map(
            function,
            mesh=mesh,
            in_specs=(runs_spec, data_spec, *(store_spec for _ in stores)),
            out_specs=(runs_spec, store_spec) if stores else runs_spec,
            check_vma=False,
        )(values, data, *stores)

    return mapped


def _store_spec(mesh: Mesh, data: FederatedData) -> PartitionSpec:
    if data.train.has_all_clients:
        return _runs_spec(mesh)
    return PartitionSpec(RUNS if RUNS in mesh.axis_names else None, AXIS)


def _runs_spec(mesh: Mesh) -> PartitionSpec:
    return PartitionSpec(RUNS) if RUNS in mesh.axis_names else _REPLICATED


def _specs(data: FederatedData) -> Any:
    if data.train.has_all_clients:
        return _REPLICATED
    specs: list[Any] = [_SHARDED] * 3 + [_REPLICATED] * 3 + [_SHARDED, _REPLICATED, _SHARDED]
    return data.map_parts(lambda _: ClientExamples(*specs))._replace(groups=_REPLICATED)


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
        def shard_at(index):
            device = (index[0].start or 0) // capacity
            shard = values[rows[starts[device] : starts[device] + counts[device]]]
            return np.pad(shard, [(0, capacity - len(shard))] + [(0, 0)] * (shard.ndim - 1))

        shape = (shards * capacity, *values.shape[1:])
        return _placed(shape, values.dtype, mesh, _SHARDED, shard_at)

    by_device = np.argsort(devices, kind="stable")
    offsets = np.zeros_like(sizes)
    offsets[by_device] = np.cumsum(sizes[by_device]) - sizes[by_device]
    offsets -= starts.astype(sizes.dtype)[devices]
    local = np.arange(capacity, dtype=np.int32)
    residents, slots = _residents(devices, shards)
    return ClientExamples(
        features=jax.tree.map(split, flatten_images(np.asarray(examples.features))),
        labels=split(np.asarray(examples.labels)),
        sensitive_features=jax.tree.map(
            lambda codes: split(np.asarray(codes)), examples.sensitive_features
        ),
        order=_placed((shards * capacity,), np.int32, mesh, _SHARDED, lambda index: local),
        residents=_placed(
            residents.shape, np.int32, mesh, _SHARDED, lambda index: residents[index]
        ),
        **replicate({"offsets": offsets, "sizes": sizes, "devices": devices, "slots": slots}, mesh),
    )


def _residents(
    devices: Int[np.ndarray, " clients"], shards: int
) -> tuple[Int[np.ndarray, " slots"], Int[np.ndarray, " clients"]]:
    """Returns ``ClientExamples.residents`` and ``slots``.

    Examples:
        >>> residents, slots = _residents(np.array([1, 0, 1]), 2)
        >>> residents.tolist(), slots.tolist()
        ([1, -1, 0, 2], [0, 0, 1])
    """
    counts = np.bincount(devices, minlength=shards)
    by_device = np.argsort(devices, kind="stable")
    slots = np.zeros(len(devices), np.int32)
    slots[by_device] = np.arange(len(devices)) - np.repeat(np.cumsum(counts) - counts, counts)
    residents = np.full((shards, counts.max()), -1, np.int32)
    residents[devices, slots] = np.arange(len(devices))
    return residents.reshape(-1), slots


def _placed(
    shape: tuple[int, ...],
    dtype: Any,
    mesh: Mesh,
    spec: PartitionSpec,
    local: Callable[[Any], np.ndarray],
) -> Any:
    """Returns an array on the devices of a mesh, or its shape if they are to compile for."""
    sharding = NamedSharding(mesh, spec)
    if not _exists(mesh):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
    return jax.make_array_from_callback(shape, sharding, local)


def _exists(mesh: Mesh) -> bool:
    """Returns whether the devices exist, and are not descriptions for a compiler."""
    return mesh.devices.flat[0] in jax.devices()


def shapes_on(sharding: Sharding, tree: PyTree) -> PyTree:
    """Returns the shapes of arrays with a sharding."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree
    )
