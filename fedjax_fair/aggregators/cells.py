"""Sums over the cells of group and label of clients, for methods of group fairness.

Class 1 is the favorable one. With more than two classes all others count as label 0.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.sensitive import SensitiveGroups
from fedjax_fair.evaluation.client_predictions import apply_model
from fedjax_fair.evaluation.sums import client_sum, map_examples
from fedjax_fair.metrics.group_fairness import count_groups
from fedjax_fair.numerics.labels import check_one_label
from fedjax_fair.parallel import collectives
from fedjax_fair.roles import Context, Model, Variables

__all__ = ["Cells", "client_cells", "client_labels", "info_of_groups", "pooled_counts"]

_COUNTED = (
    "people are counted by group and label; FedFBMean(criterion='client_parity') and "
    "FairFed(metric='accuracy') count none"
)


class Cells(NamedTuple):
    """Sums over the training examples of a client.

    Attributes:
        counts: Numbers of examples by group, label and prediction, ``[groups, 2, 2]``.
        losses: Sums of losses by group and label, ``[groups, 2]``.
    """

    counts: Float[Array, "*clients groups 2 2"]
    losses: Float[Array, "*clients groups 2"]


def info_of_groups(name: str, values: Float[Array, " groups"]) -> dict[str, Array]:
    """Returns a value of each group as info, which is of scalars.

    Examples:
        >>> sorted(info_of_groups("mixture", jnp.zeros(2)))
        ['mixture_of_group_0', 'mixture_of_group_1']
    """
    return {f"{name}_of_group_{group}": value for group, value in enumerate(jnp.unstack(values))}


def client_cells(
    context: Context, variables: Variables, groups: SensitiveGroups, client: Int[Array, ""]
) -> Cells:
    """Sums over the examples of one client at a model, where its examples are."""
    examples = context.examples
    check_one_label(examples.labels, _COUNTED)

    def sum_fn(indices, mask):
        labels = examples.labels[indices]
        outputs = apply_model(context.model, variables, examples.features[indices])
        predicted = (context.model.predict(outputs) == 1).astype(jnp.int32)
        people, places = groups.of(examples, indices), (labels == 1).astype(jnp.int32)
        counted = mask.astype(jnp.float32)
        losses = jnp.where(mask, context.model.loss(outputs, labels), 0)
        counts = jnp.zeros((groups.number, 2, 2)).at[people, places, predicted].add(counted)
        return Cells(counts, jnp.zeros((groups.number, 2)).at[people, places].add(losses))

    return client_sum(sum_fn, examples, client)


def client_labels(context: Context, groups: SensitiveGroups) -> Float[Array, "clients groups 2"]:
    """Counts the training examples of every client by group and label."""
    examples = context.examples
    check_one_label(examples.labels, _COUNTED)

    def sum_fn(indices, mask):
        people = groups.of(examples, indices)
        cells = jnp.zeros((groups.number, 2))
        labels = (examples.labels[indices] == 1).astype(jnp.int32)
        return cells.at[people, labels].add(mask.astype(jnp.float32))

    clients = jnp.arange(context.num_clients, dtype=jnp.int32)
    return context.map_clients(lambda client, _: client_sum(sum_fn, examples, client), clients)


def pooled_counts(
    model: Model, variables: Variables, examples: ClientExamples, groups: SensitiveGroups
) -> Float[Array, "groups 2 2"]:
    """Counts the examples of all clients by group, label and prediction of one model."""
    check_one_label(examples.labels, _COUNTED)

    def predictions(indices):
        outputs = apply_model(model, variables, examples.features[indices])
        of_label, of_model = examples.labels[indices], model.predict(outputs)
        binary = ((each == 1).astype(jnp.int32) for each in (of_label, of_model))
        return groups.of(examples, indices), *binary

    (people, labels, predicted), _, owners = map_examples(predictions, examples)
    predicted = jnp.where(owners < examples.num_clients, predicted, -1)
    counts = count_groups(people, labels, predicted, groups.number)
    return collectives.all_reduce(examples, counts.astype(jnp.float32))
