"""Sums over the examples of clients, chunk by chunk.

`map_examples` takes one flat pass over chunks of all examples regardless of their client, after
which `sum_by_owner` forms a segment sum. `map_sums` loops over each client's examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.numerics import target
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.parallel import collectives

__all__ = [
    "SumFn",
    "chunk_of_clients",
    "client_sum",
    "divide",
    "divide_by_labels",
    "map_examples",
    "map_sums",
    "map_sums_of_parts",
    "masked_sums",
    "owners_of",
    "sum_by_owner",
]

T = TypeVar("T")
SumFn = Callable[[Int[Array, " chunk"], Bool[Array, " chunk"]], PyTree]

# On a CPU clients are vmapped if they are so small that starting a pass costs more than the pass:
# as many as make a thousand examples, if their sums fit into the cache. (From about 100 examples
# on, batched matrix products are slower there than sequential ones.)
_MAX_CPU_CHUNK = 32
_CPU_PASS_EXAMPLES = 1000
_CPU_CACHE_BYTES = 2**19


def map_sums(
    sum_fn_of: Callable[[Int[Array, ""]], SumFn],
    finish: Callable[[PyTree, Int[Array, ""]], T],
    examples: ClientExamples,
    clients: Int[Array, " ids"] | None = None,
    client_bytes: int = 0,
) -> T:
    """Sums a function over the examples of each client.

    ``sum_fn_of(client)`` returns a function that sums over a chunk, given example indices and the
    mask of those that are not padding; it takes ``client_bytes`` of memory. ``finish`` maps a
    client's sums and size to its result, ``[ids, ...]``.
    """
    (result,) = map_sums_of_parts(
        lambda client: [sum_fn_of(client)], finish, [examples], clients, client_bytes
    )
    return result


def map_sums_of_parts(
    sum_fns_of: Callable[[Int[Array, ""]], Sequence[SumFn]],
    finish: Callable[[PyTree, Int[Array, ""]], T],
    parts: Sequence[ClientExamples],
    clients: Int[Array, " ids"] | None = None,
    client_bytes: int = 0,
) -> list[T]:
    """As ``map_sums``, over the examples of each client in several parts of a dataset.

    ``sum_fns_of(client)``, which returns a function for each part, is computed once per client.
    """
    if clients is None:
        clients = jnp.arange(parts[0].num_clients, dtype=jnp.int32)

    def client_results(client, _):
        pairs = zip(sum_fns_of(client), parts, strict=True)
        return [
            finish(client_sum(sum_fn, part, client), part.sizes[client]) for sum_fn, part in pairs
        ]

    batch_size = _clients_per_batch(sum_fns_of, parts, client_bytes)
    if batch_size == 1:
        return collectives.map_clients(parts[0], client_results, clients)
    # Vmapped clients wait for the largest; sorting makes sizes in a batch almost equal.
    sizes = jnp.stack([part.sizes[clients] for part in parts])
    order = jnp.argsort(jnp.sum(sizes, axis=0)).astype(jnp.int32)
    # The last batch repeats a client until it is full.
    batch_size = collectives.equal_batch_size(parts[0], clients.shape[0], batch_size)
    return collectives.map_clients(
        parts[0], client_results, clients, batch_size=batch_size, order=order
    )


def client_sum(
    sum_fn: Callable[[Int[Array, " chunk"], Bool[Array, " chunk"]], T],
    examples: ClientExamples,
    client: Int[Array, ""],
) -> T:
    """Sums a function over the examples of one client, chunk by chunk."""
    chunk = chunk_of_clients(examples)
    chunk_positions = jnp.arange(chunk, dtype=jnp.int32)
    offset, size = examples.offsets[client], examples.sizes[client]

    def add_chunk(number, sums):
        positions = number * chunk + chunk_positions
        indices = examples.order[offset + jnp.minimum(positions, size - 1)]
        return jax.tree.map(jnp.add, sums, sum_fn(indices, positions < size))

    mask = jax.ShapeDtypeStruct((chunk,), bool)
    zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(sum_fn, chunk_positions, mask))
    with jax.named_scope("client_chunks"):
        return jax.lax.fori_loop(0, -(-size // chunk), add_chunk, zeros)


def masked_sums(values: T, mask: Bool[Array, " chunk"]) -> T:
    """Sums arrays of values of a chunk over the examples that are not padding."""
    return jax.tree.map(
        lambda leaf: jnp.sum(leaf, axis=0, where=mask.reshape(-1, *[1] * (leaf.ndim - 1))), values
    )


def map_examples(
    function: Callable[[Int[Array, " chunk"]], T], examples: ClientExamples
) -> tuple[T, Int[Array, " positions"], Int[Array, " positions"]]:
    """Maps a function over chunks of all examples, sorted by owner.

    Returns:
        Results, example indices and owners. Owners of padding are ``num_clients``.
    """
    num_owned = examples.order.shape[0]
    device = target.current()
    chunk = device.flat_images if examples.features.ndim > 2 else device.flat_vectors
    chunk = max(1, min(num_owned, chunk))

    def chunks(values, fill):
        values = jnp.pad(values, (0, -num_owned % chunk), constant_values=fill).reshape(-1, chunk)
        return collectives.shard(examples, values, fill)

    owners = owners_of(examples)
    indices, owners = chunks(examples.order, 0), chunks(owners, examples.num_clients)
    results = jax.tree.map(
        lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), jax.lax.map(function, indices)
    )
    return results, indices.reshape(-1), owners.reshape(-1)


def owners_of(examples: ClientExamples) -> Int[Array, " assigned"]:
    """Returns the owner of each entry of ``order`` on this device; ``num_clients`` for padding."""
    num_owned = examples.order.shape[0]
    clients = jnp.arange(examples.num_clients + 1, dtype=jnp.int32)
    sizes = collectives.local_sizes(examples)
    num_unowned = num_owned - jnp.sum(sizes, keepdims=True)
    sizes = jnp.concatenate([sizes, num_unowned])
    return jnp.repeat(clients, sizes, total_repeat_length=num_owned)


def sum_by_owner(values: T, owners: Int[Array, " positions"], examples: ClientExamples) -> T:
    """Sums arrays of values of all examples, sorted by owner, to ``[clients, ...]``."""
    return jax.tree.map(
        lambda leaf: jax.ops.segment_sum(
            leaf, owners, examples.num_clients, indices_are_sorted=True
        ),
        values,
    )


def divide(sums: T, sizes: Int[Array, "*ids"]) -> T:
    """Returns the means that belong to sums."""
    return jax.tree.map(lambda leaf: leaf / sizes.astype(leaf.dtype), sums)


def divide_by_labels(sums: tuple[T, Int[Array, "*ids"] | None], sizes: Int[Array, "*ids"]) -> T:
    """Divides sums over labels by their number; None if every example has one."""
    values, num_labels = sums
    return divide(values, sizes if num_labels is None else num_labels)


def chunk_of_clients(examples: ClientExamples) -> int:
    """Returns how many examples of a client form a chunk: an equal part of a mean client."""
    mean = max(1, -(-collectives.num_examples(examples) // examples.num_clients))
    return -(-mean // -(-mean // target.current().client_examples))


def _clients_per_batch(
    sum_fns_of: Callable[[Int[Array, ""]], Sequence[SumFn]],
    parts: Sequence[ClientExamples],
    client_bytes: int,
) -> int:
    """Returns the maximum number of vmapped clients."""
    if not target.current().is_cpu:
        return target.current().clients_measured or 1
    chunks = [chunk_of_clients(part) for part in parts]
    if max(chunks) > _MAX_CPU_CHUNK:
        return 1

    def sums():
        pairs = zip(sum_fns_of(jnp.zeros((), jnp.int32)), chunks, strict=True)
        return [fn(jnp.zeros(chunk, jnp.int32), jnp.ones(chunk, bool)) for fn, chunk in pairs]

    num_bytes = max(map(tree_bytes, jax.eval_shape(sums))) + client_bytes
    return max(1, min(_CPU_PASS_EXAMPLES // max(chunks), _CPU_CACHE_BYTES // num_bytes))
