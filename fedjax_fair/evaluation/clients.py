"""Losses, accuracies and other means of clients at one model.

Means of all clients take one flat pass over examples; means of a few clients loop over each
client's examples (`fedjax_fair.evaluation.sums`). An example with a sequence of labels counts
once for each label that is not masked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.data.sensitive import SensitiveGroups, find_groups
from fedjax_fair.evaluation.client_predictions import (
    apply_model,
    custom_metrics,
    personalized_outputs,
    shared_outputs,
)
from fedjax_fair.evaluation.sensitive_group_sums import (
    example_values,
    personalized_group_sums,
    sum_sensitive_groups,
    undefined_sums,
    with_calibration,
)
from fedjax_fair.evaluation.sums import (
    client_sum,
    divide,
    divide_by_labels,
    map_examples,
    map_sums,
    map_sums_of_parts,
    masked_sums,
    sum_by_owner,
)
from fedjax_fair.numerics.labels import MASKED_LABEL, are_sequences, count_labels, sum_labels
from fedjax_fair.parallel import collectives
from fedjax_fair.roles import (
    ClientMetric,
    ClientMetrics,
    GroupSums,
    Model,
    Variables,
)

__all__ = [
    "ClientPerformance",
    "client_loss",
    "client_means",
    "client_performance",
    "evaluate",
    "personalized_performance",
]

T = TypeVar("T")


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

    return map_sums(lambda client: sum_fn, divide_by_labels, examples, clients)


def client_loss(
    model: Model, variables: Variables, examples: ClientExamples, client: Int[Array, ""]
) -> Float[Array, ""]:
    """Returns the mean loss of one client, where its examples are; NaN without examples.

    It equals the loss of ``client_performance``; for solvers.
    """
    sum_fn = partial(_performance_sums, model, variables, examples)
    sums = client_sum(sum_fn, examples, client)
    return divide_by_labels(sums, examples.sizes[client]).loss


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
            return masked_sums(values, mask)

        return divide(client_sum(sum_fn, examples, client), examples.sizes[client])

    return collectives.map_clients(examples, client_mean, clients, updates)


def personalized_performance(
    model: Model,
    personalized: Callable[[Int[Array, ""]], Variables],
    parts: Sequence[ClientExamples],
) -> list[ClientPerformance]:
    """Measures loss and accuracy of every client with the model ``personalized(client)``.

    Results are those on the client's examples in each part of the dataset. The model, which may
    have to be fine-tuned, is computed once per client.
    """
    parts = [jax.tree.map(jnp.asarray, part) for part in parts]

    def sum_fns_of(client):
        variables = personalized(client)
        return [partial(_performance_sums, model, variables, part) for part in parts]

    variables = jax.eval_shape(personalized, jax.ShapeDtypeStruct((), jnp.int32))
    return map_sums_of_parts(
        sum_fns_of, divide_by_labels, parts, client_bytes=model.client_bytes(variables)
    )


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
    parts = {"test": data.test}
    if train_loss:
        parts["train"] = data.train
    if data.validation is not None:
        parts["validation"] = data.validation

    def metrics_of(performance: Mapping[str, ClientPerformance], **others):
        test, validation = performance["test"], performance.get("validation")
        nan = jnp.full_like(test.loss, jnp.nan)
        return ClientMetrics(
            test_accuracy=test.accuracy,
            test_loss=test.loss,
            train_loss=performance["train"].loss if train_loss else nan,
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
        performance = personalized_performance(model, personalized, list(parts.values()))
        outputs_fn = partial(personalized_outputs, model, personalized)
        of_clients, pooled = custom_metrics(model, outputs_fn, data, custom, is_personalized=True)
        own = metrics_of(
            dict(zip(parts, performance, strict=True)),
            custom=of_clients,
            quantities=pooled,
            sensitive=personalized_group_sums(model, personalized, data),
        )
    if not has_global_model:
        assert own is not None
        nan = ClientPerformance(*[jnp.full_like(own.test_loss, jnp.nan)] * 2)
        return metrics_of(
            dict.fromkeys(parts, nan),
            class_accuracy=jnp.full(data.num_classes, jnp.nan),
            custom=dict.fromkeys(own.custom, nan.loss),
            quantities=jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), own.quantities),
            personalized=own,
            sensitive=own.sensitive and undefined_sums(own.sensitive),
        )
    test, class_accuracy, sensitive = _all_client_performance(
        model,
        variables,
        jax.tree.map(jnp.asarray, data.test),
        data.num_classes,
        find_groups("evaluation", data.sensitive_names) if data.sensitive_names else None,
    )
    others = {
        name: client_performance(model, variables, part)
        for name, part in parts.items()
        if name != "test"
    }
    outputs_fn = partial(shared_outputs, model, variables)
    of_clients, pooled = custom_metrics(model, outputs_fn, data, custom)
    return metrics_of(
        {"test": test} | others,
        class_accuracy=class_accuracy,
        custom=of_clients,
        quantities=pooled,
        personalized=own,
        sensitive=sensitive,
    )


def _performance_sums(
    model: Model,
    variables: Variables,
    examples: ClientExamples,
    indices: Int[Array, " chunk"],
    mask: Bool[Array, " chunk"],
) -> tuple[ClientPerformance, Int[Array, ""] | None]:
    """Sums losses and accuracies over a chunk; the number of labels is for divide_by_labels."""
    labels = examples.labels[indices]
    outputs = apply_model(model, variables, examples.features[indices])
    values = ClientPerformance(model.loss(outputs, labels), model.accuracy(outputs, labels))
    return masked_sums((_sum_labels(values, labels), count_labels(labels)), mask)


def _sum_labels(values: T, labels: Array) -> T:
    return jax.tree.map(lambda leaf: sum_labels(leaf, labels), values)


def _num_labels(examples: ClientExamples) -> Int[Array, " clients"]:
    """Returns the number of labels of each client that are not masked."""
    if not are_sequences(examples.labels):
        return examples.sizes
    examples = jax.tree.map(jnp.asarray, examples)

    def counts_of(indices):
        counts = count_labels(examples.labels[indices])
        assert counts is not None
        return counts

    counts, _, owners = map_examples(counts_of, examples)
    return collectives.all_reduce(examples, sum_by_owner(counts, owners, examples))


def _all_client_performance(
    model: Model,
    variables: Variables,
    examples: ClientExamples,
    num_classes: int = 0,
    sensitive_groups: SensitiveGroups | None = None,
) -> tuple[ClientPerformance, Float[Array, " classes"], GroupSums | None]:
    """Returns means of all clients, the accuracy on all owned labels of each class, and group sums.

    Group sums are by ``sensitive_groups``, if given.
    """

    def performance_fn(indices):
        labels = examples.labels[indices]
        outputs = apply_model(model, variables, examples.features[indices])
        values = ClientPerformance(model.loss(outputs, labels), model.accuracy(outputs, labels))
        # Without sequences the second would be a copy of the first.
        accuracy = values.accuracy if are_sequences(labels) else None
        sensitive_values = None
        if sensitive_groups is not None:
            sensitive_values = example_values(model, outputs, labels, num_classes)
        return _sum_labels(values, labels), accuracy, sensitive_values

    (values, accuracy, sensitive_values), indices, owners = map_examples(performance_fn, examples)
    group_sums = None
    if sensitive_groups is not None and sensitive_values is not None:
        groups, labels = sensitive_groups.of(examples, indices), examples.labels[indices]
        sizes = examples.num_clients, sensitive_groups.number, num_classes
        of_groups = sum_sensitive_groups(sensitive_values, labels, groups, owners, *sizes)
        group_sums = with_calibration(*collectives.all_reduce(examples, of_groups))
    accuracy = values.accuracy if accuracy is None else accuracy
    sums = sum_by_owner(values, owners, examples)
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
    return divide(sums, _num_labels(examples)), correct / count, group_sums
