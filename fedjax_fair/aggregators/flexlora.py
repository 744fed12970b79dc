"""FlexLoRA: the best low-rank factors of the mean of the products of adapters."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_fair.aggregators.adapters import (
    AdapterAggregator,
    aggregation_error,
    gather_adapters,
    moments,
    stack_factors,
)
from fedjax_fair.numerics.products import product
from fedjax_fair.roles import Aggregation, Variables

__all__ = ["FlexLoRA", "low_rank"]


class FlexLoRA(AdapterAggregator):
    r"""Replaces low-rank adapters by the singular value decomposition of their mean product.

    .. math:: \sum_i p_i A_i B_i = U \Sigma V^\top, \qquad A \leftarrow U_r, \quad
        B \leftarrow \Sigma_r V_r^\top

    with the :math:`r` largest singular values and their vectors. No other product of rank :math:`r`
    is nearer to the mean. The first columns of A and rows of B are the best factors of a lower
    rank, which clients of `solvers.RankLimited` train.

    The singular values are all in B, so that A has entries near :math:`1 / \sqrt{in}` as at the
    start, and directions without weight can be trained: if both factors were zero, so would be
    their gradients. Arrays that are trained as a whole are averaged. Info: ``error``,
    the norm of the part of the mean product that is beyond the rank, as of `FedIT`.

    Args:
        weights: The weights :math:`p_i`, as of `Mean`.

    Raises:
        ValueError: If ``weights`` is not a scheme of `Mean`; in `Round`, without adapters of which
            both factors are trained.

    References:
        Bai, Chen, Qian, Yao, Li, *Federated Fine-tuning of Large Language Models under
        Heterogeneous Tasks and Client Resources*, 2024, https://arxiv.org/abs/2402.11505

    Examples:
        >>> FlexLoRA()
        FlexLoRA()
    """

    def aggregate(self, state, cohort, results, context):
        weights = self.compute_weights(state, cohort, context)
        before = context.variables.params["adapters"]
        updates = gather_adapters(cohort, results, context)
        found = moments(weights, cohort, results, context)
        adapters, errors = {}, {}
        for path, pair in before.items():
            a, b = (pair[name][None] + updates[path][name] for name in ("a", "b"))
            new_a, new_b = low_rank(*stack_factors(weights, a, b), pair["a"].shape[1])
            adapters[path] = {"a": new_a - pair["a"], "b": new_b - pair["b"]}
            errors[path] = found[path].mean_product - product(new_a, new_b)
        mean = results.weighted_sum
        assert mean is not None  # `compute_weights` is defined.
        update = Variables(mean.params | {"adapters": adapters}, mean.state)
        return update, state, Aggregation(weights, aggregation_error(errors, found))


def low_rank(
    left: Float[Array, "in width"], right: Float[Array, "width out"], rank: int
) -> tuple[Float[Array, "in rank"], Float[Array, "rank out"]]:
    """Returns the factors of a rank whose product is nearest to a product.

    The product is not formed: its singular values are those of a matrix ``[width, width]``.

    Args:
        left: The left factor.
        right: The right factor.
        rank: At most the smallest of ``in``, ``width`` and ``out``.

    Returns:
        Orthonormal columns, and rows in descending order of their norms.

    Examples:
        >>> a, b = low_rank(jnp.array([[3.0, 0.0], [0.0, 1.0]]), jnp.eye(2), 1)
        >>> jnp.abs(a @ b).round(4).tolist()
        [[3.0, 0.0], [0.0, 0.0]]
    """
    q_left, r_left = jnp.linalg.qr(left)
    q_right, r_right = jnp.linalg.qr(right.T)
    u, values, vt = jnp.linalg.svd(product(r_left, r_right.T), full_matrices=False)
    columns = product(q_left, u[:, :rank])
    # Signs of singular vectors depend on the platform.
    largest = jnp.take_along_axis(columns, jnp.argmax(jnp.abs(columns), 0)[None], 0)
    sign = jnp.where(largest < 0, -1.0, 1.0).astype(columns.dtype)
    rows = product(values[:rank, None] * vt[:rank], q_right.T)
    return columns * sign, rows * sign.T
