"""Outputs of models for all examples, and metrics of these predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.evaluation.sums import chunk_of_clients, map_examples, owners_of
from fedjax_fair.numerics.labels import MASKED_LABEL, are_sequences
from fedjax_fair.parallel import collectives
from fedjax_fair.roles import ClientMetric, Model, Predictions, Variables

__all__ = ["apply_model", "custom_metrics", "personalized_outputs", "shared_outputs"]


def custom_metrics(
    model: Model,
    outputs_fn: Callable[[ClientExamples], tuple[Array, Array, Array]],
    data: FederatedData,
    metrics: Sequence[ClientMetric],
) -> dict[str, Float[Array, " clients"]]:
    """Returns metrics of predictions by their name in results.

    ``outputs_fn`` returns outputs, example indices and owners as ``map_examples``.
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
) -> tuple[Float[Array, "labels ..."], Int[Array, " labels"], Int[Array, " labels"]]:
    """Makes one row of every label, sorted by owner; masked labels become padding."""
    owners = jnp.where(labels != MASKED_LABEL, owners[:, None], num_clients).ravel()
    order = jnp.argsort(owners, stable=True)
    return outputs.reshape(-1, *outputs.shape[2:])[order], labels.ravel()[order], owners[order]


def apply_model(model: Model, variables: Variables, features: Array) -> Float[Array, "batch ..."]:
    """Returns the outputs of a model in evaluation mode."""
    return model.apply(variables.params, variables.state, features, train=False, key=None)[0]
