"""What clients do where their examples are, and what of it crosses devices.

Where there are several devices (`fedjax_fair.placement`), a round is the same program on each of
them. Everybody works out who is chosen; only one device computes anything of a client's examples,
and what others need to know is added up. It is the one that holds them, or, where all share the
examples, any: those asked are then dealt evenly. With one device these are plain maps and sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

from fedjax_fair.data.federated import ClientExamples, Everywhere

__all__ = [
    "AXIS",
    "each",
    "everywhere",
    "map_and_sum",
    "map_clients",
    "num_examples",
    "per_device",
    "share",
    "sizes_here",
    "total",
]

AXIS = "clients"
"""The mesh axis that clients are dealt along."""

T = TypeVar("T")
S = TypeVar("S")

# Clients side by side on an accelerator. On a CPU one client's chunk fills the cores and the cache.
_SIDE_BY_SIDE = 16


def map_clients(
    examples: ClientExamples,
    function: Callable[..., T],
    clients: Int[Array, " asked"],
    values: PyTree = None,
    batch_size: int | None = None,
) -> T:
    """Maps a function over clients, each on a device that holds its examples.

    A device loops over its own clients only, so that all are done when the busiest is. There must
    be no collective in ``function``: loops differ in length.

    Args:
        examples: Examples of all clients.
        function: ``function(client, value)``.
        clients: Whom to ask; a client may be asked more than once.
        values: Something for each of those asked, leaves ``[asked, ...]``.
        batch_size: Clients side by side, or None for one after another.

    Returns:
        What ``function`` returned, ``[asked, ...]``; zeros for clients of other devices.
    """
    asked = (clients, values)

    def one(asked):
        return function(*asked)

    if examples.devices is None:
        return jax.lax.map(one, asked, batch_size=batch_size)
    unweighted = jnp.zeros(clients.shape)
    return _map_some(lambda asked: (one(asked), ()), asked, examples, unweighted, batch_size)[0]


def map_and_sum(
    examples: ClientExamples,
    function: Callable[..., tuple[T, S]],
    weights: Float[Array, " asked"],
    clients: Int[Array, " asked"],
    values: PyTree = None,
    batch_size: int | None = None,
) -> tuple[T, S]:
    """Maps a function over clients and adds up part of what it returns as it comes.

    What nobody reads of the stacked results is never kept: a compiler drops an array of a loop that
    is only written to.

    Args:
        examples: Examples of all clients.
        function: ``function(client, value) -> (told, part)``.
        weights: Factor of each part in the sum.
        clients: Whom to ask, and the rest, as for ``map_clients``.
        values: Something for each of those asked.
        batch_size: Clients side by side, or None for one after another. The last batch is filled
            up with repetitions, which do not count.

    Returns:
        What was told, ``[asked, ...]`` with zeros for clients of other devices, and the weighted
        sum of the parts, known everywhere.

    Examples:
        >>> import fedjax_fair as ff
        >>> train = jax.tree.map(jnp.asarray, ff.data.load("digits").train)
        >>> weights, values = jnp.array([0.5, 0.25]), jnp.array([6.0, 8.0])
        >>> told, total = map_and_sum(
        ...     train, lambda client, value: (client, value), weights, jnp.array([2, 4]), values
        ... )
        >>> told.tolist(), total.tolist()
        ([2, 4], 5.0)
    """
    told, total = _map_some(
        lambda asked: function(*asked), (clients, values), examples, weights, batch_size
    )
    return told, everywhere(examples, total)


def everywhere(examples: ClientExamples, told: T) -> T:
    """Tells every device what ``map_clients`` found, by adding up over devices."""
    return told if examples.devices is None else jax.lax.psum(told, AXIS)


def each(
    examples: ClientExamples,
    function: Callable[..., T],
    clients: Int[Array, " asked"],
    values: PyTree = None,
    batch_size: int | None = None,
) -> T:
    """What a function says of each client, known everywhere; arguments as for ``map_clients``.

    By default clients follow each other on a CPU and go 16 side by side elsewhere.

    Examples:
        >>> import fedjax_fair as ff
        >>> train = jax.tree.map(jnp.asarray, ff.data.load("digits").train)
        >>> each(train, lambda client, value: train.sizes[client] * value,
        ...      jnp.array([3, 1]), jnp.array([1, 0])).shape
        (2,)
    """
    if batch_size is None and jax.default_backend() != "cpu":
        batch_size = _SIDE_BY_SIDE
    return everywhere(examples, map_clients(examples, function, clients, values, batch_size))


def total(examples: ClientExamples, weights: Float[Array, " cohort"], updates: PyTree) -> PyTree:
    """Sums stacked updates ``[cohort, ...]`` with the given weights, known everywhere.

    Args:
        examples: Examples of all clients.
        weights: One for each update.
        updates: As ``map_clients`` left them: each on the device of its client.

    Returns:
        The sum, as large as one update.

    Examples:
        >>> import fedjax_fair as ff
        >>> train = ff.data.load("digits").train
        >>> updates = jnp.array([[4.0, 0.0], [0.0, 4.0]])
        >>> total(train, jnp.array([0.25, 0.75]), updates).tolist()
        [1.0, 3.0]
    """
    summed = jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, 1), updates)
    return everywhere(examples, summed)


def num_examples(examples: ClientExamples) -> int:
    """Places for examples on all devices, at least as many as clients own."""
    here = examples.order.shape[0]
    return here if examples.all_here else here * jax.lax.axis_size(AXIS)


def per_device(examples: ClientExamples, asked: int) -> int:
    """How many of those asked a device has to do with, if they are spread evenly."""
    return asked if examples.devices is None else -(-asked // jax.lax.axis_size(AXIS))


def sizes_here(examples: ClientExamples) -> Int[Array, " clients"]:
    """Examples of each client on this device: all or none of them."""
    if examples.all_here:
        return examples.sizes
    return jnp.where(examples.devices == _me(), examples.sizes, 0)


def share(examples: ClientExamples, values: Shaped[Array, "rows ..."], fill: int):
    """What a device is to go through of something that all devices share.

    Args:
        examples: Examples of all clients.
        values: Something that each device has, of its own examples or of all.
        fill: Stands in the rows that are added where devices do not divide them.

    Returns:
        All of them, unless devices share the examples; then a part for each device.
    """
    if not isinstance(examples.devices, Everywhere):
        return values
    devices, rows = jax.lax.axis_size(AXIS), values.shape[0]
    edges = [(0, -rows % devices)] + [(0, 0)] * (values.ndim - 1)
    parts = jnp.pad(values, edges, constant_values=fill)
    return parts.reshape(devices, -1, *values.shape[1:])[_me()]


def _mine(examples: ClientExamples, clients: Int[Array, " asked"]) -> Bool[Array, " asked"]:
    """Of whom this device has to answer."""
    if not isinstance(examples.devices, Everywhere | None):
        return examples.devices[clients] == _me()
    # Largest first and to and fro, so that devices get equally many clients, of about equal size.
    devices = jax.lax.axis_size(AXIS)
    largest_first = jnp.argsort(-examples.sizes[clients], stable=True)
    lap, place = jnp.divmod(jnp.arange(clients.shape[0], dtype=jnp.int32), devices)
    dealt = jnp.where(lap % 2 == 0, place, devices - 1 - place)
    return jnp.zeros_like(clients).at[largest_first].set(dealt) == _me()


def _me() -> Int[Array, ""]:
    return jax.lax.axis_index(AXIS)


def _map_some(
    function: Callable[[PyTree], tuple[T, S]],
    asked: tuple[Int[Array, " asked"], PyTree],
    examples: ClientExamples,
    weights: Float[Array, " asked"],
    batch_size: int | None,
) -> tuple[T, S]:
    """Maps over those who are here, and sums their parts; zeros stand for the others."""
    size = weights.shape[0]
    count, slots = size, jnp.arange(size, dtype=jnp.int32)
    if examples.devices is not None:
        here = _mine(examples, asked[0])
        count = jnp.sum(here, dtype=jnp.int32)
        slots = jnp.argsort(~here, stable=True).astype(jnp.int32)  # Those who are here come first.

    def pick(slot):
        return jax.tree.map(lambda leaf: leaf[slot], asked)

    def one(number, carry):
        slot = slots[number]
        new, parts = function(pick(slot))
        return _add(carry, slot, new, weights[slot], parts)

    def batch(number, carry):
        lanes = number * batch_size + jnp.arange(batch_size, dtype=jnp.int32)
        chosen = slots[jnp.minimum(lanes, count - 1)]
        # Lanes too many repeat the last client, write nowhere and count nothing.
        places = jnp.where(lanes < count, chosen, size)
        new, parts = jax.vmap(function)(pick(chosen))
        return _add(carry, places, new, jnp.where(lanes < count, weights[chosen], 0), parts)

    function = jax.jit(function, inline=True)  # Traced once, though asked for its shapes first.
    told, part = jax.eval_shape(function, pick(0))
    stacked = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), told)
    total = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), part)
    if batch_size is None:
        return jax.lax.fori_loop(0, count, one, (stacked, total))
    return jax.lax.fori_loop(0, -(-count // batch_size), batch, (stacked, total))


def _add(carry, slots, new, weights, parts):
    """Puts new results, one or a batch of them, in their places, and adds parts to the sum."""
    told, total = carry
    told = jax.tree.map(lambda all, new: all.at[slots].set(new, mode="drop"), told, new)

    def add(sum, part):
        return sum + jnp.tensordot(weights.astype(part.dtype), part, weights.ndim)

    return told, jax.tree.map(add, total, parts)
