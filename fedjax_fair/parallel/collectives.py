"""Maps and sums over clients, each computed on one device.

On several devices (`fedjax_fair.parallel.mesh`) each runs the same round and computes the same
cohort. Only the device that holds a client's examples computes with them, and results are
all-reduced. If all devices hold all examples, client ids are divided evenly. On one device these
are plain maps and sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

from fedjax_fair.data.client_examples import ClientExamples, Replicated
from fedjax_fair.numerics import target
from fedjax_fair.numerics.products import weighted_total

__all__ = [
    "AXIS", "all_reduce", "device_index", "equal_batch_size", "gather", "is_local", "local_sizes",
    "map_and_sum", "map_clients", "map_local_clients", "num_examples", "per_device", "shard",
    "weighted_sum",
]  # fmt: skip

AXIS = "clients"
"""The mesh axis along which clients are assigned to devices."""

T = TypeVar("T")
S = TypeVar("S")


def map_local_clients(
    examples: ClientExamples,
    function: Callable[..., T],
    clients: Int[Array, " ids"],
    values: PyTree = None,
    batch_size: int | None = None,
    order: Int[Array, " ids"] | None = None,
) -> T:
    """Maps ``function(client, value)`` over clients, each on a device that holds its examples.

    The loops of devices differ in length, so ``function`` must not contain collectives. ``clients``
    may repeat, and leaves of ``values`` are ``[ids, ...]``. With a ``batch_size`` each step of the
    loop is a vmap over that many clients. ``order`` has the positions in ``clients`` in the order
    of the loop; results are not affected by it, and not copied for it.

    Returns:
        The results, ``[ids, ...]``; zeros for clients of other devices.
    """
    if examples.devices is None and order is None:
        return jax.lax.map(lambda each: function(*each), (clients, values), batch_size=batch_size)
    return map_and_sum(
        examples,
        lambda client, value: (function(client, value), ()),
        jnp.zeros(clients.shape),
        clients,
        values,
        batch_size,
        order,
    )[0]


def map_and_sum(
    examples: ClientExamples,
    function: Callable[..., tuple[T, S]],
    weights: Float[Array, " ids"],
    clients: Int[Array, " ids"],
    values: PyTree = None,
    batch_size: int | None = None,
    order: Int[Array, " ids"] | None = None,
) -> tuple[T, S]:
    """Maps ``function(client, value) -> (result, part)`` and sums the parts with weights.

    The compiler removes results that are never used.

    Returns:
        The results as of ``map_local_clients``, and the weighted sum of the parts on all devices.
    """
    size = weights.shape[0]
    count, slots = size, jnp.arange(size, dtype=jnp.int32) if order is None else order
    if examples.devices is not None:
        local = is_local(examples, clients)[slots]
        count = jnp.sum(local, dtype=jnp.int32)
        slots = slots[jnp.argsort(~local, stable=True)]  # Local clients come first.

    def arguments_of(slots):
        return jax.tree.map(lambda leaf: leaf[slots], (clients, values))

    def add_client(i, carry):
        slot = slots[i]
        result, part = function(*arguments_of(slot))
        return _add(carry, slot, result, weights[slot], part)

    def add_batch(i, carry):
        positions = i * batch_size + jnp.arange(batch_size, dtype=jnp.int32)
        # Padded positions repeat the last client; they write to no slot and have no weight.
        is_client = positions < count
        batch_slots = slots[jnp.minimum(positions, count - 1)]
        results, parts = jax.vmap(function)(*arguments_of(batch_slots))
        target_slots = jnp.where(is_client, batch_slots, size)
        batch_weights = jnp.where(is_client, weights[batch_slots], 0)
        return _add(carry, target_slots, results, batch_weights, parts)

    function = jax.jit(function, inline=True)  # Traced once for its shapes and the loop.
    result, part = jax.eval_shape(function, *arguments_of(0))
    results = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), result)
    total = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), part)
    with jax.named_scope(f"clients_{size}_by_{batch_size or 1}"):
        if batch_size is None:
            results, total = jax.lax.fori_loop(0, count, add_client, (results, total))
        else:
            batches = -(-count // batch_size)
            results, total = jax.lax.fori_loop(0, batches, add_batch, (results, total))
    return results, all_reduce(examples, total)


def all_reduce(examples: ClientExamples, values: T) -> T:
    """Completes the results of ``map_local_clients`` on all devices by a sum over devices."""
    return values if examples.devices is None else jax.lax.psum(values, AXIS)


def gather(values: Shaped[Array, "rows ..."]) -> Shaped[Array, "all_rows ..."]:
    """Joins the rows of all devices, which have different examples."""
    return jax.lax.all_gather(values, AXIS, tiled=True)


def map_clients(
    examples: ClientExamples,
    function: Callable[..., T],
    clients: Int[Array, " ids"],
    values: PyTree = None,
    batch_size: int | None = None,
    order: Int[Array, " ids"] | None = None,
) -> T:
    """Maps a function over clients, for all devices; arguments are as for ``map_local_clients``.

    By default a CPU loops over clients, and other devices use vmap batches of 16.
    """
    if batch_size is None:
        batch_size = target.current().clients_measured
    local = map_local_clients(examples, function, clients, values, batch_size, order)
    return all_reduce(examples, local)


def weighted_sum(
    examples: ClientExamples, weights: Float[Array, " cohort"], updates: PyTree
) -> PyTree:
    """Returns the weighted sum of updates ``[cohort, ...]`` from ``map_local_clients``."""
    summed = jax.tree.map(lambda leaf: weighted_total(weights, leaf), updates)
    return all_reduce(examples, summed)


def num_examples(examples: ClientExamples) -> int:
    """Returns the number of examples on all devices, with padding."""
    local = examples.order.shape[0]
    return local if examples.has_all_clients else local * jax.lax.axis_size(AXIS)


def per_device(examples: ClientExamples, num_clients: int) -> int:
    """Returns the clients that a device computes if they are divided evenly."""
    return num_clients if examples.devices is None else -(-num_clients // jax.lax.axis_size(AXIS))


def equal_batch_size(examples: ClientExamples, num_clients: int, at_most: int) -> int:
    """Returns the clients per batch for batches of equal size: 9 + 9 clients, not 16 + 2."""
    num_local = per_device(examples, num_clients)
    return -(-num_local // -(-num_local // at_most))


def local_sizes(examples: ClientExamples) -> Int[Array, " clients"]:
    """Returns the number of examples of each client on this device: all or none of them."""
    if examples.has_all_clients:
        return examples.sizes
    return jnp.where(examples.devices == device_index(), examples.sizes, 0)


def shard(examples: ClientExamples, values: Shaped[Array, "rows ..."], fill: int):
    """Returns the rows of an array that this device processes.

    Devices that share all examples get an equal part each, padded with ``fill``; otherwise
    ``values`` already are the rows of this device.
    """
    if not isinstance(examples.devices, Replicated):
        return values
    devices, rows = jax.lax.axis_size(AXIS), values.shape[0]
    edges = [(0, -rows % devices)] + [(0, 0)] * (values.ndim - 1)
    parts = jnp.pad(values, edges, constant_values=fill)
    return parts.reshape(devices, -1, *values.shape[1:])[device_index()]


def device_index() -> Int[Array, ""]:
    """Returns the index of this device along the mesh axis."""
    return jax.lax.axis_index(AXIS)


def is_local(examples: ClientExamples, clients: Int[Array, " ids"]) -> Bool[Array, " ids"]:
    """Returns whether this device computes each of some clients."""
    if not isinstance(examples.devices, Replicated | None):
        return examples.devices[clients] == device_index()
    # Clients are dealt out by decreasing size, in alternating direction, which balances both their
    # number and their examples.
    devices = jax.lax.axis_size(AXIS)
    largest_first = jnp.argsort(-examples.sizes[clients], stable=True)
    lap, position = jnp.divmod(jnp.arange(clients.shape[0], dtype=jnp.int32), devices)
    assigned = jnp.where(lap % 2 == 0, position, devices - 1 - position)
    return jnp.zeros_like(clients).at[largest_first].set(assigned) == device_index()


def _add(carry, slots, results, weights, parts):
    """Writes results, of one client or a batch, and adds their parts to the sum."""
    all_results, total = carry
    all_results = jax.tree.map(
        lambda all, new: all.at[slots].set(new, mode="drop"), all_results, results
    )
    total = jax.tree.map(lambda sum, part: sum + weighted_total(weights, part), total, parts)
    return all_results, total
