"""Reweighing: weights of examples that make label and group independent."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_fair.aggregators.cells import client_labels
from fedjax_fair.aggregators.mean import scheme_weights
from fedjax_fair.data.sensitive import find_groups
from fedjax_fair.roles import Aggregation, Aggregator

__all__ = ["ReweighingMean", "reweighing"]

Scope = Literal["local", "global"]


class ReweighingMean(Aggregator):
    r"""Federated averaging by sizes, in which clients train on reweighed examples.

    An example of group :math:`a` and label :math:`y` has the weight
    :math:`W(a, y) = n_a n_y / (n\, n_{ay})`, so that label and group are independent in the
    weighted training examples. Weights do not change during training.

    Args:
        scope: ``"local"``: counts of each client, which nobody else learns. ``"global"``: counts of
            all clients together, which they send once, before the first round; they count as no
            communication.
        sensitive_feature: Name of the sensitive feature whose values are the groups; None for the
            combinations of all.

    Raises:
        ValueError: If the scope is none of the options, or (when traced) the data lacks sensitive
            features or has more than one label per example.

    References:
        Kamiran, Calders, *Data Preprocessing Techniques for Classification without Discrimination*,
        2012, https://doi.org/10.1007/s10115-011-0463-8; in federations: Abay, Zhou, Baracaldo,
        Rajamoni, Chuba, Ludwig, *Mitigating Bias in Federated Learning*, 2020,
        https://arxiv.org/abs/2012.02447

    Examples:
        >>> ReweighingMean(scope="global")
        ReweighingMean(scope='global')
    """

    server_view = "vectors"

    scope: Scope = "local"
    sensitive_feature: str | None = None

    def _groups(self, context):
        return find_groups("ReweighingMean", context.sensitive_names, self.sensitive_feature)

    def init(self, context):
        people = client_labels(context, self._groups(context))
        return reweighing(people if self.scope == "local" else jnp.sum(people, axis=0))

    def broadcast(self, state, context):
        strides = {"group_strides": jnp.asarray(self._groups(context).strides)}
        return strides if self.scope == "local" else strides | {"cell_weights": state}

    def prepare(self, state, cohort, context):
        if self.scope == "global":
            return cohort
        weights = {"cell_weights": state[cohort.clients]}
        return cohort._replace(instructions=cohort.instructions | weights)

    def compute_weights(self, state, cohort, context):
        return scheme_weights("num_examples", cohort, context)

    def aggregate(self, state, cohort, results, context):
        weights = self.compute_weights(state, cohort, context)
        return results.weighted_sum, state, Aggregation(weights, {})


def reweighing(people: Float[Array, "*clients groups 2"]) -> Float[Array, "*clients groups 2"]:
    """Computes the weight of each cell; 0 for a cell without people.

    Examples:
        >>> reweighing(jnp.array([[4.0, 1.0], [1.0, 4.0]])).tolist()
        [[0.625, 2.5], [2.5, 0.625]]
    """
    of_group = jnp.sum(people, axis=-1, keepdims=True)
    of_label = jnp.sum(people, axis=-2, keepdims=True)
    total = jnp.sum(people, axis=(-2, -1), keepdims=True)
    expected = of_group * of_label / jnp.maximum(total, 1)
    return jnp.where(people > 0, expected / jnp.maximum(people, 1), 0)
