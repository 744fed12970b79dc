"""Losses, accuracies, gradients and other means of clients at one model.

Sums over the examples of all clients take one flat pass: chunks of examples regardless of their
client, followed by a segment sum. Gradients, and means of a few clients, loop over each client's
examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from fedjax_fair.base import (
    ClientGradients,
    ClientMetric,
    ClientMetrics,
    Model,
    Predictions,
    Variables,
)
from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.numerics import target
from fedjax_fair.numerics.sketch import ravel
from fedjax_fair.parallel import collectives

__all__ = [
    "ClientPerformance",
    "chunk_of_clients",
    "client_gradients",
    "client_means",
    "client_performance",
    "evaluate",
]

T = TypeVar("T")

# On a CPU clients are vmapped if they are so small that starting a pass costs more than the pass:
# as many as make a thousand examples, if their sums fit into the cache. (From about 100 examples
# on, batched matrix products are slower there than sequential ones.)
_MAX_CPU_CHUNK = 32
_CPU_PASS_EXAMPLES = 1000
_CPU_CACHE_BYTES = 2**19


class ClientPerformance(NamedTuple):
    """Means over each client's examples; NaN for a client without.

    Attributes:
        loss: The model's loss, ``[clients]``; nats for cross-entropy.
        accuracy: Fraction predicted correctly, ``[clients]``.
    """

    loss: Float[Array, " clients"]
    accuracy: Float[Array, " clients"]


def client_performance(
    model: Model,
    variables: Variables,
    examples: ClientExamples,
    clients: Int[Array, " ids"] | None = None,
) -> ClientPerformance:
    """Measures loss and accuracy of one model on clients, in evaluation mode.

    For all clients it costs as much as plain inference on the same examples.

    Args:
        model: The network.
        variables: Its variables.
        examples: Examples of all clients.
        clients: Client ids; all by default.
    """
    examples = jax.tree.map(jnp.asarray, examples)
    if clients is None:
        return _all_client_performance(model, variables, examples)[0]

    def sum_fn(indices, mask):
        values = _example_performance(model, variables, examples, indices)
        return _masked_sums(values, mask)

    return _map_sums(sum_fn, _divide, examples, clients)


def client_gradients(
    model: Model,
    variables: Variables,
    examples: ClientExamples,
    clients: Int[Array, " ids"] | None = None,
    project: Callable[[PyTree], Float[Array, " width"]] = ravel,
) -> ClientGradients:
    """Measures the mean loss of clients and its gradient, in evaluation mode.

    In memory are projected gradients, ``[ids, width]``, and complete gradients of vmapped clients
    (16 on an accelerator; on a CPU as many small ones as fit into its cache).

    Args:
        model: The network.
        variables: Its variables; gradients are with respect to ``params``.
        examples: Examples of all clients.
        clients: Client ids; all by default.
        project: Maps a gradient, shaped like the parameters, to a vector.

    Returns:
        Losses and gradients, not finite without examples.

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

    def total_loss(params: PyTree, indices: Int[Array, " chunk"], mask: Bool[Array, " chunk"]):
        outputs = _outputs(model, Variables(params, variables.state), examples.features[indices])
        return jnp.sum(model.loss(outputs, examples.labels[indices]), where=mask)

    def finish(sums, size):
        loss, gradient = _divide(sums, size)
        return ClientGradients(loss, project(gradient))

    sum_fn = partial(jax.value_and_grad(total_loss), variables.params)
    return _map_sums(sum_fn, finish, examples, clients)


def client_means(
    metric_fn: Callable[..., T],
    variables: Variables,
    examples: ClientExamples,
    clients: Int[Array, " ids"],
    updates: Variables | None = None,
) -> T:
    """Averages a metric over the examples of clients, at one model or one model per client.

    Args:
        metric_fn: ``metric_fn(variables, features, labels)`` of a batch of examples, arrays with a
            leading axis ``batch``.
        variables: The global model.
        examples: Examples of all clients.
        clients: Client ids.
        updates: Stacked updates of these clients, which are added to the global model.

    Returns:
        The means, with ``ids`` in place of ``batch``; not finite for a client without examples.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = ff.data.load("digits")
        >>> model = ff.models.mlp(data.num_classes, hidden=(32,))
        >>> start = model.init(jax.random.key(0), jnp.asarray(data.train.features[:1]))
        >>> def activations(variables, features, labels):
        ...     return model.features(*variables, features)
        >>> client_means(activations, start, data.train, jnp.array([3, 1])).shape
        (2, 32)
    """
    examples = jax.tree.map(jnp.asarray, examples)

    def client_mean(client, update):
        model = variables if update is None else jax.tree.map(jnp.add, variables, update)

        def sum_fn(indices, mask):
            values = metric_fn(model, examples.features[indices], examples.labels[indices])
            return _masked_sums(values, mask)

        return _divide(_client_sum(sum_fn, examples, client), examples.sizes[client])

    return collectives.map_clients(examples, client_mean, clients, updates)


def evaluate(
    model: Model,
    variables: Variables,
    data: FederatedData,
    participation: Int[Array, " clients"],
    cohort: Int[Array, " cohort"],
    *,
    train_loss: bool = True,
    custom: Sequence[ClientMetric] = (),
) -> ClientMetrics:
    """Measures one model on every client.

    Args:
        model: The network.
        variables: Its variables.
        data: The federated dataset.
        participation: Rounds each client has trained in.
        cohort: Ids of the clients that trained last; -1 in an empty slot.
        train_loss: Whether to measure training losses.
        custom: Metrics of predictions, which take another pass.
    """
    examples = jax.tree.map(jnp.asarray, data.test)
    test, class_accuracy = _all_client_performance(model, variables, examples, data.num_classes)
    if train_loss:
        train = client_performance(model, variables, data.train).loss
    else:
        train = jnp.full_like(test.loss, jnp.nan)
    validation = None
    if data.validation is not None:
        validation = client_performance(model, variables, data.validation)
    return ClientMetrics(
        test_accuracy=test.accuracy,
        test_loss=test.loss,
        train_loss=train,
        test_sizes=data.test.sizes,
        train_sizes=data.train.sizes,
        participation=participation,
        cohort=cohort,
        groups=data.groups,
        class_accuracy=class_accuracy,
        validation_accuracy=validation and validation.accuracy,
        validation_loss=validation and validation.loss,
        validation_sizes=data.validation and data.validation.sizes,
        custom=_custom_metrics(model, variables, data, custom),
    )


def _custom_metrics(
    model: Model, variables: Variables, data: FederatedData, metrics: Sequence[ClientMetric]
) -> dict[str, Float[Array, " clients"]]:
    """Returns metrics of predictions by their name in results."""
    values_by_name: dict[str, Float[Array, " clients"]] = {}
    for split, part in (("test", data.test), ("validation", data.validation)):
        if part is None or not metrics:
            continue
        examples = jax.tree.map(jnp.asarray, part)
        # Predictions of a client have to be on one device. Where devices share all examples, each
        # device computes all predictions.
        is_complete = examples.devices is None or examples.has_all_clients
        local = examples._replace(devices=None) if is_complete else examples

        def outputs_fn(indices, local=local):
            return _outputs(model, variables, local.features[indices])

        outputs, indices, owners = _map_examples(outputs_fn, local)
        predictions = Predictions(model, outputs, local.labels[indices], owners, local.num_clients)
        clients = jnp.arange(local.num_clients, dtype=jnp.int32)
        for metric in metrics:
            values = jnp.where(local.sizes > 0, metric.function(predictions), jnp.nan)
            if not is_complete:
                is_local = collectives.is_local(local, clients)
                values = collectives.all_reduce(local, jnp.where(is_local, values, 0))
            values_by_name[f"{split}_{metric.name}"] = values
    return values_by_name


def _example_performance(
    model: Model, variables: Variables, examples: ClientExamples, indices: Int[Array, " chunk"]
) -> ClientPerformance:
    """Returns loss and accuracy of every example of a chunk."""
    labels = examples.labels[indices]
    outputs = _outputs(model, variables, examples.features[indices])
    return ClientPerformance(model.loss(outputs, labels), model.accuracy(outputs, labels))


def _divide(sums: T, sizes: Int[Array, "*ids"]) -> T:
    return jax.tree.map(lambda leaf: leaf / sizes.astype(leaf.dtype), sums)


def _all_client_performance(
    model: Model, variables: Variables, examples: ClientExamples, num_classes: int = 0
) -> tuple[ClientPerformance, Float[Array, " classes"]]:
    """Returns means of all clients, and the accuracy on all owned examples of each class."""
    num_clients = examples.num_clients
    performance_fn = partial(_example_performance, model, variables, examples)
    values, indices, owners = _map_examples(performance_fn, examples)
    sums = jax.tree.map(
        lambda leaf: jax.ops.segment_sum(leaf, owners, num_clients, indices_are_sorted=True),
        values,
    )
    if jnp.issubdtype(examples.labels.dtype, jnp.floating):
        num_classes, classes = 1, jnp.zeros_like(indices)
    else:
        classes = examples.labels[indices]
    # Padding gets a class past the last, which segment sums leave out.
    classes = jnp.where(owners < num_clients, classes, num_classes)
    correct = jax.ops.segment_sum(values.accuracy, classes, num_classes)
    count = jax.ops.segment_sum(jnp.ones_like(values.accuracy), classes, num_classes)
    sums, correct, count = collectives.all_reduce(examples, (sums, correct, count))
    return _divide(sums, examples.sizes), correct / count


def _outputs(model: Model, variables: Variables, features: Array) -> Float[Array, "batch outputs"]:
    return model.apply(variables.params, variables.state, features, train=False, key=None)[0]


def _map_examples(
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

    clients = jnp.arange(examples.num_clients + 1, dtype=jnp.int32)
    sizes = collectives.local_sizes(examples)
    num_unowned = num_owned - jnp.sum(sizes, keepdims=True)
    owners = jnp.repeat(
        clients, jnp.concatenate([sizes, num_unowned]), total_repeat_length=num_owned
    )
    indices, owners = chunks(examples.order, 0), chunks(owners, examples.num_clients)
    results = jax.tree.map(
        lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), jax.lax.map(function, indices)
    )
    return results, indices.reshape(-1), owners.reshape(-1)


def _map_sums(
    sum_fn: Callable[[Int[Array, " chunk"], Bool[Array, " chunk"]], PyTree],
    finish: Callable[[PyTree, Int[Array, ""]], T],
    examples: ClientExamples,
    clients: Int[Array, " ids"] | None = None,
) -> T:
    """Sums a function over the examples of each client.

    Args:
        sum_fn: Sums over a chunk, given example indices and the mask of those that are not padding.
        finish: Maps a client's sums and size to its result.
        examples: Examples of all clients.
        clients: Client ids; all by default.

    Returns:
        The results of ``finish``, with a leading axis ``ids``.
    """
    if clients is None:
        clients = jnp.arange(examples.num_clients, dtype=jnp.int32)

    def client_result(client, _):
        return finish(_client_sum(sum_fn, examples, client), examples.sizes[client])

    batch_size = _clients_per_batch(sum_fn, examples)
    if batch_size == 1:
        return collectives.map_clients(examples, client_result, clients)
    # Vmapped clients wait for the largest; sorting makes sizes in a batch almost equal.
    order = jnp.argsort(examples.sizes[clients]).astype(jnp.int32)
    results = collectives.map_clients(
        examples, client_result, clients[order], batch_size=batch_size
    )
    return jax.tree.map(lambda leaf: jnp.zeros_like(leaf).at[order].set(leaf), results)


def _masked_sums(values: T, mask: Bool[Array, " chunk"]) -> T:
    return jax.tree.map(
        lambda leaf: jnp.sum(leaf, axis=0, where=mask.reshape(-1, *[1] * (leaf.ndim - 1))), values
    )


def _client_sum(
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

    zeros = jax.tree.map(jnp.zeros_like, _sum_shapes(sum_fn, chunk))
    with jax.named_scope("client_chunks"):
        return jax.lax.fori_loop(0, -(-size // chunk), add_chunk, zeros)


def _sum_shapes(sum_fn: Callable[..., T], chunk: int) -> T:
    indices = jax.ShapeDtypeStruct((chunk,), jnp.int32)
    return jax.eval_shape(sum_fn, indices, jax.ShapeDtypeStruct((chunk,), bool))


def _clients_per_batch(sum_fn: Callable[..., PyTree], examples: ClientExamples) -> int | None:
    """Returns the number of vmapped clients; None for the default of an accelerator."""
    if not target.current().is_cpu:
        return None
    chunk = chunk_of_clients(examples)
    if chunk > _MAX_CPU_CHUNK:
        return 1
    leaves = jax.tree.leaves(_sum_shapes(sum_fn, chunk))
    sum_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    return max(1, min(_CPU_PASS_EXAMPLES // chunk, _CPU_CACHE_BYTES // sum_bytes))


def chunk_of_clients(examples: ClientExamples) -> int:
    """Returns how many examples of a client are processed together: an equal part of a mean client.

    Args:
        examples: Examples of all clients.
    """
    mean = max(1, -(-collectives.num_examples(examples) // examples.num_clients))
    return -(-mean // -(-mean // target.current().client_examples))
