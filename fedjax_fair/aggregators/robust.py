"""Aggregators that a few bad updates cannot lead astray.

All of them need the updates of the whole cohort at once, on every device: memory of ``cohort_size``
models. An update that has not arrived, or is not finite, does not count. Where only a number of
participants is known to be honest, no weight that a participant could choose may count, so median, trimmed
mean and Krum take every participant alike; the others take the weights of `Mean`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from fedjax_fair import checks
from fedjax_fair.aggregators.mean import scheme_weights
from fedjax_fair.aggregators.whole_cohort import gathered, normalized, weighted
from fedjax_fair.base import Aggregation, Aggregator, Number, Variables
from fedjax_fair.numerics.distances import pairwise_distances
from fedjax_fair.numerics.sketch import ravel

__all__ = [
    "CenteredClipping",
    "GeometricMedian",
    "Krum",
    "Median",
    "NormClipping",
    "OrderStatistic",
    "TrimmedMean",
]

Weights = Literal["uniform", "num_examples", "selector"]


class OrderStatistic(Aggregator):
    """A statistic of the sorted values of every coordinate, the interface of `Median`.

    The weights it reports are uniform over the participants that count.
    """

    @abstractmethod
    def statistic(
        self, ranked: Float[Array, "cohort ..."], count: Int[Array, ""]
    ) -> Float[Array, "..."]:
        """Returns it for values that ascend along the first axis, of which ``count`` count."""
        raise NotImplementedError

    def aggregate(self, state, cohort, results, context):
        updates, participants = gathered(cohort, results, context)
        found = _ordered(updates, participants, self.statistic)
        return found, state, Aggregation(normalized(participants), {})


class Median(OrderStatistic):
    """The median of every coordinate.

    While fewer than half of the participants are Byzantine, it lies between the honest values. The weights it
    reports are uniform over the participants that count.

    References:
        Yin, Chen, Ramchandran, Bartlett, *Byzantine-Robust Distributed Learning: Towards Optimal
        Statistical Rates*, 2018, https://arxiv.org/abs/1803.01498

    Examples:
        >>> aggregator = Median()
    """

    def statistic(self, ranked, count):
        return _middle(ranked, count)


class TrimmedMean(OrderStatistic):
    """The mean of every coordinate without its smallest and largest values.

    While at most ``floor(trim * participants)`` participants are Byzantine, it lies between the honest values. The
    weights it reports are uniform over the participants that count.

    Args:
        trim: The part that is cut off at each end, in ``[0, 0.5)``, rounded down to participants. With 0
            it is ``Mean()``.

    Raises:
        ValueError: If ``trim`` is out of range.

    References:
        Yin, Chen, Ramchandran, Bartlett, *Byzantine-Robust Distributed Learning: Towards Optimal
        Statistical Rates*, 2018, https://arxiv.org/abs/1803.01498

    Examples:
        >>> aggregator = TrimmedMean(0.2)
    """

    trim: Number = 0.1

    def __post_init__(self):
        checks.below_half("trim", self.trim)

    def statistic(self, ranked, count):
        # Not quite down: in float32 0.26 times 1,950 is a little less than 507.
        cut = jnp.floor(self.trim * count.astype(jnp.float32) + 1e-4).astype(jnp.int32)
        ranks = jnp.arange(ranked.shape[0], dtype=jnp.int32)
        kept = (ranks >= cut) & (ranks < count - cut)
        kept = kept.reshape(-1, *[1] * (ranked.ndim - 1))
        total = jnp.sum(jnp.where(kept, ranked, 0), axis=0)
        return total / jnp.maximum(count - 2 * cut, 1).astype(ranked.dtype)


class Krum(Aggregator):
    r"""The mean of the updates that have the closest neighbors.

    The score of an update is the sum of squared distances to the nearest :math:`n - f - 2` others
    of the :math:`n` that count; those with the smallest scores are averaged. It tolerates
    :math:`f` Byzantine clients of :math:`n \ge 2 f + 3`. Its weights are uniform over those selected. Info: the
    ``score`` of every participant, infinite for one that does not count.

    Args:
        byzantine: Byzantine clients :math:`f` in a cohort, at most.
        selected: Updates to average; more than one is *multi-Krum*.

    Raises:
        ValueError: If a number is out of range, or (when a round is traced) the cohort smaller than
            ``2 byzantine + 3``.

    References:
        Blanchard, El Mhamdi, Guerraoui, Stainer, *Machine Learning with Adversaries: Byzantine
        Tolerant Gradient Descent*, 2017, https://arxiv.org/abs/1703.02757

    Examples:
        >>> aggregator = Krum(byzantine=2, selected=3)
    """

    byzantine: int = 1
    _: KW_ONLY
    selected: int = 1

    def __post_init__(self):
        checks.non_negative_int("byzantine", self.byzantine)
        checks.positive_int("selected", self.selected)

    def aggregate(self, state, cohort, results, context):
        byzantine, selected = self.byzantine, self.selected
        size = cohort.clients.shape[0]
        if size < 2 * byzantine + 3:
            raise ValueError(
                f"{byzantine=}: expected a cohort of at least {2 * byzantine + 3}, got {size}."
            )
        checks.positive_int("selected", selected, at_most=size)
        updates, participants = gathered(cohort, results, context)
        vectors = jax.vmap(ravel)(updates.params)
        apart = participants[:, None] & participants[None, :] & ~jnp.eye(size, dtype=bool)
        squared = jnp.where(apart, pairwise_distances(vectors) ** 2, jnp.inf)
        neighbors = jnp.sum(participants, dtype=jnp.int32) - byzantine - 2
        near = jnp.arange(size, dtype=jnp.int32)[None, :] < jnp.maximum(neighbors, 1)
        scores = jnp.sum(jnp.where(near, jnp.sort(squared, axis=1), 0), axis=1)
        scores = jnp.where(participants, scores, jnp.inf)
        places = jnp.argsort(jnp.argsort(scores, stable=True), stable=True)
        weights = normalized((places < selected) & participants)
        return weighted(updates, weights), state, Aggregation(weights, {"score": scores})


class GeometricMedian(Aggregator):
    """The point with the smallest sum of distances to the updates.

    While Byzantine clients weigh less than half, it stays near the honest updates. It is approached by
    Weiszfeld's iterations from the median of every coordinate; from the mean, which a Byzantine client moves
    anywhere, they would take as many more as it likes. The weights it reports are those of
    the last iteration.

    Args:
        weights: What a distance counts, as for `Mean`.
        iterations: How many.

    Raises:
        ValueError: If a setting is out of range.

    References:
        Pillutla, Kakade, Harchaoui, *Robust Aggregation for Federated Learning*, 2022,
        https://arxiv.org/abs/1912.13445

    Examples:
        >>> aggregator = GeometricMedian("num_examples")
    """

    weights: Weights = "uniform"
    _: KW_ONLY
    iterations: int = 8

    def __post_init__(self):
        checks.one_of("weights", self.weights, ("uniform", "num_examples", "selector"))
        checks.positive_int("iterations", self.iterations)

    def aggregate(self, state, cohort, results, context):
        updates, participants = gathered(cohort, results, context)
        shares = normalized(participants, scheme_weights(self.weights, cohort, context))

        def weights_at(center):
            distances = _distances(updates, center)
            # Where an update is the median itself, it is not nearer than a millionth of the others.
            ranked = jnp.sort(jnp.where(participants, distances, jnp.inf))
            typical = _middle(ranked, jnp.sum(participants, dtype=jnp.int32))
            pull = shares / jnp.maximum(distances, 1e-6 * typical + 1e-30)
            return pull / jnp.maximum(jnp.sum(pull), 1e-30)

        start = weights_at(_ordered(updates, participants, _middle))
        given = jax.lax.fori_loop(
            1, self.iterations, lambda _, given: weights_at(weighted(updates, given)), start
        )
        return weighted(updates, given), state, Aggregation(given, {})


class NormClipping(Aggregator):
    """The mean of updates that are clipped to a norm.

    A Byzantine client moves the mean by its weight times the bound, at most. Info: the ``norm`` of every
    update before it was clipped.

    Args:
        bound: The norm, > 0.
        weights: As for `Mean`.

    Raises:
        ValueError: If a setting is out of range.

    References:
        Sun, Kairouz, Suresh, McMahan, *Can You Really Backdoor Federated Learning?*, 2019,
        https://arxiv.org/abs/1911.07963

    Examples:
        >>> aggregator = NormClipping(1.0)
    """

    bound: Number = 1.0
    weights: Weights = "uniform"

    def __post_init__(self):
        checks.positive("bound", self.bound)
        checks.one_of("weights", self.weights, ("uniform", "num_examples", "selector"))

    def aggregate(self, state, cohort, results, context):
        updates, participants = gathered(cohort, results, context)
        given = normalized(participants, scheme_weights(self.weights, cohort, context))
        origin = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), updates)
        norms = _distances(updates, origin)
        clipped = _mean_of_clipped(updates, origin, norms, self.bound, given)
        return clipped, state, Aggregation(given, {"norm": norms})


class CenteredClipping(Aggregator):
    r"""The mean of updates that are clipped to a norm around the update of the round before.

    From :math:`v`, what was last added to the model, :math:`v \leftarrow v + \sum_k p_k (u_k - v)
    \min(1, \tau / \lVert u_k - v \rVert)`. Info: the ``norm`` :math:`\lVert u_k - v \rVert` of
    every participant in the last iteration.

    Args:
        bound: The norm :math:`\tau`, > 0.
        weights: The shares :math:`p_k`, as for `Mean`.
        iterations: How often.

    Raises:
        ValueError: If a setting is out of range.

    References:
        Karimireddy, He, Jaggi, *Learning from History for Byzantine Robust Optimization*, 2021,
        https://arxiv.org/abs/2012.10333

    Examples:
        >>> aggregator = CenteredClipping(1.0)
    """

    bound: Number = 1.0
    weights: Weights = "uniform"
    _: KW_ONLY
    iterations: int = 1

    def __post_init__(self):
        checks.positive("bound", self.bound)
        checks.one_of("weights", self.weights, ("uniform", "num_examples", "selector"))
        checks.positive_int("iterations", self.iterations)

    def init(self, context):
        return jax.tree.map(jnp.zeros_like, context.variables)

    def aggregate(self, state, cohort, results, context):
        updates, participants = gathered(cohort, results, context)
        given = normalized(participants, scheme_weights(self.weights, cohort, context))
        center, norms = state, jnp.zeros_like(given)
        for _ in range(self.iterations):
            norms = _distances(updates, center)
            moved = _mean_of_clipped(updates, center, norms, self.bound, given)
            center = jax.tree.map(jnp.add, center, moved)
        return center, center, Aggregation(given, {"norm": norms})


def _ordered(
    updates: Variables, participants: Bool[Array, " cohort"], statistic: Callable[..., Array]
) -> Variables:
    count = jnp.sum(participants, dtype=jnp.int32)

    def of_leaf(leaf):
        mask = participants.reshape(-1, *[1] * (leaf.ndim - 1))
        ranked = jnp.sort(jnp.where(mask, leaf, jnp.inf), axis=0)
        return jnp.where(count > 0, statistic(ranked, count), 0)

    return jax.tree.map(of_leaf, updates)


def _middle(ranked: Float[Array, "cohort ..."], count: Int[Array, ""]) -> Float[Array, "..."]:
    """The median of the first ``count`` values."""
    low = jnp.take(ranked, jnp.maximum(count - 1, 0) // 2, axis=0)
    return (low + jnp.take(ranked, count // 2, axis=0)) / 2


def _distances(updates: Variables, center: Variables) -> Float[Array, " cohort"]:
    """Of the parameters; statistics of normalization are no part of any distance."""

    def apart(own):
        return optax.tree.norm(jax.tree.map(jnp.subtract, own, center.params))

    return jax.vmap(apart)(updates.params)


def _mean_of_clipped(
    updates: Variables,
    center: Variables,
    norms: Float[Array, " cohort"],
    bound: Number,
    weights: Float[Array, " cohort"],
) -> Variables:
    """Weighted mean of the steps from the center to the updates, clipped to the bound."""
    scaled_weights = weights * jnp.minimum(1, bound / jnp.maximum(norms, 1e-30))
    steps = jax.tree.map(lambda own, old: own - old[None], updates, center)
    return weighted(steps, scaled_weights)
