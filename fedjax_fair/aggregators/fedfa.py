"""FedFA: weights by the information of accuracies and of participation counts."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_fair.aggregators.whole_cohort import normalize_or_equal, trained_means
from fedjax_fair.roles import Aggregation, Aggregator, Number, setting
from fedjax_fair.utils import checks

__all__ = ["FedFA"]

_OFFSET = 1e-6  # Keeps logarithms finite.


class FedFA(Aggregator):
    r"""Gives more weight to clients of low accuracy and to those that took part often.

    With the accuracy :math:`a_k` of the trained model on the training examples of a participant,
    and the number :math:`f_k` of its responses including the present one,

    .. math::

        A_k = -\log_2\Big(\frac{a_k}{\sum_j a_j} + 10^{-6}\Big), \quad
        B_k = -\log_2\Big(1 - \frac{f_k}{\sum_j f_j} + 10^{-6}\Big), \quad
        u_k = (1 - \beta) \frac{A_k}{\sum_j A_j} + \beta \frac{B_k}{\sum_j B_j},

    with sums over the participants. Values below 0, by the offset, are 0; of a single participant,
    :math:`u = 1`. The update is the mean with weights :math:`u_k`. The method is combined with
    momentum of the server, `server_optimizers.FedAvgM`, and of the clients' SGD.

    Accuracies are those after local training; one re-implementation takes them before it. Info: the
    ``trained_accuracy`` and the number of ``responses`` of every participant.

    Args:
        beta: Share :math:`\beta` of participation counts in the weights, in ``[0, 1]``.

    Raises:
        ValueError: If ``beta`` is out of range.

    References:
        Huang, Li, Wang, Du, Zhang, *Fairness and Accuracy in Federated Learning*, 2020,
        https://arxiv.org/abs/2012.10069

    Examples:
        >>> from fedjax_fair import aggregators, server_optimizers
        >>> fedfa = aggregators.WithServerOptimizer(
        ...     FedFA(beta=0.5), server_optimizers.FedAvgM(beta1=0.9)
        ... )
    """

    server_view = "scalars"

    beta: Number = setting(checks.fraction, default=0.5)

    def init(self, context):
        return jnp.zeros(context.num_clients, jnp.int32)

    def aggregate(self, state, cohort, results, context):
        accuracy = trained_means("accuracy", cohort, results, context)
        counts = state.at[cohort.responder_ids].add(1, mode="drop")
        responses = counts[cohort.clients]
        valid = cohort.responded_mask
        by_accuracy = _information(normalize_or_equal(valid, accuracy), valid)
        by_count = _information(1 - normalize_or_equal(valid, responses.astype(jnp.float32)), valid)
        weights = (1 - self.beta) * by_accuracy + self.beta * by_count
        update = context.weighted_sum(weights, results.update)
        info = {"trained_accuracy": accuracy, "responses": responses}
        return update, counts, Aggregation(weights, info)


def _information(
    shares: Float[Array, " cohort"], valid: Bool[Array, " cohort"]
) -> Float[Array, " cohort"]:
    """Returns the negative logarithms of shares, divided by their sum."""
    return normalize_or_equal(valid, jnp.maximum(-jnp.log2(shares + _OFFSET), 0))
