"""Losses, accuracies, gradients and other means of clients at one model.

Sums over all clients take one flat pass: chunks of examples regardless of their client, followed by
a segment sum. Gradients, and means of a few clients, loop over each client's examples. An example
with a sequence of labels counts once for each label that is not masked.
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
    GroupSums,
    Model,
    Predictions,
    Variables,
)
from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.group_evaluation import (
    group_codes,
    num_values,
    people_values,
    sum_people,
    to_group_sums,
)
from fedjax_fair.numerics import target
from fedjax_fair.numerics.labels import MASKED_LABEL, are_sequences, count_labels, sum_labels
from fedjax_fair.numerics.sketch import ravel
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.parallel import collectives

__all__ = [
    "ClientPerformance",
    "chunk_of_clients",
    "client_gradient",
    "client_gradients",
    "client_means",
    "client_performance",
    "evaluate",
    "personalized_performance",
]

T = TypeVar("T")
SumFn = Callable[[Int[Array, " chunk"], Bool[Array, " chunk"]], PyTree]

# On a CPU clients are vmapped if they are so small that starting a pass costs more than the pass:
# as many as make a thousand examples, if their sums fit into the cache. (From about 100 examples
# on, batched matrix products are slower there than sequential ones.)
_MAX_CPU_CHUNK = 32
_CPU_PASS_EXAMPLES = 1000
_CPU_CACHE_BYTES = 2**19


class ClientPerformance(NamedTuple):
    """Means over each client's labels; NaN for a client without.

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
    """Measures loss and accuracy of one model on some clients (by default all, in one pass)."""
    examples = jax.tree.map(jnp.asarray, examples)
    if clients is None:
        return _all_client_performance(model, variables, examples)[0]

    def sum_fn(indices, mask):
        return _performance_sums(model, variables, examples, indices, mask)

    return _map_sums(lambda client: sum_fn, _divide_by_labels, examples, clients)


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
        variables: Its variables; gradients are those of ``params``.
        examples: Examples of all clients.
        clients: Client ids; all by default.
        project: Maps a gradient, shaped like the parameters, to a vector.

    Returns:
        Losses and gradients, not finite without examples.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = ff.data.load("digits")
        >>> model = ff.models.logistic(data.num_classes)
        >>> start = jax.eval_shape(model.init, jax.random.key(0), data.train.features[:1])
        >>> loss, gradient = jax.eval_shape(client_gradients, model, start, data.train)
        >>> gradient.shape  # 64 * 10 weights and 10 biases
        (50, 650)
    """
    examples = jax.tree.map(jnp.asarray, examples)
    sum_fn = _gradient_sums(model, variables, examples)

    def finish(sums, size):
        loss, gradient = _divide_by_labels(sums, size)
        return ClientGradients(loss, project(gradient))

    return _map_sums(lambda client: sum_fn, finish, examples, clients)


def client_gradient(
    model: Model, variables: Variables, examples: ClientExamples, client: Int[Array, ""]
) -> PyTree:
    """Returns the gradient of the mean loss of one client, where its examples are.

    It is shaped like the parameters, and that of ``client_gradients``; for solvers.
    """
    sums = _client_sum(_gradient_sums(model, variables, examples), examples, client)
    return _divide_by_labels(sums, examples.sizes[client])[1]


def _gradient_sums(model: Model, variables: Variables, examples: ClientExamples) -> SumFn:
    """Returns a function that sums losses and gradients over a chunk, and counts labels."""

    def total_loss(params: PyTree, indices: Int[Array, " chunk"], mask: Bool[Array, " chunk"]):
        labels = examples.labels[indices]
        outputs = _outputs(model, Variables(params, variables.state), examples.features[indices])
        losses = sum_labels(model.loss(outputs, labels), labels)
        return jnp.sum(losses, where=mask), _masked_sums(count_labels(labels), mask)

    def sum_fn(indices, mask):
        gradient_fn = jax.value_and_grad(total_loss, has_aux=True)
        (loss, num_labels), gradient = gradient_fn(variables.params, indices, mask)
        return (loss, gradient), num_labels

    return sum_fn


def client_means(
    metric_fn: Callable[..., T],
    variables: Variables,
    examples: ClientExamples,
    clients: Int[Array, " ids"],
    updates: Variables | None = None,
) -> T:
    """Averages a metric over the examples of clients, at one model or one model per client.

    Args:
        metric_fn: ``metric_fn(variables, features, labels) -> [batch, ...]``.
        variables: The global model.
        examples: Examples of all clients.
        clients: Client ids.
        updates: Stacked updates of these clients, which are added to the global model.

    Returns:
        The means, ``[ids, ...]``; not finite for a client without examples.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = ff.data.load("digits")
        >>> model = ff.models.mlp(data.num_classes, hidden=(32,))
        >>> start = jax.eval_shape(model.init, jax.random.key(0), data.train.features[:1])
        >>> def activations(variables, features, labels):
        ...     return model.features(*variables, features)
        >>> means_fn = partial(client_means, activations)
        >>> jax.eval_shape(means_fn, start, data.train, jnp.array([3, 1])).shape
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


def personalized_performance(
    model: Model,
    personalized: Callable[[Int[Array, ""]], Variables],
    examples: ClientExamples,
) -> ClientPerformance:
    """Measures loss and accuracy of every client with the model ``personalized(client)``."""
    examples = jax.tree.map(jnp.asarray, examples)

    def sum_fn_of(client):
        variables = personalized(client)
        return partial(_performance_sums, model, variables, examples)

    variables = jax.eval_shape(personalized, jax.ShapeDtypeStruct((), jnp.int32))
    return _map_sums(sum_fn_of, _divide_by_labels, examples, client_bytes=tree_bytes(variables))


def evaluate(
    model: Model,
    variables: Variables,
    data: FederatedData,
    participation: Int[Array, " clients"],
    cohort: Int[Array, " cohort"],
    *,
    train_loss: bool = True,
    custom: Sequence[ClientMetric] = (),
    personalized: Callable[[Int[Array, ""]], Variables] | None = None,
    has_global_model: bool = True,
) -> ClientMetrics:
    """Measures one model on every client; see `ClientMetrics`.

    ``custom`` metrics of predictions take another pass. ``personalized`` returns the model of a
    client, with which each client is measured too. Without a global model its metrics are NaN.
    """

    def measure(test, performance, **others):
        train = performance(data.train).loss if train_loss else jnp.full_like(test.loss, jnp.nan)
        validation = None if data.validation is None else performance(data.validation)
        return ClientMetrics(
            test_accuracy=test.accuracy,
            test_loss=test.loss,
            train_loss=train,
            test_sizes=_num_labels(data.test),
            train_sizes=_num_labels(data.train),
            participation=participation,
            cohort=cohort,
            groups=data.groups,
            validation_accuracy=validation and validation.accuracy,
            validation_loss=validation and validation.loss,
            validation_sizes=data.validation and _num_labels(data.validation),
            **others,
        )

    own = None
    if personalized is not None:
        own_performance = partial(personalized_performance, model, personalized)
        outputs_fn = partial(_personalized_outputs, model, personalized)
        own = measure(
            own_performance(data.test),
            own_performance,
            custom=_custom_metrics(model, outputs_fn, data, custom),
            sensitive=_personalized_group_sums(model, personalized, data),
        )
    if not has_global_model:
        assert own is not None
        nan = ClientPerformance(*[jnp.full_like(own.test_loss, jnp.nan)] * 2)
        return measure(
            nan,
            lambda examples: nan,
            class_accuracy=jnp.full(data.num_classes, jnp.nan),
            custom=dict.fromkeys(own.custom, nan.loss),
            personalized=own,
            sensitive=own.sensitive and _undefined(own.sensitive),
        )
    examples = jax.tree.map(jnp.asarray, data.test)
    test, class_accuracy, sensitive = _all_client_performance(
        model, variables, examples, data.num_classes, _num_values(data)
    )
    outputs_fn = partial(_shared_outputs, model, variables)
    return measure(
        test,
        partial(client_performance, model, variables),
        class_accuracy=class_accuracy,
        custom=_custom_metrics(model, outputs_fn, data, custom),
        personalized=own,
        sensitive=sensitive,
    )


def _num_values(data: FederatedData) -> tuple[int, ...] | None:
    """Returns the number of values of each sensitive feature, or None without."""
    return data.sensitive_names and num_values(data.sensitive_names)


def _personalized_group_sums(
    model: Model, personalized: Callable[[Int[Array, ""]], Variables], data: FederatedData
) -> GroupSums | None:
    """Sums by client and group with the model of each client; None without sensitive features."""
    if (sizes := _num_values(data)) is None:
        return None
    examples = jax.tree.map(jnp.asarray, data.test)

    def sum_fn_of(client):
        variables = personalized(client)

        def sum_fn(indices, mask):
            labels = examples.labels[indices]
            outputs = _outputs(model, variables, examples.features[indices])
            values = people_values(model, outputs, labels, data.num_classes)
            groups = group_codes(examples, indices, sizes)
            owners = (~mask).astype(jnp.int32)
            return sum_people(values, labels, groups, owners, 1, sizes)

        return sum_fn

    variables = jax.eval_shape(personalized, jax.ShapeDtypeStruct((), jnp.int32))
    sums = _map_sums(
        sum_fn_of, lambda sums, size: sums, examples, client_bytes=tree_bytes(variables)
    )
    bins = None if sums.bins is None else jnp.sum(sums.bins, axis=0)
    of_clients = jax.tree.map(lambda leaf: leaf[:, 0], sums._replace(bins=None))
    return to_group_sums(of_clients._replace(bins=bins))


def _undefined(sums: GroupSums) -> GroupSums:
    """Returns sums of a model that is no result: no prediction counts, and the rest is NaN."""
    nan = jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan), sums)
    counts = None if sums.counts is None else jnp.zeros_like(sums.counts)
    return nan._replace(counts=counts)


def _custom_metrics(
    model: Model,
    outputs_fn: Callable[[ClientExamples], tuple[Array, Array, Array]],
    data: FederatedData,
    metrics: Sequence[ClientMetric],
) -> dict[str, Float[Array, " clients"]]:
    """Returns metrics of predictions by their name in results.

    ``outputs_fn`` returns outputs, example indices and owners as ``_map_examples``.
    """
    values_by_name: dict[str, Float[Array, " clients"]] = {}
    for split, part in (("test", data.test), ("validation", data.validation)):
        if part is None or not metrics:
            continue
        examples = jax.tree.map(jnp.asarray, part)
        # Predictions of a client have to be on one device. Where devices share all examples, each
        # device computes all predictions.
        is_complete = examples.devices is None or examples.has_all_clients
        local = examples._replace(devices=None) if is_complete else examples
        outputs, indices, owners = outputs_fn(local)
        labels = local.labels[indices]
        if are_sequences(labels):
            outputs, labels, owners = _rows_of_labels(outputs, labels, owners, local.num_clients)
        predictions = Predictions(model, outputs, labels, owners, local.num_clients)
        clients = jnp.arange(local.num_clients, dtype=jnp.int32)
        for metric in metrics:
            values = jnp.where(local.sizes > 0, metric.function(predictions), jnp.nan)
            if not is_complete:
                is_local = collectives.is_local(local, clients)
                values = collectives.all_reduce(local, jnp.where(is_local, values, 0))
            values_by_name[f"{split}_{metric.name}"] = values
    return values_by_name


def _shared_outputs(
    model: Model, variables: Variables, examples: ClientExamples
) -> tuple[Array, Array, Array]:
    """Returns the outputs of one model for all examples; the result is that of _map_examples."""
    return _map_examples(
        lambda indices: _outputs(model, variables, examples.features[indices]), examples
    )


def _personalized_outputs(
    model: Model,
    personalized: Callable[[Int[Array, ""]], Variables],
    examples: ClientExamples,
) -> tuple[Array, Array, Array]:
    """Returns the outputs of each client's model; the result is that of _map_examples."""
    shapes = jax.eval_shape(personalized, jax.ShapeDtypeStruct((), jnp.int32))
    chunk = chunk_of_clients(examples)
    output = jax.eval_shape(partial(_outputs, model), shapes, examples.features[:1])
    num_owned = examples.order.shape[0]
    sizes = collectives.local_sizes(examples)

    def add_client(client, outputs):
        variables = personalized(client)

        def add_chunk(number, outputs):
            positions = number * chunk + jnp.arange(chunk, dtype=jnp.int32)
            rows = examples.offsets[client] + jnp.minimum(positions, sizes[client] - 1)
            values = _outputs(model, variables, examples.features[examples.order[rows]])
            return outputs.at[rows].set(values)

        return jax.lax.fori_loop(0, -(-sizes[client] // chunk), add_chunk, outputs)

    outputs = jnp.zeros((num_owned, *output.shape[1:]), output.dtype)
    outputs = jax.lax.fori_loop(0, examples.num_clients, add_client, outputs)
    return outputs, examples.order, _owners(examples)


def _rows_of_labels(
    outputs: Float[Array, "examples length ..."],
    labels: Int[Array, "examples length"],
    owners: Int[Array, " examples"],
    num_clients: int,
) -> tuple[Float[Array, "labels ..."], Int[Array, " labels"], Int[Array, " labels"]]:
    """Makes one row of every label, sorted by owner; those of masked labels are padding."""
    owners = jnp.where(labels != MASKED_LABEL, owners[:, None], num_clients).ravel()
    order = jnp.argsort(owners, stable=True)
    return outputs.reshape(-1, *outputs.shape[2:])[order], labels.ravel()[order], owners[order]


def _label_performance(
    model: Model, variables: Variables, features: Array, labels: Array
) -> ClientPerformance:
    """Returns loss and accuracy of every label of a chunk."""
    outputs = _outputs(model, variables, features)
    return ClientPerformance(model.loss(outputs, labels), model.accuracy(outputs, labels))


def _performance_sums(
    model: Model,
    variables: Variables,
    examples: ClientExamples,
    indices: Int[Array, " chunk"],
    mask: Bool[Array, " chunk"],
) -> tuple[ClientPerformance, Int[Array, ""] | None]:
    """Sums losses and accuracies over a chunk; the number of labels is for _divide_by_labels."""
    labels = examples.labels[indices]
    values = _label_performance(model, variables, examples.features[indices], labels)
    return _masked_sums((_sum_labels(values, labels), count_labels(labels)), mask)


def _sum_labels(values: T, labels: Array) -> T:
    return jax.tree.map(lambda leaf: sum_labels(leaf, labels), values)


def _divide(sums: T, sizes: Int[Array, "*ids"]) -> T:
    return jax.tree.map(lambda leaf: leaf / sizes.astype(leaf.dtype), sums)


def _divide_by_labels(sums: tuple[T, Int[Array, "*ids"] | None], sizes: Int[Array, "*ids"]) -> T:
    """Divides sums over labels by their number; None if every example has one."""
    values, num_labels = sums
    return _divide(values, sizes if num_labels is None else num_labels)


def _num_labels(examples: ClientExamples) -> Int[Array, " clients"]:
    """Returns the number of labels of each client that are not masked."""
    if not are_sequences(examples.labels):
        return examples.sizes
    examples = jax.tree.map(jnp.asarray, examples)

    def counts_of(indices):
        counts = count_labels(examples.labels[indices])
        assert counts is not None
        return counts

    counts, _, owners = _map_examples(counts_of, examples)
    return collectives.all_reduce(examples, _sum_by_owner(counts, owners, examples))


def _sum_by_owner(values: T, owners: Int[Array, " positions"], examples: ClientExamples) -> T:
    return jax.tree.map(
        lambda leaf: jax.ops.segment_sum(
            leaf, owners, examples.num_clients, indices_are_sorted=True
        ),
        values,
    )


def _all_client_performance(
    model: Model,
    variables: Variables,
    examples: ClientExamples,
    num_classes: int = 0,
    group_sizes: tuple[int, ...] | None = None,
) -> tuple[ClientPerformance, Float[Array, " classes"], GroupSums | None]:
    """Returns means of all clients, the accuracy on all owned labels of each class, and group sums.

    Group sums are those of sensitive features with ``group_sizes`` values, if any.
    """

    def performance_fn(indices):
        labels = examples.labels[indices]
        outputs = _outputs(model, variables, examples.features[indices])
        values = ClientPerformance(model.loss(outputs, labels), model.accuracy(outputs, labels))
        # Without sequences the second would be a copy of the first.
        accuracy = values.accuracy if are_sequences(labels) else None
        people = None
        if group_sizes is not None:
            people = people_values(model, outputs, labels, num_classes)
        return _sum_labels(values, labels), accuracy, people

    (values, accuracy, people), indices, owners = _map_examples(performance_fn, examples)
    group_sums = None
    if group_sizes is not None:
        groups, labels = group_codes(examples, indices, group_sizes), examples.labels[indices]
        group_sums = sum_people(people, labels, groups, owners, examples.num_clients, group_sizes)
        group_sums = to_group_sums(collectives.all_reduce(examples, group_sums))
    accuracy = values.accuracy if accuracy is None else accuracy
    sums = _sum_by_owner(values, owners, examples)
    is_owned = owners < examples.num_clients
    if jnp.issubdtype(examples.labels.dtype, jnp.floating):
        num_classes, classes = 1, jnp.zeros_like(indices)
    else:
        classes = examples.labels[indices]
    if are_sequences(classes):
        is_owned = is_owned[:, None] & (classes != MASKED_LABEL)
    # Padding gets a class past the last, which segment sums leave out.
    classes = jnp.where(is_owned, classes, num_classes).ravel()
    correct = jax.ops.segment_sum(accuracy.ravel(), classes, num_classes)
    count = jax.ops.segment_sum(jnp.ones_like(accuracy).ravel(), classes, num_classes)
    sums, correct, count = collectives.all_reduce(examples, (sums, correct, count))
    return _divide(sums, _num_labels(examples)), correct / count, group_sums


def _outputs(model: Model, variables: Variables, features: Array) -> Float[Array, "batch ..."]:
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

    owners = _owners(examples)
    indices, owners = chunks(examples.order, 0), chunks(owners, examples.num_clients)
    results = jax.tree.map(
        lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), jax.lax.map(function, indices)
    )
    return results, indices.reshape(-1), owners.reshape(-1)


def _owners(examples: ClientExamples) -> Int[Array, " assigned"]:
    """Returns the owner of each entry of ``order`` on this device; ``num_clients`` for padding."""
    num_owned = examples.order.shape[0]
    clients = jnp.arange(examples.num_clients + 1, dtype=jnp.int32)
    sizes = collectives.local_sizes(examples)
    num_unowned = num_owned - jnp.sum(sizes, keepdims=True)
    sizes = jnp.concatenate([sizes, num_unowned])
    return jnp.repeat(clients, sizes, total_repeat_length=num_owned)


def _map_sums(
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
    if clients is None:
        clients = jnp.arange(examples.num_clients, dtype=jnp.int32)

    def client_result(client, _):
        return finish(_client_sum(sum_fn_of(client), examples, client), examples.sizes[client])

    batch_size = _clients_per_batch(sum_fn_of, examples, client_bytes)
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


def _clients_per_batch(
    sum_fn_of: Callable[[Int[Array, ""]], SumFn], examples: ClientExamples, client_bytes: int
) -> int | None:
    """Returns the number of vmapped clients; None for the default of an accelerator."""
    if not target.current().is_cpu:
        return None
    chunk = chunk_of_clients(examples)
    if chunk > _MAX_CPU_CHUNK:
        return 1
    shapes = _sum_shapes(lambda *chunk: sum_fn_of(jnp.zeros((), jnp.int32))(*chunk), chunk)
    num_bytes = tree_bytes(shapes) + client_bytes
    return max(1, min(_CPU_PASS_EXAMPLES // chunk, _CPU_CACHE_BYTES // num_bytes))


def chunk_of_clients(examples: ClientExamples) -> int:
    """Returns how many examples of a client form a chunk: an equal part of a mean client."""
    mean = max(1, -(-collectives.num_examples(examples) // examples.num_clients))
    return -(-mean // -(-mean // target.current().client_examples))
