"""AAggFF: mixing weights of clients by online convex optimization."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_fair.aggregators.whole_cohort import normalize_weights
from fedjax_fair.numerics.simplex import minimize_quadratic
from fedjax_fair.roles import Aggregation, Aggregator, Cohort

__all__ = ["AAggFF"]

_CDFS = {
    "weibull": lambda ratio: 1 - jnp.exp(-(ratio**2)),
    "exponential": lambda ratio: 1 - jnp.exp(-ratio),
    "frechet": lambda ratio: jnp.exp(-1 / jnp.maximum(ratio, 1e-6)),
    "normal": lambda ratio: jax.scipy.stats.norm.cdf(ratio - 1),
    "gumbel": lambda ratio: jnp.exp(-jnp.exp(-(ratio - 1))),
    "logistic": lambda ratio: jax.nn.sigmoid(ratio - 1),
}
CDF = Literal["weibull", "exponential", "frechet", "normal", "gumbel", "logistic"]
Regime = Literal["device", "silo"]


class _Newton(NamedTuple):
    """Weights, and the sums of a quadratic bound of the decision losses so far."""

    mixture: Float[Array, " clients"]
    matrix: Float[Array, "clients clients"]
    linear: Float[Array, " clients"]


class _Linear(NamedTuple):
    """Weights, and the sum of the gradients of the decision losses so far."""

    mixture: Float[Array, " clients"]
    gradient: Float[Array, " clients"]


class AAggFF(Aggregator):
    r"""Learns a weight for every client online, from transformed losses.

    With :math:`F_k` the mean training loss of the participants :math:`S` on the received model,

    .. math:: r_k = C\, \text{CDF}\Big(\frac{F_k}{\text{mean}_S F}\Big),

    and the mixture :math:`p` of all :math:`K` clients, initially uniform, takes a step of online
    learning with the decision loss :math:`-\log(1 + \langle p, r \rangle)`. The update is the mean
    with the new :math:`p_k`, divided by their sum over the participants.

    ``"silo"``, in which all clients take part: online Newton steps with :math:`C = 1 / K`,
    :math:`\alpha = 4` and :math:`\beta = K / 4`. With :math:`g_t` the gradient in round :math:`t`,

    .. math:: p^+ = \arg\min_p \sum_t \Big[\langle g_t, p \rangle + \frac{\beta}{2} \langle g_t,
        p - p_t \rangle^2\Big] + \frac{\alpha}{2} \lVert p \rVert^2.

    ``"device"``: follow the regularized leader with :math:`C = |S| / K`. Losses of absent clients
    are the mean :math:`\bar r` of :math:`r` over participants, and those of participants
    :math:`\check r_k = \bar r + (r_k - \bar r) / C`, which is unbiased for given :math:`\bar r`.
    With the sum :math:`G` of the gradients :math:`-\check r / (1 + \bar r)` up to round :math:`t`,

    .. math:: p^+ \propto \exp\Big(-\frac{G \sqrt{\ln K}}{(2 + C) \sqrt{t + 1}}\Big).

    (The gradient has another term, equal for all clients, which does not change :math:`p^+`.)

    Both are the standard formulas; the authors' code omits a term of the Newton step and the
    correction by :math:`\bar r`, and its normal CDF decreases. Which CDF belongs to which data set
    is open. In a silo, a client without response has the mean :math:`r`. Losses that are not
    finite are ignored. Info: the ``received_loss`` and ``response`` :math:`r_k` of every
    participant.

    Args:
        regime: ``"device"`` for cohorts of few clients, ``"silo"`` for cohorts of all clients.
        cdf: The CDF, of the value 0 up to 1 at infinity: ``"weibull"``, ``"exponential"``,
            ``"frechet"``, ``"normal"``, ``"gumbel"`` or ``"logistic"``.

    Raises:
        ValueError: If a setting is none of the options, or (when traced) a cohort of a silo does
            not have as many slots as there are clients.

    References:
        Hahn, Kim, Kim, Lee, *Pursuing Overall Welfare in Federated Learning through Sequential
        Decision Making*, 2024, https://arxiv.org/abs/2405.20821

    Examples:
        >>> aggregator = AAggFF("silo", cdf="normal")
    """

    server_view = "scalars"

    regime: Regime = "device"
    cdf: CDF = "weibull"

    def init(self, context):
        size = context.num_clients
        mixture = jnp.full(size, 1 / size)
        if self.regime == "silo":
            return _Newton(mixture, 4 * jnp.eye(size), jnp.zeros(size))
        return _Linear(mixture, jnp.zeros(size))

    def aggregate(self, state, cohort, results, context):
        losses = context.losses(context.variables, cohort.clients)
        valid = cohort.responded_mask & jnp.isfinite(losses)
        share = 1 / context.num_clients
        if self.regime == "device":
            share = jnp.sum(valid, dtype=jnp.float32) / context.num_clients
        mean = jnp.sum(normalize_weights(valid) * jnp.where(valid, losses, 0))
        ratios = jnp.where(valid, losses, 0) / jnp.where(mean > 0, mean, 1)
        # Without any loss all ratios would be 0: all are equal to their mean.
        responses = share * _CDFS[self.cdf](jnp.where(mean > 0, ratios, 1))
        step = self._newton_step if self.regime == "silo" else self._linear_step
        moved = step(state, cohort, responses, valid, share, context)
        state = jax.tree.map(lambda new, old: jnp.where(jnp.any(valid), new, old), moved, state)
        weights = normalize_weights(cohort.responded_mask, state.mixture[cohort.clients])
        update = context.weighted_sum(weights, results.update)
        info = {"received_loss": losses, "response": responses}
        return update, state, Aggregation(weights, info)

    def _newton_step(self, state, cohort, responses, valid, share, context):
        size = context.num_clients
        if cohort.clients.shape[0] != size:
            raise ValueError(
                f"regime='silo': expected a cohort of all {size} clients, as of selectors.Full, "
                f"got {cohort.clients.shape[0]}; use selectors.Full or regime='device'."
            )
        mean = jnp.sum(normalize_weights(valid) * responses)
        response = _of_all(cohort, valid, responses, jnp.full(size, mean))
        gradient = -response / (1 + jnp.sum(state.mixture * response))
        curvature = size / 4
        outer = gradient[:, None] * gradient[None, :]
        along = curvature * jnp.sum(gradient * state.mixture)
        matrix = state.matrix + curvature * outer
        linear = state.linear + (along - 1) * gradient
        bounds = jnp.zeros(size), jnp.ones(size)
        mixture = minimize_quadratic(matrix, linear, *bounds, state.mixture)
        return _Newton(mixture, matrix, linear)

    def _linear_step(self, state, cohort, responses, valid, share, context):
        size = context.num_clients
        mean = jnp.sum(normalize_weights(valid) * responses)
        corrected = mean + (responses - mean) / jnp.where(share > 0, share, 1)
        estimate = _of_all(cohort, valid, corrected, jnp.full(size, mean))
        gradient = state.gradient - estimate / (1 + mean)
        rounds = context.round.astype(jnp.float32) + 1
        rate = jnp.sqrt(jnp.log(float(size))) / ((2 + share) * jnp.sqrt(rounds + 1))
        return _Linear(jax.nn.softmax(-rate * gradient), gradient)


def _of_all(
    cohort: Cohort,
    valid: Bool[Array, " cohort"],
    values: Float[Array, " cohort"],
    others: Float[Array, " clients"],
) -> Float[Array, " clients"]:
    """Returns values of all clients: given ones for valid participants, and others."""
    ids = jnp.where(valid, cohort.clients, others.shape[0])
    return others.at[ids].set(values, mode="drop")
