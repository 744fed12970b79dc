"""AdaFed: a common descent direction with chosen rates of descent."""

from __future__ import annotations

import jax.numpy as jnp

from fedjax_fair.aggregators.whole_cohort import gather_updates, weighted_sum
from fedjax_fair.numerics.products import product
from fedjax_fair.roles import Aggregation, Aggregator, Number, setting
from fedjax_fair.utils import checks

__all__ = ["AdaFed"]

_CUTOFF = 1e-5
"""Eigenvalues below this fraction of the largest are rounding errors of inner products."""


class AdaFed(Aggregator):
    r"""Steps along the direction in which losses fall at rates that grow with the losses.

    With the rows :math:`\Delta_k = w - w_k` of :math:`G`, and :math:`F_k` the mean training loss of
    a participant on the received model, :math:`w \leftarrow w - d` where

    .. math:: d = u / \lVert u \rVert^2, \qquad u = G^\top (G G^\top)^{-1} \phi, \qquad
        \phi_k = F_k^\gamma.

    Then :math:`\langle d, \Delta_k \rangle = \phi_k \lVert d \rVert^2` for all :math:`k`. This is
    the direction that the paper finds by Gram-Schmidt orthogonalization, but in a form in which no
    denominator vanishes and the order of participants does not matter.

    If updates are linearly dependent, the inverse is a pseudo-inverse, of the matrix of cosines of
    updates: the rates solve a least squares problem. Updates that are zero or not finite are
    ignored. The length :math:`1 / \lVert u \rVert` of the step is unbounded for small losses;
    it is clipped, which the paper does not do. The paper's learning rate of the server is that of
    `WithServerOptimizer`. Normalization statistics are averaged by size.

    The step is a sum of updates with coefficients that may be negative. Weights are their absolute
    values, divided by the sum. Info: the ``coefficient`` and the ``received_loss`` :math:`F_k` of
    every participant, and the ``step_norm``.

    Args:
        gamma: :math:`\gamma` >= 0; 0 gives all losses the same rate.
        max_step: Maximum length of the step, > 0, in multiples of the longest update.

    Raises:
        ValueError: If a setting is out of range.

    References:
        Hamidi, Yang, *AdaFed: Fair Federated Learning via Adaptive Common Descent Direction*, 2024,
        https://arxiv.org/abs/2401.04993

    Examples:
        >>> aggregator = AdaFed(gamma=1.0)
    """

    gamma: Number = setting(checks.non_negative, default=1.0)
    max_step: Number = setting(checks.positive, default=1.0)

    def aggregate(self, state, cohort, results, context):
        gathered = gather_updates(cohort, results, context)
        losses = context.losses(context.variables, cohort.clients)
        vectors = gathered.vectors
        norms = jnp.linalg.norm(vectors, axis=1)
        used = gathered.valid & (norms > 0) & jnp.isfinite(losses)
        inverse_norms = jnp.where(used, 1 / jnp.where(used, norms, 1), 0)
        unit = vectors * inverse_norms[:, None]
        rates = jnp.where(used, jnp.where(used, losses, 1) ** self.gamma, 0) * inverse_norms
        solution = _pseudo_solve(product(unit, unit.T), rates)
        norm = jnp.maximum(jnp.linalg.norm(product(solution, unit)), 1e-30)  # Of u.
        longest = self.max_step * jnp.max(jnp.where(used, norms, 0))
        step_norm = jnp.minimum(1 / norm, longest)
        coefficients = step_norm / norm * solution * inverse_norms
        update = gathered.with_params(weighted_sum(gathered.stacked.params, coefficients))
        size = jnp.sum(jnp.abs(coefficients))
        weights = jnp.abs(coefficients) / jnp.where(size > 0, size, 1)
        weights = jnp.where(size > 0, weights, gathered.shares)
        info = {"coefficient": coefficients, "received_loss": losses, "step_norm": step_norm}
        return update, state, Aggregation(weights, info)


def _pseudo_solve(matrix, values):
    """Multiplies values by the pseudo-inverse of a symmetric matrix."""
    eigenvalues, vectors = jnp.linalg.eigh(matrix)
    is_zero = eigenvalues <= _CUTOFF * eigenvalues[-1]
    inverse = jnp.where(is_zero, 0, 1 / jnp.where(is_zero, 1, eigenvalues))
    return product(vectors, inverse * product(vectors.T, values))
