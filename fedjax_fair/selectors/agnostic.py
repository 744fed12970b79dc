"""Agnostic federated learning: gradient ascent on the aggregation weights of all clients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from optax.projections import projection_simplex

from fedjax_fair.roles import Cohort, Info, Number, Selector, setting
from fedjax_fair.selectors.uniform import uniform_weights
from fedjax_fair.utils import checks

__all__ = ["Agnostic", "ascend", "mixture_info"]


# A selector, because its mixture determines which clients train and their weights.
class Agnostic(Selector):
    r"""Selects all clients, with the mixture weights that are worst for the model.

    The objective is

    .. math:: \min_w \max_{\lambda \in \Delta} \sum_i \lambda_i f_i(w).

    The mixture :math:`\lambda` is uniform at first. In every round it is updated by projected
    ascent with the losses of all clients at the current model, :math:`\lambda \leftarrow
    \Pi_\Delta(\lambda + \gamma f(w))`. It is the weights of the cohort, for ``Mean("selector")``.
    With one local step on all examples this is the algorithm of the paper, except that losses are
    over all training examples, that training uses the mixture after its update, not before, and
    that the last model is evaluated, not the average of all rounds.
    Info: ``effective_clients``, :math:`1 / \sum_i \lambda_i^2`.

    Non-finite losses count as zero. Differential privacy does not cover a mixture of losses.

    Args:
        mixture_learning_rate: Step size :math:`\gamma` of the mixture, >= 0, per unit of loss; 0
            keeps the mixture uniform.

    References:
        Mohri, Sivek, Suresh, *Agnostic Federated Learning*, 2019, https://arxiv.org/abs/1902.00146

    Examples:
        >>> Agnostic(mixture_learning_rate=0.05)
        Agnostic(mixture_learning_rate=0.05)
    """

    server_view = "scalars"

    mixture_learning_rate: Number = setting(checks.non_negative, default=0.1)

    def init(self, context):
        return uniform_weights(context.num_clients)

    def select(self, key, state, context):
        mixture = ascend(state, self.mixture_learning_rate, context.losses(context.variables))
        clients = jnp.arange(context.num_clients, dtype=jnp.int32)
        return Cohort(clients, mixture), mixture, mixture_info(mixture)


def ascend(
    mixture: Float[Array, " clients"], step: Number, losses: Float[Array, " clients"]
) -> Float[Array, " clients"]:
    """Takes a step along the losses and projects onto the simplex."""
    moved = mixture + step * jnp.where(jnp.isfinite(losses), losses, 0)
    # The projection is invariant to a common shift, and more accurate near zero.
    shifted = moved - jnp.max(moved)
    with jax.numpy_dtype_promotion("standard"):  # The projection divides by counts.
        return projection_simplex(shifted)


def mixture_info(mixture: Float[Array, " clients"]) -> Info:
    """Returns the effective number of clients of a mixture."""
    return {"effective_clients": 1 / jnp.sum(jnp.square(mixture))}
