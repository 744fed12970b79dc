"""Sums over the sensitive groups of every client, from the outputs of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from fedjax_fair.data.federated import FederatedData
from fedjax_fair.data.sensitive import find_groups
from fedjax_fair.evaluation.client_predictions import apply_model
from fedjax_fair.evaluation.sums import map_sums
from fedjax_fair.metrics.group_fairness import calibration_error
from fedjax_fair.metrics.sensitive_group_metrics import MAX_COUNTED
from fedjax_fair.numerics.labels import are_sequences, count_labels, sum_labels
from fedjax_fair.roles import GroupSums, Model, Variables

__all__ = [
    "ExampleValues",
    "example_values",
    "personalized_group_sums",
    "sum_sensitive_groups",
    "undefined_sums",
    "with_calibration",
]

_BINS = 10


class ExampleValues(NamedTuple):
    """Values of every example.

    Attributes:
        examples: Number of labels.
        correct: Number of correct predictions.
        loss: Sum of the losses of its labels.
        predicted: Predicted class; None unless labels are classes, at most `MAX_COUNTED`.
        score: Predicted probability of class 1; None without two classes or probabilities.
    """

    examples: Float[Array, " chunk"]
    correct: Float[Array, " chunk"]
    loss: Float[Array, " chunk"]
    predicted: Int[Array, " chunk"] | None = None
    score: Float[Array, " chunk"] | None = None


Bins = Float[Array, "groups bins 3"]
"""Examples, positive labels and sums of scores by bin of the score, of all clients."""


def example_values(
    model: Model,
    outputs: Float[Array, "chunk ..."],
    labels: Shaped[Array, "chunk ..."],
    num_classes: int,
) -> ExampleValues:
    """Computes the values of every example of a chunk from the outputs of a model."""
    counts = count_labels(labels)
    losses = sum_labels(model.loss(outputs, labels), labels)
    correct = sum_labels(model.accuracy(outputs, labels), labels)
    num_labels = jnp.ones_like(losses) if counts is None else counts.astype(losses.dtype)
    values = ExampleValues(num_labels, correct, losses)
    is_class = jnp.issubdtype(labels.dtype, jnp.integer) and not are_sequences(labels)
    if not is_class or not 2 <= num_classes <= MAX_COUNTED:
        return values
    score = None
    if num_classes == 2 and model.probabilities is not None:
        score = model.probabilities(outputs)[:, 1]
    return values._replace(predicted=model.predict(outputs).astype(jnp.int32), score=score)


def sum_sensitive_groups(
    values: ExampleValues,
    labels: Shaped[Array, "chunk ..."],
    groups: Int[Array, " chunk"],
    owners: Int[Array, " chunk"],
    num_clients: int,
    num_groups: int,
    num_classes: int,
) -> tuple[GroupSums, Bins | None]:
    """Sums values by client and group; owners of padding are ``num_clients``.

    The second result is None without scores.
    """
    num_cells = num_clients * num_groups
    cells = jnp.where(owners < num_clients, owners * num_groups + groups, num_cells)

    def total(column: Shaped[Array, " chunk"]) -> Shaped[Array, "clients groups"]:
        return jax.ops.segment_sum(column, cells, num_cells).reshape(num_clients, num_groups)

    counts = bins = None
    if values.predicted is not None:
        # A prediction of no class is counted as class 0, the opposite of the favorable one of two.
        is_class = (values.predicted > 0) & (values.predicted < num_classes)
        predicted = jnp.where(is_class, values.predicted, 0)
        index = (cells * num_classes + labels.astype(jnp.int32)) * num_classes + predicted
        counts = jax.ops.segment_sum(jnp.ones_like(index), index, num_cells * num_classes**2)
        counts = counts.reshape(num_clients, num_groups, num_classes, num_classes)
    if values.score is not None:
        bin_ids = jnp.clip((values.score * _BINS).astype(jnp.int32), 0, _BINS - 1)
        index = jnp.where(owners < num_clients, groups * _BINS + bin_ids, num_groups * _BINS)
        columns = (values.examples, labels.astype(values.score.dtype), values.score)
        bins = jax.ops.segment_sum(jnp.stack(columns, axis=1), index, num_groups * _BINS)
        bins = bins.reshape(num_groups, _BINS, 3)
    sums = total(values.examples), total(values.correct), total(values.loss)
    return GroupSums(*sums, counts), bins


def with_calibration(sums: GroupSums, bins: Bins | None) -> GroupSums:
    """Adds calibration errors, from the bins of all clients."""
    if bins is None:
        return sums
    return sums._replace(calibration_error=calibration_error(*jnp.unstack(bins, axis=2)))


def personalized_group_sums(
    model: Model, personalized: Callable[[Int[Array, ""]], Variables], data: FederatedData
) -> GroupSums | None:
    """Sums by client and group with the model of each client; None without sensitive features."""
    if data.sensitive_names is None:
        return None
    sensitive_groups = find_groups("evaluation", data.sensitive_names)
    examples = jax.tree.map(jnp.asarray, data.test)

    def sum_fn_of(client):
        variables = personalized(client)

        def sum_fn(indices, mask):
            labels = examples.labels[indices]
            outputs = apply_model(model, variables, examples.features[indices])
            values = example_values(model, outputs, labels, data.num_classes)
            groups = sensitive_groups.of(examples, indices)
            owners = (~mask).astype(jnp.int32)
            sizes = 1, sensitive_groups.number, data.num_classes
            return sum_sensitive_groups(values, labels, groups, owners, *sizes)

        return sum_fn

    variables = jax.eval_shape(personalized, jax.ShapeDtypeStruct((), jnp.int32))
    client_bytes = model.client_bytes(variables)
    sums, bins = map_sums(sum_fn_of, lambda sums, size: sums, examples, client_bytes=client_bytes)
    of_clients = jax.tree.map(lambda leaf: leaf[:, 0], sums)
    return with_calibration(of_clients, None if bins is None else jnp.sum(bins, axis=0))


def undefined_sums(sums: GroupSums) -> GroupSums:
    """Returns sums of a model that is no result: no prediction counts, and the rest is NaN."""
    nan = jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan), sums)
    counts = None if sums.counts is None else jnp.zeros_like(sums.counts)
    return nan._replace(counts=counts)
