"""FedAsync: the global model is mixed with the local model of each client that arrives."""

from __future__ import annotations

import jax.numpy as jnp

from fedjax_fair.aggregators.staleness_factors import Polynomial, StalenessFactor, staleness_of
from fedjax_fair.numerics.trees import scale_tree
from fedjax_fair.roles import Aggregation, Aggregator, Number, setting
from fedjax_fair.utils import checks

__all__ = ["FedAsync"]


class FedAsync(Aggregator):
    r"""Mixes the global model with each local model, less the older its initial model is.

    With the local model :math:`y` of a client whose result has the staleness :math:`\tau`,

    .. math:: x \leftarrow (1 - \alpha s(\tau)) x + \alpha s(\tau) y,

    also for running statistics. Each result updates the model, so that the schedule has a buffer of
    one result. The proximal term of the paper's local objective is ``solvers.SGD(prox=0.005)``.

    Info: the mixing factor :math:`\alpha s(\tau)` as ``scale``.

    Args:
        mixing: :math:`\alpha` in ``[0, 1]``.
        staleness: The factor :math:`s`: `Constant`, `Polynomial` or `Hinge`.

    Raises:
        ValueError: If a setting is out of range; or, in a `Round`, if the buffer has several
            results.

    References:
        Xie, Koyejo, Gupta, *Asynchronous Federated Optimization*, 2019,
        https://arxiv.org/abs/1903.03934

    Examples:
        >>> from fedjax_fair import aggregators
        >>> aggregator = FedAsync(mixing=0.9, staleness=aggregators.Hinge(slope=10.0, delay=4.0))
    """

    server_view = "aggregate"
    needs_schedule = True
    uses_local_models = True

    mixing: Number = setting(checks.fraction, default=0.6)
    staleness: StalenessFactor = setting(
        checks.instance, StalenessFactor, "aggregators.Polynomial(0.5)", default=Polynomial(0.5)
    )

    def check_buffer(self, size):
        if size != 1:
            raise ValueError(
                f"buffer_size={size}: FedAsync updates the model with every result; expected 1, or "
                "use aggregators.FedBuff."
            )

    def compute_weights(self, state, cohort, context):
        return cohort.renormalize_weights(jnp.ones(1))

    def aggregate(self, state, cohort, results, context):
        (factor,) = self.staleness(staleness_of(cohort))
        scale = self.mixing * factor
        weights = self.compute_weights(state, cohort, context)
        return (
            scale_tree(results.weighted_sum, scale),
            state,
            Aggregation(weights, {"scale": scale}),
        )
