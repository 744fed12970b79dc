"""FedMinMax: the highest risk of a sensitive group is minimized."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_fair.aggregators.cells import client_cells, client_labels, info_of_groups
from fedjax_fair.aggregators.mean import scheme_weights
from fedjax_fair.data.sensitive import find_groups
from fedjax_fair.numerics.simplex import project
from fedjax_fair.roles import Aggregation, Aggregator, Number, setting
from fedjax_fair.utils import checks

__all__ = ["FedMinMaxMean"]


class _State(NamedTuple):
    """Mixture of groups, and their shares of the training examples of all clients."""

    mixture: Float[Array, " groups"]
    shares: Float[Array, " groups"]


class FedMinMaxMean(Aggregator):
    r"""Federated averaging with weights of groups that grow with their risk.

    The method solves :math:`\min_\theta \max_\mu \sum_a \mu_a r_a(\theta)` over mixtures
    :math:`\mu` of groups, with the risk :math:`r_a` of group :math:`a`. Clients train on losses
    weighted by :math:`\mu_a / \rho_a`, where :math:`\rho_a` is the share of the group in all
    training examples and the first :math:`\mu`. Updates are averaged by sizes. Then :math:`\mu`
    moves by :math:`\eta_\mu r` and is projected to the simplex, where :math:`r_a` is the mean loss
    of the people of group :math:`a` of all participants at the received model. The risk of a group
    without people is the mean of the others.

    The paper takes one gradient step per round and returns the mean of all models; here the solver
    determines the steps, and the last model is the result. Losses of groups at the received model
    are values of the simulation, which count as no communication: :math:`A` numbers per
    participant. If every client has one group, and full batches, this is AFL over groups.

    Info: ``mixture_of_group_<a>`` after the step, and ``risk_of_group_<a>``.

    Args:
        step_size: :math:`\eta_\mu` >= 0, per nat; 0 is FedAvg.
        sensitive_feature: Name of the sensitive feature whose values are the groups; None for the
            combinations of all.

    Raises:
        ValueError: If the step size is negative, or (when traced) the data lacks sensitive
            features or has more than one label per example.

    References:
        Papadaki, Martinez, Bertran, Sapiro, Rodrigues, *Minimax Demographic Group Fairness in
        Federated Learning*, 2022, https://arxiv.org/abs/2201.08304

    Examples:
        >>> aggregator = FedMinMaxMean(step_size=0.05)
    """

    server_view = "vectors"

    step_size: Number = setting(checks.non_negative, default=0.1)
    sensitive_feature: str | None = None

    def _groups(self, context):
        return find_groups("FedMinMaxMean", context.sensitive_names, self.sensitive_feature)

    def init(self, context):
        people = jnp.sum(client_labels(context, self._groups(context)), axis=(0, 2))
        shares = people / jnp.sum(people)
        return _State(shares, shares)

    def broadcast(self, state, context):
        is_group = state.shares > 0
        weights = jnp.where(is_group, state.mixture / jnp.where(is_group, state.shares, 1), 0)
        return {
            "cell_weights": jnp.stack([weights, weights], axis=1),
            "group_strides": jnp.asarray(self._groups(context).strides),
        }

    def compute_weights(self, state, cohort, context):
        return scheme_weights("num_examples", cohort, context)

    def aggregate(self, state, cohort, results, context):
        groups = self._groups(context)

        def measure(client, _):
            cells = client_cells(context, context.variables, groups, client)
            return jnp.sum(cells.counts, axis=(1, 2)), jnp.sum(cells.losses, axis=1)

        people, losses = (
            jnp.sum(jnp.where(cohort.is_last_response[:, None], leaf, 0), axis=0)
            for leaf in context.map_clients(measure, cohort.clients)
        )
        is_known = people > 0
        risks = jnp.where(is_known, losses / jnp.maximum(people, 1), 0)
        average = jnp.sum(risks) / jnp.maximum(jnp.sum(is_known, dtype=jnp.float32), 1)
        risks = jnp.where(is_known, risks, average)
        moved = state.mixture + self.step_size * risks
        # Groups without any training example have no weight.
        mixture = project(moved, jnp.zeros_like(moved), jnp.where(state.shares > 0, 1.0, 0.0))
        mixture = jnp.where(jnp.all(jnp.isfinite(mixture)), mixture, state.mixture)
        weights = self.compute_weights(state, cohort, context)
        info = info_of_groups("mixture", mixture) | info_of_groups("risk", risks)
        return results.weighted_sum, _State(mixture, state.shares), Aggregation(weights, info)
