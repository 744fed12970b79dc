"""The server of IFCA: several models, each with the mean update of the clients that chose it."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedjax_fair.aggregators.mean import WeightingScheme, scheme_weights
from fedjax_fair.numerics.trees import keep_finite
from fedjax_fair.roles import Aggregation, Aggregator, setting
from fedjax_fair.utils import checks

__all__ = ["IFCAMean"]


class IFCAMean(Aggregator):
    r"""Averages the updates of each cluster into its model, for `solvers.IFCA`.

    The first model is the global one of the round, and the aggregator keeps the other
    :math:`k - 1`. All participants receive all models. With the clients :math:`A_j` that responded
    and chose model :math:`j`,

    .. math:: \theta_j \leftarrow \theta_j + \sum_{i \in A_j} p_i \Delta_i \Big/ \sum_{i \in A_j}
        p_i,

    the paper's averaging of models. A model that nobody chose stays as it is. If an update is not
    finite, no model changes.

    The models are initialized independently, with keys of the run. With equal initial models, such
    as zeros, all clients choose the first. Which clusters are found depends on the initial models:
    a model that is the best of no client stays so. The paper restarts; seeds are restarts here.

    Info: the ``cluster`` of every participant, -1 without response.

    Args:
        num_models: Number of models :math:`k`; 1 is FedAvg.
        weights: The weights :math:`p_i`, as of `Mean`; ``"uniform"`` is the paper's.

    Raises:
        ValueError: If ``num_models`` is not positive, or ``weights`` is not a scheme of `Mean`.

    References:
        Ghosh, Chung, Yin, Ramchandran, *An Efficient Framework for Clustered Federated Learning*,
        2020, https://arxiv.org/abs/2006.04088

    Examples:
        >>> IFCAMean(num_models=3)
        IFCAMean(num_models=3)
    """

    server_view = "scalars"

    num_models: int = setting(checks.positive_int, default=2)
    weights: WeightingScheme = "uniform"

    @property
    def compute_weights(self):
        # The weights within one cluster do not depend on the results; updates are then summed
        # during local training, in the order of FedAvg.
        return self._scheme_weights if self.num_models == 1 else None

    def _scheme_weights(self, state, cohort, context):
        return scheme_weights(self.weights, cohort, context)

    def init(self, context):
        # The other models are state of the aggregator, so that the round, checkpoints, faults and
        # traffic need no axis of models. `context.key` exists here only: later randomness of the
        # server would need a key for every round.
        key = context.key
        assert key is not None  # In rounds only.

        def init_model(index):
            # 0 and 1 are the halves of a split.
            key_model = jax.random.fold_in(key, 1 + index)
            return context.model.init(key_model, context.examples.features[:1])

        return tuple(init_model(index) for index in range(1, self.num_models))

    def broadcast(self, state, context):
        return {"models": state}

    def aggregate(self, state, cohort, results, context):
        sent = results.sent("cluster", "solvers.IFCA")
        clusters = context.map_clients(lambda client, cluster: cluster, cohort.clients, sent)
        weights = scheme_weights(self.weights, cohort, context)

        def mean_update(index):
            if self.num_models == 1:
                return results.weighted_sum
            chosen = jnp.where(clusters == index, weights, 0.0)
            total = jnp.sum(chosen)
            return context.weighted_sum(chosen / jnp.where(total > 0, total, 1.0), results.update)

        update, *others = (mean_update(index) for index in range(self.num_models))
        models = jax.tree.map(jnp.add, state, tuple(others))
        models = keep_finite(models, state, update)
        info = {"cluster": jnp.where(cohort.responded_mask, clusters, -1)}
        return update, models, Aggregation(weights, info)
