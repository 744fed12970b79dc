"""Agnostic federated learning: a mixture of clients that ascends towards the highest losses."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from optax.projections import projection_simplex

from fedjax_fair import checks
from fedjax_fair.base import Cohort, Info, Number, Selector, ServerView

__all__ = ["Agnostic", "ascend", "mixture_info", "uniform_mixture"]


class Agnostic(Selector):
    r"""Trains all clients, weighted by the mixture of them that is worst for the model.

    The server looks for

    .. math:: \min_w \max_{\lambda \in \Delta} \sum_i \lambda_i f_i(w).

    The mixture :math:`\lambda` starts uniform. Every round it ascends, :math:`\lambda \leftarrow
    \Pi_\Delta(\lambda + \gamma f(w))`, with the losses of all clients at the current model, and
    becomes the cohort's weights, which only count with ``Mean("selector")``. With one local step on
    all examples this is the paper's algorithm. Info: ``effective_clients``,
    :math:`1 / \sum_i \lambda_i^2`: the number of clients for the uniform mixture, 1 if a single
    client has all the weight.

    Losses are over all training examples of a client, where the paper takes a minibatch. A loss
    that is not finite counts as zero. The paper's bounds hold for the average of the models of all
    rounds; here, as for all methods, the last model is evaluated.

    No guarantee of differential privacy covers this selector, because the mixture depends on the
    clients' losses.

    Args:
        mixture_learning_rate: Step size :math:`\gamma` of the mixture, >= 0, per unit of loss. With
            0 the mixture stays uniform: federated averaging of all clients, with equal weights.

    Raises:
        ValueError: If the step size is negative.

    References:
        Mohri, Sivek, Suresh, *Agnostic Federated Learning*, 2019, https://arxiv.org/abs/1902.00146

    Examples:
        >>> Agnostic(mixture_learning_rate=0.05)
        Agnostic(mixture_learning_rate=0.05)
    """

    server_view: ClassVar[ServerView] = "scalars"

    mixture_learning_rate: Number = 0.1

    def __post_init__(self):
        checks.non_negative("mixture_learning_rate", self.mixture_learning_rate)

    def init(self, context):
        return uniform_mixture(context.num_clients)

    def select(self, key, state, context):
        mixture = ascend(state, self.mixture_learning_rate, context.losses(context.variables))
        clients = jnp.arange(context.num_clients, dtype=jnp.int32)
        return Cohort(clients, mixture), mixture, mixture_info(mixture)


def uniform_mixture(num_clients: int) -> Float[Array, " num_clients"]:
    """Returns the same share for every client."""
    return jnp.full(num_clients, 1 / num_clients, jnp.float32)


def ascend(
    mixture: Float[Array, " clients"], step: Number, losses: Float[Array, " clients"]
) -> Float[Array, " clients"]:
    """Steps along the losses and projects back onto the simplex."""
    moved = mixture + step * jnp.where(jnp.isfinite(losses), losses, 0)
    # A common shift does not change the projection; near zero it is exact.
    shifted = moved - jnp.max(moved)
    with jax.numpy_dtype_promotion("standard"):  # It divides by counts.
        return projection_simplex(shifted)


def mixture_info(mixture: Float[Array, " clients"]) -> Info:
    """Returns the number of clients that a mixture amounts to."""
    return {"effective_clients": 1 / jnp.sum(jnp.square(mixture))}
