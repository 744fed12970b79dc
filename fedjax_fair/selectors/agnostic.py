"""Agnostic federated learning: a mixture of clients that ascends towards the highest losses."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from optax.projections import projection_simplex

from fedjax_fair import checks
from fedjax_fair.base import Cohort, Info, Number, Selector

__all__ = ["agnostic", "ascend", "mixture_info", "uniform_mixture"]


def agnostic(mixture_learning_rate: Number = 0.1) -> Selector:
    r"""Trains all clients, weighted by the mixture of them that is worst for the model.

    The server looks for

    .. math:: \min_w \max_{\lambda \in \Delta} \sum_i \lambda_i f_i(w).

    The mixture :math:`\lambda` starts uniform. Every round it ascends, :math:`\lambda \leftarrow
    \Pi_\Delta(\lambda + \gamma f(w))`, with the losses of all clients at the current model, and
    becomes the cohort's weights, which only count with ``mean("cohort")``. With one local step on
    all examples this is the paper's algorithm.

    Losses are over all training examples of a client, where the paper takes a minibatch; one that
    is not finite counts as zero. The paper's bounds hold for the average of the models of all
    rounds; here, as for all methods, the last one is evaluated.

    No guarantee of differential privacy covers it, because the mixture depends on what clients
    have.

    Args:
        mixture_learning_rate: Step size :math:`\gamma` of the mixture, >= 0, per unit of loss; may
            be traced. With 0 the mixture stays uniform: federated averaging of all clients, with
            equal weights.

    Returns:
        A ``Selector``. Info: ``effective_clients``, :math:`1 / \sum_i \lambda_i^2`: all of them for
        the uniform mixture, 1 if a single client has everything.

    Raises:
        ValueError: If the step size is negative.

    References:
        Mohri, Sivek, Suresh, *Agnostic Federated Learning*, 2019, https://arxiv.org/abs/1902.00146

    Examples:
        >>> selector = agnostic(mixture_learning_rate=0.1)
    """
    checks.non_negative("mixture_learning_rate", mixture_learning_rate)

    def init(context):
        return uniform_mixture(context.num_clients)

    def select(key, state, context):
        mixture = ascend(state, mixture_learning_rate, context.losses(context.variables))
        clients = jnp.arange(context.num_clients, dtype=jnp.int32)
        return Cohort(clients, mixture), mixture, mixture_info(mixture)

    return Selector(init, select, sees="numbers")


def uniform_mixture(num_clients: int) -> Float[Array, " num_clients"]:
    """The same share for every client."""
    return jnp.full(num_clients, 1 / num_clients, jnp.float32)


def ascend(
    mixture: Float[Array, " clients"], step: Number, losses: Float[Array, " clients"]
) -> Float[Array, " clients"]:
    """A step along the losses, projected back onto the simplex."""
    moved = mixture + step * jnp.where(jnp.isfinite(losses), losses, 0)
    # A common shift does not change the projection; near zero it is exact.
    shifted = moved - jnp.max(moved)
    with jax.numpy_dtype_promotion("standard"):  # It divides by counts.
        return projection_simplex(shifted)


def mixture_info(mixture: Float[Array, " clients"]) -> Info:
    """How many clients a mixture amounts to."""
    return {"effective_clients": 1 / jnp.sum(jnp.square(mixture))}
