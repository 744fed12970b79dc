"""FedHEAL: consistent parts of updates, and weights by their distances."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from fedjax_fair.aggregators.whole_cohort import gather_updates, normalize_weights, write_rows
from fedjax_fair.numerics.sketch import ravel
from fedjax_fair.roles import Aggregation, Aggregator, Number, setting
from fedjax_fair.utils import checks

__all__ = ["FedHEAL"]


class _History(NamedTuple):
    """Statistics of the earlier updates of each client.

    Attributes:
        positive: Share of its responses with a change of at least 0, of each parameter.
        responses: Their number.
        distance: Moving average of the shares of distances.
        total: Sum of these averages over its responses.
    """

    positive: Float[Array, "clients width"]
    responses: Int[Array, " clients"]
    distance: Float[Array, " clients"]
    total: Float[Array, " clients"]


class FedHEAL(Aggregator):
    r"""Drops changes of inconsistent sign, and gives more weight to clients with long updates.

    With :math:`\Delta_k = w - w_k` and the share :math:`H_{kj}` of earlier responses of client
    :math:`k` with :math:`\Delta_{kj} \ge 0`, the change of parameter :math:`j` is consistent if
    :math:`H_{kj} > \tau` for :math:`\Delta_{kj} \ge 0`, and :math:`1 - H_{kj} > \tau` otherwise.
    All are at the first response. With :math:`D_k` the sum of the norms of the arrays of
    :math:`\Delta_k` without inconsistent changes, and :math:`m` participants,

    .. math::

        \delta_k \leftarrow (1 - \beta)\, \delta_k + \beta \frac{D_k}{\sum_j D_j}, \qquad
        a_k \leftarrow a_k + \delta_k, \qquad q_k \propto \tfrac{1}{m} + a_k,

    where :math:`\delta` and :math:`a` are initially 0. Each parameter moves by the mean of its
    consistent changes with weights :math:`q_k`. The method is for clients of different domains.

    The paper's clients all take part; here, sums are over participants, and :math:`H_k` is of the
    client's responses. The shares take the memory of one model for each client, on every device.
    Updates that are not finite do not count. Normalization statistics are averaged by size. Info:
    the ``consistent`` share of the parameters of every participant.

    Args:
        min_consistency: :math:`\tau` < 1; a negative one keeps all changes.
        beta: :math:`\beta`, in ``[0, 1]``; 0 gives all participants of the first round the same
            weight, and keeps it.

    Raises:
        ValueError: If a setting is out of range.

    References:
        Chen, Huang, Ye, *Fair Federated Learning under Domain Skew with Local Consistency and
        Domain Diversity*, 2024, https://arxiv.org/abs/2405.16585

    Examples:
        >>> aggregator = FedHEAL(min_consistency=0.3, beta=0.4)
    """

    min_consistency: Number = setting(checks.below_one, default=0.3)
    beta: Number = setting(checks.fraction, default=0.4)

    def init(self, context):
        size, width = context.num_clients, ravel(context.variables.params).shape[0]
        zeros = jnp.zeros(size)
        return _History(jnp.zeros((size, width)), jnp.zeros(size, jnp.int32), zeros, zeros)

    def aggregate(self, state, cohort, results, context):
        gathered = gather_updates(cohort, results, context)
        old = jax.tree.map(lambda leaf: leaf[cohort.clients], state)
        valid, vectors = gathered.valid, gathered.vectors
        is_positive = vectors <= 0  # Of Delta, which is minus the update.
        consistency = jnp.where(is_positive, old.positive, 1 - old.positive)
        is_first = (old.responses == 0)[:, None]
        is_consistent = (is_first | (consistency > self.min_consistency)) & valid[:, None]
        vectors = jnp.where(is_consistent, vectors, 0)
        _, unravel = ravel_pytree(context.variables.params)
        distances = jax.vmap(lambda vector: _sum_of_norms(unravel(vector)))(vectors)
        distances = jnp.where(jnp.any(distances > 0), distances, 1)
        distance = (1 - self.beta) * old.distance
        distance += self.beta * normalize_weights(valid, distances)
        total = old.total + distance
        weights = normalize_weights(valid, normalize_weights(valid) + total)
        used = weights[:, None] * is_consistent.astype(weights.dtype)
        sums = jnp.sum(used, axis=0)
        mean = jnp.sum(used * vectors, axis=0) / jnp.where(sums > 0, sums, 1)
        count = old.responses.astype(jnp.float32)[:, None]
        positive = (count * old.positive + is_positive.astype(count.dtype)) / (count + 1)
        new = _History(positive, old.responses + 1, distance, total)
        state = write_rows(state, cohort, valid, new)
        info = {"consistent": jnp.mean(is_consistent, axis=1, dtype=jnp.float32)}
        return gathered.from_vector(mean), state, Aggregation(weights, info)


def _sum_of_norms(params):
    """Sums the norms of the arrays of a tree."""
    return sum(jnp.linalg.norm(jnp.ravel(leaf)) for leaf in jax.tree.leaves(params))
