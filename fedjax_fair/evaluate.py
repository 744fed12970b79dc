"""How the global model does on every client: one flat pass over the examples."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from fedjax_fair.base import ClientMetrics, Model, Variables
from fedjax_fair.data.federated import ClientExamples, FederatedData

__all__ = ["ClientMeans", "client_means", "evaluate"]

# Examples per forward pass: large enough for full speed, small enough for the activations of a
# wide network to stay in a processor's cache, or far below an accelerator's memory.
_CHUNK = {"cpu": 250}
_CHUNK_DEFAULT = 2000


class ClientMeans(NamedTuple):
    """Means over each client's examples; NaN for a client without.

    Attributes:
        loss: Cross-entropy in nats, ``[clients]``.
        accuracy: Fraction correct, ``[clients]``.
    """

    loss: Float[Array, " clients"]
    accuracy: Float[Array, " clients"]


def client_means(model: Model, variables: Variables, examples: ClientExamples) -> ClientMeans:
    """Loss and accuracy of one model on every client's examples, in evaluation mode.

    The pass is flat: chunks of examples regardless of their owners, then one sum per client. It
    costs as much as plain inference on the same examples, however they are divided.

    Args:
        model: The network.
        variables: Its variables.
        examples: Examples of all clients.

    Returns:
        A ``ClientMeans``.
    """
    examples = jax.tree.map(jnp.asarray, examples)
    owned = examples.order.shape[0]
    chunk = max(1, min(owned, _CHUNK.get(jax.default_backend(), _CHUNK_DEFAULT)))
    rows = jnp.pad(examples.order, (0, -owned % chunk)).reshape(-1, chunk)

    def measure(rows: Int[Array, " chunk"]):
        labels = examples.labels[rows]
        features = examples.features[rows]
        logits, _ = model.apply(variables.params, variables.state, features, train=False, key=None)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return loss, jnp.argmax(logits, axis=-1) == labels

    loss, correct = (values.reshape(-1)[:owned] for values in jax.lax.map(measure, rows))
    owners = _owners(examples)

    def mean_by_client(values: Float[Array, " owned"]) -> Float[Array, " clients"]:
        sums = jax.ops.segment_sum(values, owners, examples.num_clients, indices_are_sorted=True)
        return sums / examples.sizes.astype(values.dtype)

    return ClientMeans(mean_by_client(loss), mean_by_client(correct.astype(loss.dtype)))


def _owners(examples: ClientExamples) -> Int[Array, " owned"]:
    """The client that owns each position of ``order``."""
    clients = jnp.arange(examples.num_clients, dtype=jnp.int32)
    return jnp.repeat(clients, examples.sizes, total_repeat_length=examples.order.shape[0])


def evaluate(
    model: Model,
    variables: Variables,
    data: FederatedData,
    participation: Int[Array, " clients"],
    cohort: Int[Array, " cohort"],
    *,
    train_loss: bool = True,
) -> ClientMetrics:
    """Measures one model on every client.

    Args:
        model: The network.
        variables: Its variables.
        data: The federation.
        participation: Rounds each client has trained in.
        cohort: Who trained last; -1 for nobody.
        train_loss: Whether to measure the training loss as well, which reads all training examples.

    Returns:
        A ``ClientMetrics``.
    """
    test = client_means(model, variables, data.test)
    if train_loss:
        train = client_means(model, variables, data.train).loss
    else:
        train = jnp.full_like(test.loss, jnp.nan)
    return ClientMetrics(
        test_accuracy=test.accuracy,
        test_loss=test.loss,
        train_loss=train,
        test_sizes=data.test.sizes,
        train_sizes=data.train.sizes,
        participation=participation,
        cohort=cohort,
    )
