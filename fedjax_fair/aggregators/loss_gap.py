"""EAGLE: weights by the distances of losses from the lowest ones that clients reach alone."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from fedjax_fair.aggregators.mean import WeightingScheme, scheme_weights
from fedjax_fair.evaluation.client_optima import ClientOptimum, client_optimum
from fedjax_fair.roles import Aggregation, Aggregator, Number, setting
from fedjax_fair.utils import checks

__all__ = ["LossGap"]


def _as_losses(name: str, losses: Any) -> Any:
    if isinstance(losses, Tracer):
        return losses
    losses = np.asarray(losses, np.float32)
    if losses.ndim != 1 or not np.isfinite(losses).all():
        raise ValueError(
            f"{name}={losses.tolist()}: expected a finite loss of each client; measure "
            "them with optimal_losses=None."
        )
    return losses


class LossGap(Aggregator):
    r"""Descends on the mean loss plus a penalty on the variance of the clients' loss gaps.

    The gap :math:`r_k = F_k(w) - F_k^*` is the mean training loss of a participant on the received
    model minus the lowest one that it reaches alone. With shares :math:`p_k` and :math:`\bar r =
    \sum_k p_k r_k`,

    .. math:: \sum_k p_k F_k + \frac{\lambda}{2} \sum_k p_k (r_k - \bar r)^2

    has the gradient :math:`\sum_k u_k \nabla F_k` with :math:`u_k = p_k (1 + \lambda (r_k - \bar
    r))`, which sum to 1. Updates get these weights. They are negative for :math:`r_k < \bar r - 1 /
    \lambda`, and are then clipped at 0 and divided by their sum. The same constant added to all
    :math:`F_k^*` changes nothing.

    The paper measures :math:`F_k^*` by local training. By default each client minimizes its loss
    alone before the first round, from the initial model, by L-BFGS on all its examples. The
    decrease :math:`e_k` of the loss over the second half of the iterations estimates the error.
    Unconverged losses hide unfairness: use more ``iterations`` if the info ``reference_error``, the
    standard deviation of :math:`e_k` over that of :math:`r_k`, exceeds 0.1; a run warns of it. The
    factor :math:`1/2` and the weights in the variance are choices of this package, because only
    the abstract of the paper was available.

    Losses are values of the simulation, which count as no communication: one scalar per
    participant. Info: the ``loss_gap`` :math:`r_k` of every participant, their ``mean_gap``
    :math:`\bar r`, and the ``reference_error``, 0 for given losses.

    Args:
        strength: :math:`\lambda` >= 0, per nat; 0 is ``Mean(weights)``.
        weights: The shares :math:`p_k`, as in `Mean`.
        optimal_losses: :math:`F_k^*` of every client, on its training examples; None measures them.
        iterations: Iterations of each client, an even number, without ``optimal_losses``.
        clip: Whether weights are at least 0. Without, a large ``strength`` makes training diverge.

    Raises:
        ValueError: If a setting is out of range, ``optimal_losses`` are not finite, or (when
            traced) are not one per client.

    References:
        Erraji, Perrot, Bellet, *Loss Gap Parity for Fairness in Heterogeneous Federated Learning*,
        2026, https://arxiv.org/abs/2603.29818

    Examples:
        >>> aggregator = LossGap(strength=2.0)
    """

    server_view = "scalars"

    strength: Number = setting(checks.non_negative, default=1.0)
    weights: WeightingScheme = "num_examples"
    _: KW_ONLY
    optimal_losses: Float[Array, " clients"] | None = setting(_as_losses, default=None)
    iterations: int = setting(checks.positive_int, default=200)
    clip: bool = True

    def __post_init__(self):
        if self.iterations % 2:
            raise ValueError(
                f"iterations={self.iterations}: expected an even number, such as "
                f"{self.iterations + 1}, of whose halves the losses are compared."
            )

    def init(self, context):
        if self.optimal_losses is not None:
            if self.optimal_losses.shape != (context.num_clients,):
                raise ValueError(
                    f"optimal_losses of shape {self.optimal_losses.shape}: expected "
                    f"({context.num_clients},), one loss per client."
                )
            losses = jnp.asarray(self.optimal_losses, jnp.float32)
            return ClientOptimum(losses, jnp.zeros_like(losses))

        def measure(client, _):
            return client_optimum(
                *(context.model, context.variables, context.examples, client, self.iterations)
            )

        return context.map_clients(measure, jnp.arange(context.num_clients, dtype=jnp.int32))

    # Without `compute_weights`: the mean gap is of the clients that respond.
    def aggregate(self, state, cohort, results, context):
        shares = scheme_weights(self.weights, cohort, context)
        gaps = context.losses(context.variables, cohort.clients) - state.loss[cohort.clients]
        mean = jnp.sum(shares * gaps)
        weights = shares * (1 + self.strength * (gaps - mean))
        if self.clip:
            positive = jnp.maximum(weights, 0)
            # Dividing by a sum of nearly 1 would change the weights by rounding.
            clipped = positive / jnp.sum(positive)
            weights = jnp.where(jnp.any(weights < 0), clipped, weights)
        responded = cohort.responded_mask
        spread = jnp.std(gaps, where=responded)
        error = jnp.std(state.error[cohort.clients], where=responded)
        info = {
            "loss_gap": gaps,
            "mean_gap": mean,
            "reference_error": error / jnp.where(spread > 0, spread, 1),
        }
        update = context.weighted_sum(weights, results.update)
        return update, state, Aggregation(weights, info)
