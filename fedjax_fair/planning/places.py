"""Where arrays would lie on a machine that is not there."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding
from jaxtyping import PyTree

from fedjax_fair.data.device_layout import to_device_layout
from fedjax_fair.data.federated import FederatedData, map_arrays
from fedjax_fair.parallel.mesh import shard_federation, split_runs
from fedjax_fair.planning.machines import Machine, devices_of

__all__ = ["bytes_of", "federation_on", "on", "runs_on"]


def on(machine: Machine, tree: PyTree) -> PyTree:
    """Shapes of arrays that lie on the first device of a machine.

    Args:
        machine: From ``machines.find``.
        tree: Arrays, or their shapes.
    """
    first = SingleDeviceSharding(devices_of(machine)[0])

    def shape(leaf):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=first)

    return jax.tree.map(shape, tree)


def runs_on(machine: Machine, mesh: Mesh | None, tree: PyTree) -> PyTree:
    """Shapes of arrays ``[runs, ...]``: of each group of devices its share, if there are groups.

    Args:
        machine: From ``machines.find``.
        mesh: Of its devices, or None for the first.
        tree: Arrays, or their shapes.
    """
    return on(machine, tree) if mesh is None else split_runs(tree, mesh)


def federation_on(machine: Machine, mesh: Mesh | None, data: FederatedData) -> FederatedData:
    """Shapes of a federation; call it while tracing for the machine.

    Args:
        machine: From ``machines.find``.
        mesh: Of its devices, or None for the first.
        data: On the host.
    """
    if mesh is None:
        return map_arrays(data, lambda data: on(machine, to_device_layout(data)))
    return shard_federation(data, mesh)


def bytes_of(tree: PyTree) -> int:
    """Bytes of different arrays on one device.

    Args:
        tree: Shapes with a sharding.
    """
    leaves: Any = {id(leaf): leaf for leaf in jax.tree.leaves(tree)}.values()
    return sum(
        int(np.prod(leaf.sharding.shard_shape(leaf.shape))) * leaf.dtype.itemsize for leaf in leaves
    )
