"""Computing on clients where their examples are, and what of it crosses devices.

Where there are several devices (`fedjax_fair.parallel.mesh`), a round is the same program on each
of them. All of them compute the same cohort; only one device computes anything from a client's
examples, and results that others need are all-reduced. It is the device that holds the examples,
or, where all devices share them, any: the client ids are then split evenly. With one device these
are plain maps and sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

from fedjax_fair.data.federated import ClientExamples, Replicated
from fedjax_fair.numerics import target
from fedjax_fair.numerics.products import weighted_total

__all__ = [
    "AXIS",
    "all_reduce",
    "device_index",
    "is_local",
    "local_sizes",
    "map_and_sum",
    "map_clients",
    "map_local_clients",
    "num_examples",
    "per_device",
    "shard",
    "weighted_sum",
]

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
) -> T:
    """Maps a function over clients, each on a device that holds its examples.

    A device loops over its own clients only, so that the map takes as long as the busiest device.
    There must be no collective in ``function``: loops differ in length.

    Args:
        examples: Examples of all clients.
        function: ``function(client, value)``.
        clients: Client ids, which may repeat.
        values: Something for each of them, leaves ``[ids, ...]``.
        batch_size: Clients side by side, or None for one after another.

    Returns:
        The results, ``[ids, ...]``; zeros for clients of other devices.
    """
    arguments = (clients, values)

    def one(arguments):
        return function(*arguments)

    if examples.devices is None:
        return jax.lax.map(one, arguments, batch_size=batch_size)
    unweighted = jnp.zeros(clients.shape)
    return _map_local(
        lambda arguments: (one(arguments), ()), arguments, examples, unweighted, batch_size
    )[0]


def map_and_sum(
    examples: ClientExamples,
    function: Callable[..., tuple[T, S]],
    weights: Float[Array, " ids"],
    clients: Int[Array, " ids"],
    values: PyTree = None,
    batch_size: int | None = None,
) -> tuple[T, S]:
    """Maps a function over clients and sums part of its result on the way.

    Stacked results that are never read take no memory: a compiler drops an array of a loop that is
    only written to.

    Args:
        examples: Examples of all clients.
        function: ``function(client, value) -> (result, part)``.
        weights: Factor of each part in the sum.
        clients: Client ids, and the rest, as for ``map_local_clients``.
        values: Something for each of them.
        batch_size: Clients side by side, or None for one after another. The last batch is filled
            up with repetitions, which do not count.

    Returns:
        The results, ``[ids, ...]`` with zeros for clients of other devices, and the weighted sum of
        the parts, on all devices.

    Examples:
        >>> import fedjax_fair as ff
        >>> train = jax.tree.map(jnp.asarray, ff.data.load("digits").train)
        >>> weights, values = jnp.array([0.5, 0.25]), jnp.array([6.0, 8.0])
        >>> results, total = map_and_sum(
        ...     train, lambda client, value: (client, value), weights, jnp.array([2, 4]), values
        ... )
        >>> results.tolist(), total.tolist()
        ([2, 4], 5.0)
    """
    results, total = _map_local(
        lambda arguments: function(*arguments), (clients, values), examples, weights, batch_size
    )
    return results, all_reduce(examples, total)


def all_reduce(examples: ClientExamples, values: T) -> T:
    """Sums the results of ``map_local_clients`` over devices, which completes them on each."""
    return values if examples.devices is None else jax.lax.psum(values, AXIS)


def map_clients(
    examples: ClientExamples,
    function: Callable[..., T],
    clients: Int[Array, " ids"],
    values: PyTree = None,
    batch_size: int | None = None,
) -> T:
    """Maps a function over clients, for all devices; arguments as for ``map_local_clients``.

    By default clients follow each other on a CPU and go 16 side by side elsewhere.

    Examples:
        >>> import fedjax_fair as ff
        >>> train = jax.tree.map(jnp.asarray, ff.data.load("digits").train)
        >>> map_clients(train, lambda client, value: train.sizes[client] * value,
        ...             jnp.array([3, 1]), jnp.array([1, 0])).shape
        (2,)
    """
    if batch_size is None:
        batch_size = target.current().clients_measured
    return all_reduce(examples, map_local_clients(examples, function, clients, values, batch_size))


def weighted_sum(
    examples: ClientExamples, weights: Float[Array, " cohort"], updates: PyTree
) -> PyTree:
    """Sums stacked updates ``[cohort, ...]`` with the given weights, for all devices.

    Args:
        examples: Examples of all clients.
        weights: One for each update.
        updates: From ``map_local_clients``: each on the device of its client.

    Returns:
        The sum, as large as one update.

    Examples:
        >>> import fedjax_fair as ff
        >>> train = ff.data.load("digits").train
        >>> updates = jnp.array([[4.0, 0.0], [0.0, 4.0]])
        >>> weighted_sum(train, jnp.array([0.25, 0.75]), updates).tolist()
        [1.0, 3.0]
    """
    summed = jax.tree.map(lambda leaf: weighted_total(weights, leaf), updates)
    return all_reduce(examples, summed)


def num_examples(examples: ClientExamples) -> int:
    """Places for examples on all devices, at least as many as clients own."""
    local = examples.order.shape[0]
    return local if examples.has_all_clients else local * jax.lax.axis_size(AXIS)


def per_device(examples: ClientExamples, num_clients: int) -> int:
    """How many of some clients a device computes, if they are split evenly."""
    return num_clients if examples.devices is None else -(-num_clients // jax.lax.axis_size(AXIS))


def local_sizes(examples: ClientExamples) -> Int[Array, " clients"]:
    """Examples of each client on this device: all or none of them."""
    if examples.has_all_clients:
        return examples.sizes
    return jnp.where(examples.devices == device_index(), examples.sizes, 0)


def shard(examples: ClientExamples, values: Shaped[Array, "rows ..."], fill: int):
    """The part of an array that this device goes through.

    Args:
        examples: Examples of all clients.
        values: Rows of this device's own examples, or of all.
        fill: Stands in the rows that are added where devices do not divide them.

    Returns:
        All rows, unless devices share the examples; then one part for each device.
    """
    if not isinstance(examples.devices, Replicated):
        return values
    devices, rows = jax.lax.axis_size(AXIS), values.shape[0]
    edges = [(0, -rows % devices)] + [(0, 0)] * (values.ndim - 1)
    parts = jnp.pad(values, edges, constant_values=fill)
    return parts.reshape(devices, -1, *values.shape[1:])[device_index()]


def device_index() -> Int[Array, ""]:
    """The index of this device along the mesh axis."""
    return jax.lax.axis_index(AXIS)


def is_local(examples: ClientExamples, clients: Int[Array, " ids"]) -> Bool[Array, " ids"]:
    """Which clients this device computes."""
    if not isinstance(examples.devices, Replicated | None):
        return examples.devices[clients] == device_index()
    # Largest first and to and fro, so that devices get equally many clients, of about equal size.
    devices = jax.lax.axis_size(AXIS)
    largest_first = jnp.argsort(-examples.sizes[clients], stable=True)
    lap, place = jnp.divmod(jnp.arange(clients.shape[0], dtype=jnp.int32), devices)
    assigned = jnp.where(lap % 2 == 0, place, devices - 1 - place)
    return jnp.zeros_like(clients).at[largest_first].set(assigned) == device_index()


def _map_local(
    function: Callable[[PyTree], tuple[T, S]],
    arguments: tuple[Int[Array, " ids"], PyTree],
    examples: ClientExamples,
    weights: Float[Array, " ids"],
    batch_size: int | None,
) -> tuple[T, S]:
    """Maps over the clients of this device and sums their parts; zeros stand for the others."""
    size = weights.shape[0]
    count, slots = size, jnp.arange(size, dtype=jnp.int32)
    if examples.devices is not None:
        local = is_local(examples, arguments[0])
        count = jnp.sum(local, dtype=jnp.int32)
        slots = jnp.argsort(~local, stable=True).astype(jnp.int32)  # Local clients come first.

    def pick(slot):
        return jax.tree.map(lambda leaf: leaf[slot], arguments)

    def one(number, carry):
        slot = slots[number]
        new, parts = function(pick(slot))
        return _add(carry, slot, new, weights[slot], parts)

    def batch(number, carry):
        positions = number * batch_size + jnp.arange(batch_size, dtype=jnp.int32)
        chosen = slots[jnp.minimum(positions, count - 1)]
        # Padded positions repeat the last client, write nowhere and count nothing.
        places = jnp.where(positions < count, chosen, size)
        new, parts = jax.vmap(function)(pick(chosen))
        return _add(carry, places, new, jnp.where(positions < count, weights[chosen], 0), parts)

    function = jax.jit(function, inline=True)  # Traced once, though its shapes come first.
    result, part = jax.eval_shape(function, pick(0))
    stacked = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), result)
    total = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), part)
    with jax.named_scope(f"clients_{size}_by_{batch_size or 1}"):
        if batch_size is None:
            return jax.lax.fori_loop(0, count, one, (stacked, total))
        return jax.lax.fori_loop(0, -(-count // batch_size), batch, (stacked, total))


def _add(carry, slots, new, weights, parts):
    """Puts new results, one or a batch of them, in their places, and adds parts to the sum."""
    results, total = carry
    results = jax.tree.map(lambda all, new: all.at[slots].set(new, mode="drop"), results, new)

    def add(sum, part):
        return sum + weighted_total(weights, part)

    return results, jax.tree.map(add, total, parts)
