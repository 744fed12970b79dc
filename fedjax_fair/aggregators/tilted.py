"""TERM: clients with a high loss weigh exponentially more."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_fair import checks
from fedjax_fair.aggregators.mean import weights_before
from fedjax_fair.base import Aggregation, Aggregator, Number, empty_state

__all__ = ["tilted"]


def tilted(
    tilt: Number = 1.0, weights: Literal["uniform", "size", "cohort"] = "size"
) -> Aggregator:
    r"""Weighs updates as the gradient of a tilted loss does.

    The gradient of :math:`\frac{1}{t} \log \sum_k p_k e^{t F_k(w)}` is a mean of the clients'
    gradients with weights proportional to :math:`p_k e^{t F_k(w)}`, where :math:`F_k` is the mean
    training loss of a member on the model it received. This aggregator gives whole updates these
    weights.

    Args:
        tilt: :math:`t`, per nat; may be traced. With 0 it is ``mean(weights)``. A large one cares
            for the highest loss alone, a negative one turns away from high losses (of outliers).
        weights: The shares :math:`p_k`, as those of `mean`.

    Returns:
        An ``Aggregator``. Info: the ``received_loss`` :math:`F_k` of every member.

    Raises:
        ValueError: If ``tilt`` is not finite or ``weights`` none of the three words.

    References:
        Li, Beirami, Sanjabi, Smith, *Tilted Empirical Risk Minimization*, 2021,
        https://arxiv.org/abs/2007.01162

    Examples:
        >>> aggregator = tilted(tilt=1.0)
    """
    checks.finite("tilt", tilt)
    checks.one_of("weights", weights, ("uniform", "size", "cohort"))

    def aggregate(state, cohort, results, context):
        shares = weights_before(weights, cohort, context)
        losses = context.losses(context.variables, cohort.clients)
        given = jax.nn.softmax(jnp.log(shares) + tilt * losses, where=cohort.answers)
        update = context.weighted_sum(given, results.update)
        return update, state, Aggregation(given, {"received_loss": losses})

    return Aggregator(empty_state, aggregate, sees="numbers")
