"""Aggregators that tolerate Byzantine clients.

The updates of the whole cohort are in memory on every device. Updates that have not arrived or are
not finite are ignored; the others are called valid. Krum, median and trimmed mean have no weights,
which participants could choose.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from fedjax_fair.aggregators.mean import WeightingScheme, scheme_weights
from fedjax_fair.aggregators.whole_cohort import gather_updates, normalize_weights, weighted_sum
from fedjax_fair.numerics.distances import pairwise_distances
from fedjax_fair.numerics.sketch import ravel
from fedjax_fair.roles import Aggregation, Aggregator, Number, Variables, setting
from fedjax_fair.utils import checks

__all__ = [
    "CenteredClipping",
    "GeometricMedian",
    "Krum",
    "Median",
    "NormClipping",
    "OrderStatistic",
    "TrimmedMean",
]


class OrderStatistic(Aggregator):
    """Base class of aggregators that apply a statistic to the sorted values of every coordinate.

    The weights are uniform over valid updates.
    """

    @abstractmethod
    def statistic(
        self, ranked: Float[Array, "cohort ..."], count: Int[Array, ""]
    ) -> Float[Array, "..."]:
        """Returns the statistic of the first ``count`` values, ascending along the first axis."""

    def aggregate(self, state, cohort, results, context):
        updates, valid, _ = gather_updates(cohort, results, context)
        weights = normalize_weights(valid)
        return _order_statistic(updates, valid, self.statistic), state, Aggregation(weights, {})


class Median(OrderStatistic):
    """The median of every coordinate.

    It lies between honest values if a minority of the participants is Byzantine.

    References:
        Yin, Chen, Ramchandran, Bartlett, *Byzantine-Robust Distributed Learning: Towards Optimal
        Statistical Rates*, 2018, https://arxiv.org/abs/1803.01498

    Examples:
        >>> aggregator = Median()
    """

    def statistic(self, ranked, count):
        return _median(ranked, count)


class TrimmedMean(OrderStatistic):
    """The mean of every coordinate without its smallest and largest values.

    It lies between honest values if at most ``floor(trim * participants)`` participants are
    Byzantine.

    Args:
        trim: Fraction of values removed at each end, in ``[0, 0.5)``, rounded down; 0 is
            ``Mean()``.

    Raises:
        ValueError: If ``trim`` is out of range.

    References:
        Yin, Chen, Ramchandran, Bartlett, *Byzantine-Robust Distributed Learning: Towards Optimal
        Statistical Rates*, 2018, https://arxiv.org/abs/1803.01498

    Examples:
        >>> aggregator = TrimmedMean(0.2)
    """

    trim: Number = setting(checks.below_half, default=0.1)

    def statistic(self, ranked, count):
        # The offset corrects float32, in which 0.26 * 1950 is less than 507.
        num_cut = jnp.floor(self.trim * count.astype(jnp.float32) + 1e-4).astype(jnp.int32)
        ranks = jnp.arange(ranked.shape[0], dtype=jnp.int32)
        remains = (ranks >= num_cut) & (ranks < count - num_cut)
        remains = remains.reshape(-1, *[1] * (ranked.ndim - 1))
        total = jnp.sum(jnp.where(remains, ranked, 0), axis=0)
        return total / jnp.maximum(count - 2 * num_cut, 1).astype(ranked.dtype)


class Krum(Aggregator):
    r"""The mean of the updates that have the closest neighbors.

    The score of an update is the sum of squared distances to the nearest :math:`n - f - 2` of
    :math:`n` valid updates; those with the smallest scores are averaged. Tolerates :math:`f`
    Byzantine participants if :math:`n \ge 2 f + 3`. Info: the ``score``, infinite if not valid or
    without another valid update.

    Args:
        byzantine: Maximum number of Byzantine participants :math:`f` >= 0.
        selected: Updates to average; more than one is *multi-Krum*.

    Raises:
        ValueError: If a setting is out of range, or (when traced) the cohort is smaller than
            ``2 byzantine + 3``.

    References:
        Blanchard, El Mhamdi, Guerraoui, Stainer, *Machine Learning with Adversaries: Byzantine
        Tolerant Gradient Descent*, 2017, https://arxiv.org/abs/1703.02757

    Examples:
        >>> aggregator = Krum(byzantine=2, selected=3)
    """

    byzantine: int = setting(checks.non_negative_int, default=1)
    _: KW_ONLY
    selected: int = setting(checks.positive_int, default=1)

    def aggregate(self, state, cohort, results, context):
        byzantine, size = self.byzantine, cohort.clients.shape[0]
        if size < 2 * byzantine + 3:
            raise ValueError(
                f"{byzantine=}: expected a cohort of at least {2 * byzantine + 3}, got {size}; "
                "select more clients, or lower byzantine."
            )
        checks.positive_int("selected", self.selected, at_most=size)
        updates, valid, _ = gather_updates(cohort, results, context)
        vectors = jax.vmap(ravel)(updates.params)
        is_pair = valid[:, None] & valid[None, :] & ~jnp.eye(size, dtype=bool)
        squared = jnp.where(is_pair, pairwise_distances(vectors) ** 2, jnp.inf)
        num_neighbors = jnp.sum(valid, dtype=jnp.int32) - byzantine - 2
        is_near = jnp.arange(size, dtype=jnp.int32)[None, :] < jnp.maximum(num_neighbors, 1)
        scores = jnp.sum(jnp.where(is_near, jnp.sort(squared, axis=1), 0), axis=1)
        scores = jnp.where(valid, scores, jnp.inf)
        # A single valid update has no neighbor, and so an infinite score like the invalid ones.
        ranks = jnp.argsort(jnp.lexsort((scores, ~valid)), stable=True)
        weights = normalize_weights((ranks < self.selected) & valid)
        return weighted_sum(updates, weights), state, Aggregation(weights, {"score": scores})


class GeometricMedian(Aggregator):
    """The point with the smallest sum of distances to the updates.

    It stays near the honest updates if Byzantine participants have less than half of the weight.
    Weiszfeld's iterations start from the coordinate-wise median. The weights are from the last
    iteration.

    Args:
        weights: Weights of the distances, as in `Mean`.
        iterations: Number of iterations.

    Raises:
        ValueError: If a setting is out of range.

    References:
        Pillutla, Kakade, Harchaoui, *Robust Aggregation for Federated Learning*, 2022,
        https://arxiv.org/abs/1912.13445

    Examples:
        >>> aggregator = GeometricMedian("num_examples")
    """

    weights: WeightingScheme = "uniform"
    _: KW_ONLY
    iterations: int = setting(checks.positive_int, default=8)

    def aggregate(self, state, cohort, results, context):
        updates, valid, _ = gather_updates(cohort, results, context)
        shares = normalize_weights(valid, scheme_weights(self.weights, cohort, context))

        def weights_at(center):
            distances = _distances(updates, center)
            # A lower bound of a millionth of the median distance avoids division by zero.
            ranked = jnp.sort(jnp.where(valid, distances, jnp.inf))
            typical = _median(ranked, jnp.sum(valid, dtype=jnp.int32))
            inverse = shares / jnp.maximum(distances, 1e-6 * typical + 1e-30)
            return inverse / jnp.maximum(jnp.sum(inverse), 1e-30)

        weights = jax.lax.fori_loop(
            1,
            self.iterations,
            lambda _, weights: weights_at(weighted_sum(updates, weights)),
            weights_at(_order_statistic(updates, valid, _median)),
        )
        return weighted_sum(updates, weights), state, Aggregation(weights, {})


class NormClipping(Aggregator):
    """The mean of norm-clipped updates.

    A Byzantine client moves it by at most its weight times the bound. Info: the ``norm`` of every
    update before clipping.

    Args:
        bound: The clipping norm, > 0.
        weights: As in `Mean`.

    Raises:
        ValueError: If a setting is out of range.

    References:
        Sun, Kairouz, Suresh, McMahan, *Can You Really Backdoor Federated Learning?*, 2019,
        https://arxiv.org/abs/1911.07963

    Examples:
        >>> aggregator = NormClipping(1.0)
    """

    bound: Number = setting(checks.positive, default=1.0)
    weights: WeightingScheme = "uniform"

    def aggregate(self, state, cohort, results, context):
        updates, valid, _ = gather_updates(cohort, results, context)
        weights = normalize_weights(valid, scheme_weights(self.weights, cohort, context))
        origin = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), updates)
        update, norms = _clipped_mean(updates, origin, self.bound, weights)
        return update, state, Aggregation(weights, {"norm": norms})


class CenteredClipping(Aggregator):
    r"""The mean of updates, norm-clipped around the update of the previous round.

    From the previous update :math:`v`, iterates :math:`v \leftarrow v + \sum_k p_k (u_k - v)
    \min(1, \tau / \lVert u_k - v \rVert)`. Info: the ``norm`` :math:`\lVert u_k - v \rVert` of
    every participant in the last iteration.

    Args:
        bound: The clipping norm :math:`\tau`, > 0.
        weights: The shares :math:`p_k`, as in `Mean`.
        iterations: Number of iterations.

    Raises:
        ValueError: If a setting is out of range.

    References:
        Karimireddy, He, Jaggi, *Learning from History for Byzantine Robust Optimization*, 2021,
        https://arxiv.org/abs/2012.10333

    Examples:
        >>> aggregator = CenteredClipping(1.0)
    """

    bound: Number = setting(checks.positive, default=1.0)
    weights: WeightingScheme = "uniform"
    _: KW_ONLY
    iterations: int = setting(checks.positive_int, default=1)

    def init(self, context):
        return jax.tree.map(jnp.zeros_like, context.variables)

    def aggregate(self, state, cohort, results, context):
        updates, valid, _ = gather_updates(cohort, results, context)
        weights = normalize_weights(valid, scheme_weights(self.weights, cohort, context))
        center, norms = state, jnp.zeros_like(weights)
        for _ in range(self.iterations):
            step, norms = _clipped_mean(updates, center, self.bound, weights)
            center = jax.tree.map(jnp.add, center, step)
        # Without a valid update the model stays, and the center is the one of the round before.
        update = jax.tree.map(lambda leaf: jnp.where(jnp.any(valid), leaf, 0), center)
        return update, center, Aggregation(weights, {"norm": norms})


def _order_statistic(
    updates: Variables, valid: Bool[Array, " cohort"], statistic: Callable[..., Array]
) -> Variables:
    count = jnp.sum(valid, dtype=jnp.int32)

    def of_leaf(leaf):
        mask = valid.reshape(-1, *[1] * (leaf.ndim - 1))
        ranked = jnp.sort(jnp.where(mask, leaf, jnp.inf), axis=0)
        return jnp.where(count > 0, statistic(ranked, count), 0)

    return jax.tree.map(of_leaf, updates)


def _median(ranked: Float[Array, "cohort ..."], count: Int[Array, ""]) -> Float[Array, "..."]:
    """Returns the median of the first ``count`` values."""
    low = jnp.take(ranked, jnp.maximum(count - 1, 0) // 2, axis=0)
    return (low + jnp.take(ranked, count // 2, axis=0)) / 2


def _distances(updates: Variables, center: Variables) -> Float[Array, " cohort"]:
    """Returns distances of the parameters, without normalization statistics."""

    def distance(params):
        return optax.tree.norm(jax.tree.map(jnp.subtract, params, center.params))

    return jax.vmap(distance)(updates.params)


def _clipped_mean(
    updates: Variables, center: Variables, bound: Number, weights: Float[Array, " cohort"]
) -> tuple[Variables, Float[Array, " cohort"]]:
    """Returns the weighted mean of clipped steps from the center, and norms before clipping."""
    norms = _distances(updates, center)
    scaled_weights = weights * jnp.minimum(1, bound / jnp.maximum(norms, 1e-30))
    steps = jax.tree.map(lambda leaf, middle: leaf - middle[None], updates, center)
    return weighted_sum(steps, scaled_weights), norms
