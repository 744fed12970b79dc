"""Outputs of models for all examples, and metrics of these predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.data.sensitive import find_groups
from fedjax_fair.evaluation.sums import chunk_of_clients, map_examples, owners_of
from fedjax_fair.numerics.labels import MASKED_LABEL, are_sequences
from fedjax_fair.parallel import collectives
from fedjax_fair.roles import ClientMetric, Model, Predictions, QuantityValues, Variables

__all__ = ["apply_model", "custom_metrics", "personalized_outputs", "shared_outputs"]


def custom_metrics(
    model: Model,
    outputs_fn: Callable[[ClientExamples], tuple[Array, Array, Array]],
    data: FederatedData,
    metrics: Sequence[ClientMetric],
    *,
    is_personalized: bool = False,
) -> tuple[dict[str, Float[Array, " clients"]], QuantityValues | None]:
    """Returns metrics of predictions by their name in results, of clients and of pooled examples.

    ``outputs_fn`` returns outputs, example indices and owners as ``map_examples``;
    ``is_personalized`` is whether outputs of clients are of different models.
    """

    def pooled_value(metric, predictions, cells, number):
        if is_personalized and metric.ranks_examples:
            return _mean_over_clients(metric, predictions, cells, number)
        return _measure(metric, _by_cell(predictions, cells, number))

    values_by_name: dict[str, Float[Array, " clients"]] = {}
    if not metrics:
        return values_by_name, None
    pooled = QuantityValues({}, {}, {}, {}, {})
    names = data.sensitive_names
    sensitive_groups = find_groups("evaluation", names) if names else None
    for split, part in (("test", data.test), ("validation", data.validation)):
        if part is None:
            continue
        examples = jax.tree.map(jnp.asarray, part)
        # Predictions of a client have to be on one device. Where devices share all examples, each
        # device computes all predictions.
        is_complete = examples.devices is None or examples.has_all_clients
        local = examples._replace(devices=None) if is_complete else examples
        outputs, indices, owners = outputs_fn(local)
        labels = local.labels[indices]
        groups = sensitive_groups and sensitive_groups.of(local, indices)
        if are_sequences(labels):
            length = labels.shape[1]
            outputs, labels, owners, order = _rows_of_labels(
                outputs, labels, owners, local.num_clients
            )
            groups = groups if groups is None else jnp.repeat(groups, length)[order]
        predictions = Predictions(model, outputs, labels, owners, local.num_clients)
        clients = jnp.arange(local.num_clients, dtype=jnp.int32)
        for metric in metrics:
            values = jnp.where(local.sizes > 0, metric.function(predictions), jnp.nan)
            if not is_complete:
                is_local = collectives.is_local(local, clients)
                values = collectives.all_reduce(local, jnp.where(is_local, values, 0))
            values_by_name[f"{split}_{metric.name}"] = values
        if not is_complete:
            rows = map(collectives.gather, (outputs, labels, owners))
            predictions = Predictions(model, *rows, num_clients=local.num_clients)
            groups = groups if groups is None else collectives.gather(groups)
        everyone = jnp.zeros_like(predictions.owners)
        for metric in metrics:
            value = pooled_value(metric, predictions, everyone, 1)[0]
            pooled.pooled[f"{split}_{metric.name}"] = value
        if split == "validation":
            continue
        if names and sensitive_groups is not None and groups is not None:
            number, sizes = sensitive_groups.number, [len(each.values) for each in names]
            cells = predictions.owners * number + groups
            of_cells = _by_cell(predictions, cells, number * local.num_clients)
            codes = jnp.unravel_index(groups, sizes) if len(sizes) > 1 else ()
            for metric in metrics:
                pooled.groups[metric.name] = pooled_value(metric, predictions, groups, number)
                values = _measure(metric, of_cells)
                pooled.client_groups[metric.name] = values.reshape(-1, number)
                if codes:
                    parts = zip(codes, sizes, strict=True)
                    values = [pooled_value(metric, predictions, *each) for each in parts]
                    pooled.features[metric.name] = jnp.concatenate(values)
        if _has_several_targets(predictions):
            together = _by_cell(predictions, everyone, 1)
            for metric in metrics:
                pooled.outputs[metric.name] = _by_output(metric, together)
    return values_by_name, pooled


def _by_cell(predictions: Predictions, cells: Int[Array, " examples"], number: int) -> Predictions:
    """Returns predictions whose owners are cells, such as groups, in place of clients."""
    cells = jnp.where(predictions.owners < predictions.num_clients, cells, number)
    order = jnp.argsort(cells, stable=True)
    rows = (each[order] for each in (predictions.outputs, predictions.labels, cells))
    return Predictions(predictions.model, *rows, num_clients=number)


def _measure(metric: ClientMetric, predictions: Predictions) -> Float[Array, " owners"]:
    """Returns a metric of each owner; NaN without examples."""
    count = predictions.sum(jnp.ones_like(predictions.owners))
    return jnp.where(count > 0, metric.function(predictions), jnp.nan)


def _mean_over_clients(
    metric: ClientMetric, predictions: Predictions, cells: Int[Array, " examples"], number: int
) -> Float[Array, " cells"]:
    """Returns means over clients of a metric of cells, by examples; NaN where it has no value."""
    cells = predictions.owners * number + cells
    of_clients = _by_cell(predictions, cells, number * predictions.num_clients)
    values = _measure(metric, of_clients).reshape(-1, number)
    sizes = of_clients.sum(jnp.ones(of_clients.owners.shape)).reshape(-1, number)
    weights = jnp.where(jnp.isnan(values), 0, sizes)
    total = jnp.sum(weights, axis=0)
    return jnp.nansum(weights * values, axis=0) / jnp.where(total > 0, total, jnp.nan)


def _has_several_targets(predictions: Predictions) -> bool:
    labels, outputs = predictions.labels, predictions.outputs
    is_target = jnp.issubdtype(labels.dtype, jnp.floating)
    return is_target and labels.ndim == 2 and labels.shape[1] > 1 and outputs.shape == labels.shape


def _by_output(metric: ClientMetric, together: Predictions) -> Float[Array, " outputs"]:
    """Returns a metric of each target, on pooled examples."""

    def of_output(column):
        outputs, labels = (each[:, None] for each in column)
        return _measure(metric, together._replace(outputs=outputs, labels=labels))[0]

    return jax.lax.map(of_output, (together.outputs.T, together.labels.T))


def shared_outputs(
    model: Model, variables: Variables, examples: ClientExamples
) -> tuple[Array, Array, Array]:
    """Returns the outputs of one model for all examples, as ``map_examples`` does."""
    return map_examples(
        lambda indices: apply_model(model, variables, examples.features[indices]), examples
    )


def personalized_outputs(
    model: Model,
    personalized: Callable[[Int[Array, ""]], Variables],
    examples: ClientExamples,
) -> tuple[Array, Array, Array]:
    """Returns the outputs of each client's model, as ``map_examples`` does."""
    shapes = jax.eval_shape(personalized, jax.ShapeDtypeStruct((), jnp.int32))
    chunk = chunk_of_clients(examples)
    output = jax.eval_shape(partial(apply_model, model), shapes, examples.features[:1])
    num_owned = examples.order.shape[0]
    sizes = collectives.local_sizes(examples)

    def add_client(client, outputs):
        variables = personalized(client)

        def add_chunk(number, outputs):
            positions = number * chunk + jnp.arange(chunk, dtype=jnp.int32)
            rows = examples.offsets[client] + jnp.minimum(positions, sizes[client] - 1)
            values = apply_model(model, variables, examples.features[examples.order[rows]])
            return outputs.at[rows].set(values)

        return jax.lax.fori_loop(0, -(-sizes[client] // chunk), add_chunk, outputs)

    outputs = jnp.zeros((num_owned, *output.shape[1:]), output.dtype)
    outputs = jax.lax.fori_loop(0, examples.num_clients, add_client, outputs)
    return outputs, examples.order, owners_of(examples)


def _rows_of_labels(
    outputs: Float[Array, "examples length ..."],
    labels: Int[Array, "examples length"],
    owners: Int[Array, " examples"],
    num_clients: int,
) -> tuple[
    Float[Array, "labels ..."], Int[Array, " labels"], Int[Array, " labels"], Int[Array, " labels"]
]:
    """Makes one row of every label, sorted by owner; masked labels become padding.

    Returns:
        Outputs, labels and owners, and the order that sorted them.
    """
    owners = jnp.where(labels != MASKED_LABEL, owners[:, None], num_clients).ravel()
    order = jnp.argsort(owners, stable=True)
    outputs = outputs.reshape(-1, *outputs.shape[2:])
    return outputs[order], labels.ravel()[order], owners[order], order


def apply_model(model: Model, variables: Variables, features: Array) -> Float[Array, "batch ..."]:
    """Returns the outputs of a model in evaluation mode."""
    return model.apply(variables.params, variables.state, features, train=False, key=None)[0]
