"""TERM: weights that grow exponentially with the loss."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedjax_fair.aggregators.mean import WeightingScheme, scheme_weights
from fedjax_fair.roles import Aggregation, Aggregator, Number, setting
from fedjax_fair.utils import checks

__all__ = ["Tilted"]


class Tilted(Aggregator):
    r"""Weights updates as the gradient of a tilted loss does.

    The gradient of :math:`\frac{1}{t} \log \sum_k p_k e^{t F_k(w)}` is a mean of gradients with
    weights proportional to :math:`p_k e^{t F_k(w)}`, where :math:`F_k` is the mean training loss on
    the received model. Updates get these weights. Info: the ``received_loss`` :math:`F_k` of every
    participant.

    Args:
        tilt: :math:`t`, per nat; 0 is ``Mean(weights)``. Large values give the highest loss all the
            weight, negative values give high losses (outliers) less weight.
        weights: The shares :math:`p_k`, as in `Mean`.

    Raises:
        ValueError: If ``tilt`` is not finite or ``weights`` is not a scheme of `Mean`.

    References:
        Li, Beirami, Sanjabi, Smith, *Tilted Empirical Risk Minimization*, 2021,
        https://arxiv.org/abs/2007.01162

    Examples:
        >>> aggregator = Tilted(tilt=1.0)
    """

    server_view = "scalars"

    tilt: Number = setting(checks.finite, default=1.0)
    weights: WeightingScheme = "num_examples"

    def aggregate(self, state, cohort, results, context):
        shares = scheme_weights(self.weights, cohort, context)
        losses = context.losses(context.variables, cohort.clients)
        weights = jax.nn.softmax(jnp.log(shares) + self.tilt * losses, where=cohort.responded)
        update = context.weighted_sum(weights, results.update)
        return update, state, Aggregation(weights, {"received_loss": losses})
