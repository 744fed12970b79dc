"""FedFV: the mean of updates without the parts in which they conflict."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_fair.aggregators.whole_cohort import gather_updates, normalize_weights, write_rows
from fedjax_fair.numerics.products import product
from fedjax_fair.numerics.sketch import ravel
from fedjax_fair.roles import Aggregation, Aggregator, Number, setting
from fedjax_fair.utils import checks

__all__ = ["FedFV"]


class _History(NamedTuple):
    """The last update of each client, and its round; -1 before its first response."""

    updates: Float[Array, "clients width"]
    rounds: Int[Array, " clients"]


class FedFV(Aggregator):
    r"""Projects conflicting updates onto each other's normal planes, and averages them.

    With :math:`\Delta_k = w - w_k`, a participant's :math:`v_k = \Delta_k` is projected for each
    other participant :math:`j`, by ascending loss on the received model:

    .. math:: v_k \leftarrow v_k - \frac{\langle v_k, \Delta_j \rangle}{\lVert \Delta_j \rVert^2}
        \Delta_j \quad \text{if} \quad \langle v_k, \Delta_j \rangle < 0.

    The :math:`m - \lceil (m - 1)(1 - \alpha) \rceil` participants of the highest losses (none for
    :math:`\alpha = 0`) keep their updates. The uniform mean :math:`g` of all :math:`v_k` is then
    projected likewise for clients that are absent: for :math:`s = \tau, \ldots, 1` onto the sum of
    the last updates of those that last responded :math:`s` rounds ago and conflict with :math:`g`.
    Last :math:`g` gets the length of the uniform mean of the updates.

    The window of rounds is as in the paper; the authors' code includes the present round, so that
    its :math:`\tau = 1` uses no absent client. Nothing is projected for them in the first
    :math:`\tau` rounds. Their last updates take the memory of one model for each client, on every
    device. Updates that are not finite do not count. Normalization statistics are averaged by size.

    Weights are the non-negative coefficients of the cohort's updates in the step, divided by their
    sum. Info: the ``received_loss`` of every participant, and the number of ``conflicts``.

    Args:
        keep_fraction: Share :math:`\alpha` of participants, those of the highest losses, that keep
            their updates, in ``[0, 1]``.
        history: Number of rounds :math:`\tau` >= 0; 0 disregards absent clients.

    Raises:
        ValueError: If a setting is out of range.

    References:
        Wang, Fan, Qi, Wen, Wang, Yu, *Federated Learning with Fair Averaging*, 2021,
        https://arxiv.org/abs/2104.14937

    Examples:
        >>> aggregator = FedFV(keep_fraction=0.1, history=1)
    """

    keep_fraction: Number = setting(checks.fraction, default=0.1)
    history: int = setting(checks.non_negative_int, default=1)

    def init(self, context):
        if not self.history:
            return ()
        width = ravel(context.variables.params).shape[0]
        rounds = jnp.full(context.num_clients, -1, jnp.int32)
        return _History(jnp.zeros((context.num_clients, width)), rounds)

    def aggregate(self, state, cohort, results, context):
        gathered = gather_updates(cohort, results, context)
        valid, vectors = gathered.valid, gathered.vectors
        losses = context.losses(context.variables, cohort.clients)
        uniform = normalize_weights(valid)
        gram = product(vectors, vectors.T)
        is_kept = _is_among_highest(self.keep_fraction, losses, valid)
        order = jnp.argsort(jnp.where(valid, losses, jnp.inf), stable=True)
        rows, conflicts = _project_updates(gram, order, is_kept)
        coefficients = product(uniform, rows)
        direction = product(coefficients, vectors)
        if self.history:
            present = cohort.is_present(context.num_clients)
            direction = self._project_on_absent(direction, state, present, context.round)
            state = write_rows(state, cohort, valid, _History(vectors, context.round))
        norm = jnp.linalg.norm(direction)
        length = jnp.linalg.norm(product(uniform, vectors))
        update = gathered.from_vector(direction * (length / jnp.where(norm > 0, norm, 1)))
        info = {"received_loss": losses, "conflicts": conflicts}
        return update, state, Aggregation(normalize_weights(valid, coefficients), info)

    def _project_on_absent(
        self,
        direction: Float[Array, " width"],
        history: _History,
        is_present: Bool[Array, " clients"],
        round: Int[Array, ""],
    ) -> Float[Array, " width"]:
        """Removes conflicts with clients that last responded in the window, oldest round first."""

        def project(index, direction):
            last = round - self.history + index
            is_candidate = (history.rounds == last) & ~is_present & (round >= self.history)
            is_conflict = is_candidate & (product(history.updates, direction) < 0)
            total = product(is_conflict.astype(direction.dtype), history.updates)
            squared = jnp.sum(total**2)
            factor = jnp.minimum(product(direction, total), 0) / jnp.where(squared > 0, squared, 1)
            return direction - factor * total

        return jax.lax.fori_loop(0, self.history, project, direction)


def _is_among_highest(
    alpha: Number, losses: Float[Array, " cohort"], valid: Bool[Array, " cohort"]
) -> Bool[Array, " cohort"]:
    """Returns whether participants keep their updates for their high losses."""
    count = jnp.sum(valid, dtype=jnp.int32)
    # The offset corrects float32, in which (m - 1) * (1 - alpha) may exceed an integer.
    others = (count - 1).astype(jnp.float32) * (1 - alpha)
    num_kept = count - jnp.ceil(others - 1e-4).astype(jnp.int32)
    num_kept = jnp.where(alpha == 0, 0, num_kept)
    descending = jnp.argsort(jnp.where(valid, -losses, jnp.inf), stable=True)
    ranks = jnp.argsort(descending, stable=True)
    return ranks < num_kept


def _project_updates(
    gram: Float[Array, "cohort cohort"],
    order: Int[Array, " cohort"],
    is_kept: Bool[Array, " cohort"],
) -> tuple[Float[Array, "cohort cohort"], Int[Array, ""]]:
    """Returns the coefficients of projected updates in the original ones, and counts projections.

    Args:
        gram: Inner products of the updates, zeros for invalid ones.
        order: Participants in the order in which others are projected for them.
        is_kept: Whether updates are not projected.
    """
    size = order.shape[0]
    slots = jnp.arange(size, dtype=jnp.int32)

    def project(index, carry):
        rows, conflicts = carry
        other = order[index]
        products = product(rows, gram[other])
        is_conflict = (products < 0) & ~is_kept & (slots != other)
        squared = gram[other, other]
        factors = jnp.where(is_conflict, products / jnp.where(squared > 0, squared, 1), 0)
        conflicts += jnp.sum(is_conflict, dtype=jnp.int32)
        return rows.at[:, other].add(-factors), conflicts

    return jax.lax.fori_loop(0, size, project, (jnp.eye(size), jnp.zeros((), jnp.int32)))
