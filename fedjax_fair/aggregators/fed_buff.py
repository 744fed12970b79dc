"""FedBuff: the mean of a buffer of updates, with factors of their staleness."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_fair.aggregators.staleness_factors import Polynomial, StalenessFactor, staleness_of
from fedjax_fair.numerics.trees import scale_tree
from fedjax_fair.roles import Aggregation, Aggregator, Cohort, Context, Number, setting
from fedjax_fair.utils import checks

__all__ = ["FedBuff"]

_Weights = Literal["uniform", "num_examples"]


class FedBuff(Aggregator):
    r"""Adds the mean of the buffered updates, each reduced by a factor of its staleness.

    With the updates :math:`\Delta_k` of a buffer of :math:`K` results, relative to the models that
    the clients were sent, and their staleness :math:`\tau_k`,

    .. math:: x \leftarrow x + \frac{\eta}{K} \sum_k s(\tau_k) \Delta_k.

    The sum is not divided by the sum of the factors, unless ``normalize`` is set as in the authors'
    simulator FLSim. Weights :math:`s(\tau_k) / \sum_j s(\tau_j)` are reported. Running statistics
    are averaged with them, and not scaled. For a server with momentum or Adam, wrap it in
    `WithServerOptimizer`.

    Info: the factor ``scale`` of the mean with these weights, :math:`\frac{\eta}{K} \sum_k
    s(\tau_k)`.

    Args:
        learning_rate: :math:`\eta` > 0.
        staleness: The factor :math:`s`: `Constant`, `Polynomial` or `Hinge`. With `Constant` and
            :math:`\eta = 1` this is `Mean`.
        weights: ``"uniform"``; or ``"num_examples"``, an option of FLSim that multiplies the
            factors by the numbers of examples, and replaces :math:`K` by their sum.
        normalize: Whether the sum is divided by the sum of the factors.

    Raises:
        ValueError: If a setting is out of range.

    References:
        Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, *Federated Learning with Buffered
        Asynchronous Aggregation*, 2022, https://arxiv.org/abs/2106.06639

    Examples:
        >>> from fedjax_fair import aggregators
        >>> aggregator = FedBuff(staleness=aggregators.Polynomial(0.5))
    """

    server_view = "aggregate"
    needs_schedule = True

    learning_rate: Number = setting(checks.positive, default=1.0)
    staleness: StalenessFactor = setting(
        checks.instance, StalenessFactor, "aggregators.Polynomial(0.5)", default=Polynomial(0.5)
    )
    weights: _Weights = "uniform"
    normalize: bool = False

    def compute_weights(self, state, cohort, context):
        scaled = self._shares(cohort, context) * self.staleness(staleness_of(cohort))
        return cohort.renormalize_weights(scaled / jnp.sum(scaled))

    def aggregate(self, state, cohort, results, context):
        scale = jnp.asarray(self.learning_rate, jnp.float32)
        if not self.normalize:
            shares = jnp.where(cohort.responded_mask, self._shares(cohort, context), 0)
            total = jnp.sum(shares * self.staleness(staleness_of(cohort)))
            scale *= total / jnp.maximum(jnp.sum(shares), 1)
        mean = results.weighted_sum
        assert mean is not None  # With `compute_weights`.
        update = mean._replace(params=scale_tree(mean.params, scale))
        weights = self.compute_weights(state, cohort, context)
        return update, state, Aggregation(weights, {"scale": scale})

    def _shares(self, cohort: Cohort, context: Context) -> Float[Array, " cohort"]:
        """Returns shares before staleness, which are not normalized: 1 must remain exactly 1."""
        if self.weights == "uniform":
            return jnp.ones(cohort.clients.shape)
        return context.sizes[cohort.clients].astype(jnp.float32)
