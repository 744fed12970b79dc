"""FedMGDA+: a common descent direction of normalized updates."""

from __future__ import annotations

import jax.numpy as jnp

from fedjax_fair.aggregators.mean import WeightingScheme, scheme_weights
from fedjax_fair.aggregators.whole_cohort import gather_updates, normalize_weights
from fedjax_fair.numerics.products import product
from fedjax_fair.numerics.simplex import minimize_quadratic
from fedjax_fair.roles import Aggregation, Aggregator, Number, setting
from fedjax_fair.utils import checks

__all__ = ["FedMGDA"]

_RESOLUTION = 2.0**-20
"""Accuracy of cosines in float32."""


class FedMGDA(Aggregator):
    r"""Steps along the shortest mean of normalized updates, with weights near given ones.

    With :math:`\bar g_k = \Delta_k / \lVert \Delta_k \rVert` and :math:`\Delta_k = w - w_k`,

    .. math::

        \lambda^* = \arg\min_\lambda \Big\lVert \sum_k \lambda_k \bar g_k \Big\rVert^2
        \quad \text{s.t.} \quad \sum_k \lambda_k = 1,\ \lambda \ge 0,\
        |\lambda_k - \lambda^0_k| \le \epsilon, \qquad
        w \leftarrow w - \eta_g \sum_k \lambda^*_k \bar g_k.

    For :math:`\epsilon \ge 1` the step :math:`d` is a common descent direction, :math:`\langle d,
    \bar g_k \rangle \ge \lVert d \rVert^2` for all :math:`k`. Normalization makes the method robust
    to scaled updates, and the length of the step independent of the length of the updates, so that
    ``step_length`` needs tuning.

    The weights :math:`\lambda^0` are uniform over participants, as in the co-authors' code; by
    number of examples, as in others, with ``weights``. The step length is constant; the paper
    reduces it over the rounds. Updates of zeros, and those that are not finite, are ignored.
    Normalization statistics are averaged by size. Info: the ``step_norm`` :math:`\lVert d \rVert`.

    Args:
        epsilon: Maximum change :math:`\epsilon` >= 0 of a weight; 0 is the mean of normalized
            updates, and 1 bounds no weight.
        step_length: :math:`\eta_g` > 0, the length of the step if all updates are parallel.
        weights: The weights :math:`\lambda^0`, as in `Mean`.

    Raises:
        ValueError: If a setting is out of range.

    References:
        Hu, Shaloudegi, Zhang, Yu, *Federated Learning Meets Multi-objective Optimization*, 2022,
        https://arxiv.org/abs/2006.11489

    Examples:
        >>> aggregator = FedMGDA(epsilon=0.1)
    """

    epsilon: Number = setting(checks.non_negative, default=0.1)
    step_length: Number = setting(checks.positive, default=1.0)
    weights: WeightingScheme = "uniform"

    def aggregate(self, state, cohort, results, context):
        gathered = gather_updates(cohort, results, context)
        vectors = gathered.vectors
        # Scaling by the maximum first keeps squared norms of scaled updates finite.
        largest = jnp.max(jnp.abs(vectors), axis=1)
        used = gathered.valid & (largest > 0)
        vectors = vectors / jnp.where(used, largest, 1)[:, None]
        unit = vectors / jnp.where(used, jnp.linalg.norm(vectors, axis=1), 1)[:, None]
        center = normalize_weights(used, scheme_weights(self.weights, cohort, context))
        lower = jnp.where(used, jnp.maximum(center - self.epsilon, 0), 0)
        upper = jnp.where(used, jnp.minimum(center + self.epsilon, 1), 0)
        # Without rounding errors, parallel updates keep the given weights.
        gram = jnp.round(product(unit, unit.T) / _RESOLUTION) * _RESOLUTION
        weights = minimize_quadratic(gram, jnp.zeros_like(center), lower, upper, center)
        weights = normalize_weights(used, weights)
        direction = product(weights, unit)
        update = gathered.from_vector(self.step_length * direction)
        weights = jnp.where(jnp.any(used), weights, gathered.shares)
        info = {"step_norm": self.step_length * jnp.linalg.norm(direction)}
        return update, state, Aggregation(weights, info)
