"""LoRA-FAIR: the mean of factors, of which B is corrected towards the mean of the products."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_fair.aggregators.adapters import (
    AdapterAggregator,
    Moments,
    aggregation_error,
    moments,
)
from fedjax_fair.numerics.products import product
from fedjax_fair.roles import Aggregation, Number, Variables, setting
from fedjax_fair.utils import checks

__all__ = ["LoRAFair"]

Objective = Literal["least_squares", "cosine"]


class LoRAFair(AdapterAggregator):
    r"""Averages the factors of low-rank adapters, and corrects B towards the mean product.

    The mean :math:`\bar B` changes by :math:`\Delta`. With the mean of the products :math:`M =
    \sum_i p_i A_i B_i` and the strength :math:`\lambda`, the objective ``"least_squares"`` is

    .. math:: \min_\Delta \lVert M - \bar A (\bar B + \Delta) \rVert^2
        + \lambda \lVert \Delta \rVert^2,

    which has a closed form. It is that of this package. The objective ``"cosine"``,

    .. math:: \min_\Delta 1 - \cos(M, \bar A (\bar B + \Delta)) + \lambda \lVert \Delta \rVert^2,

    is the paper's, whose term of :math:`\lambda` has no square; gradient descent minimizes it for
    each adapter. It ignores the norm of the product. Info: ``error``, as of `FedIT`,
    after the correction.

    Args:
        weights: The weights :math:`p_i`, as of `Mean`.
        strength: :math:`\lambda` > 0.
        objective: ``"least_squares"`` or ``"cosine"``.
        num_steps: Steps of gradient descent, for ``"cosine"``.
        step_size: Their step size, for ``"cosine"``.

    Raises:
        ValueError: If a setting is out of range; in `Round`, without adapters of which both factors
            are trained.

    References:
        Bian, Wang, Zhang, Xu, *LoRA-FAIR: Federated LoRA Fine-Tuning with Aggregation and
        Initialization Refinement*, 2024, https://arxiv.org/abs/2411.14961; equation 8

    Examples:
        >>> LoRAFair(strength=0.01)
        LoRAFair()
    """

    strength: Number = setting(checks.positive, default=0.01)
    objective: Objective = "least_squares"
    num_steps: int = setting(checks.positive_int, default=1000)
    step_size: Number = setting(checks.positive, default=0.01)

    def aggregate(self, state, cohort, results, context):
        weights = self.compute_weights(state, cohort, context)
        found = moments(weights, cohort, results, context)
        solve = self._least_squares if self.objective == "least_squares" else self._cosine
        mean = results.weighted_sum
        assert mean is not None  # `compute_weights` is defined.
        adapters, errors = {}, {}
        for path, one in found.items():
            change = mean.params["adapters"][path]
            correction = solve(one)
            adapters[path] = {"a": change["a"], "b": change["b"] + correction}
            errors[path] = one.covariance - product(one.a, correction)
        update = Variables(mean.params | {"adapters": adapters}, mean.state)
        return update, state, Aggregation(weights, aggregation_error(errors, found))

    def _least_squares(self, one: Moments) -> Float[Array, "rank out"]:
        gram = product(one.a.T, one.a)
        ridge = gram + self.strength * jnp.eye(len(gram), dtype=gram.dtype)
        target = product(one.a.T, one.covariance)
        return jax.scipy.linalg.solve(ridge, target, assume_a="pos")

    def _cosine(self, one: Moments) -> Float[Array, "rank out"]:
        gram = product(one.a.T, one.a)
        mean = one.mean_product
        projected, size = product(one.a.T, mean), jnp.sqrt(jnp.sum(mean**2))

        def objective(correction):
            b = one.b + correction
            inner = jnp.sum(projected * b)
            square = size**2 * jnp.sum(b * product(gram, b))
            # Of a product of zeros, the cosine and its slope are zero.
            cosine = jnp.where(square > 0, inner / jnp.sqrt(jnp.where(square > 0, square, 1)), 0)
            return 1 - cosine + self.strength * jnp.sum(correction**2)

        def step(_, correction):
            return correction - self.step_size * jax.grad(objective)(correction)

        return jax.lax.fori_loop(0, self.num_steps, step, jnp.zeros_like(one.b))
