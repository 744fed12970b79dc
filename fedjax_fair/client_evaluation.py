"""Measuring whole clients at one model: losses, accuracies, gradients, and means of anything.

Where all clients are measured and only sums over their examples count, the pass is flat: chunks of
examples regardless of their owners, then one sum a client. Gradients, and measurements of a few
clients, go through one client's examples after another.
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
from fedjax_fair.data.federated import ClientExamples, FederatedData
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

# On a CPU clients go side by side if they are so small that starting a pass costs more than the
# pass: as many as make a thousand examples, if what is summed for them stays in the cache. (From
# about 100 examples on, matrix products in a batch are slower there than one by one.)
_CPU_SMALL = 32
_CPU_PASS = 1000
_CPU_CACHE = 2**19


class ClientPerformance(NamedTuple):
    """Means over each client's examples; NaN for a client without.

    Attributes:
        loss: Of the model's loss, ``[clients]``; nats for cross-entropy.
        accuracy: Fraction correct, ``[clients]``.
    """

    loss: Float[Array, " clients"]
    accuracy: Float[Array, " clients"]


def client_performance(
    model: Model,
    variables: Variables,
    examples: ClientExamples,
    clients: Int[Array, " ids"] | None = None,
) -> ClientPerformance:
    """Loss and accuracy of one model on whole clients, in evaluation mode.

    For all clients the pass is flat. It costs as much as plain inference on the same examples,
    however they are divided.

    Args:
        model: The network.
        variables: Its variables.
        examples: Examples of all clients.
        clients: Client ids; all by default.

    Returns:
        A ``ClientPerformance`` of these clients.
    """
    examples = jax.tree.map(jnp.asarray, examples)
    if clients is None:
        return _measure_all(model, variables, examples)[0]

    def sums(indices, mask):
        measured = _measure(model, variables, examples, indices)
        return jax.tree.map(lambda leaf: jnp.sum(leaf, where=mask), measured)

    return _map_sums(sums, _mean, examples, clients)


def client_gradients(
    model: Model,
    variables: Variables,
    examples: ClientExamples,
    clients: Int[Array, " ids"] | None = None,
    project: Callable[[PyTree], Float[Array, " width"]] = ravel,
) -> ClientGradients:
    """Mean loss of whole clients and its gradient, in evaluation mode.

    Clients follow each other, each in chunks of its own examples, so that only the projected
    gradients of all clients are ever held: ``[ids, width]`` floats besides one gradient in full for
    each client of those that run side by side (16 on an accelerator; on a CPU as many small ones as
    fit into its cache).

    Args:
        model: The network.
        variables: Where to differentiate; only ``params`` are differentiated.
        examples: Examples of all clients.
        clients: Client ids; all by default.
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

    def total_loss(params: PyTree, indices: Int[Array, " chunk"], mask: Bool[Array, " chunk"]):
        outputs = _outputs(model, Variables(params, variables.state), examples.features[indices])
        return jnp.sum(model.loss(outputs, examples.labels[indices]), where=mask)

    def measure(indices, mask):
        return jax.value_and_grad(total_loss)(variables.params, indices, mask)

    def finish(sums, size):
        loss, gradient = jax.tree.map(lambda leaf: leaf / size.astype(leaf.dtype), sums)
        return ClientGradients(loss, project(gradient))

    return _map_sums(measure, finish, examples, clients)


def client_means(
    metric_fn: Callable[..., T],
    variables: Variables,
    examples: ClientExamples,
    clients: Int[Array, " ids"],
    updates: Variables | None = None,
) -> T:
    """Averages over the examples of clients, each of which may have a model of its own.

    Args:
        metric_fn: ``metric_fn(variables, features, labels)`` of a batch of examples; arrays with a
            leading axis ``batch``.
        variables: The global model.
        examples: Examples of all clients.
        clients: Client ids.
        updates: What each of these clients adds to the global model, stacked; by default nothing.

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

    def one(client, update):
        own = variables if update is None else jax.tree.map(jnp.add, variables, update)

        def sums(indices, mask):
            values = metric_fn(own, examples.features[indices], examples.labels[indices])
            return jax.tree.map(lambda leaf: _masked_sum(leaf, mask), values)

        size = examples.sizes[client]
        totals = _client_sums(sums, examples, client)
        return jax.tree.map(lambda leaf: leaf / size.astype(leaf.dtype), totals)

    return collectives.map_clients(examples, one, clients, updates)


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
        data: The federation.
        participation: Rounds each client has trained in.
        cohort: Ids of the clients that trained last; -1 in an empty slot.
        train_loss: Whether to measure the training loss as well, which reads all training examples.
        custom: Further metrics, of predictions for test and validation examples; they take a pass of
            their own.

    Returns:
        A ``ClientMetrics``.
    """
    examples = jax.tree.map(jnp.asarray, data.test)
    test, class_accuracy = _measure_all(model, variables, examples, data.num_classes)
    if train_loss:
        train = client_performance(model, variables, data.train).loss
    else:
        train = jnp.full_like(test.loss, jnp.nan)
    held = None
    if data.validation is not None:
        held = client_performance(model, variables, data.validation)
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
        validation_accuracy=held and held.accuracy,
        validation_loss=held and held.loss,
        validation_sizes=data.validation and data.validation.sizes,
        custom=_of_predictions(model, variables, data, custom),
    )


def _of_predictions(
    model: Model, variables: Variables, data: FederatedData, custom: Sequence[ClientMetric]
) -> dict[str, Float[Array, " clients"]]:
    """Metrics of predictions, by the name they have in results."""
    found: dict[str, Float[Array, " clients"]] = {}
    for kind, part in (("test", data.test), ("validation", data.validation)):
        if part is None or not custom:
            continue
        examples = jax.tree.map(jnp.asarray, part)
        # A client's examples have to be in one place. Where devices share all, each computes all.
        alone = examples.devices is None or examples.has_all_clients
        here = examples._replace(devices=None) if alone else examples

        def measure(indices, here=here):
            return _outputs(model, variables, here.features[indices])

        outputs, indices, owners = _flat(measure, here)
        predictions = Predictions(model, outputs, here.labels[indices], owners, here.num_clients)
        clients = jnp.arange(here.num_clients, dtype=jnp.int32)
        for metric in custom:
            values = jnp.where(here.sizes > 0, metric.function(predictions), jnp.nan)
            if not alone:
                local = collectives.is_local(here, clients)
                values = collectives.all_reduce(here, jnp.where(local, values, 0))
            found[f"{kind}_{metric.name}"] = values
    return found


def _measure(
    model: Model, variables: Variables, examples: ClientExamples, indices: Int[Array, " chunk"]
) -> ClientPerformance:
    """Loss and accuracy of every example of a chunk."""
    labels = examples.labels[indices]
    outputs = _outputs(model, variables, examples.features[indices])
    return ClientPerformance(model.loss(outputs, labels), model.accuracy(outputs, labels))


def _mean(sums: ClientPerformance, sizes: Int[Array, "*ids"]) -> ClientPerformance:
    return jax.tree.map(lambda leaf: leaf / sizes.astype(leaf.dtype), sums)


def _measure_all(
    model: Model, variables: Variables, examples: ClientExamples, num_classes: int = 0
) -> tuple[ClientPerformance, Float[Array, " classes"]]:
    """Means of all clients, and the accuracy on all owned examples of each class."""
    num_clients = examples.num_clients
    measured, indices, owners = _flat(partial(_measure, model, variables, examples), examples)
    sums = jax.tree.map(
        lambda leaf: jax.ops.segment_sum(leaf, owners, num_clients, indices_are_sorted=True),
        measured,
    )
    if jnp.issubdtype(examples.labels.dtype, jnp.floating):
        num_classes, classes = 1, jnp.zeros_like(indices)
    else:
        classes = examples.labels[indices]
    classes = jnp.where(owners < num_clients, classes, num_classes)  # Past the last, not counted.
    correct = jax.ops.segment_sum(measured.accuracy, classes, num_classes)
    count = jax.ops.segment_sum(jnp.ones_like(measured.accuracy), classes, num_classes)
    sums, correct, count = collectives.all_reduce(examples, (sums, correct, count))
    return _mean(sums, examples.sizes), correct / count


def _outputs(model: Model, variables: Variables, features: Array) -> Float[Array, "batch outputs"]:
    return model.apply(variables.params, variables.state, features, train=False, key=None)[0]


def _flat(
    measure: Callable[[Int[Array, " chunk"]], T], examples: ClientExamples
) -> tuple[T, Int[Array, " positions"], Int[Array, " positions"]]:
    """A measurement of every example, with its index and its owner, in the order of owners."""
    owned = examples.order.shape[0]
    here = target.current()
    chunk = here.flat_images if examples.features.ndim > 2 else here.flat_vectors
    chunk = max(1, min(owned, chunk))
    no_client = examples.num_clients

    def chunks(values, fill):
        values = jnp.pad(values, (0, -owned % chunk), constant_values=fill).reshape(-1, chunk)
        return collectives.shard(examples, values, fill)

    indices, owners = chunks(examples.order, 0), chunks(_owners(examples), no_client)
    measured = jax.tree.map(
        lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), jax.lax.map(measure, indices)
    )
    return measured, indices.reshape(-1), owners.reshape(-1)


def _owners(examples: ClientExamples) -> Int[Array, " owned"]:
    """The client that owns each position of ``order``; one past the last where none does."""
    owned = examples.order.shape[0]
    clients = jnp.arange(examples.num_clients + 1, dtype=jnp.int32)
    sizes = collectives.local_sizes(examples)
    without_owner = owned - jnp.sum(sizes, keepdims=True)
    return jnp.repeat(clients, jnp.concatenate([sizes, without_owner]), total_repeat_length=owned)


def _map_sums(
    measure: Callable[[Int[Array, " chunk"], Bool[Array, " chunk"]], PyTree],
    finish: Callable[[PyTree, Int[Array, ""]], T],
    examples: ClientExamples,
    clients: Int[Array, " ids"] | None = None,
) -> T:
    """Sums a measurement over the examples of one client after another.

    Args:
        measure: From examples (their indices, and which positions are not padding) to sums over the real ones.
        finish: From a client's sums and its size to what is kept of them.
        examples: Examples of all clients.
        clients: Client ids; all by default.

    Returns:
        The results of ``finish``, with a leading axis ``ids``.
    """
    if clients is None:
        clients = jnp.arange(examples.num_clients, dtype=jnp.int32)

    def one(client, _):
        return finish(_client_sums(measure, examples, client), examples.sizes[client])

    batch = _side_by_side(measure, examples)
    if batch == 1:
        return collectives.map_clients(examples, one, clients)
    # Side by side all wait for the largest: they are of almost equal size if sorted.
    order = jnp.argsort(examples.sizes[clients]).astype(jnp.int32)
    sums = collectives.map_clients(examples, one, clients[order], batch_size=batch)
    return jax.tree.map(lambda leaf: jnp.zeros_like(leaf).at[order].set(leaf), sums)


def _masked_sum(values: Float[Array, "chunk ..."], mask: Bool[Array, " chunk"]):
    mask = mask.reshape(mask.shape + (1,) * (values.ndim - 1))
    return jnp.sum(values, axis=0, where=mask)


def _client_sums(
    measure: Callable[[Int[Array, " chunk"], Bool[Array, " chunk"]], T],
    examples: ClientExamples,
    client: Int[Array, ""],
) -> T:
    """Sums a measurement over the examples of one client, chunk by chunk."""
    chunk = chunk_of_clients(examples)
    offsets = jnp.arange(chunk, dtype=jnp.int32)
    offset, size = examples.offsets[client], examples.sizes[client]

    def add(number, sums):
        positions = number * chunk + offsets
        indices = examples.order[offset + jnp.minimum(positions, size - 1)]
        return jax.tree.map(jnp.add, sums, measure(indices, positions < size))

    shapes = _shapes(measure, chunk)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    with jax.named_scope("client_chunks"):
        return jax.lax.fori_loop(0, -(-size // chunk), add, nothing)


def _shapes(measure: Callable[..., T], chunk: int) -> T:
    """Shapes of the sums."""
    offsets = jnp.arange(chunk, dtype=jnp.int32)
    return jax.eval_shape(measure, offsets, offsets < chunk)


def _side_by_side(measure: Callable[..., PyTree], examples: ClientExamples) -> int | None:
    """How many clients share a pass; None for the default of an accelerator."""
    if not target.current().is_cpu:
        return None
    chunk = chunk_of_clients(examples)
    if chunk > _CPU_SMALL:
        return 1
    sums = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(_shapes(measure, chunk)))
    return max(1, min(_CPU_PASS // chunk, _CPU_CACHE // sums))


def chunk_of_clients(examples: ClientExamples) -> int:
    """Examples of a client that are measured at once: equal chunks of one of mean size.

    Args:
        examples: Examples of all clients.
    """
    mean = max(1, -(-collectives.num_examples(examples) // examples.num_clients))
    return -(-mean // -(-mean // target.current().client_examples))
