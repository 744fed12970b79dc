"""FedStaleWeight: weights that grow with staleness, so that fast clients do not count more."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_fair.aggregators.staleness_factors import staleness_of
from fedjax_fair.aggregators.whole_cohort import normalize_or_equal
from fedjax_fair.numerics.trees import scale_tree
from fedjax_fair.roles import Aggregation, Aggregator, Cohort, Number, setting
from fedjax_fair.utils import checks

__all__ = ["FedStaleWeight"]

_WINDOW = 5
"""Number of results of a client over which its staleness is averaged."""
_NONE = -1
"""Staleness in place of a result that has not arrived."""


class FedStaleWeight(Aggregator):
    r"""Weights updates by the mean staleness of their clients.

    With the mean staleness :math:`\bar\tau_k` of the last five results of a client, the present one
    included,

    .. math:: x \leftarrow x + \eta \sum_k w_k \Delta_k, \qquad
        w_k = \frac{\bar\tau_k}{\sum_j \bar\tau_j},

    with sums over the buffer. Results of a client arrive at a rate proportional to its speed, and
    their staleness is inversely proportional to it. If all :math:`\bar\tau` are 0, updates are
    averaged; the authors' code makes no update. When its window is full, that code drops the newest
    entry instead of the oldest.

    Normalization within the buffer undoes a part of the aim, because a buffer without slow clients
    counts as much as one with them. With ``exact`` (an extension of the paper), the weight is
    :math:`g_k / N` without normalization, for :math:`N` clients, where :math:`g_k` is the number of
    rounds since the last one to which the client contributed, or since the start. Up to a round
    :math:`t` in which it contributes, the weights of a client sum to :math:`t / N`, so that all
    clients have equal influence, whatever their speeds and however often they are selected. Several
    results of a client in one buffer share :math:`g_k`. The variance of the update is higher.

    Running statistics are averaged with normalized weights. Info: :math:`\bar\tau_k` or the share
    of :math:`g_k`, as ``influence``; and the factor ``scale`` of the mean with normalized weights.

    Args:
        learning_rate: :math:`\eta` > 0.
        exact: Whether clients have exactly equal influence.

    Raises:
        ValueError: If ``learning_rate`` is not positive.

    References:
        Ma, Tu, Chen, Reddi, *FedStaleWeight: Buffered Asynchronous Federated Learning with Fair
        Aggregation via Staleness Reweighting*, 2024, https://arxiv.org/abs/2406.02877

    Examples:
        >>> aggregator = FedStaleWeight(exact=True)
    """

    server_view = "aggregate"
    needs_schedule = True
    keeps_state = True

    learning_rate: Number = setting(checks.positive, default=1.0)
    exact: bool = False

    def init(self, context):
        if self.exact:
            return jnp.zeros(context.num_clients, jnp.int32)
        return jnp.full((context.num_clients, _WINDOW), _NONE, jnp.int32)

    # Without `compute_weights`: after training it is known which results count.
    def aggregate(self, state, cohort, results, context):
        scale = jnp.asarray(self.learning_rate, jnp.float32)
        if self.exact:
            counted = context.round + 1
            influence = _share_rounds(counted - state[cohort.clients], cohort)
            scale *= jnp.sum(influence) / context.num_clients
            state = state.at[cohort.responder_ids].set(counted, mode="drop")
        else:
            windows, influence = _append_staleness(state[cohort.clients], cohort)
            state = state.at[cohort.responder_ids].set(windows, mode="drop")
        weights = normalize_or_equal(cohort.responded_mask, influence)
        mean = context.weighted_sum(weights, results.update)
        update = mean._replace(params=scale_tree(mean.params, scale))
        return update, state, Aggregation(weights, {"influence": influence, "scale": scale})


# Staleness plus one, as derived for clients that are always in flight, counts too little if results
# arrive at the same moment: with equal speeds and all clients in the buffer it would not be FedAvg.
def _share_rounds(rounds: Int[Array, " cohort"], cohort: Cohort) -> Float[Array, " cohort"]:
    """Divides the rounds of each client by its number of responses; 0 without response."""
    is_same = cohort.clients[:, None] == cohort.clients[None, :]
    num_responses = jnp.sum(is_same & cohort.responded_mask[None, :], axis=1, dtype=jnp.int32)
    return jnp.where(cohort.responded_mask, rounds / jnp.maximum(num_responses, 1), 0)


def _append_staleness(
    windows: Int[Array, "cohort window"], cohort: Cohort
) -> tuple[Int[Array, "cohort window"], Float[Array, " cohort"]]:
    """Adds the staleness of results that arrived to the windows of their clients, newest first.

    Returns:
        The windows after all results, equal in all slots of a client; and the mean after each,
        0 without response.
    """

    def append(windows, arrival):
        slot, client, staleness, responded = arrival
        appended = jnp.roll(windows, 1, axis=1).at[:, 0].set(staleness)
        is_changed = (cohort.clients == client) & responded
        windows = jnp.where(is_changed[:, None], appended, windows)
        own = windows[slot]
        mean = jnp.mean(own.astype(jnp.float32), where=own != _NONE)
        return windows, jnp.where(responded, mean, 0)

    slots = jnp.arange(cohort.clients.shape[0], dtype=jnp.int32)
    arrivals = slots, cohort.clients, staleness_of(cohort), cohort.responded_mask
    return jax.lax.scan(append, windows, arrivals)
