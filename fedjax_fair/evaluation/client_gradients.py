"""Gradients of clients at one model, and the lowest losses that clients reach alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.evaluation.client_predictions import apply_model
from fedjax_fair.evaluation.sums import SumFn, client_sum, divide_by_labels, map_sums, masked_sums
from fedjax_fair.numerics.labels import count_labels, sum_labels
from fedjax_fair.numerics.sketch import ravel
from fedjax_fair.roles import ClientGradients, Model, Variables

__all__ = ["ClientOptimum", "client_gradients", "client_loss_and_gradient", "client_optimum"]

_TOLERANCE = 1e-5
"""Norm of a gradient, per nat, at which float32 losses no longer decrease."""


class ClientOptimum(NamedTuple):
    """The lowest training loss that was found for a client.

    Attributes:
        loss: The loss after all iterations.
        error: Its decrease over the second half of the iterations, an estimate of its error.
    """

    loss: Float[Array, "*clients"]
    error: Float[Array, "*clients"]


class _Descent(NamedTuple):
    params: PyTree
    optimizer: PyTree
    lowest: Float[Array, ""]
    norm: Float[Array, ""]
    iteration: Int[Array, ""]


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


def client_optimum(
    model: Model,
    variables: Variables,
    examples: ClientExamples,
    client: Int[Array, ""],
    iterations: int,
) -> ClientOptimum:
    """Minimizes the mean loss of one client over all parameters by L-BFGS on all its examples.

    Evaluation mode, with the given normalization statistics. A descent ends before all iterations
    if the gradient vanishes. For a loss that is not convex the minimum is a local one.

    Args:
        model: The network.
        variables: Its variables, from which the descent starts.
        examples: Examples of all clients.
        client: The client, on this device.
        iterations: Iterations, an even number.
    """

    def measure(params):
        return client_loss_and_gradient(model, Variables(params, variables.state), examples, client)

    @jax.custom_vjp  # The loop over examples has no reverse mode.
    def loss_fn(params):
        return measure(params)[0]

    loss_fn.defvjp(
        measure,
        lambda gradient, scale: (jax.tree.map(lambda leaf: scale * leaf, gradient),),
    )
    optimizer = optax.lbfgs()

    def step(descent):
        loss, gradient = measure(descent.params)
        updates, state = optimizer.update(
            gradient, descent.optimizer, descent.params, value=loss, grad=gradient, value_fn=loss_fn
        )
        return _Descent(
            jax.tree.map(jnp.add, descent.params, updates),
            state,
            jnp.fmin(descent.lowest, loss),
            optax.tree.norm(gradient),
            descent.iteration + 1,
        )

    def descend(descent, last):
        return jax.lax.while_loop(
            lambda descent: (descent.iteration < last) & (descent.norm > _TOLERANCE), step, descent
        )

    infinity = jnp.array(jnp.inf, jnp.float32)
    start = _Descent(
        variables.params, optimizer.init(variables.params), infinity, infinity, jnp.int32(0)
    )
    half = descend(start, iterations // 2)
    end = descend(half, iterations)
    return ClientOptimum(end.lowest, half.lowest - end.lowest)


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
