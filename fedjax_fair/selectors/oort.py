"""Oort: clients of high loss that finish early, and an exploration of new clients."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_fair.roles import Context, Integer, Number, setting
from fedjax_fair.selectors.uniform import FixedSizeSelector, uniform_cohort
from fedjax_fair.utils import checks

__all__ = ["Oort"]

_CLIPPED_ABOVE = 0.95  # Quantile of the utilities.
_CUTOFF = 0.95  # Fraction of the worst score that is selected.
_UNCERTAINTY = 0.1  # Weight of the rounds since the last participation.


class _State(NamedTuple):
    """What the server knows of each client, and the pacer.

    Attributes:
        utility: The last utility that each client reported.
        duration: Its duration, in seconds with a schedule, otherwise in steps.
        last_round: Its round, from 1; 0 if it has not reported.
        num_selected: How often the client was selected.
        quantile: Quantile of the durations up to which there is no penalty.
        window_utility: Utility that was reported in the current window of the pacer.
        previous_utility: The same of the previous window.
    """

    utility: Float[Array, " clients"]
    duration: Float[Array, " clients"]
    last_round: Int[Array, " clients"]
    num_selected: Int[Array, " clients"]
    quantile: Float[Array, ""]
    window_utility: Float[Array, ""]
    previous_utility: Float[Array, ""]


class Oort(FixedSizeSelector):
    r"""Selects clients whose examples have high losses and that take little time.

    Each response has the utility :math:`q_k = n_k \ell_k` with the mean minibatch loss
    :math:`\ell_k` of local training. The server scores all clients that have responded, in round
    :math:`R` from 1,

    .. math:: s_k = \Big(\tilde q_k + \sqrt{0.1 \ln R / L_k}\Big)
        \min\Big(1, \frac{T}{t_k}\Big)^\alpha,

    where :math:`\tilde q_k` are the utilities, clipped at their 95th percentile and scaled to
    :math:`[0, 1]`, :math:`L_k` is the round of the last response, :math:`t_k` the duration, and
    :math:`T` a quantile of the durations. If all utilities are equal, :math:`\tilde q_k = 0`.

    Of the :math:`m` slots, :math:`\lfloor \epsilon m \rfloor` are for clients that have never
    responded, drawn in proportion to size, with :math:`\epsilon` = ``max(exploration *
    exploration_decay**R, min_exploration)``. The other slots are drawn in proportion to
    :math:`s_k`, without replacement, from all scores of at least 95% of the lowest of the :math:`E`
    highest ones, where :math:`E` is their number. Each kind fills slots that the other leaves free.
    The pacer adds ``pacer_step`` to the quantile after every ``pacer_window`` rounds that had less
    utility in total than the ``pacer_window`` rounds before.

    Readings: The paper's utility has the root mean square of the losses of single examples, which
    clients do not report here. With a schedule, a duration is the time of the client's task, in
    seconds. Otherwise it is the reported number of local steps, so that clients with more examples
    are slower under ``epochs``, and all are equally fast under ``steps``; a client that
    `fedjax_fair.faults.Stragglers` stops early counts as fast.
    :math:`T` is a quantile, as in the authors' code, because it has no natural unit. New clients
    are drawn by size, because their speed is not known. Clients are excluded after
    ``max_selections`` only if it is set, as in the authors' code; the paper uses 10.

    Cohorts have uniform weights. Info: ``explored``, the number of slots for new clients, and
    ``preferred_duration``, :math:`T`. Differential privacy does not cover a selection by losses.

    Args:
        cohort_size: Clients per round, :math:`m`.
        exploration: Initial fraction of slots for new clients, in ``[0, 1]``.
        exploration_decay: Its factor per round, in ``[0, 1]``.
        min_exploration: Its lower bound, in ``[0, 1]``.
        duration_quantile: Initial quantile of the durations that is :math:`T`, in ``[0, 1]``; 1
            disables the penalty.
        duration_penalty: Exponent :math:`\alpha` >= 0.
        pacer_step: Increase of the quantile, >= 0.
        pacer_window: Rounds between decisions of the pacer, >= 1.
        max_selections: Clients that were selected more often are selected only if the available
            clients do not suffice; None for no limit.

    Raises:
        ValueError: If an argument is out of range.

    References:
        Lai, Zhu, Madhyastha, Chowdhury, *Oort: Efficient Federated Learning via Guided Participant
        Selection*, 2021, https://arxiv.org/abs/2010.06081

    Examples:
        >>> Oort(cohort_size=10, min_exploration=0.3)
        Oort(cohort_size=10, min_exploration=0.3)
    """

    server_view = "scalars"

    _: KW_ONLY
    exploration: Number = setting(checks.fraction, default=0.9)
    exploration_decay: Number = setting(checks.fraction, default=0.98)
    min_exploration: Number = setting(checks.fraction, default=0.2)
    duration_quantile: Number = setting(checks.fraction, default=0.3)
    duration_penalty: Number = setting(checks.non_negative, default=2.0)
    pacer_step: Number = setting(checks.non_negative, default=0.05)
    pacer_window: Integer = setting(checks.integer, default=20, at_most=checks.MAX_INT)
    max_selections: int | None = setting(checks.positive_int, default=None, at_most=checks.MAX_INT)

    def init(self, context):
        super().init(context)
        zeros, zero = jnp.zeros(context.num_clients), jnp.zeros(())
        counts = jnp.zeros(context.num_clients, jnp.int32)
        quantile = jnp.asarray(self.duration_quantile, jnp.float32)
        return _State(zeros, zeros, counts, counts, quantile, zero, zero)

    def select(self, key, state, context):
        key_known, key_new, key_rest = jax.random.split(key, 3)
        size, shape = self.cohort_size, state.utility.shape
        available = jnp.ones(shape, bool) if context.available is None else context.available
        eligible = available
        if self.max_selections is not None:
            eligible &= state.num_selected <= self.max_selections
        reported = state.last_round > 0
        known, new = eligible & reported, eligible & ~reported
        scores, preferred = self._scores(state, reported, known, context)

        num_known, num_new = jnp.sum(known, dtype=jnp.int32), jnp.sum(new, dtype=jnp.int32)
        round = (context.round + 1).astype(jnp.float32)
        decayed = self.exploration * self.exploration_decay**round
        exploration = jnp.maximum(decayed, self.min_exploration)
        # Rounding must not take a slot: 0.3 * 10 is less than 3 in some precisions.
        wanted = jnp.floor(exploration * size + 1e-4).astype(jnp.int32)
        explored = jnp.minimum(jnp.maximum(wanted, size - num_known), num_new)
        exploited = jnp.minimum(size - explored, num_known)

        ranked = jnp.sort(jnp.where(known, scores, -jnp.inf), descending=True)
        cutoff = _CUTOFF * ranked[jnp.maximum(exploited, 1) - 1]
        taken = _draws(key_known, scores, known & (scores >= cutoff), exploited)
        sizes = context.sizes.astype(jnp.float32)
        taken |= _draws(key_new, sizes, new, explored)
        # Where these are too few: excluded clients, and then those that are not available.
        tier = jnp.where(taken, 0, jnp.where(available, 1, 2))
        order = jnp.lexsort((jax.random.uniform(key_rest, shape), tier)).astype(jnp.int32)
        clients = order[:size]
        state = state._replace(num_selected=state.num_selected.at[clients].add(1))
        info = {"explored": explored, "preferred_duration": preferred}
        return uniform_cohort(clients), state, info

    def _scores(
        self,
        state: _State,
        reported: Bool[Array, " clients"],
        known: Bool[Array, " clients"],
        context: Context,
    ) -> tuple[Float[Array, " clients"], Float[Array, ""]]:
        """Returns scores of known clients, and the duration up to which there is no penalty."""
        utility = jnp.minimum(state.utility, _quantile(state.utility, known, _CLIPPED_ABOVE))
        lowest = jnp.min(utility, where=known, initial=jnp.inf)
        spread = jnp.max(utility, where=known, initial=-jnp.inf) - lowest
        scaled = jnp.where(spread > 0, (utility - lowest) / jnp.where(spread > 0, spread, 1), 0)
        round = (context.round + 1).astype(jnp.float32)
        last_round = jnp.maximum(state.last_round, 1).astype(jnp.float32)
        scores = scaled + jnp.sqrt(_UNCERTAINTY * jnp.log(round) / last_round)
        preferred = _quantile(state.duration, reported, state.quantile)
        speed = jnp.minimum(1, preferred / jnp.where(state.duration > 0, state.duration, 1))
        return scores * speed**self.duration_penalty, preferred

    def observe(self, state, cohort, results, context):
        losses = jnp.where(jnp.isfinite(results.loss), results.loss, 0)
        utility = context.sizes[cohort.clients].astype(jnp.float32) * losses
        clients, round = cohort.responder_ids, context.round + 1
        timing = cohort.timing
        duration = results.steps if timing is None else timing.milliseconds / 1000
        total = state.window_utility + jnp.sum(utility, where=cohort.responded_mask)
        is_end = round % self.pacer_window == 0
        is_less = is_end & (total < state.previous_utility)
        quantile = jnp.minimum(state.quantile + self.pacer_step, 1.0)
        return state._replace(
            utility=state.utility.at[clients].set(utility, mode="drop"),
            duration=state.duration.at[clients].set(duration.astype(jnp.float32), mode="drop"),
            last_round=state.last_round.at[clients].set(round, mode="drop"),
            quantile=jnp.where(is_less, quantile, state.quantile),
            window_utility=jnp.where(is_end, 0, total),
            previous_utility=jnp.where(is_end, total, state.previous_utility),
        )


def _draws(
    key: Key[Array, ""],
    weights: Float[Array, " clients"],
    mask: Bool[Array, " clients"],
    count: Int[Array, ""],
) -> Bool[Array, " clients"]:
    """Draws distinct clients of the mask, each in proportion to its weight among the remaining."""
    noise = jax.random.gumbel(key, weights.shape)
    # Weights of zero come last, but before clients outside of the mask.
    logs = jnp.log(jnp.maximum(weights, jnp.finfo(weights.dtype).tiny))
    order = jnp.argsort(jnp.where(mask, logs + noise, -jnp.inf), descending=True)
    ranks = jnp.zeros_like(order).at[order].set(jnp.arange(order.size, dtype=order.dtype))
    return mask & (ranks < count)


def _quantile(
    values: Float[Array, " clients"], mask: Bool[Array, " clients"], fraction: Number
) -> Float[Array, ""]:
    """Returns a quantile of masked values, interpolated linearly; 0 if there are none."""
    ranked = jnp.sort(jnp.where(mask, values, jnp.inf))
    count = jnp.maximum(jnp.sum(mask, dtype=jnp.int32), 1)
    place = fraction * (count - 1).astype(values.dtype)
    below = jnp.floor(place)
    first = jnp.minimum(below.astype(jnp.int32), count - 1)
    low, high = ranked[first], ranked[jnp.minimum(first + 1, count - 1)]
    return jnp.where(jnp.any(mask), low + (place - below) * (high - low), 0)
