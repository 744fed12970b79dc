"""Power-of-choice: the clients with the highest losses of a random pool."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from fedjax_fair.numerics.labels import mean_over_labels
from fedjax_fair.numerics.permutation import permutation_at
from fedjax_fair.numerics.successive import sample_successively
from fedjax_fair.roles import Context, setting
from fedjax_fair.selectors.by_size import available_cumulative_sizes
from fedjax_fair.selectors.uniform import FixedSizeSelector, sample_clients, uniform_cohort
from fedjax_fair.utils import checks

__all__ = ["PowerOfChoice"]


class PowerOfChoice(FixedSizeSelector):
    """Samples a pool in proportion to size, and selects its clients with the highest losses.

    The pool is sampled without replacement, successively in proportion to the sizes of the
    remaining clients. The ranked losses are

    * ``"pow"``: the mean over all examples of the client at the current model;
    * ``"cpow"``: an estimate of it from one minibatch;
    * ``"rpow"``: the mean minibatch loss of the client's last local training, at no cost; infinity
      before the first.

    Ties are ranked in the order of sampling, and NaN lowest. The first cohort is sampled uniformly.
    Cohorts have uniform weights. Info: ``pool_loss``, the mean of the finite ranked losses.
    Differential privacy does not cover a selection by losses.

    Args:
        cohort_size: Clients per round, ``m``.
        pool: Clients sampled before ranking, ``m <= d <= N``; by default ``min(2 m, N)``. With
            ``d = m`` selection is in proportion to size.
        variant: The losses that are ranked.
        loss_examples: Size of the minibatch of ``"cpow"``; smaller clients use all examples.

    Raises:
        ValueError: If an argument is out of range, or (at ``init``) ``pool`` exceeds the number of
            clients.

    References:
        Cho, Wang, Joshi, *Client Selection in Federated Learning: Convergence Analysis and
        Power-of-Choice Selection Strategies*, 2020, https://arxiv.org/abs/2010.01243

    Examples:
        >>> PowerOfChoice(cohort_size=10, pool=20)
        PowerOfChoice(cohort_size=10, pool=20)
    """

    server_view = "scalars"

    pool: int | None = setting(checks.positive_int, default=None)
    _: KW_ONLY
    variant: Literal["pow", "cpow", "rpow"] = "pow"
    loss_examples: int = setting(checks.positive_int, default=64)

    def __post_init__(self):
        checks.positive_int("cohort_size", self.cohort_size, at_most=self.pool or math.inf)

    def init(self, context):
        count = context.num_clients
        largest = "cohort_size" if self.pool is None else "pool"
        checks.positive_int(largest, getattr(self, largest), at_most=count)
        reported = jnp.full(count, jnp.inf, jnp.float32) if self.variant == "rpow" else ()
        return jnp.cumsum(context.sizes), reported

    def select(self, key, state, context):
        cumulative_sizes, reported = state
        key_first, key_pool, key_batch = jax.random.split(key, 3)
        size = self.cohort_size
        uniform = sample_clients(key_first, size, context)
        pool = min(2 * size, context.num_clients) if self.pool is None else self.pool
        available = available_cumulative_sizes(cumulative_sizes, context)
        sampled = sample_successively(key_pool, available, pool)
        losses = self._losses(key_batch, reported, context, sampled)
        utility = jnp.where(jnp.isnan(losses), -jnp.inf, losses)
        if context.available is not None:
            utility = jnp.where(context.available[sampled], utility, -jnp.inf)
        ranked = sampled[jnp.argsort(utility, descending=True)[:size]]
        cohort = uniform_cohort(jnp.where(context.round == 0, uniform, ranked))
        return cohort, state, {"pool_loss": jnp.mean(losses, where=jnp.isfinite(losses))}

    def _losses(self, key, reported, context, sampled):
        if self.variant == "pow":
            return context.losses(context.variables, sampled)
        if self.variant == "rpow":
            return reported[sampled]
        return _minibatch_losses(key, context, sampled, self.loss_examples)

    def observe(self, state, cohort, results, context):
        if self.variant != "rpow":
            return state
        cumulative_sizes, reported = state
        return cumulative_sizes, reported.at[cohort.responder_ids].set(results.loss, mode="drop")


def _minibatch_losses(
    key: Key[Array, ""], context: Context, clients: Int[Array, " pool"], batch_size: int
) -> Float[Array, " pool"]:
    """Returns the mean loss of each client on ``min(batch_size, size)`` of its examples."""
    examples, (params, state) = context.examples, context.variables
    positions = jnp.arange(min(batch_size, examples.order.shape[0]), dtype=jnp.int32)

    def loss(client, _):
        size = context.sizes[client]
        entries = permutation_at(jax.random.fold_in(key, client), positions % size, size)
        indices = examples.order[examples.offsets[client] + entries]
        features = examples.features[indices]
        outputs, _ = context.model.apply(params, state, features, train=False, key=None)
        labels = examples.labels[indices]
        losses = context.model.loss(outputs, labels)
        return mean_over_labels(losses, labels, positions < size)

    return context.map_clients(loss, clients)
