"""FedEx-LoRA: the mean of factors, and the error of their product added to the base."""

from __future__ import annotations

from fedjax_fair.aggregators.adapters import AdapterAggregator, aggregation_error, moments
from fedjax_fair.roles import Aggregation

__all__ = ["FedEx"]


class FedEx(AdapterAggregator):
    r"""Averages the factors of low-rank adapters, and adds the error of their product to the base.

    .. math:: R \leftarrow R + \sum_i p_i (A_i - \bar A)(B_i - \bar B)

    The network with :math:`\bar A`, :math:`\bar B` and :math:`R` is then exactly the mean of the
    clients' networks. All else is as in `FedIT`. Participants also receive the factors of the
    change of :math:`R`, of rank at most :math:`(k - 1) r` for :math:`k` participants, or the change
    itself if it is smaller. What a client misses while it is absent does not count.

    Info: ``error``, as of `FedIT`, before the residual corrects it.

    Args:
        weights: The weights :math:`p_i`, as of `Mean`.

    Raises:
        ValueError: If ``weights`` is not a scheme of `Mean`; in `Round`, if the model is not from
            `models.with_residual`, and with privacy, whose noise does not protect the residual.

    References:
        Singhal, Ponkshe, Vepakomma, *FedEx-LoRA: Exact Aggregation for Federated and Efficient
        Fine-Tuning of Foundation Models*, 2024, https://arxiv.org/abs/2410.09432

    Examples:
        >>> FedEx()
        FedEx()
    """

    def check_model(self, model):
        super().check_model(model)
        if model.bind_state is None:
            raise ValueError(
                "aggregator: FedEx needs a model with residuals; use models.with_residual(model)."
            )

    def aggregate(self, state, cohort, results, context):
        weights = self.compute_weights(state, cohort, context)
        found = moments(weights, cohort, results, context)
        # It is in `Variables.state`, and `Model.bind_state` puts it into the clients' models. As
        # arrays that clients do not change, like personal ones, it would be copied for each client,
        # stored with each personalized model, and counted in privacy and secure sums.
        residual = {path: one.covariance for path, one in found.items()}
        num_bytes = 0
        for one in found.values():
            num_inputs, rank = one.a.shape
            width = (cohort.clients.shape[0] - 1) * rank
            num_outputs = one.b.shape[1]
            size = min(width * (num_inputs + num_outputs), num_inputs * num_outputs)
            num_bytes += size * one.a.dtype.itemsize
        info = aggregation_error(residual, found)
        aggregation = Aggregation(weights, info, {"residual": residual}, num_bytes)
        return results.weighted_sum, state, aggregation
