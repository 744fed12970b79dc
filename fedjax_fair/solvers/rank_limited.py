"""Low-rank adapters of another rank on each client, as parts of adapters of the largest rank."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from fedjax_fair.models.lora_variants import adapter_masks, check_lora
from fedjax_fair.roles import Client, LocalResult, Model, Variables, setting
from fedjax_fair.solvers.wrapped_sgd import WrappedSGD
from fedjax_fair.utils import checks

__all__ = [
    "RankLimited",
    "add_truncation",
    "check_model_rank",
    "check_ranks",
    "is_within_rank",
    "rank_of",
    "truncate",
]


def check_ranks(name: str, ranks: Sequence[int]) -> None:
    """Checks a setting of ranks.

    Raises:
        ValueError: If it is no tuple of positive integers.
    """
    is_tuple = isinstance(ranks, tuple) and ranks and all(checks.is_int(r) and r > 0 for r in ranks)
    if not is_tuple:
        raise ValueError(f"{name}={ranks!r}: expected None or positive integers, such as (2, 8).")


class RankLimited(WrappedSGD):
    r"""SGD on the first :math:`r_i` columns of :math:`A` and rows of :math:`B` of adapters.

    The other columns and rows are zeros on the client, which neither receives nor sends them. The
    update leads to these zeros, so that an aggregator sees padded factors.

    Args:
        solver: SGD.
        ranks: Ranks :math:`r_i` of the clients in turn: client i has ``ranks[i % len(ranks)]``. By
            default all have the rank of the model.

    Raises:
        ValueError: If the solver is no `SGD`, or a rank is not positive; in `Round`, without
            adapters of which both factors are trained, if a rank exceeds that of the model, and
            with compression or privacy, which would change zeros.

    References:
        Bai, Chen, Qian, Yao, Li, *Federated Fine-tuning of Large Language Models under
        Heterogeneous Tasks and Client Resources*, 2024, https://arxiv.org/abs/2402.11505

    Examples:
        >>> from fedjax_fair.solvers import SGD
        >>> solver = RankLimited(SGD(0.1, batch_size=10, epochs=1), ranks=(2, 8))
    """

    ranks: Sequence[int] | None = setting(check_ranks, default=None)

    def check_model(self, model):
        check_model_rank("solver: RankLimited", self.ranks, model)

    def is_received(self, variables: Variables, client: Client) -> Variables:
        """Returns the columns and rows that the client has."""
        return is_within_rank(variables, rank_of(self.ranks, variables, client))

    is_sent = is_received

    def solve(self, key, variables, client):
        start = truncate(variables, rank_of(self.ranks, variables, client))
        result = self.solver.solve(key, variables, client, start=start, anchor=start.params)
        return add_truncation(result, start, variables)


def check_model_rank(user: str, ranks: Sequence[int] | None, model: Model) -> None:
    """Raises ``ValueError`` if a model has no adapters of at least these ranks."""
    rank = check_lora(user, model).rank
    if ranks is not None and max(ranks) > rank:
        raise ValueError(
            f"ranks={ranks!r}: expected at most {rank}, the rank of the model; raise rank of "
            "models.lora."
        )


def rank_of(ranks: Sequence[int] | None, variables: Variables, client: Client) -> Int[Array, ""]:
    """Returns the rank of a client, by default that of the model."""
    if ranks is None:
        pair = next(iter(variables.params["adapters"].values()))
        ranks = (pair["b"].shape[0],)
    return jnp.asarray(ranks, jnp.int32)[client.id % len(ranks)]


def is_within_rank(variables: Variables, rank: Int[Array, ""]) -> Variables:
    """Returns masks, which broadcast, of the first columns of A and rows of B, and of all else."""

    def within(pair):
        mask: Bool[Array, " rank"] = jnp.arange(pair["b"].shape[0], dtype=jnp.int32) < rank
        return {"a": mask[None, :], "b": mask[:, None]}

    return adapter_masks(variables, within)


def truncate(variables: Variables, rank: Int[Array, ""]) -> Variables:
    """Replaces columns of A and rows of B beyond a rank by zeros.

    Both are zeros, so that their gradients are zero too, and training does not change them.
    """
    return jax.tree.map(
        lambda mask, leaf: jnp.where(mask, leaf, jnp.zeros_like(leaf)),
        is_within_rank(variables, rank),
        variables,
    )


def add_truncation(result: LocalResult, start: Variables, variables: Variables) -> LocalResult:
    """Makes the update of training from truncated factors one of the global variables."""
    # Where nothing is truncated this adds zero, so that full ranks change no bit.
    update = jax.tree.map(lambda u, s, v: u + (s - v), result.update, start, variables)
    return result._replace(update=update)
