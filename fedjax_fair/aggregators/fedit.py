"""FedIT: the mean of each factor of low-rank adapters."""

from __future__ import annotations

from fedjax_fair.aggregators.adapters import AdapterAggregator, aggregation_error, moments
from fedjax_fair.roles import Aggregation

__all__ = ["FedIT"]


class FedIT(AdapterAggregator):
    r"""Averages the two factors of low-rank adapters separately.

    The update is that of `Mean`. The product :math:`\bar A \bar B` of the means is not the mean of
    the products; their difference is the covariance of the factors. Info: ``error``,
    its norm relative to that of :math:`\sum_i p_i A_i B_i`, over all adapters.

    Args:
        weights: The weights :math:`p_i`, as of `Mean`.

    Raises:
        ValueError: If ``weights`` is not a scheme of `Mean`; in `Round`, without adapters of which
            both factors are trained.

    References:
        Zhang, Vahidian, Kuo, Li, Zhang, Yu, Zhou, Chen, *Towards Building the Federated GPT:
        Federated Instruction Tuning*, 2023, https://arxiv.org/abs/2305.05644

    Examples:
        >>> FedIT()
        FedIT()
    """

    def aggregate(self, state, cohort, results, context):
        weights = self.compute_weights(state, cohort, context)
        found = moments(weights, cohort, results, context)
        info = aggregation_error({path: one.covariance for path, one in found.items()}, found)
        return results.weighted_sum, state, Aggregation(weights, info)
