"""TERM: clients with a high loss weigh exponentially more."""

from __future__ import annotations

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from fedjax_fair import checks
from fedjax_fair.aggregators.mean import scheme_weights
from fedjax_fair.base import Aggregation, Aggregator, Number, ServerView

__all__ = ["Tilted"]


class Tilted(Aggregator):
    r"""Weighs updates as the gradient of a tilted loss does.

    The gradient of :math:`\frac{1}{t} \log \sum_k p_k e^{t F_k(w)}` is a mean of the clients'
    gradients with weights proportional to :math:`p_k e^{t F_k(w)}`, where :math:`F_k` is the mean
    training loss of a participant on the model it received. This aggregator gives whole updates these
    weights.

    Info: the ``received_loss`` :math:`F_k` of every participant.

    Args:
        tilt: :math:`t`, per nat. With 0 it is ``Mean(weights)``. A large one cares for the highest
            loss alone, a negative one turns away from high losses (of outliers).
        weights: The shares :math:`p_k`, as those of `Mean`.

    Raises:
        ValueError: If ``tilt`` is not finite or ``weights`` none of the three words.

    References:
        Li, Beirami, Sanjabi, Smith, *Tilted Empirical Risk Minimization*, 2021,
        https://arxiv.org/abs/2007.01162

    Examples:
        >>> aggregator = Tilted(tilt=1.0)
    """

    server_view: ClassVar[ServerView] = "scalars"

    tilt: Number = 1.0
    weights: Literal["uniform", "num_examples", "selector"] = "num_examples"

    def __post_init__(self):
        checks.finite("tilt", self.tilt)
        checks.one_of("weights", self.weights, ("uniform", "num_examples", "selector"))

    def aggregate(self, state, cohort, results, context):
        shares = scheme_weights(self.weights, cohort, context)
        losses = context.losses(context.variables, cohort.clients)
        given = jax.nn.softmax(jnp.log(shares) + self.tilt * losses, where=cohort.responded)
        update = context.weighted_sum(given, results.update)
        return update, state, Aggregation(given, {"received_loss": losses})
