"""The server of FedNova: mean update per effective step, times the mean number of steps."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp

from fedjax_fair.aggregators.mean import Mean, WeightingScheme
from fedjax_fair.roles import Aggregation, Variables

__all__ = ["FedNovaMean"]


class FedNovaMean(Mean):
    r"""Averages updates per effective step, for `solvers.FedNova`.

    With the normalized updates :math:`d_i` and the effective steps :math:`\|a_i\|_1`,

    .. math:: x \leftarrow x + \tau_{\text{eff}} \sum_i p_i d_i, \qquad
        \tau_{\text{eff}} = \sum_i p_i \|a_i\|_1,

    so that clients with more local steps do not weigh more. With equal numbers of steps it is
    FedAvg or FedProx; the authors' code takes the mean of the local steps for
    :math:`\tau_{\text{eff}}` with a proximal term, which is not FedProx then. Weights are
    renormalized over the responding clients. Running statistics are averaged. Info: the
    ``effective_steps`` of every participant.

    Args:
        weights: The weights :math:`p_i`, as of `Mean`; ``"num_examples"`` is the paper's.

    References:
        Wang, Liu, Liang, Joshi, Poor, *Tackling the Objective Inconsistency Problem in
        Heterogeneous Federated Optimization*, 2020, https://arxiv.org/abs/2007.07481

    Examples:
        >>> FedNovaMean()
        FedNovaMean()
    """

    server_view = "scalars"
    equal_weights: ClassVar[bool] = False  # Of the updates per step.

    weights: WeightingScheme = "num_examples"

    def broadcast(self, state, context):
        return {"effective_steps": ()}  # Without elements: only FedNovaMean has what clients need.

    def aggregate(self, state, cohort, results, context):
        sent = results.sent("effective_steps", "solvers.FedNova")
        weights = self.compute_weights(state, cohort, context)
        steps = context.map_clients(lambda client, steps: steps, cohort.clients, sent)
        mean_steps = jnp.sum(weights * steps)
        mean = results.weighted_sum
        assert mean is not None  # With `compute_weights`.
        params = jax.tree.map(lambda leaf: mean_steps * leaf, mean.params)
        update = Variables(params, mean.state)
        return update, state, Aggregation(weights, {"effective_steps": steps})
