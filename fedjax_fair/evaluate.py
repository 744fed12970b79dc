"""How the global model does on every client: one flat pass over the examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from fedjax_fair import collective
from fedjax_fair.base import ClientMetrics, Model, Variables
from fedjax_fair.data.federated import ClientExamples, FederatedData
from fedjax_fair.population import sums_of_clients

__all__ = ["ClientMeans", "client_means", "evaluate"]

# Examples per forward pass: large enough for full speed, small enough for activations to stay in a
# processor's cache, or far below an accelerator's memory. Convolutions fill the cache with fewer.
_VECTORS_ON_CPU = 250
_IMAGES_ON_CPU = 50
_CHUNK = 2000


class ClientMeans(NamedTuple):
    """Means over each client's examples; NaN for a client without.

    Attributes:
        loss: Cross-entropy in nats, ``[clients]``.
        accuracy: Fraction correct, ``[clients]``.
    """

    loss: Float[Array, " clients"]
    accuracy: Float[Array, " clients"]


def client_means(
    model: Model,
    variables: Variables,
    examples: ClientExamples,
    clients: Int[Array, " asked"] | None = None,
) -> ClientMeans:
    """Loss and accuracy of one model on whole clients, in evaluation mode.

    If everybody is asked, the pass is flat: chunks of examples regardless of their owners, then one
    sum per client. It costs as much as plain inference on the same examples, however they are
    divided.

    Args:
        model: The network.
        variables: Its variables.
        examples: Examples of all clients.
        clients: Whom to ask, ``[asked]``; by default everybody.

    Returns:
        A ``ClientMeans`` of those who were asked.
    """
    examples = jax.tree.map(jnp.asarray, examples)

    def measure(rows: Int[Array, " chunk"]) -> ClientMeans:
        labels = examples.labels[rows]
        features = examples.features[rows]
        logits, _ = model.apply(variables.params, variables.state, features, train=False, key=None)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return ClientMeans(loss, (jnp.argmax(logits, axis=-1) == labels).astype(loss.dtype))

    def mean(sums, sizes):
        return jax.tree.map(lambda leaf: leaf / sizes.astype(leaf.dtype), sums)

    if clients is None:
        sums = collective.everywhere(examples, _flat_sums(measure, examples))
        return mean(sums, examples.sizes)

    def sums(rows, mask):
        return jax.tree.map(lambda leaf: jnp.sum(leaf, where=mask), measure(rows))

    return sums_of_clients(sums, mean, examples, clients)


def _flat_sums(measure: Callable[[Int[Array, " chunk"]], PyTree], examples: ClientExamples):
    """Sums what is measured of every example over the examples of each client."""
    owned = examples.order.shape[0]
    chunk = _CHUNK
    if jax.default_backend() == "cpu":
        chunk = _IMAGES_ON_CPU if examples.features.ndim > 2 else _VECTORS_ON_CPU
    chunk = max(1, min(owned, chunk))
    nobody = examples.num_clients

    def chunks(values, fill):
        values = jnp.pad(values, (0, -owned % chunk), constant_values=fill).reshape(-1, chunk)
        return collective.share(examples, values, fill)

    rows, owners = chunks(examples.order, 0), chunks(_owners(examples), nobody).reshape(-1)
    return jax.tree.map(
        lambda leaf: jax.ops.segment_sum(leaf.reshape(-1), owners, nobody, indices_are_sorted=True),
        jax.lax.map(measure, rows),
    )


def _owners(examples: ClientExamples) -> Int[Array, " owned"]:
    """The client that owns each position of ``order``; one past the last where nobody does."""
    owned = examples.order.shape[0]
    clients = jnp.arange(examples.num_clients + 1, dtype=jnp.int32)
    sizes = collective.sizes_here(examples)
    nobody = owned - jnp.sum(sizes, keepdims=True)
    return jnp.repeat(clients, jnp.concatenate([sizes, nobody]), total_repeat_length=owned)


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
        groups=data.groups,
    )
