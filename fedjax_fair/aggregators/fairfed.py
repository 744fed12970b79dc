"""FairFed: weights that move towards clients whose fairness is near the fairness of all clients."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_fair.aggregators.cells import client_cells
from fedjax_fair.aggregators.mean import scheme_weights
from fedjax_fair.data.sensitive import SensitiveGroups, find_two_groups
from fedjax_fair.roles import Aggregation, Aggregator, Cohort, Context, Number, setting
from fedjax_fair.utils import checks

__all__ = ["FairFed"]

GroupMetric = Literal["auto", "equal_opportunity", "demographic_parity", "accuracy"]


class FairFed(Aggregator):
    r"""Keeps a weight for every client, and reduces it by the distance of its metric from all.

    Weights start at :math:`\bar\omega_k = n_k / \sum_i n_i`. With a metric :math:`F_k` of the
    participants :math:`S`, on training examples at the received model, and the value :math:`F` of
    their pooled examples,

    .. math::

        \Delta_k = |F_k - F|, \qquad \bar\omega_k \leftarrow \bar\omega_k - \beta \big(\Delta_k -
        \tfrac{1}{|S|} \sum_{j \in S} \Delta_j\big).

    The update is the mean with these weights, divided by their sum, or with sizes if all are zero.
    A repeated client counts in every slot. Metrics compare two sensitive groups and are signed:

    - ``"equal_opportunity"``: the true positive rate of group 0 minus the rate of group 1. The
      server sums :math:`m_k`, the client's part of the pooled difference.
    - ``"demographic_parity"``: the same of selection rates.
    - ``"accuracy"``: the accuracy, without groups. This variant, of *Equitable Federated Learning
      with Activation Clustering*, reduces the weight of few clients of low accuracy, and keeps the
      weights after clipping.

    A client without people in a cell of its metric uses its accuracy. Metrics are values of the
    simulation, which count as no communication: two scalars per participant. Info: the
    ``deviation`` :math:`\Delta_k` of every participant; with groups, also the pooled
    ``group_difference``.

    Args:
        beta: Change of weights, which initially sum to 1 over all clients, per unit of the metric,
            >= 0; 0 is ``Mean("num_examples")``.
        metric: The metric; ``"auto"`` is ``"equal_opportunity"`` for data with sensitive features
            and ``"accuracy"`` for other data.
        sensitive_feature: Name of a sensitive feature with two values; None if there is only one.
        clip: Whether weights used are at least 0, as in most implementations. The paper's formula
            has no such limit, and its negative weights can make training diverge.

    Raises:
        ValueError: If a setting is invalid, or (when traced) the metric needs sensitive features
            or two groups that are not there, or one label per example.

    References:
        Ezzeldin, Yan, He, Ferrara, Avestimehr, *FairFed: Enabling Group Fairness in Federated
        Learning*, 2023, https://arxiv.org/abs/2110.00857; the update of weights as in its AAAI
        version.

    Examples:
        >>> aggregator = FairFed(beta=0.5)
    """

    server_view = "scalars"

    beta: Number = setting(checks.non_negative, default=1.0)
    metric: GroupMetric = "auto"
    sensitive_feature: str | None = None
    clip: bool = True

    def init(self, context):
        if self._is_of_groups(context):
            self._groups(context)
        sizes = context.sizes.astype(jnp.float32)
        return sizes / jnp.sum(sizes)

    def aggregate(self, state, cohort, results, context):
        shares = scheme_weights("num_examples", cohort, context)
        accuracy = context.accuracies(context.variables, cohort.clients)
        deviation = jnp.abs(accuracy - jnp.sum(shares * accuracy))
        info = {}
        is_of_groups = self._is_of_groups(context)
        if is_of_groups:
            pooled, of_clients, is_defined = self._group_differences(cohort, context)
            deviation = jnp.where(is_defined, jnp.abs(pooled - of_clients), deviation)
            info = {"group_difference": pooled}
        average = jnp.mean(deviation, where=cohort.responded)
        moved = state[cohort.clients] - self.beta * (deviation - average)
        used = jnp.maximum(moved, 0) if self.clip else moved
        # The paper keeps unclipped weights. Its formula would also permit using weights below 0.
        kept = moved if is_of_groups else used
        used = jnp.where(cohort.responded_mask, used, 0)
        total = jnp.sum(used)
        weights = jnp.where(total > 0, used / jnp.where(total > 0, total, 1), shares)
        update = context.weighted_sum(weights, results.update)
        state = state.at[cohort.responder_ids].set(kept, mode="drop")
        return update, state, Aggregation(weights, info | {"deviation": deviation})

    def _is_of_groups(self, context: Context) -> bool:
        if self.metric == "auto":
            return context.sensitive_names is not None
        return self.metric != "accuracy"

    def _groups(self, context: Context) -> SensitiveGroups:
        names = context.sensitive_names
        return find_two_groups("FairFed", names, self.sensitive_feature, ", or metric='accuracy'")

    def _group_differences(
        self, cohort: Cohort, context: Context
    ) -> tuple[Float[Array, ""], Float[Array, " cohort"], Bool[Array, " cohort"]]:
        """Returns the difference of all participants and of each, and whether it is defined."""
        groups = self._groups(context)

        def parts(client, _):
            counts = client_cells(context, context.variables, groups, client).counts
            if self.metric != "demographic_parity":
                counts = counts[:, 1:]  # People with label 1.
            selected, people = jnp.sum(counts[..., 1], axis=1), jnp.sum(counts, axis=(1, 2))
            return selected[0], selected[1], people[0], people[1]

        measured = context.map_clients(parts, cohort.clients)
        counted = jnp.where(cohort.responded_mask, jnp.stack(measured), 0)
        selected, people = counted[:2], counted[2:]
        total = jnp.sum(people, axis=1)
        # The part of each client in the pooled difference; its sum is exact.
        rates = jnp.sum(selected / jnp.maximum(total, 1)[:, None], axis=1)
        of_clients = selected / jnp.maximum(people, 1)
        is_defined = jnp.all(people > 0, axis=0)
        return rates[0] - rates[1], of_clients[0] - of_clients[1], is_defined
