"""Shapes of arrays with their placement on a machine to compile for."""

from __future__ import annotations

from jax.sharding import Mesh, SingleDeviceSharding
from jaxtyping import PyTree

from fedjax_fair.data.device_layout import to_device_layout
from fedjax_fair.data.federated import FederatedData, map_arrays
from fedjax_fair.parallel.mesh import shapes_on, shard_data, split_runs
from fedjax_fair.planning.machines import Machine, devices_of

__all__ = ["place", "place_data", "place_runs"]


def place(machine: Machine, tree: PyTree) -> PyTree:
    """Returns the shapes of arrays on the first device of a machine."""
    return shapes_on(SingleDeviceSharding(devices_of(machine)[0]), tree)


def place_runs(machine: Machine, mesh: Mesh | None, tree: PyTree) -> PyTree:
    """Returns the shapes of arrays ``[runs, ...]``, split over the groups of a mesh if any."""
    return place(machine, tree) if mesh is None else split_runs(tree, mesh)


def place_data(machine: Machine, mesh: Mesh | None, data: FederatedData) -> FederatedData:
    """Returns the shapes of a federated dataset; call it while tracing for the machine."""
    if mesh is None:
        return map_arrays(data, lambda data: place(machine, to_device_layout(data)))
    return shard_data(data, mesh)
