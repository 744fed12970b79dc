"""GIFAIR: local losses that are weighted by the rank of their group."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_fair.aggregators.mean import scheme_weights
from fedjax_fair.aggregators.whole_cohort import trained_means
from fedjax_fair.metrics import client_groups as by_group
from fedjax_fair.roles import Aggregation, Aggregator, Cohort, Context, Number, setting
from fedjax_fair.utils import checks

__all__ = ["GIFAIR"]


class GIFAIR(Aggregator):
    r"""Penalizes differences between the losses of ground-truth groups, inside local training.

    With :math:`L_i` the mean loss of group :math:`i`, descent on

    .. math:: \sum_k p_k F_k + \lambda \sum_{i < j} |L_i - L_j|

    multiplies the loss of client :math:`k` of group :math:`s` by :math:`1 + \lambda r_k / (p_k
    |A_s|)`, where :math:`r_k` is the number of groups of lower loss minus the number of groups of
    higher loss, :math:`p_k = n_k / \sum n` and :math:`A_s` are the group's participants. Sums are
    over the cohort; a repeated client is two participants. The factors average to 1 with the
    weights :math:`p_k`, and are non-negative up to

    .. math:: \lambda_{\max} = \min_k \frac{p_k |A_{s_k}|}{\text{groups present} - 1}.

    A group's loss is the loss of its participants at their trained models, when the group last took
    part; at first, the loss of its clients at the initial model. Losses that are not finite are
    ignored.

    Updates are averaged by size; the paper draws by size and averages uniformly. Info: the
    ``loss_weight`` of every participant.

    Args:
        strength: :math:`\lambda / \lambda_{\max}` in ``[0, 1]``; 0 is ``Mean("num_examples")``.

    Raises:
        ValueError: If ``strength`` is out of range, or (at ``init``) groups are not known.

    References:
        Yue, Nouiehed, Al Kontar, *GIFAIR-FL: A Framework for Group and Individual Fairness in
        Federated Learning*, 2023, https://arxiv.org/abs/2108.02741

    Examples:
        >>> aggregator = GIFAIR(strength=0.5)
    """

    server_view = "scalars"

    strength: Number = setting(checks.fraction, default=0.1)

    def init(self, context):
        if context.groups is None:
            raise ValueError(
                "groups=None: expected a federated dataset with groups, such as of "
                "planted_clusters (--data.partition planted_clusters)."
            )
        losses = context.losses(context.variables)
        return by_group.means(losses, context.groups, context.num_clients)

    def prepare(self, state, cohort, context):
        shares = scheme_weights("num_examples", cohort, context)
        groups, labels = _groups_of(cohort, context)
        levels = jnp.zeros(labels.shape, state.dtype).at[labels].set(state[groups])
        factors = _factors(self.strength, shares, labels, levels)
        return cohort._replace(instructions=cohort.instructions | {"loss_weight": factors})

    def aggregate(self, state, cohort, results, context):
        weights = scheme_weights("num_examples", cohort, context)
        losses = trained_means("loss", cohort, results, context)
        losses = jnp.where(cohort.responded_mask & jnp.isfinite(losses), losses, jnp.nan)
        groups, labels = _groups_of(cohort, context)
        latest = by_group.means(losses, labels, labels.shape[0])[labels]
        state = state.at[groups].set(jnp.where(jnp.isnan(latest), state[groups], latest))
        update = context.weighted_sum(weights, results.update)
        info = {"loss_weight": cohort.instructions["loss_weight"]}
        return update, state, Aggregation(weights, info)


def _groups_of(
    cohort: Cohort, context: Context
) -> tuple[Int[Array, " cohort"], Int[Array, " cohort"]]:
    """Returns the group of each participant, and an equivalent label below the cohort size.

    There may be as many groups as clients; with labels, a round costs no more than its cohort.
    """
    assert context.groups is not None
    groups = context.groups[cohort.clients]
    return groups, jnp.searchsorted(jnp.sort(groups), groups).astype(jnp.int32)


def _factors(
    strength: Number,
    shares: Float[Array, " cohort"],
    groups: Int[Array, " cohort"],
    group_losses: Float[Array, " groups"],
) -> Float[Array, " cohort"]:
    num_participants = jnp.zeros_like(group_losses).at[groups].add(1)
    present = num_participants > 0
    num_groups = jnp.sum(present, dtype=jnp.int32)
    ranked = jnp.sort(jnp.where(present, group_losses, jnp.inf))
    lower = jnp.searchsorted(ranked, group_losses[groups], side="left")
    higher = num_groups - jnp.searchsorted(ranked, group_losses[groups], side="right")
    mass = shares * num_participants[groups]
    largest = jnp.min(mass) / jnp.maximum(num_groups - 1, 1).astype(mass.dtype)
    return 1 + strength * largest * (lower - higher).astype(mass.dtype) / mass
