"""Asking clients one by one: mean losses and gradients of whole clients at one model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from fedjax_fair import collective
from fedjax_fair.base import ClientGradients, Model, Variables
from fedjax_fair.data.federated import ClientExamples

__all__ = ["client_gradients", "local_means", "ravel", "sums_of_clients"]

T = TypeVar("T")

# Examples of one client in a pass, at most: enough for full speed, few enough for activations to
# stay in a processor's cache, or in that of a core that is a device of its own.
_CHUNK_ON_CPU = 200
_CHUNK_ON_CORE = 50
_CHUNK = 512
# On a CPU clients are asked side by side if they are so small that starting a pass costs more than
# the pass: as many as make a thousand examples, if what is summed for them stays in the cache.
# (From about 100 examples on, matrix products in a batch are slower there than one by one.)
_CPU_SMALL = 32
_CPU_PASS = 1000
_CPU_CACHE = 2**19


def ravel(gradient: PyTree) -> Float[Array, " width"]:
    """All numbers of a tree as one vector."""
    return ravel_pytree(gradient)[0]


def client_gradients(
    model: Model,
    variables: Variables,
    examples: ClientExamples,
    clients: Int[Array, " asked"] | None = None,
    project: Callable[[PyTree], Float[Array, " width"]] = ravel,
) -> ClientGradients:
    """Mean loss of whole clients and its gradient, in evaluation mode.

    Clients follow each other, each in chunks of its own examples, so that only the projected
    gradients of all clients are ever held: ``[asked, width]`` floats besides one gradient in full
    for each client of those that run side by side (16 on an accelerator; on a CPU as many small
    ones as fit into its cache).

    Args:
        model: The network.
        variables: Where to differentiate; only ``params`` are differentiated.
        examples: Examples of all clients.
        clients: Whom to ask, ``[asked]``; by default everybody.
        project: From a gradient, shaped like the parameters, to a vector.

    Returns:
        A ``ClientGradients``; not finite for a client without examples.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = ff.data.load("digits")
        >>> model = ff.models.logistic(data.num_classes)
        >>> start = model.init(jax.random.key(0), jnp.asarray(data.train.features[:1]))
        >>> loss, gradient = client_gradients(model, start, data.train)
        >>> gradient.shape  # 64 * 10 weights and 10 biases
        (50, 650)
    """
    examples = jax.tree.map(jnp.asarray, examples)

    def total_loss(params: PyTree, rows: Int[Array, " chunk"], mask: Bool[Array, " chunk"]):
        features = examples.features[rows]
        logits, _ = model.apply(params, variables.state, features, train=False, key=None)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, examples.labels[rows])
        return jnp.sum(losses, where=mask)

    def measure(rows, mask):
        return jax.value_and_grad(total_loss)(variables.params, rows, mask)

    def finish(sums, size):
        loss, gradient = jax.tree.map(lambda leaf: leaf / size.astype(leaf.dtype), sums)
        return ClientGradients(loss, project(gradient))

    return sums_of_clients(measure, finish, examples, clients)


def sums_of_clients(
    measure: Callable[[Int[Array, " chunk"], Bool[Array, " chunk"]], PyTree],
    finish: Callable[[PyTree, Int[Array, ""]], T],
    examples: ClientExamples,
    clients: Int[Array, " asked"] | None = None,
) -> T:
    """Sums a measurement over the examples of one client after another.

    Args:
        measure: From examples (their rows, and which lanes are real) to sums over the real ones.
        finish: From a client's sums and its size to what is kept of them.
        examples: Examples of all clients.
        clients: Whom to ask; by default everybody.

    Returns:
        What ``finish`` returned, with a leading axis ``asked``.
    """
    if clients is None:
        clients = jnp.arange(examples.num_clients, dtype=jnp.int32)

    def one(client, _):
        return finish(_sums_of_client(measure, examples, client), examples.sizes[client])

    batch = _side_by_side(measure, examples)
    if batch == 1:
        return collective.each(examples, one, clients)
    # Side by side all wait for the largest: they are of almost equal size if sorted.
    order = jnp.argsort(examples.sizes[clients]).astype(jnp.int32)
    sums = collective.each(examples, one, clients[order], batch_size=batch)
    return jax.tree.map(lambda leaf: jnp.zeros_like(leaf).at[order].set(leaf), sums)


def local_means(
    measure: Callable[..., T],
    variables: Variables,
    examples: ClientExamples,
    clients: Int[Array, " asked"],
    updates: Variables | None = None,
) -> T:
    """Averages over the examples of clients, each of which may have a model of its own.

    Args:
        measure: ``measure(variables, features, labels)`` of a batch of examples; arrays with a
            leading axis ``batch``.
        variables: The global model.
        examples: Examples of all clients.
        clients: Whom to ask.
        updates: What each of those asked adds to the global model, stacked; by default nothing.

    Returns:
        What ``measure`` returned, with ``asked`` in place of ``batch``; not finite for a client
        without examples.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = ff.data.load("digits")
        >>> model = ff.models.mlp(data.num_classes, hidden=(32,))
        >>> start = model.init(jax.random.key(0), jnp.asarray(data.train.features[:1]))
        >>> def activations(variables, features, labels):
        ...     return model.features(*variables, features)
        >>> local_means(activations, start, data.train, jnp.array([3, 1])).shape
        (2, 32)
    """
    examples = jax.tree.map(jnp.asarray, examples)

    def one(client, update):
        own = variables if update is None else jax.tree.map(jnp.add, variables, update)

        def sums(rows, mask):
            told = measure(own, examples.features[rows], examples.labels[rows])
            return jax.tree.map(lambda leaf: _masked_sum(leaf, mask), told)

        size = examples.sizes[client]
        totals = _sums_of_client(sums, examples, client)
        return jax.tree.map(lambda leaf: leaf / size.astype(leaf.dtype), totals)

    return collective.each(examples, one, clients, updates)


def _masked_sum(values: Float[Array, "chunk ..."], mask: Bool[Array, " chunk"]):
    mask = mask.reshape(mask.shape + (1,) * (values.ndim - 1))
    return jnp.sum(values, axis=0, where=mask)


def _sums_of_client(
    measure: Callable[[Int[Array, " chunk"], Bool[Array, " chunk"]], T],
    examples: ClientExamples,
    client: Int[Array, ""],
) -> T:
    """Sums a measurement over the examples of one client, chunk by chunk."""
    chunk = _chunk(examples)
    lanes = jnp.arange(chunk, dtype=jnp.int32)
    offset, size = examples.offsets[client], examples.sizes[client]

    def add(number, sums):
        positions = number * chunk + lanes
        rows = examples.order[offset + jnp.minimum(positions, size - 1)]
        return jax.tree.map(jnp.add, sums, measure(rows, positions < size))

    shapes = _shapes(measure, chunk)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.fori_loop(0, -(-size // chunk), add, nothing)


def _shapes(measure: Callable[..., T], chunk: int) -> T:
    """What is summed."""
    lanes = jnp.arange(chunk, dtype=jnp.int32)
    return jax.eval_shape(measure, lanes, lanes < chunk)


def _side_by_side(measure: Callable[..., PyTree], examples: ClientExamples) -> int | None:
    """How many clients share a pass; None for as many as an accelerator likes."""
    if jax.default_backend() != "cpu":
        return None
    chunk = _chunk(examples)
    if chunk > _CPU_SMALL:
        return 1
    sums = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(_shapes(measure, chunk)))
    return max(1, min(_CPU_PASS // chunk, _CPU_CACHE // sums))


def _chunk(examples: ClientExamples) -> int:
    """Divides a client of mean size into equal chunks."""
    mean = max(1, -(-collective.num_examples(examples) // examples.num_clients))
    most = _CHUNK
    if jax.default_backend() == "cpu":
        most = _CHUNK_ON_CPU if jax.local_device_count() == 1 else _CHUNK_ON_CORE
    return -(-mean // -(-mean // most))
