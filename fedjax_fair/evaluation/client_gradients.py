"""Gradients of clients at one model."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.evaluation.client_predictions import apply_model
from fedjax_fair.evaluation.sums import SumFn, client_sum, divide_by_labels, map_sums, masked_sums
from fedjax_fair.numerics.labels import count_labels, sum_labels
from fedjax_fair.numerics.sketch import ravel
from fedjax_fair.roles import ClientGradients, Model, Variables

__all__ = ["client_gradients", "client_loss_and_gradient"]


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
        variables: Its variables; gradients are with respect to ``params``.
        examples: Examples of all clients.
        clients: Client ids; all by default.
        project: Maps a gradient, shaped like the parameters, to a vector.

    Returns:
        Losses and gradients. A client whose gradient is not finite, as without examples, has zeros
        and a loss of NaN.

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
        loss, gradient = divide_by_labels(sums, size)
        return ClientGradients(loss, project(gradient)).mask_nonfinite()

    return map_sums(lambda client: sum_fn, finish, examples, clients)


def client_loss_and_gradient(
    model: Model, variables: Variables, examples: ClientExamples, client: Int[Array, ""]
) -> tuple[Float[Array, ""], PyTree]:
    """Returns the mean loss of one client and its gradient, where its examples are.

    The gradient is shaped like the parameters, and equals the one of `client_gradients`; for
    solvers.
    """
    sums = client_sum(_gradient_sums(model, variables, examples), examples, client)
    return divide_by_labels(sums, examples.sizes[client])


def _gradient_sums(model: Model, variables: Variables, examples: ClientExamples) -> SumFn:
    """Returns a function that sums losses and gradients over a chunk, and counts labels."""

    def total_loss(params: PyTree, indices: Int[Array, " chunk"], mask: Bool[Array, " chunk"]):
        labels = examples.labels[indices]
        outputs = apply_model(model, Variables(params, variables.state), examples.features[indices])
        losses = sum_labels(model.loss(outputs, labels), labels)
        return jnp.sum(losses, where=mask), masked_sums(count_labels(labels), mask)

    def sum_fn(indices, mask):
        gradient_fn = jax.value_and_grad(total_loss, has_aux=True)
        (loss, num_labels), gradient = gradient_fn(variables.params, indices, mask)
        return (loss, gradient), num_labels

    return sum_fn
