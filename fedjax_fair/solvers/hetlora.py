"""HetLoRA: low-rank adapters of a rank that each client lowers while it trains."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from fedjax_fair.roles import Client, Number, Variables, setting
from fedjax_fair.solvers.rank_limited import (
    add_truncation,
    check_model_rank,
    check_ranks,
    is_within_rank,
    rank_of,
    truncate,
)
from fedjax_fair.solvers.wrapped_sgd import WrappedSGD
from fedjax_fair.utils import checks

__all__ = ["HetLoRA"]


class HetLoRA(WrappedSGD):
    r"""SGD on adapters of a rank of each client, which is pruned; with `aggregators.HetLoRAMean`.

    A client of rank :math:`r_i` trains the first :math:`r_i` columns of the :math:`A` and rows of
    the :math:`B` of the global model, with the penalty

    .. math:: \lambda \sum \lVert A_{:, \gamma r_i:} \rVert \lVert B_{\gamma r_i:, :} \rVert

    over all adapters. If the sum of these products is lower after training than before, the client
    keeps the rank :math:`\lfloor \gamma r_i \rfloor`, at least 1, and sends no more than that. The
    condition of pruning is not in the paper's equations.

    Args:
        solver: SGD.
        ranks: Initial ranks of the clients in turn, as of `RankLimited`.
        strength: :math:`\lambda` >= 0.
        decay: :math:`\gamma` in ``(0, 1]``; 1 keeps the ranks.

    Raises:
        ValueError: As of `RankLimited`, or if a setting is out of range.

    References:
        Cho, Liu, Xu, Fahrezi, Joshi, *Heterogeneous LoRA for Federated Fine-tuning of On-Device
        Foundation Models*, 2024, https://arxiv.org/abs/2401.06432

    Examples:
        >>> from fedjax_fair.solvers import SGD
        >>> hetlora = HetLoRA(SGD(0.1, batch_size=10, epochs=1), ranks=(2, 8))
    """

    ranks: Sequence[int] | None = setting(check_ranks, default=None)
    strength: Number = setting(checks.non_negative, default=0.001)
    decay: Number = setting(checks.positive, default=0.99, at_most=1)

    def check_model(self, model):
        check_model_rank("solver: HetLoRA", self.ranks, model)

    def init(self, key, variables, client):
        return rank_of(self.ranks, variables, client)

    def is_received(self, variables: Variables, client: Client) -> Variables:
        """Returns the columns and rows that the client has."""
        return is_within_rank(variables, client.state)

    is_sent = is_received

    def solve(self, key, variables, client):
        rank = client.state
        pruned = jnp.maximum(jnp.floor(self.decay * rank.astype(jnp.float32)).astype(jnp.int32), 1)
        start = truncate(variables, rank)

        def penalize(gradient_fn, variables, memory):
            batch = gradient_fn(variables)
            slope = jax.grad(_tail)(variables.params, pruned)
            gradient = jax.tree.map(lambda g, s: g + self.strength * s, batch.gradient, slope)
            return batch._replace(gradient=gradient), memory

        result = self.solver.solve(
            key, variables, client, start=start, anchor=start.params, batch_gradient=penalize
        )
        trained = jax.tree.map(jnp.add, start, result.update)
        is_lower = _tail(trained.params, pruned) < _tail(start.params, pruned)
        rank = jnp.where(is_lower, pruned, rank)
        result = add_truncation(result, start, variables)
        update = jax.tree.map(
            lambda mask, new, old: jnp.where(mask, new, -old),
            is_within_rank(variables, rank),
            result.update,
            variables,
        )
        return result._replace(update=update, state=rank)


def _tail(params: PyTree, rank: Int[Array, ""]) -> Float[Array, ""]:
    """Returns the sum of the products of norms beyond a rank."""

    def norm(matrix, mask):
        square = jnp.sum(jnp.where(mask, matrix, 0) ** 2)
        # The derivative of a root is infinite at zero.
        return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)

    total = jnp.zeros(())
    for pair in params["adapters"].values():
        beyond = jnp.arange(pair["b"].shape[0], dtype=jnp.int32) >= rank
        total += norm(pair["a"], beyond[None, :]) * norm(pair["b"], beyond[:, None])
    return total
