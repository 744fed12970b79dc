"""The lowest losses that clients reach alone."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.evaluation.client_gradients import client_loss_and_gradient
from fedjax_fair.roles import Model, Variables

__all__ = ["ClientOptimum", "client_optimum"]

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
