"""FedPW: weights by losses and agreement, without the small changes of good clients."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_fair.aggregators.mean import scheme_weights
from fedjax_fair.aggregators.whole_cohort import gather_updates, normalize_weights, weighted_sum
from fedjax_fair.numerics.products import product
from fedjax_fair.roles import Aggregation, Aggregator, Number, Variables, setting
from fedjax_fair.utils import checks

__all__ = ["FedPW"]

_MIN_RESCALED = 10
_TOLERANCE = 1e-4
"""Corrects float32, in which a product may fall short of an integer."""


class _Shares(NamedTuple):
    """Moving averages of the clients' shares, their normalized sums, and the first mean."""

    average: Float[Array, " clients"]
    total: Float[Array, " clients"]
    first: Float[Array, ""]


class _State(NamedTuple):
    losses: _Shares
    agreements: _Shares
    rounds: Int[Array, ""]


class FedPW(Aggregator):
    r"""Weights by losses and agreement, and drops small changes, mostly of clients with low losses.

    With the mean minibatch loss :math:`\ell_k` of local training, :math:`\Delta_k = w - w_k`,
    :math:`s_k = \langle \Delta_k, \sum_j \Delta_j \rangle`, shares :math:`\nu_k = \ell_k / \sum_j
    \ell_j`, means :math:`\bar \ell` over clients, and :math:`\bar \ell_0` of the first round,

    .. math::

        b = \beta \bar \ell / \bar \ell_0, \qquad x \leftarrow (1 - b)\, x + b\, \nu, \qquad
        P \leftarrow \frac{P + x}{\sum_k (P_k + x_k)},

    and :math:`Q` likewise of :math:`s`. The weights are :math:`u = \rho P + (1 - \rho) Q` with
    :math:`\rho` the share of the standard deviation of :math:`P` in the sum of both.

    From the second round on, in each array of :math:`D` elements, client :math:`k` drops the
    :math:`\lfloor D \min(1, m \delta \nu_k^{-1} / \sum_j \nu_j^{-1}) \rfloor` smallest changes. In
    the mean of the rest, the :math:`\lfloor D \delta \rfloor` elements in which clients differ the
    least (by the standard deviation after all rows, then all columns are divided by their norms)
    are multiplied by :math:`1 + r`, if the ratio :math:`r` of the mean size of dropped changes to
    the mean size of these elements is below 1.

    All clients take part. The authors' code takes means over every tenth element; here, means are
    of all, and arrays with fewer than 10 elements are not rescaled. :math:`Q` becomes uniform where
    it would be negative or undefined. Updates that are not finite do not count. Normalization
    statistics are averaged by size. Info: the ``drop_rate`` of every participant, and the
    ``loss_share`` :math:`\rho`.

    Args:
        beta: :math:`\beta`, in ``(0, 1]``.
        drop_rate: :math:`\delta`, in ``[0, 1]``; 0 drops and rescales nothing.

    Raises:
        ValueError: If a setting is out of range, or (when traced) the cohort does not have as many
            slots as there are clients.

    References:
        Guan, Huang, Guo, Yuan, Yang, Ye, *Rethinking Fair Federated Learning from Parameter and
        Client View*, 2025, https://github.com/guankaiqi/FedPW

    Examples:
        >>> aggregator = FedPW(drop_rate=0.3)
    """

    beta: Number = setting(checks.positive, default=0.3, at_most=1)
    drop_rate: Number = setting(checks.fraction, default=0.3)

    def init(self, context):
        zeros = jnp.zeros(context.num_clients)
        shares = _Shares(zeros, zeros, jnp.zeros(()))
        return _State(shares, shares, jnp.zeros((), jnp.int32))

    def aggregate(self, state, cohort, results, context):
        gathered = gather_updates(cohort, results, context)
        if cohort.clients.shape[0] != context.num_clients:
            raise ValueError(
                f"FedPW needs a cohort of all {context.num_clients} clients, got "
                f"{cohort.clients.shape[0]}: use selectors.Full."
            )
        valid = gathered.valid & jnp.isfinite(results.loss)
        by_size = normalize_weights(valid, scheme_weights("num_examples", cohort, context))
        vectors = gathered.vectors
        agreements = product(vectors, jnp.sum(jnp.where(valid[:, None], vectors, 0), axis=0))
        is_first = state.rounds == 0
        ids, beta = cohort.clients, self.beta
        losses = _add_shares(state.losses, ids, results.loss, valid, beta, is_first)
        agreed = _add_shares(state.agreements, ids, agreements, valid, beta, is_first)
        is_defined = jnp.all(jnp.isfinite(agreed.total) & (agreed.total >= 0))
        agreed = jax.tree.map(
            lambda new, old: jnp.where(is_defined, new, old),
            agreed,
            agreed._replace(
                average=state.agreements.average,
                total=jnp.full_like(agreed.total, 1 / ids.shape[0]),
            ),
        )
        by_loss = normalize_weights(valid, losses.total[ids])
        by_agreement = normalize_weights(valid, agreed.total[ids])
        spread, other = _deviation(by_loss, valid), _deviation(by_agreement, valid)
        both = spread + other
        share = jnp.where(both > 0, spread / jnp.where(both > 0, both, 1), 0.5)
        weights = share * by_loss + (1 - share) * by_agreement
        inverse = normalize_weights(valid, 1 / jnp.where(valid, results.loss, 1))
        count = jnp.sum(valid, dtype=jnp.float32)
        rates = jnp.where(is_first, 0, jnp.minimum(count * self.drop_rate * inverse, 1))
        rescaled = jnp.where(is_first, 0, self.drop_rate)
        params = jax.tree.map(
            lambda leaf: _combine(leaf, weights, valid, rates, rescaled), gathered.stacked.params
        )
        update = Variables(params, weighted_sum(gathered.stacked.state, by_size))
        any_valid = jnp.any(valid)
        new = _State(losses, agreed, state.rounds + 1)
        state = jax.tree.map(lambda new, old: jnp.where(any_valid, new, old), new, state)
        info = {"drop_rate": rates, "loss_share": share}
        return update, state, Aggregation(weights, info)


def _add_shares(
    state: _Shares,
    ids: Int[Array, " cohort"],
    values: Float[Array, " cohort"],
    valid: Bool[Array, " cohort"],
    beta: Number,
    is_first: Bool[Array, ""],
) -> _Shares:
    """Adds a round to the moving average of shares and to their sum."""
    values = jnp.where(valid, values, 0)
    total = jnp.sum(values)
    mean = total / jnp.maximum(jnp.sum(valid, dtype=values.dtype), 1)
    first = jnp.where(is_first, mean, state.first)
    rate = beta * mean / first
    old = state.average[ids]
    moved = jnp.where(valid, (1 - rate) * old + rate * (values / total), old)
    average = state.average.at[ids].set(moved)
    sums = state.total + average
    return _Shares(average, sums / jnp.sum(sums), first)


def _deviation(
    values: Float[Array, "cohort *elements"], valid: Bool[Array, " cohort"]
) -> Float[Array, "*elements"]:
    """Returns the sample standard deviation over valid rows; 0 for a single one."""
    where = valid.reshape(-1, *[1] * (values.ndim - 1))
    count = jnp.sum(valid, dtype=values.dtype)
    variance = jnp.var(values, axis=0, where=where)
    return jnp.where(count > 1, jnp.sqrt(variance * count / jnp.maximum(count - 1, 1)), 0)


def _combine(
    updates: Float[Array, "cohort ..."],
    weights: Float[Array, " cohort"],
    valid: Bool[Array, " cohort"],
    drop_rates: Float[Array, " cohort"],
    rescaled_rate: Float[Array, ""],
) -> Float[Array, "..."]:
    """Averages one array of all updates without small changes, and rescales common ones."""
    rows = updates.reshape(len(updates), -1)
    width = rows.shape[1]
    sizes = jnp.abs(rows)
    num_dropped = jnp.floor(width * drop_rates + _TOLERANCE)
    is_dropped = _smallest(sizes, num_dropped)
    of_clients = jnp.sum(sizes, axis=1, where=is_dropped) / jnp.maximum(num_dropped, 1)
    has_dropped = valid & (num_dropped > 0)
    dropped = jnp.sum(normalize_weights(has_dropped) * of_clients)
    rows = jnp.where(is_dropped, 0, rows)
    mean = product(weights, rows)
    if width < _MIN_RESCALED:
        return mean.reshape(updates.shape[1:])
    unit = rows / jnp.maximum(jnp.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    columns = jnp.linalg.norm(unit, axis=0)
    spread = _deviation(unit / jnp.where(columns > 0, columns, 1)[None], valid)
    spread = jnp.where(columns > 0, spread, jnp.inf)
    num_rescaled = jnp.floor(width * rescaled_rate + _TOLERANCE)
    is_rescaled = _smallest(spread[None], num_rescaled[None])[0]
    common = jnp.sum(jnp.abs(mean), where=is_rescaled) / jnp.maximum(num_rescaled, 1)
    ratio = dropped / jnp.where(common > 0, common, 1)
    factor = jnp.where((common > 0) & (ratio < 1), 1 + ratio, 1)
    return jnp.where(is_rescaled, factor * mean, mean).reshape(updates.shape[1:])


# A sort of as many numbers takes longer than local training.
def _smallest(
    values: Float[Array, "rows width"], counts: Float[Array, " rows"]
) -> Bool[Array, "rows width"]:
    """Marks the smallest elements of each row, which are at least 0; of equal ones the first.

    Numbers at least 0 have the order of their bits. Bisection finds those of the largest element
    that is marked, bit by bit.
    """
    bits = jax.lax.bitcast_convert_type(values, jnp.int32)
    counts = counts.astype(jnp.int32)

    def num_below(bound):
        return jnp.sum(bits < bound[:, None], axis=1, dtype=jnp.int32)

    def set_bit(step, largest):
        raised = largest | (jnp.int32(1) << (30 - step))
        return jnp.where(num_below(raised) < counts, raised, largest)

    largest = jax.lax.fori_loop(0, 31, set_bit, jnp.zeros_like(counts))[:, None]
    is_equal, is_below = bits == largest, bits < largest
    places = jnp.cumsum(is_equal, axis=1, dtype=jnp.int32)
    num_equal = counts - num_below(largest[:, 0])
    return is_below | (is_equal & (places <= num_equal[:, None]))
