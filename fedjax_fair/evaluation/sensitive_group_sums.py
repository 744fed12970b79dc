"""Sums over the groups of people of every client, from the outputs of a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.data.sensitive import SensitiveFeature
from fedjax_fair.evaluation.client_predictions import apply_model
from fedjax_fair.evaluation.sums import map_sums
from fedjax_fair.metrics.group_fairness import calibration_error, intersection_codes
from fedjax_fair.numerics.labels import are_sequences, count_labels, sum_labels
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.roles import GroupSums, Model, Variables

__all__ = [
    "PeopleSums",
    "PeopleValues",
    "group_codes",
    "num_values",
    "people_values",
    "personalized_group_sums",
    "sum_people",
    "to_group_sums",
    "undefined_sums",
]

_BINS = 10


class PeopleValues(NamedTuple):
    """Values of every example.

    Attributes:
        examples: Number of labels.
        correct: Number of correct predictions.
        loss: Sum of the losses of its labels.
        predicted: Predicted class; None unless there are two classes.
        score: Predicted probability of class 1; None without two classes or probabilities.
    """

    examples: Float[Array, " chunk"]
    correct: Float[Array, " chunk"]
    loss: Float[Array, " chunk"]
    predicted: Int[Array, " chunk"] | None = None
    score: Float[Array, " chunk"] | None = None


class PeopleSums(NamedTuple):
    """Sums of `PeopleValues` by client and group.

    Attributes:
        examples: Numbers of examples.
        correct: Numbers of correct predictions.
        loss: Sums of losses.
        counts: Numbers by label and prediction, or None.
        bins: Examples, positive labels and scores by bin of the score, of all clients; or None.
    """

    examples: Float[Array, "clients groups"]
    correct: Float[Array, "clients groups"]
    loss: Float[Array, "clients groups"]
    counts: Int[Array, "clients groups 2 2"] | None
    bins: Float[Array, "groups bins 3"] | None


def num_values(names: Sequence[SensitiveFeature] | None) -> tuple[int, ...] | None:
    """Returns the number of values of each sensitive feature, or None without."""
    return None if names is None else tuple(len(feature.values) for feature in names)


def group_codes(
    examples: ClientExamples, indices: Int[Array, " chunk"], sizes: Sequence[int]
) -> Int[Array, " chunk"]:
    """Returns the group of some examples among the combinations of all sensitive features."""
    assert examples.sensitive_features is not None
    return intersection_codes(examples.sensitive_features[indices], sizes)


def people_values(
    model: Model,
    outputs: Float[Array, "chunk ..."],
    labels: Shaped[Array, "chunk ..."],
    num_classes: int,
) -> PeopleValues:
    """Computes the values of every example of a chunk from the outputs of a model."""
    counts = count_labels(labels)
    losses = sum_labels(model.loss(outputs, labels), labels)
    correct = sum_labels(model.accuracy(outputs, labels), labels)
    num_labels = jnp.ones_like(losses) if counts is None else counts.astype(losses.dtype)
    values = PeopleValues(num_labels, correct, losses)
    if num_classes != 2 or not jnp.issubdtype(labels.dtype, jnp.integer) or are_sequences(labels):
        return values
    score = None if model.probabilities is None else model.probabilities(outputs)[:, 1]
    return values._replace(predicted=model.predict(outputs).astype(jnp.int32), score=score)


def sum_people(
    values: PeopleValues,
    labels: Shaped[Array, "chunk ..."],
    groups: Int[Array, " chunk"],
    owners: Int[Array, " chunk"],
    num_clients: int,
    sizes: Sequence[int],
) -> PeopleSums:
    """Sums values by client and group; owners of padding are ``num_clients``."""
    num_groups = math.prod(sizes)
    num_cells = num_clients * num_groups
    cells = jnp.where(owners < num_clients, owners * num_groups + groups, num_cells)

    def total(column: Shaped[Array, " chunk"]) -> Shaped[Array, "clients groups"]:
        return jax.ops.segment_sum(column, cells, num_cells).reshape(num_clients, num_groups)

    counts = bins = None
    if values.predicted is not None:
        # A prediction of neither class is counted as class 0, the opposite of the favorable one.
        predicted = (values.predicted == 1).astype(jnp.int32)
        index = (cells * 2 + labels.astype(jnp.int32)) * 2 + predicted
        counts = jax.ops.segment_sum(jnp.ones_like(index), index, num_cells * 4)
        counts = counts.reshape(num_clients, num_groups, 2, 2)
    if values.score is not None:
        bin_ids = jnp.clip((values.score * _BINS).astype(jnp.int32), 0, _BINS - 1)
        index = jnp.where(owners < num_clients, groups * _BINS + bin_ids, num_groups * _BINS)
        columns = (values.examples, labels.astype(values.score.dtype), values.score)
        bins = jax.ops.segment_sum(jnp.stack(columns, axis=1), index, num_groups * _BINS)
        bins = bins.reshape(num_groups, _BINS, 3)
    return PeopleSums(
        total(values.examples), total(values.correct), total(values.loss), counts, bins
    )


def to_group_sums(sums: PeopleSums) -> GroupSums:
    """Computes calibration errors from complete sums."""
    calibration = None if sums.bins is None else calibration_error(*jnp.unstack(sums.bins, axis=2))
    return GroupSums(sums.examples, sums.correct, sums.loss, sums.counts, calibration)


def personalized_group_sums(
    model: Model, personalized: Callable[[Int[Array, ""]], Variables], data: FederatedData
) -> GroupSums | None:
    """Sums by client and group with the model of each client; None without sensitive features."""
    if (sizes := num_values(data.sensitive_names)) is None:
        return None
    examples = jax.tree.map(jnp.asarray, data.test)

    def sum_fn_of(client):
        variables = personalized(client)

        def sum_fn(indices, mask):
            labels = examples.labels[indices]
            outputs = apply_model(model, variables, examples.features[indices])
            values = people_values(model, outputs, labels, data.num_classes)
            groups = group_codes(examples, indices, sizes)
            owners = (~mask).astype(jnp.int32)
            return sum_people(values, labels, groups, owners, 1, sizes)

        return sum_fn

    variables = jax.eval_shape(personalized, jax.ShapeDtypeStruct((), jnp.int32))
    client_bytes = tree_bytes(variables)
    sums = map_sums(sum_fn_of, lambda sums, size: sums, examples, client_bytes=client_bytes)
    bins = None if sums.bins is None else jnp.sum(sums.bins, axis=0)
    of_clients = jax.tree.map(lambda leaf: leaf[:, 0], sums._replace(bins=None))
    return to_group_sums(of_clients._replace(bins=bins))


def undefined_sums(sums: GroupSums) -> GroupSums:
    """Returns sums of a model that is no result: no prediction counts, and the rest is NaN."""
    nan = jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan), sums)
    counts = None if sums.counts is None else jnp.zeros_like(sums.counts)
    return nan._replace(counts=counts)
